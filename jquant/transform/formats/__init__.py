"""The formats of weights: how a float matrix is quantized, stored and multiplied in each."""
