"""DML_ELEMENT_WISE_QUANTIZE_LINEAR"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jquant import affine, exact
from jquant.descriptor import Descriptor, Signature, Tensor, require, require_axis
from jquant.errors import DescriptorTypeError
from jquant.modes import FeatureLevel, data_type_name
from jquant.operands import Operand, operand, optional_operand, output_data_type

_OPERATOR = "DML_ELEMENT_WISE_QUANTIZE_LINEAR"
_DESCRIPTOR = Descriptor(
    _OPERATOR,
    {
        "6_2": (
            Tensor("InputTensor", "Input", (1, 8), "FLOAT32 FLOAT16 INT32"),
            Tensor("ScaleTensor", "Input", (1, 8), "FLOAT32 FLOAT16"),
            Tensor("ZeroPointTensor", "Optional input", (1, 8), "INT8 UINT8"),
            Tensor("OutputTensor", "Output", (1, 8), "INT8 UINT8"),
        ),
        "6_0": (
            Tensor("InputTensor", "Input", (1, 8), "FLOAT32 FLOAT16 INT32"),
            Tensor("ScaleTensor", "Input", (1, 8), "FLOAT32 FLOAT16"),
            Tensor("ZeroPointTensor", "Input", (1, 8), "INT8 UINT8"),
            Tensor("OutputTensor", "Output", (1, 8), "INT8 UINT8"),
        ),
        "3_0": (
            Tensor("InputTensor", "Input", (1, 8), "FLOAT32 INT32"),
            Tensor("ScaleTensor", "Input", (1, 8), "FLOAT32"),
            Tensor("ZeroPointTensor", "Input", (1, 8), "INT8 UINT8"),
            Tensor("OutputTensor", "Output", (1, 8), "INT8 UINT8"),
        ),
        "2_1": (
            Tensor("InputTensor", "Input", (4, 4), "FLOAT32 INT32"),
            Tensor("ScaleTensor", "Input", (4, 4), "FLOAT32"),
            Tensor("ZeroPointTensor", "Input", (4, 4), "INT8 UINT8"),
            Tensor("OutputTensor", "Output", (4, 4), "INT8 UINT8"),
        ),
        "1_0": (
            Tensor("InputTensor", "Input", (4, 4), "FLOAT32"),
            Tensor("ScaleTensor", "Input", (4, 4), "FLOAT32"),
            Tensor("ZeroPointTensor", "Input", (4, 4), "UINT8"),
            Tensor("OutputTensor", "Output", (4, 4), "UINT8"),
        ),
    },
    same_data_type=(("ZeroPointTensor", "OutputTensor"),),
)


def _along_axis(name: str, tensor: Operand, axis: int, rank: int) -> Operand:
    message = f"{_OPERATOR}: {name} has {tensor.ndim} dimensions, sizes {tensor.shape}; with axis={axis} it must have 1"
    require(tensor.ndim <= 1, message)
    return tensor.reshape([-1 if dimension == axis else 1 for dimension in range(rank)]) if tensor.ndim else tensor


@functools.partial(jax.jit, static_argnames="output_dtype")
@jax.named_scope("quantize_linear")
def _quantize_linear(input: jax.Array, scale: jax.Array, zero_point: jax.Array | None, output_dtype: np.dtype) -> jax.Array:
    value = input.astype(jnp.float32) if input.dtype == jnp.int32 else exact.widen(input)
    return affine.quantize(value, scale, zero_point, output_dtype)


def quantize_linear(
    input: ArrayLike,
    scale: ArrayLike,
    zero_point: ArrayLike | None = None,
    /,
    *,
    axis: int | None = None,
    output_dtype: DTypeLike | str | None = None,
    feature_level: FeatureLevel | str = FeatureLevel.LATEST,
) -> jax.Array:
    """Maps real numbers to quantized integers.

    ``output = saturate(round(input / scale) + zero_point)``

    The quotient is rounded once to float32, then to the nearest integer, ties to even; the zero point is
    added after that, and decides no tie. Infinities saturate; NaN, which the document leaves undefined,
    gives 0. A scale of 0 divides as IEEE 754 does: the results are the limits of the type, and 0 for 0/0.

    The result is of integers, which have no derivative: JAX's zero, of type float0. To train through the rounding, take
    `quantize_and_dequantize` or `fake_quantize`.

    Args:
      input: float32, float16 (bfloat16 at ``FeatureLevel.EXTENDED``) or int32, of rank 1 to 8.
      scale: of the dtype of `input`, float32 for int32; of the rank of `input`, where sizes of 1 broadcast. A
        scalar holds for all of `input`.
      zero_point: int8 or uint8, in any shape that `scale` could have. None means 0.
      axis: if given, `scale` and `zero_point` have rank 1 and lie along this dimension of `input`, counted
        from 0. Negative numbers raise.
      output_dtype: int8 or uint8. None: the dtype of `zero_point` if that is an array, else uint8, as in ONNX.
      feature_level: the DirectML feature level whose table applies.

    Returns:
      An array of the shape of `input` and of `output_dtype`.

    Raises:
      DescriptorError: a rank, size, axis or level outside of the table, or a scalar that its type cannot hold.
      DescriptorTypeError: a data type outside of the table, or an `output_dtype` that is not that of `zero_point`.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> jquant.quantize_linear(jnp.array([-1.0, 0.25, 0.75, 9.0]), 0.5, 1, output_dtype="INT8")
      Array([-1,  1,  3, 19], dtype=int8)

    References:
      DirectML, `DML_ELEMENT_WISE_QUANTIZE_LINEAR_OPERATOR_DESC`. ONNX, `QuantizeLinear`.
    """
    input = operand(_OPERATOR, "InputTensor", input)
    scale_dtype = input.dtype if jnp.issubdtype(input.dtype, jnp.floating) else jnp.dtype(jnp.float32)
    scale = operand(_OPERATOR, "ScaleTensor", scale, scale_dtype)
    output_dtype = output_data_type(output_dtype, zero_point, default=jnp.dtype(jnp.uint8))
    zero_point = optional_operand(_OPERATOR, "ZeroPointTensor", zero_point, output_dtype)
    if axis is not None:
        require_axis(_OPERATOR, axis, input.ndim)
        scale = _along_axis("ScaleTensor", scale, axis, input.ndim)
        zero_point = None if zero_point is None else _along_axis("ZeroPointTensor", zero_point, axis, input.ndim)
    _DESCRIPTOR.check(
        FeatureLevel(feature_level),
        InputTensor=input,
        ScaleTensor=scale,
        ZeroPointTensor=zero_point,
        OutputTensor=Signature(input.shape, output_dtype),
    )
    types = f"ScaleTensor has data type {data_type_name(scale.dtype)}, InputTensor {data_type_name(input.dtype)}"
    message = f"{_OPERATOR}: {types}; they must be the same, or FLOAT32 beside INT32"
    require(scale.dtype == scale_dtype, message, DescriptorTypeError)
    return _quantize_linear(input, scale, zero_point, output_dtype)
