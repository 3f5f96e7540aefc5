"""Arrays as a safetensors file holds them: types that the format lacks become bytes, and random keys become their data."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jquant.files import safetensors


class FileType(NamedTuple):
    """The dtype and the shape of an array in a file."""

    dtype: np.dtype
    shape: tuple[int, ...]


def is_key(dtype: Any) -> bool:
    """Whether a dtype is that of random keys."""
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)


def file_type(array: Any) -> FileType:
    """How a file holds an array of the type of this one."""
    type = jax.typeof(array)
    if is_key(type.dtype):
        data = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(type.shape, type.dtype))
        return FileType(np.dtype(data.dtype), data.shape)
    dtype = np.dtype(type.dtype)
    return FileType(dtype, type.shape) if safetensors.has_dtype(dtype) else FileType(np.dtype(np.uint8), _of_bytes(type))


def _of_bytes(type: Any) -> tuple[int, ...]:
    return (*type.shape, np.dtype(type.dtype).itemsize)


def to_file(array: Any) -> np.ndarray:
    """The elements of an array as a file holds them."""
    dtype, shape = file_type(array)
    if is_key(jax.typeof(array).dtype):
        return np.asarray(jax.random.key_data(array))
    elements = np.ascontiguousarray(np.asarray(array, jax.typeof(array).dtype))
    return elements.reshape(shape) if elements.dtype == dtype else elements[..., None].view(np.uint8).reshape(shape)


def from_file(elements: np.ndarray, dtype: Any) -> Any:
    """An array of this dtype, of NumPy but for random keys, from elements as a file holds them."""
    if is_key(dtype):
        return jax.random.wrap_key_data(jnp.asarray(elements), impl=_implementation(dtype))
    if elements.dtype == np.bool_:  # whose bytes may be anything in a broken file
        return elements.view(np.uint8) != 0
    return elements if elements.dtype == dtype else elements.view(dtype).squeeze(-1)


def _implementation(dtype: Any) -> Any:
    """The implementation of random numbers that keys of this dtype are for."""
    found = []
    jax.eval_shape(lambda key: found.append(jax.random.key_impl(key)), jax.ShapeDtypeStruct((), dtype))
    return found[0]


def file_index(index: Sequence[slice], type: FileType) -> tuple[slice, ...]:
    """The index of a part of an array in the file, which may have one more dimension."""
    return (*index, *(slice(None),) * (len(type.shape) - len(index)))
