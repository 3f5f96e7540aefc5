"""The convolution of quantized tensors: on the integer unit, wherever channels are reduced."""
