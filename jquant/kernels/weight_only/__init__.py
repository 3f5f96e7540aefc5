"""Products of floats with weights of few bits, which are converted to floats on their way into the product.

A sum of floats depends on its order, which differs between platforms: the product has an error bound instead of fixed bits.
"""
