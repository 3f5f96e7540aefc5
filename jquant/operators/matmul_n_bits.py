"""onnxruntime's MatMulNBits (domain com.microsoft)"""

import math
from collections.abc import Mapping
from typing import NamedTuple, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jquant.arguments.assertions import once_for_each_signature, require, require_named_type
from jquant.arguments.blocks import require_none
from jquant.arguments.call import Call
from jquant.arguments.descriptor import Descriptor, Tensor
from jquant.arguments.naming import Operator, message
from jquant.arguments.operands import Operand, operand
from jquant.arguments.products import product_shape
from jquant.arguments.statics import float_data_type, integer
from jquant.arithmetic import exact, subbyte
from jquant.arithmetic.broadcasting import to_rank
from jquant.errors import DescriptorTypeError
from jquant.kernels.weight_only.dispatch import matmul
from jquant.kernels.weights import StoredWeights
from jquant.lowering.formula import formula
from jquant.modes import data_type_name
from jquant.packed.block_matrix import PackedBlockMatrix
from jquant.placement import explain_array_errors

_OPERATOR = Operator("matmul_n_bits", "MatMulNBits", output="Y")
_FLOATS = "FLOAT32 FLOAT16 BFLOAT16"
_BATCH = "[Batch1] [Batch2] [Batch3] [Batch4] [Batch5] [Batch6]"
_REST = (
    Tensor("bias", "Optional input", (1, 1), _FLOATS, "N"),
    Tensor("Y", "Output", (1, 8), _FLOATS, f"{_BATCH} [M] N"),
)
_DESCRIPTOR = Descriptor(
    _OPERATOR,
    (
        Tensor("A", "Input", (1, 8), _FLOATS, f"{_BATCH} [M] K"),
        Tensor("B", "Input", (3, 3), "UINT8", "N k_blocks blob_size"),
        Tensor("scales", "Input", (2, 2), _FLOATS, "N k_blocks"),
        Tensor("zero_points", "Optional input", (2, 2), f"UINT8 {_FLOATS}", "N zero_point_count"),
        Tensor("g_idx", "Optional input", (1, 1), "INT32", "K"),
        *_REST,
    ),
    same_data_type=(("A", "scales"), ("A", "bias")),
)
_PACKED_DESCRIPTOR = Descriptor(  # jquant's own
    _OPERATOR,
    (
        Tensor("A", "Input", (1, 8), _FLOATS, f"{_BATCH} [M] K"),
        Tensor("B", "Input", (2, 8), "INT4 UINT4 INT8 UINT8", f"{_BATCH} K N"),
        *_REST,
    ),
    same_data_type=(("A", "bias"),),
    batch=tuple(name.strip("[]") for name in _BATCH.split()),
)


