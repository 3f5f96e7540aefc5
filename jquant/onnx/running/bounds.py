"""Checks look-up indices, because JAX silently takes the nearest element for one that is out of range."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from jquant.errors import ModelError
from jquant.onnx.graphs.graph import Node


def check(node: Node, operands: Sequence[Any]) -> None:
    """Checks the indices of a Gather, GatherElements or GatherND before it is computed. Traced indices have no values.

    Raises:
      ModelError: an index that is out of range.
    """
    if node.qualified_operator not in ("Gather", "GatherElements", "GatherND"):
        return
    data, indices = operands
    values = _values(indices)
    if values is None or not values.size:
        return
    if node.qualified_operator == "GatherND":
        first = node.attributes.get("batch_dims", 0)
        for axis, along_axis in enumerate(np.moveaxis(values, -1, 0), first):
            _check_axis(along_axis, data.shape, axis)
    else:
        _check_axis(values, data.shape, node.attributes.get("axis", 0) % len(data.shape))


def _values(indices: Any) -> np.ndarray | None:
    """The indices, if they are known and on this host."""
    if isinstance(indices, np.ndarray):
        return indices
    if not isinstance(indices, jax.Array) or isinstance(indices, Tracer) or not indices.is_fully_addressable:
        return None
    return np.asarray(indices)


def _check_axis(indices: np.ndarray, shape: Sequence[Any], axis: int) -> None:
    size = shape[axis]
    if jax.export.is_symbolic_dim(size) or indices.dtype == object:
        return
    for index in (indices.min(), indices.max()):
        if not -size <= index < size:
            raise ModelError(f"the index {index} is out of range: axis {axis} of the data has {size} elements")
