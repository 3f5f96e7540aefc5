"""onnxruntime's GatherBlockQuantized (domain com.microsoft)"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from jquant.arguments.assertions import once_for_each_signature, require, require_shape
from jquant.arguments.call import Call
from jquant.arguments.constraints import check_rank
from jquant.arguments.descriptor import Descriptor, Tensor
from jquant.arguments.naming import Operator, message
from jquant.arguments.statics import dimension, integer
from jquant.arithmetic import exact, subbyte
from jquant.formulas import affine, lookup
from jquant.formulas.granularity import Granularity
from jquant.lowering.formula import formula
from jquant.placement import explain_array_errors
from jquant.quantized_tensor import Quantized

_OPERATOR = Operator("gather_block_quantized", "GatherBlockQuantized")
_BLOCK_SIZES = tuple(2**exponent for exponent in range(4, 31))


def _any_sizes(name: str) -> str:
    return " ".join(f"[{name}{number}]" for number in range(8))


_DESCRIPTOR = Descriptor(
    _OPERATOR,
    (
        Tensor("data", "Input", (1, 8), "INT4 UINT4 UINT8", _any_sizes("data")),
        Tensor("indices", "Input", (0, 8), "INT32 INT64", _any_sizes("indices")),
        Tensor("scales", "Input", (1, 8), "FLOAT32 FLOAT16 BFLOAT16", _any_sizes("scales")),
        Tensor("zero_points", "Optional input", (1, 8), "INT4 UINT4 UINT8", _any_sizes("zero_points")),
        Tensor("output", "Output", (0, 15), "FLOAT32 FLOAT16 BFLOAT16", " ".join(f"[size{i}]" for i in range(15))),
    ),
    same_data_type=(("data", "zero_points"),),
)


@formula("gather_block_quantized", static=("gather_axis", "quantize_axis", "block_size", "bits"))
def _gather_block_quantized(
    data: jax.Array,
    indices: jax.Array,
    scales: jax.Array,
    zero_points: jax.Array | None,
    gather_axis: int,
    quantize_axis: int,
    block_size: int,
    bits: int,
) -> jax.Array:
    size = data.shape[gather_axis]
    index, is_inside = lookup.from_start(indices, size)
    if gather_axis == quantize_axis:
        block, granularity = index // block_size, Granularity(None, None)
    else:
        shift = indices.ndim - 1 if quantize_axis > gather_axis else 0
        block, granularity = index, Granularity(quantize_axis + shift, block_size)
    values, scales = lookup.found(data, index, gather_axis), lookup.found(scales, block, gather_axis)
    zero_points = None if zero_points is None else lookup.found(zero_points, block, gather_axis)
    if data.dtype == jnp.uint8:
        values = subbyte.unpacked(values, bits)
        if zero_points is None:
            zero_points = jnp.uint8(2 ** (bits - 1))
        else:
            zero_points = subbyte.unpacked(zero_points, bits)[..., : scales.shape[-1]]
    real = affine.dequantize(granularity.expand(Quantized(values, scales, zero_points)))
    behind = range(gather_axis + indices.ndim, real.ndim)
    is_inside = lax.expand_dims(is_inside, (*range(gather_axis), *behind))
    return exact.narrow(jnp.where(is_inside, real, 0), scales.dtype)


@explain_array_errors
def gather_block_quantized(
    data: ArrayLike,
    /,
    indices: ArrayLike,
    scales: ArrayLike,
    zero_points: ArrayLike | None = None,
    *,
    gather_axis: int = 0,
    quantize_axis: int = 1,
    block_size: int = 128,
    bits: int = 4,
) -> jax.Array:
    """Looks up slices of a tensor of 2-, 4- or 8-bit integers, such as an embedding table, and dequantizes them.

    ``output = (q - zero_points) * scales``, where q are the slices that `indices` select along `gather_axis`, and each block
    along `quantize_axis` has a scale and a zero point

    The difference is exact, and the product is rounded once to float32; a result of 16 bits is rounded from there. An index
    outside of the axis, which ONNX's Gather forbids, gives zeros.

    It is differentiable in the scales. Integers have no derivative (JAX's zero, of type float0).

    Args:
      data: int4 or uint4, of rank 1 to 8; or uint8, with unsigned integers of `bits` bits packed along the last dimension,
        the first in the lowest bits of each byte.
      indices: int32, or with ``jax_enable_x64`` int64, of any shape. Negative ones count from the end.
      scales: float32, float16 or bfloat16, of the shape of the integers, except along `quantize_axis`, where it has one
        element per block: the size / `block_size`, rounded up.
      zero_points: of the dtype of `data` and in the shape of `scales`; uint8 is packed like `data`. None means 0, or for
        uint8 ``2 ** (bits - 1)``.
      gather_axis: the axis along which `indices` select; 0 for uint8. Negative numbers count from the end.
      quantize_axis: the axis along which the blocks lie; not `gather_axis`, where bytes hold several integers.
      block_size: a power of two, 16 or more. The last block may be partial.
      bits: 2, 4 or 8, the width of the integers in uint8; ignored for int4 and uint4.

    Returns:
      An array of the dtype of `scales`, of the shape of the integers with that of `indices` in place of `gather_axis`.

    Raises:
      DescriptorError: a rank, size, axis, block size or number of bits that is not allowed.
      DescriptorTypeError: a data type other than those above.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> table = jnp.array([[1, 2, 3, 4] * 4, [-1, -2, -3, -4] * 4], jnp.int4)
      >>> rows = jquant.gather_block_quantized(table, jnp.array([1, 0, 2]), jnp.array([[0.5], [2.0]]), block_size=16)
      >>> rows[:, :4]
      Array([[-2. , -4. , -6. , -8. ],
             [ 0.5,  1. ,  1.5,  2. ],
             [ 0. ,  0. ,  0. ,  0. ]], dtype=float32)

    References:
      onnxruntime, `com.microsoft.GatherBlockQuantized`, whose floats of 8 and 4 bits are not supported here.
    """
    call = Call(_DESCRIPTOR)
    data, indices, scales = call.tensor("data", data), call.tensor("indices", indices), call.tensor("scales", scales)
    zero_points = call.optional_tensor("zero_points", zero_points, data.dtype)
    check_rank(_DESCRIPTOR, call.level, "data", data.shape)
    bits = integer(_OPERATOR, "bits", bits, (2, 4, 8), "2, 4 or 8")
    in_byte = 8 // bits if data.dtype == jnp.uint8 else 1
    rank = data.ndim
    gather_axis, quantize_axis = (
        dimension(_OPERATOR, axis, rank, name=name)
        for name, axis in (("gather_axis", gather_axis), ("quantize_axis", quantize_axis))
    )
    call.check((*data.shape[:gather_axis], *indices.shape, *data.shape[gather_axis + 1 :]), scales.dtype)
    what = "a power of two, 16 or more"
    block_size = integer(_OPERATOR, "block_size", block_size, _BLOCK_SIZES, what)
    if data.dtype == jnp.uint8:
        _require_axes_of_bytes(gather_axis, quantize_axis, in_byte)
    shape = (*data.shape[:-1], data.shape[-1] * in_byte)
    zero_points_shape = None if zero_points is None else zero_points.shape
    _require_blocks(scales.shape, zero_points_shape, shape, quantize_axis, block_size, in_byte)
    return _gather_block_quantized(data, indices, scales, zero_points, gather_axis, quantize_axis, block_size, bits)


@once_for_each_signature
def _require_axes_of_bytes(gather_axis: int, quantize_axis: int, in_byte: int) -> None:
    require(gather_axis == 0, message(_OPERATOR, "gather_axis", f"is {gather_axis}; for uint8 data it must be 0"))
    text = f"and gather_axis are both {quantize_axis}; where bytes hold several integers, they must differ"
    require(in_byte == 1 or gather_axis != quantize_axis, message(_OPERATOR, "quantize_axis", text))


@once_for_each_signature
def _require_blocks(
    scales: tuple[int, ...],
    zero_points: tuple[int, ...] | None,
    integers: tuple[int, ...],
    quantize_axis: int,
    block_size: int,
    in_byte: int,
) -> None:
    """Asserts that each block of integers has a scale, and a zero point if these are given."""
    blocks = -(-integers[quantize_axis] // block_size)
    wanted = (*integers[:quantize_axis], blocks, *integers[quantize_axis + 1 :])
    reason = f"the integers of data have shape {integers}, in blocks of {block_size} along axis {quantize_axis}"
    require_shape(_OPERATOR, "scales", scales, wanted, reason)
    if zero_points is not None:
        require_shape(_OPERATOR, "zero_points", zero_points, (*wanted[:-1], -(-wanted[-1] // in_byte)), reason)
