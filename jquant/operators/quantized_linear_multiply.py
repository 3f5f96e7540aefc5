"""onnxruntime's QLinearMul (domain com.microsoft)"""

import jax
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jquant.arguments.call import Call
from jquant.arguments.descriptor import Descriptor, Tensor
from jquant.arguments.naming import Operator
from jquant.arguments.operands import broadcast_shape
from jquant.kernels import elementwise
from jquant.lowering.formula import formula
from jquant.placement import explain_array_errors
from jquant.quantized_tensor import Quantized, ScaleZeroPoint

_OPERATOR = Operator("quantized_linear_multiply", "QLinearMul", output="C")
_DESCRIPTOR = Descriptor(
    _OPERATOR,
    (
        Tensor("A", "Input", None, "INT8 UINT8"),
        Tensor("A_scale", "Input", None, "FLOAT32"),
        Tensor("A_zero_point", "Optional input", None, "INT8 UINT8"),
        Tensor("B", "Input", None, "INT8 UINT8"),
        Tensor("B_scale", "Input", None, "FLOAT32"),
        Tensor("B_zero_point", "Optional input", None, "INT8 UINT8"),
        Tensor("C_scale", "Input", None, "FLOAT32"),
        Tensor("C_zero_point", "Optional input", None, "INT8 UINT8"),
        Tensor("C", "Output", None, "INT8 UINT8"),
    ),
    # The specification has one type for all; here A, B and C each have their own, as in quantized_linear_add.
    same_data_type=(("A", "A_zero_point"), ("B", "B_zero_point"), ("C", "C_zero_point")),
    one_element=("A_scale", "A_zero_point", "B_scale", "B_zero_point", "C_scale", "C_zero_point"),
    broadcast=("A", "B"),
)


@formula("quantized_linear_multiply", static=("output_dtype",))
def _quantized_linear_multiply(a: Quantized, b: Quantized, output: ScaleZeroPoint, output_dtype: np.dtype) -> jax.Array:
    return elementwise.multiply(a, b, output, output_dtype)


@explain_array_errors
def quantized_linear_multiply(
    a: ArrayLike,
    /,
    a_scale: ArrayLike,
    a_zero_point: ArrayLike | None,
    b: ArrayLike,
    b_scale: ArrayLike,
    b_zero_point: ArrayLike | None,
    output_scale: ArrayLike,
    output_zero_point: ArrayLike | None = None,
    *,
    output_dtype: DTypeLike | str | None = None,
) -> jax.Array:
    """Multiplies two quantized tensors element by element and quantizes the product.

    ``product = (a - a_zero_point) * (b - b_zero_point)``, an exact integer, and
    ``output = saturate(round(product * (a_scale * b_scale) / output_scale) + output_zero_point)``

    The order is the specification's, from left to right: the product of the scales, its product with the integer, and the
    quotient are rounded once each to float32. The quotient is rounded to the nearest integer, ties to even, *before* the
    output zero point is added. (onnxruntime's own kernel multiplies with ``a_scale * b_scale / output_scale``, and adds
    the zero point before rounding, so that an odd zero point decides ties the other way.) NaN, which only scales of 0,
    infinity or NaN can produce, gives 0.

    The result is an integer array and has no derivative (JAX's zero, of type float0). To train through the rounding, use
    `quantize_and_dequantize` or `fake_quantize`.

    Args:
      a, b: int8 or uint8, which may differ (the specification has one type for all), of shapes that broadcast as NumPy's do.
      a_scale, b_scale, output_scale: float32, one element each. A scale of 0 is undefined in the specification;
        here the arithmetic follows IEEE 754, and infinities saturate.
      a_zero_point, b_zero_point: one element each, of the dtype of `a` and of `b`. None means 0.
      output_zero_point: one element, of the dtype of the output. None means 0.
      output_dtype: int8 or uint8. None: the dtype of `output_zero_point` if that is an array, else that of `a`.

    Returns:
      An array of the broadcast shape of `a` and `b`, of `output_dtype`.

    Raises:
      DescriptorError: a rank or size that is not allowed, or a scalar that its type cannot hold.
      DescriptorTypeError: a data type that is not allowed, or an `output_dtype` that is not that of
        `output_zero_point`.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> a = jnp.array([-10, 0, 100], jnp.int8)
      >>> b = jnp.array([0, 130, 255], jnp.uint8)
      >>> jquant.quantized_linear_multiply(a, 0.5, 0, b, 0.25, 128, 16, 3)
      Array([ 13,   3, 102], dtype=int8)

    References:
      onnxruntime, `com.microsoft.QLinearMul`.
    """
    call = Call(_DESCRIPTOR)
    one = call.quantized("A", a, a_scale, a_zero_point)
    other = call.quantized("B", b, b_scale, b_zero_point)
    output, output_dtype = call.output("C", output_scale, output_zero_point, output_dtype, default=one.values.dtype)
    call.check(broadcast_shape(one.values.shape, other.values.shape), output_dtype)
    return _quantized_linear_multiply(one, other, output, output_dtype)
