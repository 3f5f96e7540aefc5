"""Quantized parameters in a file, and back."""
