"""The values of a graph while a program is traced.

A NumPy array is static: known while tracing, in ONNX's types, including 64-bit integers. The sizes in shapes are static. If
`jax.export` makes sizes symbolic, they are in an array of Python objects. Every other tensor is a JAX array. A sequence is a
list of arrays of either kind, and None is an operand that is left out.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jquant.errors import ModelError


def is_static(value: Any) -> bool:
    """Whether all of `value` is known while tracing."""
    if isinstance(value, list):
        return all(map(is_static, value))
    return value is None or isinstance(value, np.ndarray)


def jax_dtype(dtype: np.dtype, name: str) -> np.dtype:
    """The dtype of JAX arrays for a dtype of ONNX: 64-bit integers become 32-bit, unless JAX is in its 64-bit mode.

    Raises:
      ModelError: float64 outside of that mode, strings, 128-bit complex numbers.
    """
    dtype = np.dtype(dtype)
    if dtype.kind in "OUS":
        raise ModelError(f"{name} holds strings, for which JAX has no arrays")
    canonical = jax.dtypes.canonicalize_dtype(dtype)
    if canonical != dtype and dtype.kind not in "iu":
        raise ModelError(f"{name} is {dtype}, which JAX computes only in its 64-bit mode (jax_enable_x64)")
    return canonical


def is_narrowed(dtype: np.dtype) -> bool:
    """Whether JAX computes integers of this dtype in a narrower one."""
    return np.dtype(dtype).kind in "iu" and jax.dtypes.canonicalize_dtype(dtype) != dtype


def to_jax(value: Any, name: str) -> Any:
    """`value` as a JAX array, or as a list of them.

    Raises:
      ModelError: an integer that does not fit the dtype, and as `jax_dtype` does.
    """
    if isinstance(value, list):
        return [to_jax(element, name) for element in value]
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype == object:  # sizes, some of them symbolic
        return jnp.stack([jnp.asarray(size, jnp.int32) for size in value.flat]).reshape(value.shape)
    return jnp.asarray(fitted(value, jax_dtype(value.dtype, name), name))


def as_parameter(value: Any, name: str) -> Any:
    """An array of a file as a JAX array, outside of programs.

    On a CPU it may be the same memory, so nobody may write to it.

    Raises:
      ModelError: as `to_jax` does.
    """
    if not isinstance(value, np.ndarray) or value.dtype == object:
        return to_jax(value, name)
    return jax.device_put(fitted(value, jax_dtype(value.dtype, name), name))


def fitted(value: np.ndarray, dtype: np.dtype, name: str) -> np.ndarray:
    """`value` in another integer dtype, in which every element must fit."""
    if value.dtype == dtype:
        return value
    if value.size and value.dtype.kind in "iu":
        limits = np.iinfo(dtype)
        for extreme in (int(value.min()), int(value.max())):
            if not limits.min <= extreme <= limits.max:
                raise ModelError(f"{name} holds {extreme}, which {dtype} cannot hold")
    return value.astype(dtype)


def sizes(values: np.ndarray | Sequence[Any]) -> tuple[Any, ...]:
    """The elements of a static tensor as Python integers, or as symbolic sizes."""
    return tuple(size if jax.export.is_symbolic_dim(size) else int(size) for size in np.asarray(values).reshape(-1))


def from_sizes(shape: Sequence[Any]) -> np.ndarray:
    """A shape as a static tensor."""
    if any(map(jax.export.is_symbolic_dim, shape)):
        array = np.empty(len(shape), object)
        array[:] = shape
        return array
    return np.asarray(shape, np.int64).reshape(-1)


def without_objects(value: np.ndarray) -> np.ndarray:
    """`value` as int64, if it is an array of objects, none of which is a symbolic size."""
    if value.dtype != object or not all(isinstance(size, int | np.integer) for size in value.flat):
        return value
    return value.astype(np.int64)
