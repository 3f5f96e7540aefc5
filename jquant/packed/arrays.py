"""Checks and shardings of the arrays that prepacked matrices hold."""

import math
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jquant.errors import DescriptorError, DescriptorTypeError, shown


def require_data_type(name: str, field: str, array: Any, *allowed: np.dtype) -> None:
    """Asserts that a field holds an array of one of the dtypes that `pack_matrix` gave it.

    A cast of all arrays of a model (``jax.tree.map(lambda x: x.astype(jnp.bfloat16), model)``) casts these, too.
    """
    is_array = isinstance(array, jax.Array | np.ndarray) and not isinstance(array, np.ma.MaskedArray)
    dtype = array.dtype if is_array else None
    if dtype not in allowed:
        actual = f"of type {type(array).__name__}" if dtype is None else f"of dtype {dtype}"
        original = " or ".join(dtype.name for dtype in allowed)
        message = f"{name}: {field} of the packed matrix is {actual}; pack_matrix made it {original}"
        raise DescriptorTypeError(f"{message}. (Was it changed by a cast of the model's arrays?)")


def entries_of(sharding: NamedSharding | PartitionSpec, matrix: Any) -> tuple:
    """For each dimension of `matrix`, (..., K, N), the axes of the mesh that split it, or None."""
    method = f"{type(matrix).__name__}.sharding_for"
    if not isinstance(sharding, NamedSharding | PartitionSpec):
        raise DescriptorTypeError(f"{method}: sharding is {shown(sharding)}; it must be a NamedSharding or a PartitionSpec")
    spec = sharding.spec if isinstance(sharding, NamedSharding) else sharding
    if len(spec) > matrix.ndim:
        message = f"{method}: sharding is {spec}, which has {len(spec)} entries"
        raise DescriptorError(f"{message}, more than the {matrix.ndim} dimensions of {matrix}")
    return *spec, *(None,) * (matrix.ndim - len(spec))


def require_whole_blocks(sharding: NamedSharding | PartitionSpec, axes: Any, blocks: int, reason: str) -> None:
    """Asserts that the `axes` of a mesh split K between blocks; `reason`, in the message, says what has how many blocks."""
    if not isinstance(sharding, NamedSharding):  # a PartitionSpec does not know the sizes
        return
    names = (axes,) if isinstance(axes, str) else axes if isinstance(axes, tuple) else ()
    parts = math.prod(sharding.mesh.shape[name] for name in names)
    if blocks % parts:
        raise DescriptorError(f"K is split into {parts} parts over {', '.join(names)}, but {reason}")


def placed(sharding: NamedSharding | PartitionSpec, *entries: Any) -> NamedSharding | PartitionSpec:
    """A sharding of the same type, on the same mesh, with these entries."""
    spec = PartitionSpec(*entries)
    return NamedSharding(sharding.mesh, spec) if isinstance(sharding, NamedSharding) else spec
