"""Products of quantized matrices whose weights have a scale for each block of rows."""

import functools

import jax
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jquant.arguments.blocks import (
    block_size_of,
    k_parts_of,
    require_block_size,
    require_none,
    require_rows,
    zero_point_of_blocks,
)
from jquant.arguments.call import Call
from jquant.arguments.descriptor import Descriptor, Tensor
from jquant.arguments.naming import Operator
from jquant.arguments.operands import FLOAT32
from jquant.arguments.products import BATCH, product_shape, require_packed_as
from jquant.arguments.statics import float_data_type
from jquant.arithmetic.broadcasting import to_rank
from jquant.errors import DescriptorError
from jquant.kernels.block_dot import block_dot
from jquant.kernels.epilogue import Scale, as_column
from jquant.kernels.packed import pack_blocks
from jquant.lowering.formula import formula
from jquant.modes import Implementation, optional_implementation
from jquant.packed.block_matrix import Layout, PackedBlockMatrix
from jquant.placement import explain_array_errors
from jquant.quantized_tensor import Quantized

_OPERATOR = Operator("block_scaled_matmul")
_FLOATS, _WEIGHTS = "FLOAT32 FLOAT16 BFLOAT16", "INT4 UINT4 INT8 UINT8"
_BATCH = " ".join(f"[{name}]" for name in BATCH)
_DESCRIPTOR = Descriptor(
    _OPERATOR,
    (
        Tensor("a", "Input", (2, 8), "INT8 UINT8", f"{_BATCH} M K"),
        Tensor("a_scale", "Input", (0, 8), _FLOATS, f"{_BATCH} AScaleCount [1]"),
        Tensor("a_zero_point", "Optional input", (0, 8), "INT8 UINT8", f"{_BATCH} AZeroPointCount [1]"),
        Tensor("b", "Input", (2, 8), _WEIGHTS, f"{_BATCH} K N"),
        Tensor("b_scale", "Input", (2, 8), _FLOATS, f"{_BATCH} BlockCount N"),
        Tensor("b_zero_point", "Optional input", (2, 8), _WEIGHTS, f"{_BATCH} BlockCount N"),
        Tensor("bias", "Optional input", (0, 8), _FLOATS),
        Tensor("output", "Output", (2, 8), _FLOATS, f"{_BATCH} M N"),
    ),
    same_data_type=(("a", "a_zero_point"), ("b", "b_zero_point")),
    same_rank=(("b", "b_scale", "b_zero_point"),),
    counts={"AScaleCount": "M", "AZeroPointCount": "M"},
    batch=BATCH,
    broadcast=("bias",),
)


@formula("block_scaled_matmul", static=("k_parts", "output_dtype", "implementation"))
def _block_scaled_matmul(
    a: Quantized,
    b: PackedBlockMatrix,
    bias: jax.Array | None,
    k_parts: int,
    output_dtype: np.dtype,
    implementation: Implementation | None,
) -> jax.Array:
    rank = max(a.values.ndim, b.ndim)
    bias = None if bias is None else to_rank(bias, rank)
    a_scale, a_zero_point = _column(a.scale, rank), a.zero_point
    a_zero_point = None if a_zero_point is None else _column(a_zero_point, rank)
    epilogue = (Scale(a_scale, bias, output_dtype),)
    values, b = jax.tree.map(functools.partial(to_rank, rank=rank), (a.values, b))
    return block_dot(values, a_zero_point, b, epilogue, k_parts=k_parts, implementation=implementation)


@formula("block_scaled_matmul", static=("block_size", "k_parts", "output_dtype", "implementation"))
def _block_scaled_matmul_of_arrays(
    a: Quantized,
    b: jax.Array,
    b_scale: jax.Array,
    b_zero_point: jax.Array | None,
    bias: jax.Array | None,
    block_size: int,
    k_parts: int,
    output_dtype: np.dtype,
    implementation: Implementation | None,
) -> jax.Array:
    matrix = pack_blocks(b, b_scale, b_zero_point, None, block_size, Layout.BYTES)
    return _block_scaled_matmul(a, matrix, bias, k_parts, output_dtype, implementation)


def _column(x: jax.Array, rank: int) -> jax.Array:
    return to_rank(x, rank) if x.ndim > 1 else as_column(x, rank)


