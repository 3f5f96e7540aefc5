"""The convolution of quantized tensors: on the integer unit where channels are reduced."""
