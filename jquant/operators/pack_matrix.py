"""Prepacks weights, once for all products."""

import sys
from typing import overload

import jax
from jax.typing import ArrayLike

from jquant.arguments.assertions import once_for_each_signature, require
from jquant.arguments.blocks import block_size_of, zero_point_of_blocks
from jquant.arguments.call import Call
from jquant.arguments.descriptor import Descriptor, Tensor
from jquant.arguments.naming import Operator
from jquant.arguments.operands import FLOAT32
from jquant.arguments.products import with_more_dimensions
from jquant.arguments.statics import boolean, integer
from jquant.kernels import packed
from jquant.kernels.epilogue import as_row
from jquant.lowering.formula import formula
from jquant.packed.block_matrix import PackedBlockMatrix
from jquant.packed.matrix import PackedMatrix
from jquant.placement import explain_array_errors

_OPERATOR = Operator("pack_matrix")
_DESCRIPTOR = Descriptor(
    _OPERATOR,
    with_more_dimensions(
        (
            Tensor("b", "Input", (2, 4), "INT8 UINT8", "[BatchCount] [ChannelCount] K N"),
            Tensor("zero_point", "Optional input", (1, 4), "INT8 UINT8", "[1] [1] [1] BZeroPointCount"),
            Tensor("output", "Output", (2, 4), "INT8 UINT8", "[BatchCount] [ChannelCount] K N"),
        )
    ),
    same_data_type=(("b", "zero_point"),),
    counts={"BZeroPointCount": "N"},
)
_BLOCKS_DESCRIPTOR = Descriptor(
    _OPERATOR,
    with_more_dimensions(
        (
            Tensor("b", "Input", (2, 4), "INT4 UINT4 INT8 UINT8", "[BatchCount] [ChannelCount] K N"),
            Tensor("scale", "Input", (2, 4), "FLOAT32 FLOAT16 BFLOAT16", "[BatchCount] [ChannelCount] BlockCount N"),
            Tensor(
                "zero_point",
                "Optional input",
                (2, 4),
                "INT4 UINT4 INT8 UINT8",
                "[BatchCount] [ChannelCount] BlockCount N",
            ),
            Tensor(
                "minimum",
                "Optional input",
                (2, 4),
                "FLOAT32 FLOAT16 BFLOAT16",
                "[BatchCount] [ChannelCount] BlockCount N",
            ),
            Tensor("output", "Output", (2, 4), "INT4 UINT4 INT8 UINT8", "[BatchCount] [ChannelCount] K N"),
        )
    ),
    same_data_type=(("b", "zero_point"),),
    same_rank=(("b", "scale", "zero_point", "minimum"),),
)


@formula("pack_matrix", static=("block_size",))
def _pack_matrix(b: jax.Array, zero_point: jax.Array | None, block_size: int) -> PackedMatrix:
    return packed.pack(b, None if zero_point is None else as_row(zero_point, b.ndim), block_size)


@formula("pack_matrix", static=("block_size", "k_major"))
def _pack_blocks(
    b: jax.Array,
    scale: jax.Array,
    zero_point: jax.Array | None,
    minimum: jax.Array | None,
    block_size: int,
    k_major: bool,
) -> PackedBlockMatrix:
    matrix = packed.pack_blocks(b, scale, zero_point, minimum, block_size)
    return matrix.k_major() if k_major else matrix


@overload
@explain_array_errors
def pack_matrix(
    b: ArrayLike, /, zero_point: ArrayLike | None = None, *, scale: None = None, block_size: int | None = None
) -> PackedMatrix: ...


@overload
@explain_array_errors
def pack_matrix(
    b: ArrayLike,
    /,
    zero_point: ArrayLike | None = None,
    *,
    scale: ArrayLike,
    minimum: ArrayLike | None = None,
    block_size: int | None = None,
    k_major: bool = False,
) -> PackedBlockMatrix: ...


