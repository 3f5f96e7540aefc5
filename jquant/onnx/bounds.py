"""Finds look-up indices that are out of range, for which JAX would silently take the nearest element."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from jquant.errors import ModelError
from jquant.onnx.graph import Node


def check(node: Node, operands: Sequence[Any]) -> None:
    """Called before a node is computed. Traced indices have no values to be checked.

    Raises:
      ModelError: a Gather, GatherElements or GatherND with an index that is out of range.
    """
    if node.kind not in ("Gather", "GatherElements", "GatherND"):
        return
    data, indices = operands
    values = _known(indices)
    if values is None or not values.size:
        return
    if node.kind == "GatherND":
        first = node.attributes.get("batch_dims", 0)
        for axis, each in enumerate(np.moveaxis(values, -1, 0), first):
            _check_axis(each, data.shape, axis)
    else:
        _check_axis(values, data.shape, node.attributes.get("axis", 0) % len(data.shape))


def _known(indices: Any) -> np.ndarray | None:
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
