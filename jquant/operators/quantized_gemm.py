"""onnxruntime's QGemm (domain com.microsoft)"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jquant.arguments.call import Call
from jquant.arguments.descriptor import Descriptor, Tensor
from jquant.arguments.naming import Operator
from jquant.arguments.products import product_shape, quantized_weights
from jquant.arithmetic.broadcasting import to_rank
from jquant.kernels.epilogue import AddBias, as_row, requantize
from jquant.kernels.matmul import matmul
from jquant.lowering.formula import formula
from jquant.modes import Implementation, optional_implementation
from jquant.packed.matrix import PackedMatrix
from jquant.placement import explain_array_errors
from jquant.quantized_tensor import Quantized, ScaleZeroPoint

_OPERATOR = Operator("quantized_gemm", "QGemm", output="Y")
_DESCRIPTOR = Descriptor(
    _OPERATOR,
    (
        Tensor("A", "Input", (2, 2), "INT8 UINT8", "M K"),
        Tensor("a_scale", "Input", (0, 1), "FLOAT32", "[1]"),
        Tensor("a_zero_point", "Optional input", (0, 1), "INT8 UINT8", "[1]"),
        Tensor("B", "Input", (2, 2), "INT8 UINT8", "K N"),
        Tensor("b_scale", "Input", (0, 1), "FLOAT32", "[BScaleCount]"),
        Tensor("b_zero_point", "Optional input", (0, 1), "INT8 UINT8", "[BZeroPointCount]"),
        Tensor("C", "Optional input", (0, 2), "INT32", "[CRowCount] [CColumnCount]"),
        Tensor("y_scale", "Input", (0, 1), "FLOAT32", "[1]"),
        Tensor("y_zero_point", "Optional input", (0, 1), "INT8 UINT8", "[1]"),
        Tensor("Y", "Output", (2, 2), "INT8 UINT8", "M N"),
    ),
    same_data_type=(("A", "a_zero_point"), ("B", "b_zero_point"), ("Y", "y_zero_point")),
    counts={"BScaleCount": "N", "BZeroPointCount": "N", "CRowCount": "M", "CColumnCount": "N"},
)


@formula("quantized_gemm", static=("output_dtype", "implementation"))
def _quantized_gemm(
    a: Quantized,
    b: Quantized,
    c: jax.Array | None,
    output: ScaleZeroPoint,
    output_dtype: np.dtype,
    implementation: Implementation | None,
) -> jax.Array:
    a_scale, b_scale, output = jax.tree.map(functools.partial(as_row, rank=2), (a.scale, b.scale, output))
    epilogue = (requantize(a_scale, b_scale, output, output_dtype),)
    if c is not None:
        epilogue = (AddBias(to_rank(c, 2)), *epilogue)
    return matmul(a.values, b.values, a.zero_point, b.zero_point, epilogue, implementation=implementation)


@explain_array_errors
def quantized_gemm(
    a: ArrayLike,
    /,
    a_scale: ArrayLike,
    a_zero_point: ArrayLike | None,
    b: ArrayLike | PackedMatrix,
    b_scale: ArrayLike,
    b_zero_point: ArrayLike | None,
    c: ArrayLike | None,
    output_scale: ArrayLike,
    output_zero_point: ArrayLike | None = None,
    *,
    output_dtype: DTypeLike | str | None = None,
    implementation: Implementation | str | None = None,
) -> jax.Array:
    """Multiplies quantized matrices, adds a bias and quantizes the sum, in one pass: a dense layer.

    ``sum[m, n] = sum over k of (a[m, k] - a_zero_point) * (b[k, n] - b_zero_point[n]) + c[m, n]``, and
    ``output = saturate(round(float32(sum) * ((a_scale * b_scale) / output_scale)) + output_zero_point)``

    The sum is an integer, modulo 2**32. Each operation after it is rounded once to float32; the last product is rounded to
    the nearest integer, ties to even, *before* the output zero point is added. NaN, which only scales of 0, infinity or NaN
    can produce, gives 0.

    For the specification's ``transA`` and ``transB``, pass ``a.T`` and ``b.T``; multiply `a_scale` by its ``alpha``, a
    factor of the product. Without an output scale, the operator of the specification returns float32; for that, call
    `matmul_integer_to_float`.

    The result is an integer array and has no derivative (JAX's zero, of type float0). To train through the rounding, use
    `quantize_and_dequantize` or `fake_quantize`.

    Args:
      a: int8 or uint8, of shape (M, K).
      a_scale: float32, one element.
      a_zero_point: of the dtype of `a`, one element. None means 0.
      b: int8 or uint8, of shape (K, N), or packed by `pack_matrix`.
      b_scale: float32: a scalar, or one per column in shape (N,).
      b_zero_point: of the dtype of `b`: a scalar, or one per column in shape (N,). None means 0, or the zero point of
        packed weights.
      c: int32, in units of ``a_scale * b_scale``, of a shape that broadcasts to (M, N): (N,) is a bias. None means 0.
      output_scale: float32, one element.
      output_zero_point: of the dtype of the output, one element. None means 0.
      output_dtype: int8 or uint8. None: the dtype of `output_zero_point` if that is an array, else that of `a`.
      implementation: as for `matmul_integer`.

    Returns:
      An array of shape (M, N), of `output_dtype`.

    Raises:
      DescriptorError: a rank or size that is not allowed, a scalar that its type cannot hold, a zero point other than
        that of packed weights, or an unknown implementation.
      DescriptorTypeError: a data type that is not allowed, or an `output_dtype` that is not that of `output_zero_point`.
      NotImplementedError: as for `matmul_integer`.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> a = jnp.array([[11, 7, 3], [10, 6, 2]], jnp.uint8)
      >>> b = jnp.array([[1, 4], [2, 5], [3, 6]], jnp.int8)
      >>> jquant.quantized_gemm(a, 0.5, 12, b, 0.25, None, jnp.array([40, -6]), 0.25, 100)
      Array([[101,  56],
             [ 98,  48]], dtype=uint8)

    References:
      onnxruntime, `com.microsoft.QGemm`.
    """
    call = Call(_DESCRIPTOR)
    one = call.quantized("A", a, a_scale, a_zero_point)
    other = quantized_weights(call, "B", b, b_scale, b_zero_point)
    c = call.optional_one_or_more("C", c, jnp.dtype(jnp.int32))
    output, output_dtype = call.output("Y", output_scale, output_zero_point, output_dtype, default=one.values.dtype)
    call.check(product_shape(one.values, other.values), output_dtype)
    return _quantized_gemm(one, other, c, output, output_dtype, optional_implementation(implementation))
