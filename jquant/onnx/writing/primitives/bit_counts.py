"""Counts of the bits in integers, by steps that ONNX has: shifts, masks and sums."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax

from jquant.onnx.writing import walk
from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.table import primitive
from jquant.onnx.writing.tensor import Tensor


@primitive("population_count")
def _ones(builder: Builder, _: Any, operands: list[Tensor]) -> Tensor:
    return walk.traced(builder, lambda x: _in_wide_bits(_count, x), *operands)


@primitive("clz")
def _leading_zeros(builder: Builder, _: Any, operands: list[Tensor]) -> Tensor:
    """The bits without those below the highest one."""

    def zeros(x: jax.Array) -> jax.Array:
        width = 8 * x.dtype.itemsize
        return lax.full_like(x, width) - _in_wide_bits(lambda bits: _count(_filled(bits)), x)

    return walk.traced(builder, zeros, *operands)


def _in_wide_bits(function: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    """A function of bits, computed in a type that engines shift: narrow integers are padded with zeros."""
    bits = lax.convert_element_type(x, f"uint{8 * x.dtype.itemsize}")
    return lax.convert_element_type(
        function(lax.convert_element_type(bits, f"uint{max(32, 8 * x.dtype.itemsize)}")), x.dtype
    )


def _count(bits: jax.Array) -> jax.Array:
    """The bits of pairs, fours and bytes are added up beside each other, then the bytes."""
    width = 8 * bits.dtype.itemsize
    for step in (1, 2, 4):
        mask = lax.full_like(bits, sum(((1 << step) - 1) << start for start in range(0, width, 2 * step)))
        bits = (bits & mask) + (_right(bits, step) & mask)
    steps = 8 * 2 ** np.arange(int(np.log2(width // 8)))
    for step in steps.tolist():
        bits = bits + _right(bits, step)
    return bits & lax.full_like(bits, 2 * width - 1)


def _filled(bits: jax.Array) -> jax.Array:
    """All bits below the highest one set."""
    steps = 2 ** np.arange(int(np.log2(8 * bits.dtype.itemsize)))
    for step in steps.tolist():
        bits = bits | _right(bits, step)
    return bits


def _right(bits: jax.Array, step: int) -> jax.Array:
    return lax.shift_right_logical(bits, lax.full_like(bits, step))
