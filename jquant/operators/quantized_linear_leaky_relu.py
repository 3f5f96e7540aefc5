"""onnxruntime's QLinearLeakyRelu (domain com.microsoft)"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jquant import affine, exact, unary
from jquant.operands import float_scalar

_OPERATOR = "QLinearLeakyRelu"
_DESCRIPTOR = unary.descriptor(_OPERATOR, x_zero_point="Optional input", y_zero_point="Optional input")


@jax.jit
@jax.named_scope("quantized_linear_leaky_relu")
def _quantized_linear_leaky_relu(
    x: jax.Array,
    x_scale: jax.Array,
    x_zero_point: jax.Array | None,
    y_scale: jax.Array,
    y_zero_point: jax.Array | None,
    alpha: jax.Array,
) -> jax.Array:
    value = affine.dequantize(x, x_scale, x_zero_point)
    rectified = jnp.where(value < 0, exact.product(exact.seal(alpha), value), value)
    return affine.quantize(rectified, y_scale, y_zero_point, x.dtype)


def quantized_linear_leaky_relu(
    x: ArrayLike,
    x_scale: ArrayLike,
    x_zero_point: ArrayLike | None,
    y_scale: ArrayLike,
    y_zero_point: ArrayLike | None = None,
    /,
    *,
    alpha: ArrayLike = 0.01,
) -> jax.Array:
    """The leaky rectifier of a quantized tensor, quantized again.

    ``value = (x - x_zero_point) * x_scale``, and
    ``y = saturate(round((alpha * value if value < 0 else value) / y_scale) + y_zero_point)``

    Each operation is rounded once to float32; the quotient is rounded to the nearest integer, ties to even, *before* the
    zero point is added. So does onnxruntime, bit for bit. NaN, which only scales or an `alpha` of 0, infinity or
    NaN can produce, gives 0.

    The result is of integers, which have no derivative: JAX's zero, of type float0. To train through the rounding, take
    `quantize_and_dequantize` or `fake_quantize`.

    Args:
      x: int8 or uint8, of any shape.
      x_scale, y_scale: float32, scalars or of shape (1,). A scale of 0 is undefined in the document; here the arithmetic is
        done, and infinities saturate.
      x_zero_point, y_zero_point: scalars or of shape (1,), of the dtype of `x`. None means 0.
      alpha: the slope below 0: a float32 scalar, which may be traced.

    Returns:
      An array of the shape and dtype of `x`.

    Raises:
      DescriptorError: a scale or zero point of several elements, an `alpha` that is no scalar, or a scalar that its type
        cannot hold.
      DescriptorTypeError: a data type that the document does not have.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> x = jnp.array([-100, -5, 0, 100], jnp.int8)
      >>> jquant.quantized_linear_leaky_relu(x, 0.5, 0, 0.25, 3, alpha=0.1)
      Array([-17,   2,   3, 127], dtype=int8)

    References:
      onnxruntime, `com.microsoft.QLinearLeakyRelu`.
    """
    alpha = float_scalar(_OPERATOR, "alpha", alpha)
    operands = unary.operands(_DESCRIPTOR, x, x_scale, x_zero_point, y_scale, y_zero_point)
    return _quantized_linear_leaky_relu(*operands, alpha)
