"""onnxruntime's QLinearGlobalAveragePool (domain com.microsoft)"""

import math

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jquant.arguments import unary
from jquant.arguments.descriptor import require
from jquant.formulas import affine, pooling
from jquant.pytrees import Quantized, ScaleZeroPoint

_OPERATOR = "QLinearGlobalAveragePool"
_DESCRIPTOR = unary.descriptor(_OPERATOR)


@jax.jit
@jax.named_scope("quantized_linear_global_average_pool")
def _quantized_linear_global_average_pool(x: Quantized, output: ScaleZeroPoint) -> jax.Array:
    shape = x.values.shape
    total = jnp.sum(affine.difference(x), range(2, len(shape)), jnp.int32, keepdims=True)
    count = jnp.int32(math.prod(shape[2:]))
    return pooling.quantized_average(total, count, x.scale, output, x.values.dtype)


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
    given, output = unary.operands(_DESCRIPTOR, x, x_scale, x_zero_point, output_scale, output_zero_point)
    sizes = given.values.shape
    message = f"{_OPERATOR}: X has shape {sizes}; it must have spatial dimensions after the batch and the channels"
    require(len(sizes) > 2, message)
    return _quantized_linear_global_average_pool(given, output)
