"""Limits the size of results, so that a broken or malformed model cannot use up all memory."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jquant.errors import ModelError
from jquant.onnx.registry import Converter

LARGEST = 2**31  # bytes of a result, if it is known while tracing, or far larger than what it is computed from
_FAR = 100  # times the operands


def check_known(entry: Converter, operands: Sequence[Any], keywords: Mapping[str, Any]) -> None:
    """Called before NumPy computes a node.

    Raises:
      ModelError: results that would be larger than `LARGEST`.
    """
    if keywords.get("xp") is not np or any(getattr(each, "dtype", None) == np.dtype(object) for each in operands):
        return
    arrays = [each for each in operands if isinstance(each, np.ndarray)]
    if not entry.expands and math.prod(max(1, each.size) for each in arrays) * 16 <= LARGEST:
        return
    places = [i for i, each in enumerate(operands) if isinstance(each, np.ndarray) and not _is_kept(entry, i)]

    def shaped(*abstract: jax.Array) -> Any:
        given = list(operands)
        for place, value in zip(places, abstract, strict=True):
            given[place] = value
        return entry.function(*given, **{**keywords, "xp": jnp})

    shapes = jax.eval_shape(shaped, *(jax.ShapeDtypeStruct(operands[place].shape, np.int32) for place in places))
    check(shapes, ())


def _is_kept(entry: Converter, position: int) -> bool:
    return entry.operand(position) in entry.static | entry.prefers_static


def check(results: Any, operands: Sequence[Any]) -> None:
    """Called while JAX traces a program, before anything is computed.

    Raises:
      ModelError: a result that is larger than `LARGEST`, and than `_FAR` times all operands together.
    """
    for each in jax.tree.leaves(results):
        if hasattr(each, "dtype") and _bytes(each) > max(LARGEST, _FAR * sum(map(_bytes, jax.tree.leaves(list(operands))))):
            raise ModelError(f"a result would be {each.dtype}{list(each.shape)}, which is {_bytes(each):,} bytes")


def _bytes(value: Any) -> int:
    """The bytes of an array; 0 if a size is symbolic."""
    if not hasattr(value, "dtype") or any(map(jax.export.is_symbolic_dim, value.shape)):
        return 0
    return math.prod(value.shape) * np.dtype(value.dtype).itemsize