@explain_array_errors
def block_scaled_matmul(
    a: ArrayLike,
    /,
    a_scale: ArrayLike,
    a_zero_point: ArrayLike | None,
    b: ArrayLike | PackedBlockMatrix,
    b_scale: ArrayLike | None = None,
    b_zero_point: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    *,
    block_size: int | None = None,
    k_parts: int = 1,
    output_dtype: DTypeLike | str | None = None,
    implementation: Implementation | str | None = None,
) -> jax.Array:
    """Multiplies integers by weights of 4 or 8 bits that have a scale for each block of rows in a column.

    ``S[g, m, n] = sum over k in block g of (a[m, k] - a_zero_point[m]) * (b[k, n] - b_zero_point[g, n])``,
    ``r = sum over g of float32(S[g]) * b_scale[g]``, and ``output = r * a_scale + bias``

    S is exact, in int32. Its conversion to float32, the product with the scale, and each addition are rounded half to even;
    the sum starts with the first block, and adds the others in order. The product with ``a_scale`` and the sum with the bias
    follow, each rounded once, and a 16-bit output is rounded once more.

    Where packed weights have minima, which they have instead of zero points, the term of a block is
    ``float32(S[g]) * b_scale[g] + float32(R[g]) * minimum[g]``, with ``R[g, m] = sum over k in block g of
    (a[m, k] - a_zero_point[m])``, exact in int32, and each operation rounded once.

    A mesh may split N freely. To split K over a mesh, set `k_parts`: the blocks are then summed in that many runs, each in
    order, and the runs are added in adjacent pairs. The roundings then differ from those of a single run, but are the same
    on any number of devices.

    On a CPU, multiplying one row by 4-bit weights from `pack_matrix` takes less time than `matmul_integer_to_float` with
    8-bit weights; multiplying many rows takes more. An int8 `a` without a zero point is fastest. With any other `a`, a GPU
    and XLA compute the column sums of every block in each call, and a CPU adds up half as many products at a time.

    It is differentiable in the scales, in minima, and in the bias. Integers have no derivative (JAX's zero, of type float0).
    The derivative in `b_scale` holds the products of all blocks in memory: G * M * N elements of 4 bytes.

    Args:
      a: int8 or uint8, of shape (..., M, K), with up to six batch dimensions.
      a_scale: float32, float16 or bfloat16: a scalar, or one per row in shape (M,) or (..., M, 1).
      a_zero_point: of the dtype of `a`, in the shapes of `a_scale`. None means 0.
      b: int4, uint4, int8 or uint8, of shape (..., K, N), or packed by `pack_matrix` with a scale. Batch dimensions of
        size 1 broadcast, and the ranks may differ, as in NumPy: (batch, M, K) times (K, N).
      b_scale: float32, float16 or bfloat16, of shape (..., G, N) and the rank of `b`, where G is K / block_size, rounded
        up. None for packed weights, which hold their own.
      b_zero_point: of the dtype of `b`, a scalar, or in the shape of `b_scale`. None means 0, or the zero point that packed
        weights hold.
      bias: float32, float16 or bfloat16, of a shape that broadcasts to the output's. None means 0.
      block_size: the number of rows of `b` that share a scale; the last block may have fewer. None means K / G, if that is
        an integer, or the block size of packed weights.
      k_parts: the number of runs in which the blocks are summed: a power of two that divides G (1 if K is 0).
      output_dtype: float32, float16 or bfloat16; None means that of `a_scale`.
      implementation: as for `matmul_integer`.

    Returns:
      An array of shape (..., M, N), of `output_dtype`. Where K is 0, the product is 0.

    Raises:
      DescriptorError: shapes that do not fit, a scale or a zero point given with packed weights, or an unknown
        implementation.
      DescriptorTypeError: a data type other than those above.
      NotImplementedError: as for `matmul_integer`; and if one of Pallas' kernels is asked for weights that have minima.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> a = jnp.array([[1, 2, 3, 4], [-1, -2, -3, -4]], jnp.int8)
      >>> b = jnp.array([[1, -8], [2, 7], [3, 0], [4, 1]], jnp.int4)
      >>> scale = jnp.array([[0.5, 1.0], [2.0, 0.25]])
      >>> jquant.block_scaled_matmul(a, 0.5, None, b, scale)
      Array([[ 26.25,   3.5 ],
             [-26.25,  -3.5 ]], dtype=float32)
      >>> jquant.block_scaled_matmul(a, 0.5, None, jquant.pack_matrix(b, scale=scale), output_dtype="float16")
      Array([[ 26.25,   3.5 ],
             [-26.25,  -3.5 ]], dtype=float16)

    References:
      onnxruntime, `com.microsoft.MatMulNBits`, which takes floats and quantizes them as it likes.
    """
    call = Call(_DESCRIPTOR)
    float_dtype = call.float_data_type("a_scale", a_scale)
    one = call.quantized("a", a, a_scale, a_zero_point, float_dtype)
    bias = call.optional_tensor("bias", bias, FLOAT32)
    output_dtype = one.scale.dtype if output_dtype is None else float_data_type(_OPERATOR, "output_dtype", output_dtype)
    rows = {"a_scale": one.scale, "a_zero_point": one.zero_point}
    require_packed_as(PackedBlockMatrix, _OPERATOR, "b", b)
    if isinstance(b, PackedBlockMatrix):
        b.validate(f"{_OPERATOR}: b")
        require_none(_OPERATOR, {"b_scale": b_scale, "b_zero_point": b_zero_point})
        call.check(product_shape(one.values, b), output_dtype, b=b, b_scale=b.scale, b_zero_point=None)
        require_rows(_OPERATOR, one.values, rows)
        require_block_size(_OPERATOR, block_size, b)
        options = k_parts_of(_OPERATOR, k_parts, b.scale.shape[-2]), output_dtype, optional_implementation(implementation)
        return _block_scaled_matmul(one, b, bias, *options)
    if b_scale is None:
        raise DescriptorError(f"{_OPERATOR}: b_scale is None; only packed weights hold their own")
    b, b_scale = call.tensor("b", b), call.tensor("b_scale", b_scale, FLOAT32)
    b_zero_point, covered = zero_point_of_blocks(call, "b", b_zero_point, b.dtype, b_scale)
    call.check(product_shape(one.values, b), output_dtype, **covered)
    require_rows(_OPERATOR, one.values, rows)
    block_size = block_size_of(_OPERATOR, block_size, b, b_scale, ("b", "b_scale"))
    options = k_parts_of(_OPERATOR, k_parts, b_scale.shape[-2]), output_dtype, optional_implementation(implementation)
    return _block_scaled_matmul_of_arrays(one, b, b_scale, b_zero_point, bias, block_size, *options)