class _Stored(NamedTuple):
    """The operands of the specification."""

    b: jax.Array
    scales: jax.Array
    zero_points: jax.Array | None
    g_idx: jax.Array | None

    def weights(self, bits: int) -> StoredWeights:
        """With a zero point for each scale, and a scale for each row of the weights where there is `g_idx`."""
        b, scales, zero_points, g_idx = self
        if zero_points is not None and zero_points.dtype == jnp.uint8:
            zero_points = subbyte.unpacked(zero_points, bits)[:, : scales.shape[1]]
        if g_idx is None:
            return StoredWeights(b, scales, zero_points, bits, b.shape[2] * 8 // bits)
        scales, zero_points = jax.tree.map(lambda x: jnp.take(x, g_idx, axis=1, mode="clip"), (scales, zero_points))
        return StoredWeights(b, scales, zero_points, bits, 1)


@formula("matmul_n_bits", static=("bits", "compute_dtype"))
def _matmul_n_bits(
    a: jax.Array, b: _Stored | PackedBlockMatrix, bias: jax.Array | None, bits: int, compute_dtype: np.dtype
) -> jax.Array:
    weights = b.weights(bits) if isinstance(b, _Stored) else b
    rows = exact.widen(a)
    product = matmul(rows[None] if a.ndim == 1 else rows, weights, compute_dtype)
    product = product if bias is None else exact.sum(product, to_rank(exact.widen(bias), product.ndim))
    return exact.narrow(product[..., 0, :] if a.ndim == 1 else product, a.dtype)


@overload
@explain_array_errors
def matmul_n_bits(
    a: ArrayLike,
    /,
    b: ArrayLike,
    scales: ArrayLike,
    zero_points: ArrayLike | None = None,
    g_idx: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    *,
    bits: int | None = None,
    compute_dtype: DTypeLike | str | None = None,
) -> jax.Array: ...


@overload
@explain_array_errors
def matmul_n_bits(
    a: ArrayLike,
    /,
    b: PackedBlockMatrix,
    *,
    bias: ArrayLike | None = None,
    bits: int | None = None,
    compute_dtype: DTypeLike | str | None = None,
) -> jax.Array: ...


@explain_array_errors
def matmul_n_bits(
    a: ArrayLike,
    /,
    b: ArrayLike | PackedBlockMatrix,
    scales: ArrayLike | None = None,
    zero_points: ArrayLike | None = None,
    g_idx: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    *,
    bits: int | None = None,
    compute_dtype: DTypeLike | str | None = None,
) -> jax.Array:
    """Multiplies floats by weights of 2, 4 or 8 bits with a scale for each block of a column.

    ``output = a @ weights + bias``, where ``weights[k, n] = (q[k, n] - zero_points[n, g]) * scales[n, g]`` and g is the
    block of k, ``k // block_size``, or ``g_idx[k]``

    Packed weights may have a minimum instead: ``weights[k, n] = q[k, n] * scale[g, n] + minimum[g, n]``.

    A weight is rounded to float32 twice: in the product with the scale, and in the difference, which is exact for integers,
    or in the sum with the minimum. The products with `a` are added in float32, on matrix units at their highest precision.
    The order of these additions depends on the platform and the shape, so a bound is promised instead of exact bits: before
    the bias, which is added in float32, and the rounding to the dtype of `a`, an element is within
    ``(K + 2) * 2**-23 * sum over k of abs(a[k] * weights[k, n])`` of the exact sum for those weights. That holds where no
    partial sum leaves the range of float32. (On a CPU, packed weights without a minimum and up to 4 rows of `a` in float32
    are summed as products with ``q - zero_points``, at most one block at a time, and each of these sums is scaled.)

    It is differentiable in `a`, in scales, in minima, in zero points that are floats, and in the bias. Derivatives hold all
    weights as floats in memory. On a CPU, the operator itself holds at most a few hundred columns or rows of them at a time,
    and none for packed weights and up to 4 rows of `a` in float32. (Without jquant-native, it holds the last block of
    weights with a minimum if that is partial, and whole blocks if a block has more than 256 rows and their number has no
    divisor from 32 to 256.) On an NVIDIA GPU, up to 8 rows of `a` are multiplied by weights as they are stored, in whole
    blocks; by packed weights if these are `k_major`, and a single row by others. With `g_idx`, `compute_dtype`, for weights
    with batch dimensions, otherwise, and in a program that is split over a mesh, the operator dequantizes the whole matrix
    and multiplies with that.

    Args:
      a: float32, float16 or bfloat16, of shape (..., M, K) with up to six batch dimensions, or (K,).
      b: uint8, of shape (N, G, block_size * bits / 8): for each column and block, its integers from the first row on, the
        first in the lowest bits of the first byte. The block size is a power of two, 16 or more, and G is K / block_size,
        rounded up. Or a `PackedBlockMatrix` of K rows, which is the fastest on a CPU: `pack_matrix` makes it from integers
        of shape (..., K, N), and scales, and zero points or minima, of shape (..., G, N). It holds these: do not pass them
        here.
      scales: of the dtype of `a` and of shape (N, G) or (N * G,).
      zero_points: uint8, packed as `b` is, of shape (N, ceil(G * bits / 8)); or of the dtype of `a` and of shape (N, G).
        Either may be flat. None means 2 ** (bits - 1).
      g_idx: int32, of shape (K,): the block whose scale and zero point each row of the weights uses; an index out of range
        means the nearest block. None: the block in which the row lies. onnxruntime calls it deprecated.
      bias: of the dtype of `a` and of shape (N,). None means 0.
      bits: 2, 4 or 8. None means 4, or the bits of packed weights.
      compute_dtype: None means float32. bfloat16, which is inexact, rounds `a` and the weights to bfloat16 before they are
        multiplied, which is faster on some matrix units, and adds ``2**-6.99 * sum over k of abs(a[k] * weights[k, n])``
        to the bound.

    Returns:
      An array of shape (..., M, N), or (N,), and of the dtype of `a`.

    Raises:
      DescriptorError: a rank, size or number of bits that is not allowed, or scales given with packed weights.
      DescriptorTypeError: a data type other than those above.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> b = jnp.full((2, 1, 8), 0x97, jnp.uint8)  # 7 and 9, again and again: -1 and 1, for the zero point is 8
      >>> jquant.matmul_n_bits(jnp.arange(16.0), b, jnp.array([[0.5], [0.25]]))
      Array([4., 2.], dtype=float32)
      >>> weights = jnp.tile(jnp.array([[-1], [1]], jnp.int4), (8, 2))
      >>> packed = jquant.pack_matrix(weights, scale=jnp.array([[0.5, 0.25]]))
      >>> jquant.matmul_n_bits(jnp.arange(16.0), packed, bias=jnp.array([1.0, -1.0]))
      Array([5., 1.], dtype=float32)

    References:
      onnxruntime, `com.microsoft.MatMulNBits`.
    """
    if bits is not None:
        bits = integer(_OPERATOR, "bits", bits, (2, 4, 8), "2, 4 or 8, or None")
    dtype = np.dtype(np.float32) if compute_dtype is None else float_data_type(_OPERATOR, "compute_dtype", compute_dtype)
    require_named_type(_OPERATOR, "compute_dtype", dtype, ("FLOAT32", "BFLOAT16"))
    if isinstance(b, PackedBlockMatrix):
        a, bias = _beside_packed(a, b, {"scales": scales, "zero_points": zero_points, "g_idx": g_idx}, bias, bits)
        return _matmul_n_bits(a, b, bias, jnp.iinfo(b.dtype).bits, dtype)
    bits = 4 if bits is None else bits
    a, weights, bias = _stored(a, b, scales, zero_points, g_idx, bias, bits)
    return _matmul_n_bits(a, weights, bias, bits, dtype)


def _beside_packed(
    a: ArrayLike, b: PackedBlockMatrix, beside: Mapping[str, object], bias: ArrayLike | None, bits: int | None
) -> tuple[jax.Array, jax.Array | None]:
    b.validate(f"{_OPERATOR}: b")
    require_none(_OPERATOR, beside)
    _require_bits_of_packed(bits, jnp.iinfo(b.dtype).bits)
    call = Call(_PACKED_DESCRIPTOR)
    a, bias = call.tensor("A", a), call.optional_tensor("bias", bias, np.dtype(np.float32))
    call.check(product_shape(a, b), a.dtype, B=b)
    return a, bias


def _stored(
    a: ArrayLike,
    b: ArrayLike,
    scales: ArrayLike | None,
    zero_points: ArrayLike | None,
    g_idx: ArrayLike | None,
    bias: ArrayLike | None,
    bits: int,
) -> tuple[jax.Array, _Stored, jax.Array | None]:
    call = Call(_DESCRIPTOR)
    a, b = call.tensor("A", a), call.tensor("B", b)
    columns = b.shape[0] if b.ndim else 1
    its_scales = None if scales is None else call.tensor("scales", _by_column("scales", scales, columns))
    if zero_points is not None:
        zero_points = _by_column("zero_points", zero_points, columns)
    zero_points = call.optional_tensor("zero_points", zero_points, np.dtype(np.uint8))
    g_idx = call.optional_tensor("g_idx", g_idx, np.dtype(np.int32))
    bias = call.optional_tensor("bias", bias, np.dtype(np.float32))
    call.check((*a.shape[:-1], columns), a.dtype, scales=its_scales)
    assert its_scales is not None
    _, blocks, size = b.shape
    block_size, k = size * 8 // bits, a.shape[-1]
    _require_blocks(b.shape, bits, block_size, k)
    if zero_points is not None:
        _require_zero_points(zero_points.shape, zero_points.dtype, a.dtype, blocks, bits)
    return a, _Stored(b, its_scales, zero_points, g_idx), bias


def _by_column(name: str, x: ArrayLike, columns: int) -> Operand:
    """`x` in two dimensions, if it is flat."""
    array = operand(_OPERATOR, name, x)
    if array.ndim != 1 or columns == 0:
        return array
    _require_columns(name, array.shape, columns)
    return array.reshape(columns, -1)


@once_for_each_signature
def _require_columns(name: str, shape: tuple[int, ...], columns: int) -> None:
    text = f"has shape {shape}; its size must be a multiple of N, which is {columns} in b"
    require(math.prod(shape) % columns == 0, message(_OPERATOR, name, text))


@once_for_each_signature
def _require_bits_of_packed(bits: int | None, packed_bits: int) -> None:
    text = f"is {bits}; the packed weights have {packed_bits}"
    require(bits in (None, packed_bits), message(_OPERATOR, "bits", text))


@once_for_each_signature
def _require_blocks(b: tuple[int, ...], bits: int, block_size: int, k: int) -> None:
    """Asserts that the blocks of B are of an allowed size, and that they cover K."""
    subject = f"has shape {b}, which with bits={bits} means blocks of {block_size}"
    is_power = block_size >= 16 and block_size & (block_size - 1) == 0
    require(is_power, message(_OPERATOR, "B", f"{subject}; the block size must be a power of two, 16 or more"))
    wanted = -(-k // block_size)
    require(b[1] == wanted, message(_OPERATOR, "B", f"{subject}; K, which is {k} in a, makes {wanted} of them"))


@once_for_each_signature
def _require_zero_points(shape: tuple[int, ...], dtype: np.dtype, a_dtype: np.dtype, blocks: int, bits: int) -> None:
    """Asserts that each block has a zero point: of the type of A, or packed into bytes."""
    is_packed = dtype == jnp.uint8
    text = f"has data type {data_type_name(dtype)}; it must be UINT8 or match that of a, {data_type_name(a_dtype)}"
    require(is_packed or dtype == a_dtype, message(_OPERATOR, "zero_points", text), DescriptorTypeError)
    count = -(-blocks * bits // 8) if is_packed else blocks
    what = f"bytes for {blocks} blocks of {bits} bits" if is_packed else f"for {blocks} blocks"
    text = f"has shape {shape}; it must have {count} per column, {what}"
    require(shape[1] == count, message(_OPERATOR, "zero_points", text))
