"""onnxruntime's QLinearLeakyRelu (domain com.microsoft)"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jquant.arguments import unary
from jquant.arguments.naming import Operator
from jquant.arguments.operands import optional_scalar
from jquant.arithmetic import exact
from jquant.formulas import affine
from jquant.lowering.formula import formula
from jquant.placement import explain_array_errors
from jquant.quantized_tensor import Quantized, ScaleZeroPoint

_OPERATOR = Operator("quantized_linear_leaky_relu", "QLinearLeakyRelu", output="Y")
_ALPHA = 0.01
_DESCRIPTOR = unary.descriptor(_OPERATOR)


@formula("quantized_linear_leaky_relu")
def _quantized_linear_leaky_relu(x: Quantized, output: ScaleZeroPoint, alpha: jax.Array | None) -> jax.Array:
    value = affine.dequantize(x)
    slope = jnp.float32(_ALPHA) if alpha is None else exact.seal(alpha)
    rectified = jnp.where(value < 0, slope * value, value)
    return affine.quantize(rectified, output, x.values.dtype)


@explain_array_errors
def quantized_linear_leaky_relu(
    x: ArrayLike,
    /,
    x_scale: ArrayLike,
    x_zero_point: ArrayLike | None,
    output_scale: ArrayLike,
    output_zero_point: ArrayLike | None = None,
    *,
    alpha: ArrayLike | None = None,
) -> jax.Array:
    """Applies the leaky rectifier (leaky ReLU) to a quantized tensor.

    ``value = (x - x_zero_point) * x_scale``, and
    ``output = saturate(round((alpha * value if value < 0 else value) / output_scale) + output_zero_point)``

    Each operation is rounded once to float32; the quotient is rounded to the nearest integer, ties to even, *before* the
    zero point is added. onnxruntime does the same, bit for bit. NaN, which only scales or an `alpha` of 0, infinity or
    NaN can produce, gives 0.

    The result is an integer array and has no derivative (JAX's zero, of type float0). To train through the rounding, use
    `quantize_and_dequantize` or `fake_quantize`.

    Args:
      x: int8 or uint8, of any shape.
      x_scale, output_scale: float32, one element each. A scale of 0 is undefined in the specification; here the arithmetic
        follows IEEE 754, and infinities saturate.
      x_zero_point, output_zero_point: one element each, of the dtype of `x`. None means 0.
      alpha: the slope below 0: float32, one element, which may be traced. None: 0.01.

    Returns:
      An array of the shape and dtype of `x`.

    Raises:
      DescriptorError: a scale or zero point of several elements, an `alpha` of several elements, or a scalar that its type
        cannot hold.
      DescriptorTypeError: a data type that the specification does not allow.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> x = jnp.array([-100, -5, 0, 100], jnp.int8)
      >>> jquant.quantized_linear_leaky_relu(x, 0.5, 0, 0.25, 3, alpha=0.1)
      Array([-17,   2,   3, 127], dtype=int8)

    References:
      onnxruntime, `com.microsoft.QLinearLeakyRelu`.
    """
    slope = optional_scalar(_OPERATOR, "alpha", alpha)
    tensor, output = unary.operands(_DESCRIPTOR, x, x_scale, x_zero_point, output_scale, output_zero_point)
    return _quantized_linear_leaky_relu(tensor, output, slope)
