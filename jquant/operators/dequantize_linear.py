"""DML_ELEMENT_WISE_DEQUANTIZE_LINEAR"""

import jax
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jquant.arguments.call import Call
from jquant.arguments.descriptor import Descriptor, Tensor
from jquant.arguments.granularity import align, granularity_of
from jquant.arguments.naming import Operator
from jquant.arguments.operands import FLOAT32
from jquant.arithmetic import e8m0, exact
from jquant.formulas import affine
from jquant.formulas.granularity import Granularity
from jquant.lowering.formula import formula
from jquant.modes import NARROW_FLOATS, POWERS_OF_TWO, FeatureLevel, data_type
from jquant.placement import explain_array_errors
from jquant.quantized_tensor import Quantized

_OPERATOR = Operator("dequantize_linear", "DML_ELEMENT_WISE_DEQUANTIZE_LINEAR")
_INTEGERS = "INT32 INT16 INT8 INT4 INT2 UINT32 UINT16 UINT8 UINT4 UINT2"
_OF_ONNX = f"{_INTEGERS} {' '.join(NARROW_FLOATS)}"
_DESCRIPTOR = Descriptor(
    _OPERATOR,
    {
        "EXTENDED": (  # what ONNX has beyond DirectML
            Tensor("InputTensor", "Input", (1, 8), _OF_ONNX),
            Tensor("ScaleTensor", "Input", (1, 8), f"FLOAT32 FLOAT16 {POWERS_OF_TWO}"),
            Tensor("ZeroPointTensor", "Optional input", (1, 8), _OF_ONNX),
            Tensor("OutputTensor", "Output", (1, 8), "FLOAT32 FLOAT16"),
        ),
        "6_3": (  # with DML_DEQUANTIZE, which has the types of 4 bits
            Tensor("InputTensor", "Input", (1, 8), "INT32 INT16 INT8 INT4 UINT32 UINT16 UINT8 UINT4"),
            Tensor("ScaleTensor", "Input", (1, 8), "FLOAT32 FLOAT16"),
            Tensor("ZeroPointTensor", "Optional input", (1, 8), "INT32 INT16 INT8 INT4 UINT32 UINT16 UINT8 UINT4"),
            Tensor("OutputTensor", "Output", (1, 8), "FLOAT32 FLOAT16"),
        ),
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
    same_data_type=(("InputTensor", "ZeroPointTensor"),),
)


@formula("dequantize_linear", static=("output_dtype", "granularity"))
def _dequantize_linear(input: Quantized, output_dtype: np.dtype, granularity: Granularity) -> jax.Array:
    return exact.narrow(affine.dequantize(granularity.expand(input)), output_dtype)


@explain_array_errors
def dequantize_linear(
    input: ArrayLike,
    /,
    scale: ArrayLike,
    zero_point: ArrayLike | None = None,
    *,
    axis: int | None = None,
    block_size: int | None = None,
    output_dtype: DTypeLike | str | None = None,
    feature_level: FeatureLevel | str | None = None,
) -> jax.Array:
    """Maps quantized integers, or floats of 8 or 4 bits, back to real numbers.

    ``output = (input - zero_point) * scale``

    The difference is exact for every integer type: it neither wraps (as in onnxruntime, for int32) nor
    rounds (as in ONNX's reference). The product is rounded once to float32; a float16 result is rounded
    from there.

    Floats of 8 and 4 bits are exact in float32; their difference is rounded to it. Infinities and NaN stay what they are.

    It is differentiable in the scale, unless the scale is float8_e8m0fnu. Integers have no derivative (JAX's zero, of type
    float0); the derivative in floats of 8 and 4 bits is 0.

    Args:
      input: integers of 8, 16 or 32 bits, signed or unsigned, of rank 1 to 8; from level 6_3 on, also of 4 bits. At
        ``FeatureLevel.EXTENDED``, also integers of 2 bits, and float8_e4m3fn, float8_e4m3fnuz, float8_e5m2, float8_e5m2fnuz
        and float4_e2m1fn. `unpack_integers` unpacks integers of 4 and 2 bits from the bytes that store them.
      scale: float32 or float16 (bfloat16 and float8_e8m0fnu at ``FeatureLevel.EXTENDED``); a Python scalar is float32. Its
        shape gives the granularity:

        - per tensor: one element, in any shape;
        - per axis: rank 1, with `axis`; or the rank of `input`, where dimensions of size 1 broadcast: shape
          ``(1, C, 1, 1)`` for one scale per channel of NCHW;
        - per block: the rank of `input`, with `axis` and `block_size`, and ``ceil(input.shape[axis] / block_size)``
          along that axis; the last block may be partial. Dimensions of size 1 broadcast along the others.

        A scale of 0, which the specification leaves undefined, gives 0 or -0.
      zero_point: of the dtype of `input`, in any shape that `scale` could have. None means 0.
      axis: the dimension of `input` along which `scale` and `zero_point` lie; a negative one counts from the end.
      block_size: the number of elements along `axis` that share a scale and a zero point; the table applies to these as
        spread over their blocks. (Blocks in more than one dimension, which DML_DEQUANTIZE allows, are not supported.)
      output_dtype: None means that of `scale`, as the specification requires, or float32 for float8_e8m0fnu;
        ``FeatureLevel.EXTENDED`` takes any of float32, float16 and bfloat16.
      feature_level: the DirectML feature level whose table applies.

    Returns:
      An array of the shape of `input` and of `output_dtype`.

    Raises:
      DescriptorError: a rank, size, axis, block size or level outside of the table, or a scalar that its type cannot hold.
      DescriptorTypeError: a data type outside of the table.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> jquant.dequantize_linear(jnp.array([0, 128, 255], jnp.uint8), 0.5, 128)
      Array([-64. ,   0. ,  63.5], dtype=float32)
      >>> scale = jnp.array([[0.5, 2.0]])  # for blocks of 3 and of 1
      >>> jquant.dequantize_linear(jnp.array([[-2, 0, 2, 4]], jnp.int4), scale, axis=1, block_size=3)
      Array([[-1.,  0.,  1.,  8.]], dtype=float32)
      >>> jquant.dequantize_linear(jnp.array([0.5, -6.0], jnp.float4_e2m1fn), 0.25, feature_level="EXTENDED")
      Array([ 0.125, -1.5  ], dtype=float32)

    References:
      DirectML, `DML_ELEMENT_WISE_DEQUANTIZE_LINEAR_OPERATOR_DESC` and `DML_DEQUANTIZE_OPERATOR_DESC`. ONNX,
      `DequantizeLinear`.
    """
    call = Call(_DESCRIPTOR, feature_level)
    tensor = call.quantized("Input", input, scale, zero_point)
    shape = tensor.values.shape
    granularity = granularity_of(_OPERATOR, axis, block_size, len(shape))
    scale_dtype = FLOAT32 if tensor.scale.dtype == e8m0.DTYPE else tensor.scale.dtype
    output_dtype = scale_dtype if output_dtype is None else data_type("output_dtype", output_dtype)
    names = _DESCRIPTOR.names("Input")
    scale, zero_point, covered = align(granularity, _OPERATOR, names, shape, tensor.scale, tensor.zero_point)
    call.check(shape, output_dtype, **covered)
    call.require_output_data_type(output_dtype, names.scale, scale.dtype)
    return _dequantize_linear(Quantized(tensor.values, scale, zero_point), output_dtype, granularity)
