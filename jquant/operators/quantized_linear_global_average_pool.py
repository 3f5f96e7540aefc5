"""onnxruntime's QLinearGlobalAveragePool (domain com.microsoft)"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from jquant.arguments import unary
from jquant.arguments.assertions import once_for_each_signature, require
from jquant.arguments.naming import Operator, message
from jquant.arithmetic import signs
from jquant.formulas import pooling
from jquant.kernels import zero_point as zero_points
from jquant.lowering import materialize
from jquant.lowering.formula import formula
from jquant.lowering.partitioned import unless_partitioned
from jquant.placement import explain_array_errors
from jquant.quantized_tensor import Quantized, ScaleZeroPoint

_OPERATOR = Operator("quantized_linear_global_average_pool", "QLinearGlobalAveragePool", output="Y")
_DESCRIPTOR = unary.descriptor(_OPERATOR)

# XLA:CPU reduces a longer dimension in windows, whose terms it first writes to memory in int32.
_MOST_TERMS = 32


@formula("quantized_linear_global_average_pool")
def _quantized_linear_global_average_pool(x: Quantized, output: ScaleZeroPoint) -> jax.Array:
    rank = x.values.ndim - 2
    count = jnp.int32(math.prod(x.values.shape[2:]))
    sums, on_cpu = (functools.partial(form, rank) for form in (_sums, _sums_on_cpu))
    (total,) = unless_partitioned(sums, sums, x.values, on_cpu=on_cpu)
    if x.zero_point is not None:
        total = total - count * x.zero_point.astype(jnp.int32)
    return pooling.quantized_average(total, count, x.scale, output, x.values.dtype)


def _sums(rank: int, x: jax.Array) -> tuple[jax.Array]:
    """The sums over the last `rank` dimensions, which keep a size of 1, in int32."""
    return (jnp.sum(x, range(-rank, 0), jnp.int32, keepdims=True),)


def _sums_on_cpu(rank: int, x: jax.Array) -> tuple[jax.Array]:
    """The sums in terms that LLVM computes in vectors: rows, then the elements of their sum; or else a product with ones.

    Apart from the sums, which are computed one after another, their quantization is done in vectors, too.
    """
    channels, sizes = x.shape[:-rank], x.shape[-rank:]
    if not all(isinstance(size, int) and size for size in sizes):
        return _sums(rank, x)
    rows, columns = math.prod(sizes[:-1]), sizes[-1]
    if max(rows, columns) <= _MOST_TERMS:
        x = x.reshape(*channels, rows, columns)
        each = (lax.index_in_dim(x, row, x.ndim - 2, keepdims=False).astype(jnp.int32) for row in range(rows))
        sums = jnp.sum(functools.reduce(lax.add, each), -1, jnp.int32)
    else:
        sums = zero_points.row_sum(signs.to_int8(x).reshape(*channels, rows * columns))[..., 0]
        if x.dtype == jnp.uint8:
            sums = sums + 128 * rows * columns
    return (materialize.shared(sums).reshape(*channels, *(1,) * rank),)


@explain_array_errors
def quantized_linear_global_average_pool(
    x: ArrayLike,
    /,
    x_scale: ArrayLike,
    x_zero_point: ArrayLike | None,
    output_scale: ArrayLike,
    output_zero_point: ArrayLike | None = None,
) -> jax.Array:
    """Averages each channel of a quantized tensor, and quantizes the average.

    ``output = saturate(round(sum(x - x_zero_point) * x_scale / count / output_scale) + output_zero_point)``, over all
    spatial dimensions

    It is `quantized_linear_average_pool` with a single window, of the size of the tensor; its roundings are described there.
    If a mesh splits the spatial dimensions, the devices' sums are added in int32.

    The result is an integer array and has no derivative (JAX's zero, of type float0).

    Args:
      x: int8 or uint8, of shape (N, C, ...) with at least one spatial dimension; ``jnp.moveaxis(x, -1, 1)`` converts from
        channels last.
      x_scale, output_scale: float32, one element each.
      x_zero_point, output_zero_point: one element each, of the dtype of `x`. None means 0 (the specification requires them).

    Returns:
      An array of the dtype of `x` and of shape (N, C, 1, ...), with the rank of `x`.

    Raises:
      DescriptorError: no spatial dimension, a scale or zero point of several elements, or a scalar that its type cannot
        hold.
      DescriptorTypeError: a data type that the specification does not allow.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> x = jnp.array([[[[1, 2], [3, 8]], [[10, 10], [10, 11]]]], jnp.uint8)
      >>> jquant.quantized_linear_global_average_pool(x, 0.5, 1, 0.25, 0)
      Array([[[[ 5]],
      <BLANKLINE>
              [[18]]]], dtype=uint8)

    References:
      onnxruntime, `com.microsoft.QLinearGlobalAveragePool`.
    """
    tensor, output = unary.operands(_DESCRIPTOR, x, x_scale, x_zero_point, output_scale, output_zero_point)
    _require_spatial_dimensions(tensor.values.shape)
    return _quantized_linear_global_average_pool(tensor, output)


@once_for_each_signature
def _require_spatial_dimensions(shape: tuple[int, ...]) -> None:
    text = f"has shape {shape}; it must have spatial dimensions after the batch and the channels"
    require(len(shape) > 2, message(_OPERATOR, "X", text))
