"""DML_QUANTIZED_LINEAR_MATRIX_MULTIPLY"""

import functools

import jax
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jquant.arguments.call import Call
from jquant.arguments.descriptor import Descriptor, Tensor
from jquant.arguments.naming import Operator
from jquant.arguments.products import BATCH, product_shape, quantized_weights, with_more_dimensions
from jquant.kernels.epilogue import as_column, as_row, requantize
from jquant.kernels.matmul import matmul
from jquant.lowering.formula import formula
from jquant.modes import FeatureLevel, Implementation, optional_implementation
from jquant.packed.matrix import PackedMatrix
from jquant.placement import explain_array_errors
from jquant.quantized_tensor import Quantized, ScaleZeroPoint

_OPERATOR = Operator("quantized_linear_matmul", "DML_QUANTIZED_LINEAR_MATRIX_MULTIPLY")
_DESCRIPTOR = Descriptor(
    _OPERATOR,
    {
        "EXTENDED": with_more_dimensions(
            (  # with the scales of ONNX
                Tensor("ATensor", "Input", (2, 4), "INT8 UINT8", "[BatchCount] [ChannelCount] M K"),
                Tensor("AScaleTensor", "Input", (1, 4), "FLOAT32 FLOAT16", "[1] [1] AScaleCount [1]"),
                Tensor("AZeroPointTensor", "Optional input", (1, 4), "INT8 UINT8", "[1] [1] AZeroPointCount [1]"),
                Tensor("BTensor", "Input", (2, 4), "INT8 UINT8", "[BatchCount] [ChannelCount] K N"),
                Tensor("BScaleTensor", "Input", (1, 4), "FLOAT32 FLOAT16", "[1] [1] [1] BScaleCount"),
                Tensor("BZeroPointTensor", "Optional input", (1, 4), "INT8 UINT8", "[1] [1] [1] BZeroPointCount"),
                Tensor("OutputScaleTensor", "Input", (1, 4), "FLOAT32 FLOAT16", "[1] [1] OutputScaleCount [1]"),
                Tensor("OutputZeroPointTensor", "Optional input", (1, 4), "INT8 UINT8", "[1] [1] OutputZeroPointCount [1]"),
                Tensor("OutputTensor", "Output", (2, 4), "INT8 UINT8", "[BatchCount] [ChannelCount] M N"),
            )
        ),
        "4_0": (
            Tensor("ATensor", "Input", (2, 4), "INT8 UINT8", "[BatchCount] [ChannelCount] M K"),
            Tensor("AScaleTensor", "Input", (1, 4), "FLOAT32", "[1] [1] AScaleCount [1]"),
            Tensor("AZeroPointTensor", "Optional input", (1, 4), "INT8 UINT8", "[1] [1] AZeroPointCount [1]"),
            Tensor("BTensor", "Input", (2, 4), "INT8 UINT8", "[BatchCount] [ChannelCount] K N"),
            Tensor("BScaleTensor", "Input", (1, 4), "FLOAT32", "[1] [1] [1] BScaleCount"),
            Tensor("BZeroPointTensor", "Optional input", (1, 4), "INT8 UINT8", "[1] [1] [1] BZeroPointCount"),
            Tensor("OutputScaleTensor", "Input", (1, 4), "FLOAT32", "[1] [1] OutputScaleCount [1]"),
            Tensor("OutputZeroPointTensor", "Optional input", (1, 4), "INT8 UINT8", "[1] [1] OutputZeroPointCount [1]"),
            Tensor("OutputTensor", "Output", (2, 4), "INT8 UINT8", "[BatchCount] [ChannelCount] M N"),
        ),
        "2_1": (
            Tensor("ATensor", "Input", (4, 4), "INT8 UINT8", "BatchCount ChannelCount M K"),
            Tensor("AScaleTensor", "Input", (4, 4), "FLOAT32", "1 1 AScaleCount 1"),
            Tensor("AZeroPointTensor", "Optional input", (4, 4), "INT8 UINT8", "1 1 AZeroPointCount 1"),
            Tensor("BTensor", "Input", (4, 4), "INT8 UINT8", "BatchCount ChannelCount K N"),
            Tensor("BScaleTensor", "Input", (4, 4), "FLOAT32", "1 1 1 BScaleCount"),
            Tensor("BZeroPointTensor", "Optional input", (4, 4), "INT8 UINT8", "1 1 1 BZeroPointCount"),
            Tensor("OutputScaleTensor", "Input", (4, 4), "FLOAT32", "1 1 OutputScaleCount 1"),
            Tensor("OutputZeroPointTensor", "Optional input", (4, 4), "INT8 UINT8", "1 1 OutputZeroPointCount 1"),
            Tensor("OutputTensor", "Output", (4, 4), "INT8 UINT8", "BatchCount ChannelCount M N"),
        ),
    },
    same_data_type=(
        ("ATensor", "AZeroPointTensor"),
        ("BTensor", "BZeroPointTensor"),
        ("OutputTensor", "OutputZeroPointTensor"),
    ),
    same_rank=(
        ("ATensor", "BTensor", "OutputTensor"),
        (
            *("AScaleTensor", "AZeroPointTensor", "BScaleTensor", "BZeroPointTensor"),
            *("OutputScaleTensor", "OutputZeroPointTensor"),
        ),
    ),
    counts={
        **{"AScaleCount": "M", "AZeroPointCount": "M", "BScaleCount": "N", "BZeroPointCount": "N"},
        **{"OutputScaleCount": "M", "OutputZeroPointCount": "M"},
    },
    batch=BATCH,
)


