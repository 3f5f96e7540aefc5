"""Measures networks of other people's packages, quantized by `jquant.transform`, beside their floats."""
