"""Reads quantized parameters from a file, packs them, and places them: each device gets its part, and no other is read."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jquant.files.stored_tensor import StoredTensor, empty_aligned
from jquant.packed import on_host
from jquant.packed.block_matrix import PackedBlockMatrix
from jquant.packed.matrix import PackedMatrix
from jquant.transform.saving import file_arrays

Index = tuple[slice, ...]


class Reading(NamedTuple):
    """One value to be read: an array or a packed matrix.

    Attributes:
      where: its name in the file; of a packed matrix, that of its integers.
      type: its type, a tree of `jax.ShapeDtypeStruct`.
      sharding: its sharding, a tree of `NamedSharding`; None for the default device.
    """

    where: str
    type: Any
    sharding: Any


def read(reading: Reading, tensors: Mapping[str, StoredTensor]) -> Any:
    """The value, on its devices."""
    if isinstance(reading.type, PackedMatrix):
        return _matrix(reading, tensors)
    if isinstance(reading.type, PackedBlockMatrix):
        return _block_matrix(reading, tensors)
    return _array(tensors[reading.where], reading.type, reading.sharding)


def _array(tensor: StoredTensor, type: Any, sharding: Any) -> jax.Array:
    in_file = file_arrays.file_type(type)

    def part(index: Index) -> list[Any]:
        return [file_arrays.from_file(tensor.read_part(file_arrays.file_index(index, in_file)), type.dtype)]

    return _placed([type], [sharding], part)[0]


def _matrix(reading: Reading, tensors: Mapping[str, StoredTensor]) -> PackedMatrix:
    where, type, sharding = reading
    values, beside = tensors[where], where.removesuffix("values")
    *_, rows, _ = type.shape
    block_size = rows // max(type.block_sums.shape[-2], 1) or 1

    def part(index: Index) -> list[np.ndarray]:
        *batch, of_columns, of_rows = index
        packed = _by_matrix(values, (*batch, of_rows, of_columns), lambda each: on_host.pack(each, block_size))
        return list(packed)

    shardings = [None, None] if sharding is None else [sharding.data, sharding.block_sums]
    data, block_sums = _placed([type.data, type.block_sums], shardings, part)
    zero_point = _optional(tensors, f"{beside}zero_point", type.zero_point, sharding and sharding.zero_point)
    return PackedMatrix(data, block_sums, zero_point, type.dtype)


def _block_matrix(reading: Reading, tensors: Mapping[str, StoredTensor]) -> PackedBlockMatrix:
    where, type, sharding = reading
    beside = where.removesuffix("values")
    values, scales = tensors[where], tensors[f"{beside}scale"]
    *_, rows, _ = type.shape

    def part(index: Index) -> list[np.ndarray]:
        *batch, of_blocks, of_columns = index
        first, last, _ = of_blocks.indices(type.scale.shape[-2])
        first, last = first * type.block_size, min(last * type.block_size, rows)
        in_file = _rows_in_file(type.stored_type, first, last)

        def pack(integers: np.ndarray) -> tuple[np.ndarray]:
            integers = on_host.from_row(integers, type.stored_type, first % 2)
            return (on_host.pack_blocks(integers, type.stored_type, last - first, type.block_size),)

        return [scales.read_part(index), *_by_matrix(values, (*batch, in_file, of_columns), pack)]

    shardings = [None, None] if sharding is None else [sharding.scale, sharding.data]
    scale, data = _placed([type.scale, type.data], shardings, part)
    fields, static = {}, (type.dtype, type.block_size, type.padding, type.layout)
    for field in ("zero_point", "minimum"):
        of_field = None if sharding is None else getattr(sharding, field)
        fields[field] = _optional(tensors, f"{beside}{field}", getattr(type, field), of_field)
    return PackedBlockMatrix(data, scale, fields["zero_point"], fields["minimum"], *static)


def _rows_in_file(dtype: np.dtype, first: int, last: int) -> slice:
    """The rows of a file that have the rows `first` to `last` of a matrix."""
    if on_host.rows_in_file(dtype, 2) == 2:
        return slice(first, last)
    return slice(first // 2, -(-last // 2))


def _optional(tensors: Mapping[str, StoredTensor], name: str, type: Any, sharding: Any) -> jax.Array | None:
    return None if type is None else _array(tensors[name], type, sharding)


def _by_matrix(
    tensor: StoredTensor, index: Index, pack: Callable[[np.ndarray], Sequence[np.ndarray]]
) -> Sequence[np.ndarray]:
    """The packed parts of a batch of matrices, of which one is read and packed after the other."""
    *batch, _, _ = index
    ranges = [range(*each.indices(size)) for each, size in zip(batch, tensor.shape, strict=False)]
    packed: Sequence[np.ndarray] = ()
    for place in np.ndindex(*map(len, ranges)):
        numbers = [each[number] for each, number in zip(ranges, place, strict=True)]
        part = tensor.read_part((*(slice(number, number + 1) for number in numbers), *index[-2:]))
        arrays = pack(part.reshape(part.shape[-2:]))
        if not ranges:
            return arrays
        packed = packed or [empty_aligned((*map(len, ranges), *array.shape), array.dtype) for array in arrays]
        for whole, array in zip(packed, arrays, strict=True):
            whole[place] = array
    return packed


def _placed(
    types: Sequence[Any],
    shardings: Sequence[Any],
    part: Callable[[Index], Sequence[Any]],
) -> list[Any]:
    """Arrays of these types. `part` returns those of a device from the index of its part of the first array.

    What several devices hold alike is read once.
    """
    first = shardings[0]
    if first is None:
        return [jax.device_put(array) for array in part((slice(None),) * len(types[0].shape))]
    devices: dict[Any, list[Any]] = {}
    indices: dict[Any, Index] = {}
    for device, index in first.addressable_devices_indices_map(types[0].shape).items():
        key = tuple(each.indices(size) for each, size in zip(index, types[0].shape, strict=True))
        devices.setdefault(key, []).append(device)
        indices[key] = index
    parts: list[list[Any]] = [[] for _ in types]
    for key, index in indices.items():
        for arrays, array in zip(parts, part(index), strict=True):
            arrays.extend(jax.device_put(array, device) for device in devices[key])
    return [
        jax.make_array_from_single_device_arrays(type.shape, sharding, arrays)
        for type, sharding, arrays in zip(types, shardings, parts, strict=True)
    ]
