"""DML_ELEMENT_WISE_DEQUANTIZE_LINEAR"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jquant import affine, exact
from jquant.descriptor import Descriptor, Signature, Tensor
from jquant.modes import FeatureLevel
from jquant.operands import operand, optional_operand

_OPERATOR = "DML_ELEMENT_WISE_DEQUANTIZE_LINEAR"
_DESCRIPTOR = Descriptor(
    _OPERATOR,
    {
        "6_2": (
            Tensor("InputTensor", "Input", (1, 8), "INT32 INT16 INT8 UINT32 UINT16 UINT8"),
            Tensor("ScaleTensor", "Input", (1, 8), "FLOAT32 FLOAT16"),
            Tensor("ZeroPointTensor", "Optional input", (1, 8), "INT32 INT16 INT8 UINT32 UINT16 UINT8"),
            Tensor("OutputTensor", "Output", (1, 8), "FLOAT32 FLOAT16"),
        ),
        "6_0": (
            Tensor("InputTensor", "Input", (1, 8), "INT32 INT16 INT8 UINT32 UINT16 UINT8"),
            Tensor("ScaleTensor", "Input", (1, 8), "FLOAT32 FLOAT16"),
            Tensor("ZeroPointTensor", "Input", (1, 8), "INT32 INT16 INT8 UINT32 UINT16 UINT8"),
            Tensor("OutputTensor", "Output", (1, 8), "FLOAT32 FLOAT16"),
        ),
        "3_0": (
            Tensor("InputTensor", "Input", (1, 8), "INT32 INT16 INT8 UINT32 UINT16 UINT8"),
            Tensor("ScaleTensor", "Input", (1, 8), "FLOAT32"),
            Tensor("ZeroPointTensor", "Input", (1, 8), "INT32 INT16 INT8 UINT32 UINT16 UINT8"),
            Tensor("OutputTensor", "Output", (1, 8), "FLOAT32"),
        ),
        "2_1": (
            Tensor("InputTensor", "Input", (4, 4), "INT32 INT16 INT8 UINT32 UINT16 UINT8"),
            Tensor("ScaleTensor", "Input", (4, 4), "FLOAT32"),
            Tensor("ZeroPointTensor", "Input", (4, 4), "INT32 INT16 INT8 UINT32 UINT16 UINT8"),
            Tensor("OutputTensor", "Output", (4, 4), "FLOAT32"),
        ),
        "1_0": (
            Tensor("InputTensor", "Input", (4, 4), "UINT8"),
            Tensor("ScaleTensor", "Input", (4, 4), "FLOAT32"),
            Tensor("ZeroPointTensor", "Input", (4, 4), "UINT8"),
            Tensor("OutputTensor", "Output", (4, 4), "FLOAT32"),
        ),
    },
    same_data_type=(("InputTensor", "ZeroPointTensor"), ("ScaleTensor", "OutputTensor")),
)


@jax.jit
@jax.named_scope("dequantize_linear")
def _dequantize_linear(input: jax.Array, scale: jax.Array, zero_point: jax.Array | None) -> jax.Array:
    return exact.narrow(affine.dequantize(input, scale, zero_point), scale.dtype)


def dequantize_linear(
    input: ArrayLike,
    scale: ArrayLike,
    zero_point: ArrayLike | None = None,
    /,
    *,
    feature_level: FeatureLevel | str = FeatureLevel.LATEST,
) -> jax.Array:
    """Maps quantized integers back to real numbers.

    ``output = (input - zero_point) * scale``

    The difference is exact for every integer type: it neither wraps (as in onnxruntime, for int32) nor
    rounds (as in ONNX's reference). The product is rounded once to float32; a float16 result is rounded
    from there.

    It is differentiable in the scale. Integers have no derivative (JAX's zero, of type float0).

    Args:
      input: integers of 8, 16 or 32 bits, signed or unsigned, of rank 1 to 8.
      scale: float32 or float16 (bfloat16 at ``FeatureLevel.EXTENDED``), of the rank of `input`, where sizes of
        1 broadcast: shape ``(1, C, 1, 1)`` for one scale a channel of NCHW. A scalar holds for all of `input`; a
        Python one is float32. A scale of 0, which the document leaves undefined, gives 0 or -0.
      zero_point: integers of the dtype of `input`, in any shape that `scale` could have. None means 0.
      feature_level: the DirectML feature level whose table applies.

    Returns:
      An array of the shape of `input` and the dtype of `scale`.

    Raises:
      DescriptorError: a rank, size or level outside of the table, or a scalar that its type cannot hold.
      DescriptorTypeError: a data type outside of the table.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> jquant.dequantize_linear(jnp.array([0, 128, 255], jnp.uint8), 0.5, 128)
      Array([-64. ,   0. ,  63.5], dtype=float32)

    References:
      DirectML, `DML_ELEMENT_WISE_DEQUANTIZE_LINEAR_OPERATOR_DESC`. ONNX, `DequantizeLinear`.
    """
    input = operand(_OPERATOR, "InputTensor", input)
    scale = operand(_OPERATOR, "ScaleTensor", scale, jnp.dtype(jnp.float32))
    zero_point = optional_operand(_OPERATOR, "ZeroPointTensor", zero_point, input.dtype)
    _DESCRIPTOR.check(
        FeatureLevel(feature_level),
        InputTensor=input,
        ScaleTensor=scale,
        ZeroPointTensor=zero_point,
        OutputTensor=Signature(input.shape, scale.dtype),
    )
    return _dequantize_linear(input, scale, zero_point)
