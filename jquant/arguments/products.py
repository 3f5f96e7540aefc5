"""Arguments that integer products share: the matrix B, which may be packed, and the ranks of A and B."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.core
import numpy as np
from jax.typing import ArrayLike

from jquant.arguments.assertions import require_same_data_type
from jquant.arguments.call import Call
from jquant.arguments.descriptor import Names, Shaped, Tensor
from jquant.arguments.naming import argument, message
from jquant.arguments.operands import FLOAT32, Operand, broadcast_shape, operand, without_dimensions
from jquant.arithmetic.broadcasting import aligned, broadcasts
from jquant.errors import DescriptorError, DescriptorTypeError
from jquant.packed.block_matrix import PackedBlockMatrix
from jquant.packed.matrix import PackedMatrix
from jquant.quantized_tensor import Quantized

# The sizes before the last two: DirectML's names, and four more at jquant's own level.
BATCH = ("Batch1", "Batch2", "Batch3", "Batch4", "BatchCount", "ChannelCount")
_LARGEST_RANK = 8


def with_more_dimensions(rows: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """A specification's table with four more leading dimensions, jquant's own; a bias aligns with the output."""

    def extended(row: Tensor) -> Tensor:
        (low, _), sizes = row.ranks or (1, 0), row.sizes
        if sizes is None:
            return dataclasses.replace(row, ranks=(1, _LARGEST_RANK))
        more = BATCH[:4] if "BatchCount" in sizes else ("1",) * 4
        return dataclasses.replace(row, ranks=(low, _LARGEST_RANK), sizes=" ".join((*(f"[{name}]" for name in more), sizes)))

    return tuple(map(extended, rows))


def weights(
    call: Call, tensor: str, b: ArrayLike | PackedMatrix, zero_point: ArrayLike | None
) -> tuple[jax.Array | PackedMatrix, jax.Array | None]:
    """The matrix and its zero point: an array with a separate one, or packed weights, which hold theirs."""
    names = call.descriptor.names(tensor)
    require_packed_as(PackedMatrix, call.operator, names.tensor, b)
    if not isinstance(b, PackedMatrix):
        matrix = call.tensor(names.tensor, b)
        return matrix, call.zero_point(tensor, zero_point, matrix.dtype)
    b.validate(f"{call.operator}: {argument(call.operator, names.tensor)}")
    if zero_point is not None:
        zero_point = without_dimensions(operand(call.operator, names.zero_point, zero_point, b.dtype))
        require_same_data_type(call.operator, names.zero_point, zero_point.dtype, names.tensor, b.dtype)
        _require_equal(call.operator, names, zero_point, b)
    return call.packed(tensor, b), None


def require_packed_as(packed_type: type, operator: str, name: str, b: object) -> None:
    """Raises unless `b`, if it is packed weights or holds them, has the type that the operator takes."""
    text = None
    if isinstance(getattr(b, "matrix", None), PackedMatrix | PackedBlockMatrix):  # of `jquant.checkpoints`, for example
        text = f"is of type {type(b).__name__}, which holds packed weights: pass its attribute matrix"
    elif isinstance(b, PackedBlockMatrix) and packed_type is not PackedBlockMatrix:
        text = "was packed with scales, as block_scaled_matmul takes it: pack_matrix(b), without them"
    elif isinstance(b, PackedMatrix) and packed_type is not PackedMatrix:
        text = "was packed without scales: pack_matrix(b, scale=...)"
    if text is not None:
        raise DescriptorTypeError(message(operator, name, text))


def _require_equal(operator: str, names: Names, zero_point: Operand, b: PackedMatrix) -> None:
    """Raises unless a zero point given beside packed weights is their own: it is not used in the product."""
    text = "is given with packed weights, which hold their own"
    if isinstance(zero_point, jax.core.Tracer) or isinstance(b.zero_point, jax.core.Tracer):
        text = f"{text}; the two cannot be compared while tracing: pass None"
        raise DescriptorError(message(operator, names.zero_point, text))
    value, own = jax.device_get((zero_point, 0 if b.zero_point is None else b.zero_point))
    fits = broadcasts(aligned(value.shape, b.ndim), aligned(b.shape[-1:], b.ndim))
    if not fits or np.any(value != own):
        text = f"{text}; the two differ: pass None, or pack the weights with it"
        raise DescriptorError(message(operator, names.zero_point, text))


def quantized_weights(
    call: Call,
    tensor: str,
    b: ArrayLike | PackedMatrix,
    scale: ArrayLike,
    zero_point: ArrayLike | None,
    scale_dtype: np.dtype = FLOAT32,
) -> Quantized:
    """The matrix or packed weights, with its scale and its zero point."""
    values, its_zero_point = weights(call, tensor, b, zero_point)
    return Quantized(values, call.scale(tensor, scale, scale_dtype), its_zero_point)


def product_shape(a: Shaped, b: Shaped) -> tuple[int, ...]:
    """The shape of a matrix product."""
    return (*broadcast_shape(a.shape[:-2], b.shape[:-2]), *a.shape[-2:-1], *b.shape[-1:])
