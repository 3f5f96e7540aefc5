"""Tensors that are created from a shape or from a few numbers, and Dropout, whose mask is all true."""

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from jax import lax

from jquant.errors import ModelError
from jquant.onnx.graphs.values import jax_dtype, sizes, to_jax
from jquant.onnx.running import limits
from jquant.onnx.running.registry import converter


@converter("ConstantOfShape", since=9, static=("input",), expands=True)
def constant_of_shape(input, *, value=None, xp):
    value = np.zeros(1, np.float32) if value is None else value
    if xp is np:
        return np.full(sizes(input), value.item(), value.dtype)
    return jnp.broadcast_to(to_jax(value, "value").reshape(()), sizes(input))


@converter("Range", since=11, static=("start", "limit", "delta"), expands=True)
def range_(start, limit, delta, *, stash_type=1, xp):
    (first,), (end,), (step,) = (each.reshape(-1) for each in (start, limit, delta))
    if object in (start.dtype, limit.dtype, delta.dtype):
        return jnp.arange(*sizes([first, end, step]), dtype=jnp.int32)
    if start.dtype.itemsize == 2 and start.dtype.kind not in "iu":
        first, end, step = (np.float32(each) for each in (first, end, step))
    count = max(0, int(np.ceil((end - first) / step)))
    limits.check(jax.ShapeDtypeStruct((count,), np.int64), limits.LARGEST_KNOWN)  # NumPy computes it in every case
    values = (np.arange(count).astype(np.result_type(first)) * step + first).astype(start.dtype)
    return values if xp is np else to_jax(values, "the range")


@converter("EyeLike", since=9)
def eye_like(input, *, dtype=None, k):
    result_dtype = input.dtype if dtype is None else jax_dtype(onnx.helper.tensor_dtype_to_np_dtype(dtype), "the result")
    rows, columns = _matrix_indices(input.shape)
    return (columns - rows == k).astype(result_dtype)


@converter("Trilu", since=14)
def trilu(input, k=None, *, upper):
    """The part of each matrix above or below a diagonal, including the diagonal."""
    k = 0 if k is None else k.reshape(()).astype(jnp.int32)
    rows, columns = _matrix_indices(input.shape[-2:])
    kept = columns - rows >= k if upper else columns - rows <= k
    return jnp.where(kept, input, 0)


def _matrix_indices(shape):
    """The row index and the column index of each element of a matrix."""
    return lax.broadcasted_iota(jnp.int32, shape, 0), lax.broadcasted_iota(jnp.int32, shape, 1)


@converter("OneHot", since=9, static=("depth",))
def one_hot(indices, depth, values, *, axis):
    """Negative indices count from the end. An index out of range sets no element."""
    (count,) = sizes(depth)
    axis = axis + indices.ndim + 1 if axis < 0 else axis
    indices = jnp.expand_dims(jnp.where(indices < 0, indices + count, indices), axis)
    classes = lax.broadcasted_iota(indices.dtype, [count if i == axis else 1 for i in range(indices.ndim)], axis)
    return jnp.where(indices == classes, values[1], values[0])


@converter("Dropout", since=7, until=9)
def dropout_to_9(data, *, ratio):
    """The identity outside of training. The mask has the dtype of the data."""
    return data, jnp.ones_like(data)


@converter("Dropout", since=10, until=11)
def dropout_to_11(data, *, ratio):
    """The identity outside of training."""
    return data, jnp.ones(data.shape, bool)


@converter("Dropout", since=12, static=("ratio", "training_mode"))
def dropout(data, ratio=None, training_mode=None, *, seed=None):
    """The identity outside of training. Training, which draws random numbers, is not supported."""
    if training_mode is not None and training_mode.any() and (ratio is None or ratio.any()):
        raise ModelError("its training_mode draws random numbers")
    return data, jnp.ones(data.shape, bool)
