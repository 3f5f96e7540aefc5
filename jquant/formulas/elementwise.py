"""Sums and products of two quantized tensors, element by element, quantized again."""

import jax
import jax.numpy as jnp
import numpy as np

from jquant.arithmetic import exact
from jquant.formulas import affine
from jquant.quantized_tensor import Quantized, ScaleZeroPoint


def add(a: Quantized, b: Quantized, output: ScaleZeroPoint, dtype: np.dtype) -> jax.Array:
    """``quantize(dequantize(a) + dequantize(b))``, for tensors of one rank."""
    return affine.quantize(affine.dequantize(a) + affine.dequantize(b), output, dtype)


def multiply(a: Quantized, b: Quantized, output: ScaleZeroPoint, dtype: np.dtype) -> jax.Array:
    """``quantize((a - a_zero_point) * (b - b_zero_point) * fl(a_scale * b_scale))``, for tensors of one rank."""
    product = affine.difference(a) * affine.difference(b)
    scale = exact.product(exact.widen(a.scale), exact.widen(b.scale))
    return affine.quantize(product.astype(jnp.float32) * scale, output, dtype)