@formula("quantized_linear_matmul", static=("output_dtype", "implementation"))
def _quantized_linear_matmul(
    a: Quantized, b: Quantized, output: ScaleZeroPoint, output_dtype: np.dtype, implementation: Implementation | None
) -> jax.Array:
    rank = max(a.values.ndim, b.values.ndim)
    a_scale, output = jax.tree.map(functools.partial(as_column, rank=rank), (a.scale, output))
    epilogue = (requantize(a_scale, as_row(b.scale, rank), output, output_dtype),)
    return matmul(a.values, b.values, a.zero_point, b.zero_point, epilogue, implementation=implementation)


@explain_array_errors
def quantized_linear_matmul(
    a: ArrayLike,
    /,
    a_scale: ArrayLike,
    a_zero_point: ArrayLike | None,
    b: ArrayLike | PackedMatrix,
    b_scale: ArrayLike,
    b_zero_point: ArrayLike | None,
    output_scale: ArrayLike,
    output_zero_point: ArrayLike | None = None,
    *,
    output_dtype: DTypeLike | str | None = None,
    implementation: Implementation | str | None = None,
    feature_level: FeatureLevel | str | None = None,
) -> jax.Array:
    """Multiplies quantized matrices and quantizes the product, in one pass.

    ``product[m, n] = sum over k of (a[m, k] - a_zero_point[m]) * (b[k, n] - b_zero_point[n])``, and
    ``output = saturate(round(float32(product) * ((a_scale * b_scale) / output_scale)) + output_zero_point)``

    The product is `matmul_integer`'s, modulo 2**32. Each operation after it is rounded once to float32; the last
    product is rounded to the nearest integer, ties to even, *before* the output zero point is added. The specification
    promises no order of operations; this is onnxruntime's. NaN, which only scales of 0, infinity or NaN can produce and
    the specification leaves undefined, gives 0.

    The result is an integer array and has no derivative (JAX's zero, of type float0). To train through the rounding, use
    `quantize_and_dequantize` or `fake_quantize`.

    Args:
      a: int8 or uint8, of shape (..., M, K), with up to two batch dimensions; six at ``FeatureLevel.EXTENDED``.
      a_scale: float32; at ``FeatureLevel.EXTENDED`` also float16 or bfloat16, which are widened to it: a scalar, or one
        per row in shape (M,), (M, 1), (1, M, 1) or (1, 1, M, 1).
      a_zero_point: of the dtype of `a`, in the shapes of `a_scale`. None means 0.
      b: int8 or uint8, of shape (..., K, N) and the rank of `a`, or packed by `pack_matrix`. Batch dimensions of size 1
        broadcast. At ``FeatureLevel.EXTENDED`` the ranks may differ, as in NumPy: (batch, M, K) times (K, N).
      b_scale: of the types of `a_scale`: a scalar, or one per column in shape (N,), (1, N), (1, 1, N) or (1, 1, 1, N).
      b_zero_point: of the dtype of `b`, in the shapes of `b_scale`. None means 0, or the zero point of packed weights;
        with these, any other is an error, and any at all while tracing.
      output_scale: of the types of `a_scale`, and in its shapes.
      output_zero_point: of the dtype of the output, in the shapes of `a_scale`. None means 0.
      output_dtype: int8 or uint8. None: the dtype of `output_zero_point` if that is an array, else that of `a`.
      implementation: as for `matmul_integer`.
      feature_level: the DirectML feature level whose table applies; the operator exists from 2_1 on.

    Returns:
      An array of shape (..., M, N), of `output_dtype`.

    Raises:
      DescriptorError: a rank, size or level outside of the table, a scalar that its type cannot hold, a zero point
        other than that of packed weights, or an unknown implementation. Scales and zero points must have the same rank,
        except for scalars.
      DescriptorTypeError: a data type outside of the table, or an `output_dtype` that is not that of
        `output_zero_point`.
      NotImplementedError: as for `matmul_integer`.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> a = jnp.array([[11, 7, 3], [10, 6, 2]], jnp.uint8)
      >>> b = jnp.array([[1, 4], [2, 5], [3, 6]], jnp.int8)
      >>> jquant.quantized_linear_matmul(a, 0.5, 12, b, 0.25, None, 0.25, 100)
      Array([[81, 58],
             [78, 51]], dtype=uint8)

    References:
      DirectML, `DML_QUANTIZED_LINEAR_MATRIX_MULTIPLY_OPERATOR_DESC`. ONNX, `QLinearMatMul`.
    """
    call = Call(_DESCRIPTOR, feature_level)
    one = call.quantized("A", a, a_scale, a_zero_point)
    other = quantized_weights(call, "B", b, b_scale, b_zero_point)
    output, output_dtype = call.output("Output", output_scale, output_zero_point, output_dtype, default=one.values.dtype)
    call.check(product_shape(one.values, other.values), output_dtype)
    return _quantized_linear_matmul(one, other, output, output_dtype, optional_implementation(implementation))
