"""Measures the element-wise operators beside naive formulas in `jax.numpy` and beside other engines' kernels."""

OURS, NAIVE, MEMORY = "jquant", "naive", "memory alone"  # the contestants, besides the engine, as the results name them
