"""Limits the size of results, so that a malformed model cannot use up all memory."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jquant.errors import ModelError
from jquant.onnx.registry import Converter

LARGEST = 2**31  # bytes of a result that NumPy computes, or that is more than `_GROWTH` times as large as its operands
_GROWTH = 100


def check_known(entry: Converter, operands: Sequence[Any], keywords: Mapping[str, Any]) -> None:
    """Checks the size of results before NumPy computes them.

    Raises:
      ModelError: results that would be larger than `LARGEST`.
    """
    if keywords.get("xp") is not np or any(getattr(operand, "dtype", None) == np.dtype(object) for operand in operands):
        return
    arrays = [operand for operand in operands if isinstance(operand, np.ndarray)]
    if not entry.expands and math.prod(max(1, array.size) for array in arrays) * 16 <= LARGEST:
        return
    traced = [i for i, operand in enumerate(operands) if isinstance(operand, np.ndarray) and not _stays_numpy(entry, i)]

    def results(*tracers: jax.Array) -> Any:
        arguments = list(operands)
        for position, tracer in zip(traced, tracers, strict=True):
            arguments[position] = tracer
        return entry.function(*arguments, **{**keywords, "xp": jnp})

    shapes = jax.eval_shape(results, *(jax.ShapeDtypeStruct(operands[i].shape, np.int32) for i in traced))
    check(shapes, ())


def _stays_numpy(entry: Converter, position: int) -> bool:
    return entry.operand(position) in entry.static | entry.prefers_static


def check(results: Any, operands: Sequence[Any]) -> None:
    """Checks the size of results while JAX traces a program, before they are computed.

    Raises:
      ModelError: a result that is larger than `LARGEST`, and than `_GROWTH` times all operands together.
    """
    most = max(LARGEST, _GROWTH * sum(map(_bytes, jax.tree.leaves(list(operands)))))
    for result in jax.tree.leaves(results):
        if _bytes(result) > most:
            raise ModelError(f"a result would be {result.dtype}{list(result.shape)}, which is {_bytes(result):,} bytes")


def _bytes(value: Any) -> int:
    """The bytes of an array; 0 for anything else, and if a size is symbolic."""
    if not hasattr(value, "dtype") or any(map(jax.export.is_symbolic_dim, value.shape)):
        return 0
    return math.prod(value.shape) * np.dtype(value.dtype).itemsize
