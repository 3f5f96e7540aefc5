"""DML_ELEMENT_WISE_QUANTIZED_LINEAR_ADD"""

import jax
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jquant.arguments.call import Call
from jquant.arguments.descriptor import Descriptor, Tensor
from jquant.arguments.naming import Operator
from jquant.arguments.operands import broadcast_shape
from jquant.kernels import elementwise
from jquant.lowering.formula import formula
from jquant.modes import FeatureLevel
from jquant.placement import explain_array_errors
from jquant.quantized_tensor import Quantized, ScaleZeroPoint

_OPERATOR = Operator("quantized_linear_add", "DML_ELEMENT_WISE_QUANTIZED_LINEAR_ADD")
_DESCRIPTOR = Descriptor(
    _OPERATOR,
    {
        "4_0": (
            Tensor("ATensor", "Input", (1, 8), "INT8 UINT8"),
            Tensor("AScaleTensor", "Input", (1, 8), "FLOAT32"),
            Tensor("AZeroPointTensor", "Optional input", (1, 8), "INT8 UINT8"),
            Tensor("BTensor", "Input", (1, 8), "INT8 UINT8"),
            Tensor("BScaleTensor", "Input", (1, 8), "FLOAT32"),
            Tensor("BZeroPointTensor", "Optional input", (1, 8), "INT8 UINT8"),
            Tensor("OutputScaleTensor", "Input", (1, 8), "FLOAT32"),
            Tensor("OutputZeroPointTensor", "Optional input", (1, 8), "INT8 UINT8"),
            Tensor("OutputTensor", "Output", (1, 8), "INT8 UINT8"),
        ),
    },
    same_data_type=(
        ("BTensor", "BZeroPointTensor"),
        ("OutputTensor", "OutputZeroPointTensor"),
        ("ATensor", "AZeroPointTensor"),
    ),
    one_element=(
        *("AScaleTensor", "AZeroPointTensor", "BScaleTensor", "BZeroPointTensor"),
        *("OutputScaleTensor", "OutputZeroPointTensor"),
    ),
    broadcast=("ATensor", "BTensor"),
)


@formula("quantized_linear_add", static=("output_dtype",))
def _quantized_linear_add(a: Quantized, b: Quantized, output: ScaleZeroPoint, output_dtype: np.dtype) -> jax.Array:
    return elementwise.add(a, b, output, output_dtype)


@explain_array_errors
def quantized_linear_add(
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
    feature_level: FeatureLevel | str | None = None,
) -> jax.Array:
    """Adds two quantized tensors and quantizes the sum.

    ``a_value = (a - a_zero_point) * a_scale``, ``b_value`` likewise, and
    ``output = saturate(round((a_value + b_value) / output_scale) + output_zero_point)``

    Each operation is rounded once to float32; the quotient is rounded to the nearest integer, ties to even,
    *before* the output zero point is added. (This is the chain DequantizeLinear, Add, QuantizeLinear. onnxruntime's own
    ``QLinearAdd`` multiplies by precomputed ratios of the scales, with a fused multiply-add, and differs by 1 where its
    roundings decide otherwise.) NaN, which only scales of 0, infinity or NaN can produce and the specification leaves
    undefined, gives 0.

    The result is an integer array and has no derivative (JAX's zero, of type float0). To train through the rounding, use
    `quantize_and_dequantize` or `fake_quantize`.

    Args:
      a, b: int8 or uint8, which may differ, of the same rank, 1 to 8; dimensions of size 1 broadcast, and a rank of
        0 stands for one element. At ``FeatureLevel.EXTENDED`` their ranks may differ, as in NumPy.
      a_scale, b_scale, output_scale: float32, one element each. A scale of 0 is undefined in the specification;
        here the arithmetic follows IEEE 754, and infinities saturate.
      a_zero_point, b_zero_point: one element each, of the dtype of `a` and of `b`. None means 0.
      output_zero_point: one element, of the dtype of the output. None means 0.
      output_dtype: int8 or uint8. None: the dtype of `output_zero_point` if that is an array, else that of `a`.
      feature_level: the DirectML feature level whose table applies; the operator exists from 4_0 on.

    Returns:
      An array of the broadcast shape of `a` and `b`, of `output_dtype`.

    Raises:
      DescriptorError: a rank, size or level outside of the table, or a scalar that its type cannot hold.
      DescriptorTypeError: a data type outside of the table, or an `output_dtype` that is not that of
        `output_zero_point`.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> a = jnp.array([-10, 0, 100], jnp.int8)
      >>> b = jnp.array([0, 130, 255], jnp.uint8)
      >>> jquant.quantized_linear_add(a, 0.5, 0, b, 0.25, 128, 0.5, 3)
      Array([-71,   4, 127], dtype=int8)

    References:
      DirectML, `DML_ELEMENT_WISE_QUANTIZED_LINEAR_ADD_OPERATOR_DESC`. onnxruntime, `com.microsoft.QLinearAdd`, whose kernels
      round otherwise.
    """
    call = Call(_DESCRIPTOR, feature_level)
    one = call.quantized("A", a, a_scale, a_zero_point)
    other = call.quantized("B", b, b_scale, b_zero_point)
    output, output_dtype = call.output("Output", output_scale, output_zero_point, output_dtype, default=one.values.dtype)
    call.check(broadcast_shape(one.values.shape, other.values.shape), output_dtype)
    return _quantized_linear_add(one, other, output, output_dtype)
