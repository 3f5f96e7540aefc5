"""onnxruntime's QLinearSigmoid (domain com.microsoft)"""

from collections.abc import Callable

import jax
from jax import lax
from jax.typing import ArrayLike

from jquant.arguments import unary
from jquant.arguments.naming import Operator
from jquant.arithmetic import double_float, lookup
from jquant.arithmetic.double_float import DoubleFloat
from jquant.arithmetic.exponential import exponential, scaled
from jquant.formulas import affine
from jquant.lowering.formula import formula
from jquant.placement import explain_array_errors
from jquant.quantized_tensor import Quantized, ScaleZeroPoint

_OPERATOR = Operator("quantized_linear_sigmoid", "QLinearSigmoid", output="Y")
_DESCRIPTOR = unary.descriptor(_OPERATOR)


def _sigmoid(x: jax.Array) -> jax.Array:
    """``fl(1 / (1 + exp(-x)))``; 0 where that is subnormal."""
    # For a negative number it is exp(x) / (1 + exp(x)): no exponential is larger than 1.
    significand, power = exponential(-lax.abs(x))
    one = lax.full_like(x, 1)
    denominator = double_float.add(double_float.widen(one), DoubleFloat(*(scaled(part, power) for part in significand)))
    negative = x < lax.full_like(x, 0)
    numerator = DoubleFloat(
        *(lax.select(negative, *sides) for sides in zip(significand, double_float.widen(one), strict=True))
    )
    quotient = double_float.multiply(numerator, double_float.reciprocal(denominator))
    return scaled(quotient.high, lax.select(negative, power, one))


@formula("quantized_linear_sigmoid")
def _quantized_linear_sigmoid(x: Quantized, output: ScaleZeroPoint) -> jax.Array:
    parameters, tree = jax.tree.flatten((x._replace(values=None), output))

    def quantized_sigmoid(values: jax.Array, *parameters: jax.Array, once: Callable[[jax.Array], jax.Array]) -> jax.Array:
        x, output = tree.unflatten(parameters)
        return affine.quantize(once(_sigmoid(affine.dequantize(x._replace(values=values)))), output, values.dtype)

    return lookup.elementwise(quantized_sigmoid, x.values, *parameters)


@explain_array_errors
def quantized_linear_sigmoid(
    x: ArrayLike,
    /,
    x_scale: ArrayLike,
    x_zero_point: ArrayLike | None,
    output_scale: ArrayLike,
    output_zero_point: ArrayLike | None = None,
) -> jax.Array:
    """Applies the logistic function to a quantized tensor.

    ``output = saturate(round(sigmoid((x - x_zero_point) * x_scale) / output_scale) + output_zero_point)``, where
    ``sigmoid(v) = 1 / (1 + exp(-v))``

    The product, the sigmoid as a whole and the quotient are each rounded once to float32, the quotient then to the nearest
    integer, ties to even, *before* the zero point is added. The exponential is jquant's own: its error is below 2**-45, and
    its bits are the same on every platform. A sigmoid below 2**-126 is 0. Each call computes the 256 possible results from
    the scales and the zero points, and looks them up; a TPU, which takes longer for that, computes every element.

    A negative input scale mirrors the function, and a scale of 0 makes every sigmoid 0.5; infinite scales follow IEEE 754.
    NaN, which only scales of 0, infinity or NaN can produce, gives 0.

    The result is an integer array and has no derivative (JAX's zero, of type float0).

    Args:
      x: int8 or uint8, of any shape.
      x_scale, output_scale: float32, one element each.
      x_zero_point, output_zero_point: one element each, of the dtype of `x`. None means 0.

    Returns:
      An array of the shape and dtype of `x`.

    Raises:
      DescriptorError: a scale or zero point of several elements, or a scalar that its type cannot hold.
      DescriptorTypeError: a data type that the specification does not allow.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> x = jnp.array([0, 98, 128, 158, 255], jnp.uint8)
      >>> jquant.quantized_linear_sigmoid(x, 0.05, 128, 1 / 256)
      Array([  0,  47, 128, 209, 255], dtype=uint8)

    References:
      onnxruntime, `com.microsoft.QLinearSigmoid`.
    """
    operands = unary.operands(_DESCRIPTOR, x, x_scale, x_zero_point, output_scale, output_zero_point)
    return _quantized_linear_sigmoid(*operands)
