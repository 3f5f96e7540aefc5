"""DML_ELEMENT_WISE_QUANTIZE_LINEAR"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jquant.arguments.assertions import once_for_each_signature, require
from jquant.arguments.call import Call
from jquant.arguments.descriptor import Descriptor, Tensor
from jquant.arguments.granularity import align, granularity_of
from jquant.arguments.naming import Operator, message
from jquant.arguments.operands import FLOAT32
from jquant.arguments.statics import boolean, float_data_type
from jquant.arithmetic import exact
from jquant.arithmetic.narrow_floats import has_infinities_or_nan
from jquant.errors import DescriptorTypeError
from jquant.formulas import affine
from jquant.formulas.granularity import Granularity
from jquant.lowering import recording
from jquant.lowering.formula import formula
from jquant.modes import NARROW_FLOATS, POWERS_OF_TWO, FeatureLevel, data_type_name
from jquant.placement import explain_array_errors
from jquant.quantized_tensor import ScaleZeroPoint

_OPERATOR = Operator("quantize_linear", "DML_ELEMENT_WISE_QUANTIZE_LINEAR")
_OF_ONNX = f"INT16 INT8 INT4 INT2 UINT16 UINT8 UINT4 UINT2 {' '.join(NARROW_FLOATS)}"
_DESCRIPTOR = Descriptor(
    _OPERATOR,
    {
        "EXTENDED": (  # what ONNX has beyond DirectML
            Tensor("InputTensor", "Input", (1, 8), "FLOAT32 FLOAT16 INT32"),
            Tensor("ScaleTensor", "Input", (1, 8), f"FLOAT32 FLOAT16 {POWERS_OF_TWO}"),
            Tensor("ZeroPointTensor", "Optional input", (1, 8), _OF_ONNX),
            Tensor("OutputTensor", "Output", (1, 8), _OF_ONNX),
        ),
        "6_3": (  # with DML_QUANTIZE, which has the types of 4 bits
            Tensor("InputTensor", "Input", (1, 8), "FLOAT32 FLOAT16 INT32"),
            Tensor("ScaleTensor", "Input", (1, 8), "FLOAT32 FLOAT16"),
            Tensor("ZeroPointTensor", "Optional input", (1, 8), "INT8 INT4 UINT8 UINT4"),
            Tensor("OutputTensor", "Output", (1, 8), "INT8 INT4 UINT8 UINT4"),
        ),
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


@formula("quantize_linear", static=("output_dtype", "granularity", "saturate", "precision"))
def _quantize_linear(
    input: jax.Array,
    output: ScaleZeroPoint,
    output_dtype: np.dtype,
    granularity: Granularity,
    saturate: bool,
    precision: np.dtype,
) -> jax.Array:
    value = input.astype(jnp.float32) if input.dtype == jnp.int32 else exact.numerator(input)
    scale, zero_point = granularity.expand_output(output, input.shape)
    is_integer = jnp.issubdtype(output_dtype, jnp.integer)
    if recording.is_active() and is_integer and precision == FLOAT32 and scale.dtype == FLOAT32:  # as a single step
        return affine.quantize(value, ScaleZeroPoint(scale, zero_point), output_dtype)
    return affine.nearest(affine.quotient(value, scale, precision), zero_point, output_dtype, saturate)


@explain_array_errors
def quantize_linear(
    input: ArrayLike,
    /,
    scale: ArrayLike,
    zero_point: ArrayLike | None = None,
    *,
    axis: int | None = None,
    block_size: int | None = None,
    output_dtype: DTypeLike | str | None = None,
    saturate: bool = True,
    precision: DTypeLike | str | None = None,
    feature_level: FeatureLevel | str | None = None,
) -> jax.Array:
    """Maps real numbers to quantized integers, or floats of 8 or 4 bits.

    ``output = saturate(round(input / scale) + zero_point)``

    With a scale alone, the output is uint8 and the zero point 0, as in ONNX: **negative numbers become 0**. Numbers of both
    signs take ``output_dtype="INT8"``, or a zero point such as 128.

    The quotient is rounded once to float32, then to the nearest integer, ties to even; the zero point is
    added afterwards, and does not affect ties. Infinities saturate; NaN, which the specification leaves undefined,
    gives 0. A scale of 0 divides as IEEE 754 does: the results are the limits of the type, and 0 for 0/0.

    The quotient is computed in float32, whatever the types of its operands, as with ONNX's ``precision=FLOAT``. With another
    `precision`, both operands and their quotient are rounded to it, which produces more ties. Division by a power of two
    (FLOAT8E8M0) is exact, unless the quotient is subnormal.

    A float of 8 or 4 bits is ``saturate(round(input / scale + zero_point))``: the number of the type that is nearest to the
    float32 sum, ties to the even code, subnormal numbers included. What rounds to 0 from below is -0, except in the FNUZ
    types, which have none, and a zero point of 0 leaves -0 as it is. Infinities, and numbers that round to more than the
    largest, become the largest number; without `saturate`, they become infinity (FLOAT8E5M2) or NaN (the others). NaN stays
    NaN. FLOAT4E2M1 has neither infinities nor NaN: it always saturates, and NaN becomes 6. JAX has no arrays of 6-bit types
    on a CPU: `mx_quantize` returns their codes.

    Integer results have no derivative (JAX's zero, of type float0); float results have the derivative 0. To train through
    the rounding, use `quantize_and_dequantize` or `fake_quantize`.

    Args:
      input: float32, float16 (bfloat16 at ``FeatureLevel.EXTENDED``) or int32, of rank 1 to 8.
      scale: of the dtype of `input`, float32 for int32 (``FeatureLevel.EXTENDED``: any of the float types, or
        float8_e8m0fnu). Its shape gives the granularity:

        - per tensor: one element, in any shape;
        - per axis: rank 1, with `axis`; or the rank of `input`, where dimensions of size 1 broadcast;
        - per block: the rank of `input`, with `axis` and `block_size`, and ``ceil(input.shape[axis] / block_size)``
          along that axis; the last block may be partial. Dimensions of size 1 broadcast along the others.
      zero_point: of the dtype of the output, in any shape that `scale` could have. None means 0.
      axis: the dimension of `input` along which `scale` and `zero_point` lie; a negative one counts from the end.
      block_size: the number of elements along `axis` that share a scale and a zero point; the table applies to these as
        spread over their blocks. (Blocks in more than one dimension, which DML_QUANTIZE allows, are not supported.)
      output_dtype: int8 or uint8; int4 or uint4, from level 6_3 on; int16, uint16, int2 or uint2, float8_e4m3fn,
        float8_e4m3fnuz, float8_e5m2, float8_e5m2fnuz or float4_e2m1fn, at ``FeatureLevel.EXTENDED``. None: the dtype of
        `zero_point` if that is an array, else uint8, as in ONNX.
        `pack_integers` packs integers of 4 and 2 bits into bytes.
      saturate: whether floats of 8 bits saturate. Types without infinities and NaN always do.
      precision: that of the quotient: float32; at ``FeatureLevel.EXTENDED`` also float16 or bfloat16. None: float32. (ONNX's
        default is the type of `scale`.)
      feature_level: the DirectML feature level whose table applies.

    Returns:
      An array of the shape of `input` and of `output_dtype`.

    Raises:
      DescriptorError: a rank, size, axis, block size or level outside of the table, or a scalar that its type cannot hold.
      DescriptorTypeError: a data type outside of the table, or an `output_dtype` that is not that of `zero_point`;
        ``saturate=False`` for a type that always saturates; a `precision` other than float32 below
        ``FeatureLevel.EXTENDED``.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> jquant.quantize_linear(jnp.array([-1.0, 0.25, 0.75, 9.0]), 0.5, 1, output_dtype="INT8")
      Array([-1,  1,  3, 19], dtype=int8)
      >>> scale = jnp.array([[0.5, 2.0]])  # for blocks of 3 and of 1
      >>> jquant.quantize_linear(jnp.array([[-1.0, 0.25, 0.75, 9.0]]), scale, axis=1, block_size=3, output_dtype="INT4")
      Array([[-2, 0, 2, 4]], dtype=int4)
      >>> x = jnp.array([1.0625, 464.0, 480.0])  # 1.0625 and 464 are ties
      >>> for saturate in (True, False):
      ...     print(jquant.quantize_linear(
      ...         x, 1.0, output_dtype="FLOAT8E4M3FN", saturate=saturate, feature_level="EXTENDED"))
      [1 448 448]
      [1 448 nan]

    References:
      DirectML, `DML_ELEMENT_WISE_QUANTIZE_LINEAR_OPERATOR_DESC` and `DML_QUANTIZE_OPERATOR_DESC`. ONNX, `QuantizeLinear`,
      and the tables of `Cast`.
    """
    call = Call(_DESCRIPTOR, feature_level)
    input = call.tensor("InputTensor", input)
    granularity = granularity_of(_OPERATOR, axis, block_size, input.ndim)
    scale_dtype = input.dtype if jnp.issubdtype(input.dtype, jnp.floating) else FLOAT32
    output, output_dtype = call.output(
        "Output", scale, zero_point, output_dtype, default=jnp.dtype(jnp.uint8), scale_dtype=scale_dtype
    )
    scale, zero_point, covered = align(granularity, _OPERATOR, _DESCRIPTOR.names("Input"), input.shape, *output)
    call.check(input.shape, output_dtype, **covered)
    _require_scale_type(input.dtype, scale.dtype, scale_dtype, call.level)
    saturate = boolean(_OPERATOR, "saturate", saturate)
    _require_limits(output_dtype, saturate)
    precision = FLOAT32 if precision is None else float_data_type(_OPERATOR, "precision", precision)
    _require_precision(precision, call.level)
    return _quantize_linear(input, ScaleZeroPoint(scale, zero_point), output_dtype, granularity, saturate, precision)


@once_for_each_signature
def _require_scale_type(input: np.dtype, scale: np.dtype, wanted: np.dtype, level: FeatureLevel | None) -> None:
    wanted_types = "below FeatureLevel.EXTENDED they must be the same, or FLOAT32 with INT32"
    text = f"has data type {data_type_name(scale)}, input has {data_type_name(input)}; {wanted_types}"
    told = message(_OPERATOR, "ScaleTensor", text, "InputTensor")
    require(scale == wanted or level == FeatureLevel.EXTENDED, told, DescriptorTypeError)


@once_for_each_signature
def _require_limits(output: np.dtype, saturate: bool) -> None:
    """Asserts that there is something in the place of what does not saturate."""
    never = f"{data_type_name(output)} has neither infinities nor NaN, so it always saturates"
    is_allowed = saturate or has_infinities_or_nan(output)
    require(is_allowed, message(_OPERATOR, "saturate", f"is False, but {never}"), DescriptorTypeError)


@once_for_each_signature
def _require_precision(precision: np.dtype, level: FeatureLevel | None) -> None:
    text = f"is {data_type_name(precision)}; it must be FLOAT32 below FeatureLevel.EXTENDED"
    is_allowed = precision == FLOAT32 or level == FeatureLevel.EXTENDED
    require(is_allowed, message(_OPERATOR, "precision", text), DescriptorTypeError)
