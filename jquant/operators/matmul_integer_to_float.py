"""DML_MATRIX_MULTIPLY_INTEGER_TO_FLOAT"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jquant.arguments.assertions import once_for_each_signature, require
from jquant.arguments.call import Call
from jquant.arguments.descriptor import Descriptor, Tensor
from jquant.arguments.naming import Operator, message
from jquant.arguments.products import BATCH, product_shape, quantized_weights, with_more_dimensions
from jquant.arithmetic.broadcasting import to_rank
from jquant.kernels.epilogue import Dequantize, Step, as_column, as_row, dequantize, prepared
from jquant.kernels.float_rows import FloatRows
from jquant.kernels.matmul import matmul
from jquant.lowering.formula import formula
from jquant.modes import FeatureLevel, Implementation, data_type, optional_implementation
from jquant.packed.matrix import PackedMatrix
from jquant.placement import explain_array_errors
from jquant.quantized_tensor import Quantized

_OPERATOR = Operator("matmul_integer_to_float", "DML_MATRIX_MULTIPLY_INTEGER_TO_FLOAT")
_LATEST = (  # the specification has INT32, INT16, UINT32 and UINT16 besides INT8 and UINT8
    Tensor("ATensor", "Input", (2, 4), "INT8 UINT8", "[BatchCount] [ChannelCount] M K"),
    Tensor("AScaleTensor", "Input", (1, 4), "FLOAT32 FLOAT16", "[1] [1] AScaleCount [1]"),
    Tensor("AZeroPointTensor", "Optional input", (1, 4), "INT8 UINT8", "[1] [1] AZeroPointCount [1]"),
    Tensor("BTensor", "Input", (2, 4), "INT8 UINT8", "[BatchCount] [ChannelCount] K N"),
    Tensor("BScaleTensor", "Input", (1, 4), "FLOAT32 FLOAT16", "[1] [1] [1] BScaleCount"),
    Tensor("BZeroPointTensor", "Optional input", (1, 4), "INT8 UINT8", "[1] [1] [1] BZeroPointCount"),
    Tensor("BiasTensor", "Optional input", (2, 4), "FLOAT32 FLOAT16"),
    Tensor("OutputTensor", "Output", (2, 4), "FLOAT32 FLOAT16", "[BatchCount] [ChannelCount] M N"),
)
_FLOATS = dataclasses.replace(_LATEST[0], data_types=f"{_LATEST[0].data_types} FLOAT32 FLOAT16")  # for ATensor
_DESCRIPTOR = Descriptor(
    _OPERATOR,
    {
        "EXTENDED": with_more_dimensions((_FLOATS, *_LATEST[1:])),
        "6_2": _LATEST,
    },
    same_data_type=(
        ("ATensor", "AZeroPointTensor"),
        ("BTensor", "BZeroPointTensor"),
        ("AScaleTensor", "BScaleTensor"),
        ("AScaleTensor", "BiasTensor"),
    ),
    same_rank=(
        ("AScaleTensor", "AZeroPointTensor", "BScaleTensor", "BZeroPointTensor"),
        ("ATensor", "BTensor", "OutputTensor"),
    ),
    counts={"AScaleCount": "M", "AZeroPointCount": "M", "BScaleCount": "N", "BZeroPointCount": "N"},
    batch=BATCH,
    broadcast=("BiasTensor",),
)


@formula("matmul_integer_to_float", static=("output_dtype", "implementation"))
def _matmul_integer_to_float(
    a: Quantized, b: Quantized, bias: jax.Array | None, output_dtype: np.dtype, implementation: Implementation | None
) -> jax.Array:
    rank = max(a.values.ndim, b.values.ndim)
    bias = None if bias is None else to_rank(bias, rank)
    step: Step = dequantize(as_column(a.scale, rank), as_row(b.scale, rank), bias, output_dtype)
    left = a.values
    if jnp.issubdtype(left.dtype, jnp.floating):
        (step,) = prepared((step,))
        assert isinstance(step, Dequantize)
        left = FloatRows(left, step.a_scale)
    return matmul(left, b.values, a.zero_point, b.zero_point, (step,), implementation=implementation)


@explain_array_errors
def matmul_integer_to_float(
    a: ArrayLike,
    /,
    a_scale: ArrayLike,
    a_zero_point: ArrayLike | None,
    b: ArrayLike | PackedMatrix,
    b_scale: ArrayLike,
    b_zero_point: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    *,
    output_dtype: DTypeLike | str | None = None,
    implementation: Implementation | str | None = None,
    feature_level: FeatureLevel | str | None = None,
) -> jax.Array:
    """Multiplies integer matrices and dequantizes the product, in one pass.

    ``product[m, n] = sum over k of (a[m, k] - a_zero_point[m]) * (b[k, n] - b_zero_point[n])``, and
    ``output = float32(product) * (a_scale * b_scale) + bias``

    The product is `matmul_integer`'s, modulo 2**32. Its conversion to float32, the product of the scales, the product of the
    two, and the sum with the bias are each rounded once to float32, half to even; a 16-bit output is rounded once more. The
    specification promises no order of operations; this is onnxruntime's.

    It is differentiable in the scales and in the bias. Integers have no derivative (JAX's zero, of type float0).

    At ``FeatureLevel.EXTENDED``, `a` may be floats: they are quantized with `a_scale` to int8, as ``quantize_linear(a,
    a_scale, output_dtype="INT8")`` does, and have the derivative 0. With the scale that `dynamic_quantize_linear` returns
    for each row, this is the product of the integers that it returns, which a program then does not compute. The kernel for
    TPUs quantizes the floats itself where that moves fewer bytes of memory.

    Args:
      a: int8 or uint8, of shape (..., M, K), with up to two batch dimensions; six at ``FeatureLevel.EXTENDED``, where it
        may also be float32, float16 or bfloat16, without a zero point.
      a_scale: float32 or float16: a scalar, or one per row in shape (M,), (M, 1), (1, M, 1) or (1, 1, M, 1).
      a_zero_point: of the dtype of `a`, in the shapes of `a_scale`. None means 0.
      b: int8 or uint8, of shape (..., K, N) and the rank of `a`, or packed by `pack_matrix`. Batch dimensions of size 1
        broadcast. At ``FeatureLevel.EXTENDED`` the ranks may differ, as in NumPy: (batch, M, K) times (K, N).
      b_scale: of the dtype of `a_scale`: a scalar, or one per column in shape (N,), (1, N), (1, 1, N) or (1, 1, 1, N).
      b_zero_point: of the dtype of `b`, in the shapes of `b_scale`. None means 0, or the zero point of packed weights;
        with these, any other is an error, and any at all while tracing.
      bias: of the dtype of `a_scale` and the rank of the output, where dimensions of size 1 broadcast: (1, N) is one per
        column, and so is (N,) at ``FeatureLevel.EXTENDED``. None means 0.
      output_dtype: None means that of `a_scale`, as the specification requires; `FeatureLevel.EXTENDED` takes any of
        float32, float16 and bfloat16.
      implementation: as for `matmul_integer`.
      feature_level: the DirectML feature level whose table applies; the operator exists from 6_2 on.

    Returns:
      An array of shape (..., M, N), of `output_dtype`.

    Raises:
      DescriptorError: a rank, size or level outside of the table, a scalar that its type cannot hold, a zero point
        other than that of packed weights, or an unknown implementation. Scales and zero points must have the same rank,
        except for scalars.
      DescriptorTypeError: a data type outside of the table. The types of `a` and `b` may differ, as in onnxruntime's
        operator (on DirectML, too), although the specification requires one type. 16 and 32 bits are not supported.
      NotImplementedError: as for `matmul_integer`.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> a = jnp.array([[11, 7, 3], [10, 6, 2]], jnp.uint8)
      >>> b = jnp.array([[1, 4], [2, 5], [3, 6]], jnp.int8)
      >>> jquant.matmul_integer_to_float(a, 0.5, 12, b, jnp.array([0.25, 0.125]), None, jnp.array([[1.0, 2.0]]))
      Array([[-3.75  , -3.1875],
             [-4.5   , -4.125 ]], dtype=float32)

    References:
      DirectML, `DML_MATRIX_MULTIPLY_INTEGER_TO_FLOAT_OPERATOR_DESC`. onnxruntime, `com.microsoft.MatMulIntegerToFloat`,
      whose bias has shape (N,).
    """
    call = Call(_DESCRIPTOR, feature_level)
    float_dtype = call.float_data_type("AScaleTensor", a_scale, b_scale, bias)
    one = call.quantized("A", a, a_scale, a_zero_point, float_dtype)
    other = quantized_weights(call, "B", b, b_scale, b_zero_point, float_dtype)
    bias = call.optional_tensor("BiasTensor", bias, float_dtype)
    dtype = one.values.dtype
    is_float = jnp.issubdtype(dtype, jnp.floating) and call.descriptor.allows_data_type(call.level, "ATensor", dtype)
    _require_no_zero_point(is_float, a_zero_point is None)
    output_dtype = one.scale.dtype if output_dtype is None else data_type("output_dtype", output_dtype)
    call.check(product_shape(one.values, other.values), output_dtype)
    call.require_output_data_type(output_dtype, "AScaleTensor", one.scale.dtype)
    return _matmul_integer_to_float(one, other, bias, output_dtype, optional_implementation(implementation))


@once_for_each_signature
def _require_no_zero_point(is_float: bool, is_none: bool) -> None:
    """Asserts that floats have no zero point."""
    text = "is given, but a holds floats"
    require(not is_float or is_none, message(_OPERATOR, "AZeroPointTensor", text, "ATensor"))