@explain_array_errors
def pack_matrix(
    b: ArrayLike,
    /,
    zero_point: ArrayLike | None = None,
    *,
    scale: ArrayLike | None = None,
    minimum: ArrayLike | None = None,
    block_size: int | None = None,
    k_major: bool = False,
) -> PackedMatrix | PackedBlockMatrix:
    """Packs weights for `matmul_integer` and its fused forms, or, with a scale for each block, for `block_scaled_matmul`.

    Without `scale`, the packed matrix is int8 in K-major order, ``data[n, k] = b[k, n]`` (minus 128 where `b` is uint8),
    with its column sums and its zero point. On a CPU, one row times a 4096 x 4096 matrix then takes a small part of the
    time; on a GPU, no transposition is needed. The product is the same, bit for bit.

    With `scale`, of shape (..., G, N), the packed matrix keeps the order (K, N), with its scales, and its zero points or
    minima. With g the block of row k, an integer q stands for ``(q - zero_point[g, n]) * scale[g, n]``, or, as in GGUF's
    formats Q4_1 and Q5_1, for ``q * scale[g, n] + minimum[g, n]``. 4-bit integers are stored in uint16 words of 4
    consecutive rows each, the first in the lowest bits. With `k_major`, the integers are in the order (N, K), which the
    kernel for Hopper GPUs (``implementation="mosaic_gpu"``) takes without a transposition; all other implementations
    transpose them in each call. A matrix packed with `scale` does not hold column sums. They would make it a tenth larger
    for blocks of 32, and only products of uint8, or of int8 with a zero point, need them.

    It is a pytree: `jax.jit`, `jax.vmap`, `jax.lax.scan`, `jax.device_put` and checkpoints take it like an array, and
    its method ``sharding_for`` returns the shardings of its arrays on a mesh.

    Args:
      b: int8 or uint8, of shape (..., K, N), with up to six batch dimensions (products accept two below
        ``FeatureLevel.EXTENDED``). With `scale`, int4 and uint4 as well.
      zero_point: of the dtype of `b`: a scalar, or one per column in shape (N,), (1, N), (1, 1, N) or (1, 1, 1, N); with
        `scale`, a scalar, or one for each of the scales, in their shape. None means 0, which saves the row sums of A.
      scale: None, or float32, float16 or bfloat16, of shape (..., G, N): one for each block of `block_size` rows of a
        column; the last block may have fewer rows. G is K / block_size, rounded up.
      minimum: None, or float32, float16 or bfloat16, of the shape of `scale` but not necessarily of its dtype: what is added
        to each scaled integer of a block. It takes the place of a zero point, and needs `scale`. None means 0.
      block_size: the number of rows of `b` that share a scale; None means K / G, if that is an integer. Without `scale`, the
        number of rows that a column sum covers, a divisor of K: a mesh can split K only between blocks. None means the
        largest divisor from 32 to 256, or K if there is none.
      k_major: whether the integers, with `scale`, are in the order (N, K). Without `scale`, they always are.

    Returns:
      A `PackedMatrix` of the shape and dtype of `b`, or with `scale` a `PackedBlockMatrix`.

    Raises:
      DescriptorError: a rank or size that no product takes; a block size that does not fit K or G; `minimum` together with
        `zero_point`; or `minimum` or `k_major` without `scale`.
      DescriptorTypeError: a data type other than those above.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> packed = jquant.pack_matrix(jnp.array([[1, 4], [2, 5], [3, 6]], jnp.int8), jnp.array([0, 1], jnp.int8))
      >>> packed
      PackedMatrix(int8[3,2])
      >>> jquant.matmul_integer(jnp.array([[11, 7, 3], [10, 6, 2]], jnp.uint8), packed, 12)
      Array([[-38, -68],
             [-44, -80]], dtype=int32)
      >>> jquant.pack_matrix(jnp.ones((64, 2), jnp.int4), scale=jnp.ones((2, 2)))
      PackedBlockMatrix(int4[64,2], blocks of 32)
      >>> q, scale, minimum = jnp.array([[0, 15], [15, 3]], jnp.uint4), jnp.array([[0.5, 0.25]]), jnp.array([[-4.0, -1.0]])
      >>> packed = jquant.pack_matrix(q, scale=scale, minimum=minimum)  # [[-4, 2.75], [3.5, -0.25]]
      >>> packed
      PackedBlockMatrix(uint4[2,2], blocks of 2 with a minimum)
      >>> jquant.block_scaled_matmul(jnp.array([[2, 1]], jnp.int8), 1.0, None, packed)
      Array([[-4.5 ,  5.25]], dtype=float32)
    """
    k_major = boolean(_OPERATOR, "k_major", k_major)
    if scale is not None:
        return _with_scales(b, zero_point, scale, minimum, block_size, k_major)
    _require_no_order(k_major)
    _require_no_minimum(minimum is not None)
    call = Call(_DESCRIPTOR)
    b = call.tensor("b", b)
    zero_point = call.zero_point("b", zero_point, b.dtype)
    call.check(b.shape, b.dtype)
    k = b.shape[-2]
    if block_size is None:
        block_size = packed.block_size_for(k)
    what = f"a positive divisor of K, which is {k} in b"
    block_size = integer(_OPERATOR, "block_size", block_size, range(1, sys.maxsize), what)
    _require_divisor(k, block_size, what)
    return _pack_matrix(b, zero_point, block_size)


@once_for_each_signature
def _require_no_order(k_major: bool) -> None:
    require(not k_major, f"{_OPERATOR}: k_major is given without scale; the order is then always K-major: leave it out")


@once_for_each_signature
def _require_no_minimum(is_given: bool) -> None:
    require(not is_given, f"{_OPERATOR}: minimum is given without scale; only blocks with scales have minima: pass both")


@once_for_each_signature
def _require_at_most_one(has_zero_point: bool, has_minimum: bool) -> None:
    message = f"{_OPERATOR}: zero_point and minimum are both given; a packed matrix has at most one of them"
    require(not (has_zero_point and has_minimum), message)


@once_for_each_signature
def _require_divisor(k: int, block_size: int, what: str) -> None:
    require(k % block_size == 0, f"{_OPERATOR}: block_size is {block_size}; it must be {what}")


def _with_scales(
    b: ArrayLike,
    zero_point: ArrayLike | None,
    scale: ArrayLike,
    minimum: ArrayLike | None,
    block_size: int | None,
    k_major: bool,
) -> PackedBlockMatrix:
    _require_at_most_one(zero_point is not None, minimum is not None)
    call = Call(_BLOCKS_DESCRIPTOR)
    b, scale = call.tensor("b", b), call.tensor("scale", scale, FLOAT32)
    zero_point, covered = zero_point_of_blocks(call, "b", zero_point, b.dtype, scale)
    minimum = call.optional_tensor("minimum", minimum, FLOAT32)
    call.check(b.shape, b.dtype, **covered)
    block_size = block_size_of(_OPERATOR, block_size, b, scale, ("b", "scale"))
    return _pack_blocks(b, scale, zero_point, minimum, block_size, k_major)
