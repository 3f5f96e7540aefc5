"""Integers that a graph has in 64 bits, and JAX in 32."""

import dataclasses

import numpy as np

from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.steps import cast
from jquant.onnx.writing.tensor import Tensor


def narrowed(builder: Builder, value: Tensor, dtype: np.dtype) -> Tensor:
    """A value in the type that it has in JAX, for what computes with it as JAX does; `in_full` gives the original."""
    if value.dtype == dtype:
        return value
    return _standing_for(builder, cast(builder, value, dtype), value)


def widened(builder: Builder, value: Tensor, dtype: np.dtype) -> Tensor:
    """A value of which a file says that it has this type."""
    if in_full(builder, value).dtype == dtype:
        return value
    return _standing_for(builder, dataclasses.replace(value), cast(builder, value, dtype))


def in_full(builder: Builder, value: Tensor) -> Tensor:
    """A value in the type that the graph has it in."""
    return builder.once(("in full", value), lambda: value)


def _standing_for(builder: Builder, value: Tensor, wide: Tensor) -> Tensor:
    """`value`, whose original is noted, unless one has been."""
    builder.once(("in full", value), lambda: wide)
    return value
