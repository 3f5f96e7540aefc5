"""Takes large initializers out of a serialized model, so that neither the message nor its copies hold weights.

onnx parses, checks and infers types from whole messages as bytes: several copies of each weight, of which a model keeps one.
None of this needs the elements of a large tensor.
"""

import collections
import io
import math
import sys
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

import jax.numpy as jnp
import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, external_data_helper

from jquant.errors import ModelError

_SMALLEST = 4096  # bytes of a large tensor; onnx's inference reads small ones, which hold shapes
_PIECE = 2**22  # bytes of other files that are read at once
_ALIGNMENT = 64  # of arrays that JAX takes over as they are, without a copy, on a CPU
_INITIALIZERS_ALONE = 4  # the version of the format since which initializers need not be inputs
# What a tensor has beside its data if these are in its own bytes.
_OTHER_FIELDS = frozenset(["data_location", "data_type", "dims", "doc_string", "metadata_props", "name"])

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # how a field is written
_FIXED_SIZES = {_FIXED64: 8, _FIXED32: 4}
_LONGEST_VARINT = 10


class NotRead(Exception):
    """The bytes are not what this module reads. Protocol Buffers, which knows all of the format, has the last word."""


class _Field(NamedTuple):
    """Where a field is in a file: it begins at `start`, its value at `value`, and both end before `end`."""

    number: int
    kind: int
    start: int
    value: int
    end: int


class Large(NamedTuple):
    """An initializer whose data are apart.

    Attributes:
      tensor: all else about it.
      array: its elements, which nobody writes to.
    """

    tensor: TensorProto
    array: np.ndarray

    def whole(self) -> TensorProto:
        """The initializer as the file has it."""
        tensor = TensorProto()
        tensor.CopyFrom(self.tensor)
        tensor.raw_data = onnx.numpy_helper.from_array(self.array).raw_data
        return tensor


def taken_out(file: BinaryIO) -> tuple[bytes, list[Large]]:
    """A serialized model without the large initializers of its main graph, and these, in their order.

    Raises:
      NotRead: the file is not a model, or is written in a way that is allowed but that no writer of models uses.
    """
    taker = _Taker(file)
    rest = b"".join(taker.model(file.seek(0, io.SEEK_END)))
    return rest, taker.large


class _Taker:
    """Copies what is not large, field by field."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self.large: list[Large] = []

    def model(self, end: int) -> Iterator[bytes]:
        for field in self._fields(0, end):
            is_graph = field.number == onnx.ModelProto.GRAPH_FIELD_NUMBER and field.kind == _BYTES
            yield _written(field.number, b"".join(self._graph(field))) if is_graph else self._bytes(field.start, field.end)

    def _graph(self, graph: _Field) -> Iterator[bytes]:
        for field in self._fields(graph.value, graph.end):
            is_tensor = field.number == onnx.GraphProto.INITIALIZER_FIELD_NUMBER and field.kind == _BYTES
            large = self._large(field) if is_tensor and field.end - field.value >= _SMALLEST else None
            if large is None:
                yield self._bytes(field.start, field.end)
            else:
                self.large.append(large)

    def _large(self, field: _Field) -> Large | None:
        """An initializer with bytes, many of them, as its data; None for others, and for those that are not valid."""
        fields = list(self._fields(field.value, field.end))
        data = [part for part in fields if part.number == TensorProto.RAW_DATA_FIELD_NUMBER and part.kind == _BYTES]
        if len(data) != 1 or data[0].end - data[0].value < _SMALLEST:
            return None
        rest = b"".join(self._bytes(part.start, part.end) for part in fields if part is not data[0])
        try:
            tensor = TensorProto.FromString(rest)
        except DecodeError as error:
            raise NotRead from error
        names = {descriptor.name for descriptor, _ in tensor.ListFields()}
        is_here = names <= _OTHER_FIELDS and tensor.data_location == TensorProto.DEFAULT
        if not is_here or _bytes_of(tensor) != data[0].end - data[0].value:
            return None
        memory = _aligned(data[0].end - data[0].value)
        self._file.seek(data[0].value)
        if self._file.readinto(memory) != memory.size:  # type: ignore[attr-defined]
            raise NotRead
        return Large(tensor, _as_array(tensor, memory))

    def _fields(self, start: int, end: int) -> Iterator[_Field]:
        while start < end:
            self._file.seek(start)
            tag = self._varint()
            number, kind = tag >> 3, tag & 7
            if kind == _VARINT:
                self._varint()
                value = stop = self._file.tell()
            elif kind == _BYTES:
                size = self._varint()
                value = self._file.tell()
                stop = value + size
            elif kind in _FIXED_SIZES:
                value = self._file.tell()
                stop = value + _FIXED_SIZES[kind]
            else:
                raise NotRead
            if stop > end:
                raise NotRead
            yield _Field(number, kind, start, value, stop)
            start = stop

    def _varint(self) -> int:
        value = 0
        for position in range(_LONGEST_VARINT):
            byte = self._file.read(1)
            if not byte:
                raise NotRead
            value |= (byte[0] & 127) << 7 * position
            if byte[0] < 128:
                return value
        raise NotRead

    def _bytes(self, start: int, end: int) -> bytes:
        self._file.seek(start)
        return self._file.read(end - start)


def external(model: onnx.ModelProto, folder: str) -> list[Large]:
    """Takes out the large initializers whose data are in other files, with these data.

    Raises:
      Exception: what onnx raises for a file that is missing, or outside of the folder.
    """
    large, rest = [], []
    for tensor in model.graph.initializer:
        size = _bytes_of(tensor) if tensor.data_location == TensorProto.EXTERNAL else None
        array = None if size is None or size < _SMALLEST else _loaded(tensor, folder, size)
        if array is None:
            rest.append(tensor)
        else:
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            large.append(Large(tensor, array))
    if large:
        kept = onnx.GraphProto(initializer=rest)
        model.graph.ClearField("initializer")
        model.graph.initializer.extend(kept.initializer)
    return large


def _loaded(tensor: TensorProto, folder: str, size: int) -> np.ndarray | None:
    """The elements of a tensor whose data are in another file; None if they are not said to be as many bytes.

    onnx reads them, which refuses files outside of the folder, in pieces: what it reads is in memory three times.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if int(entries.get("length", 0)) != size:
        return None
    memory = _aligned(size)
    for start in range(0, size, _PIECE):
        part = memory[start : start + _PIECE]
        piece = TensorProto(name=tensor.name, data_location=TensorProto.EXTERNAL)
        place = entries | {"offset": str(int(entries.get("offset", 0)) + start), "length": str(part.size)}
        for key, value in place.items():
            piece.external_data.add(key=key, value=value)
        external_data_helper.load_external_data_for_tensor(piece, folder)
        part[:] = np.frombuffer(piece.raw_data, np.uint8)
    return _as_array(tensor, memory)


def declare(model: onnx.ModelProto, large: Sequence[Large]) -> frozenset[str]:
    """Makes inputs of initializers that were taken out, as the format allows, and returns the names of those that were none.

    Raises:
      ModelError: names that are not unique, or a file of a version in which each initializer must be an input, and is not.
    """
    graph = model.graph
    inputs = {value.name for value in graph.input}
    counts = collections.Counter(tensor.name for tensor in (*graph.initializer, *(each.tensor for each in large)))
    added = []
    for tensor, _ in large:
        if counts[tensor.name] > 1:
            raise ModelError(f"initializer {tensor.name!r}: its name is not unique")
        if tensor.name in inputs:
            continue
        if model.ir_version < _INITIALIZERS_ALONE:
            raise ModelError(
                f"initializer {tensor.name!r}: before version {_INITIALIZERS_ALONE} of the format it must be an input, too"
            )
        graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        added.append(tensor.name)
    return frozenset(added)


def _bytes_of(tensor: TensorProto) -> int | None:
    """The size of all elements as bytes; None for what is not of numbers."""
    bits = _bits(tensor.data_type)
    return None if bits is None or min(tensor.dims, default=0) < 0 else -(-math.prod(tensor.dims) * bits // 8)


def _bits(data_type: int) -> int | None:
    """Those of an element as bytes."""
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(data_type)
    except KeyError:
        return None
    if dtype.kind in "bc":
        return 8 * dtype.itemsize
    if dtype.kind == "O":
        return None
    return (jnp.iinfo if jnp.issubdtype(dtype, jnp.integer) else jnp.finfo)(dtype).bits


def _aligned(size: int) -> np.ndarray:
    """Memory that JAX takes over as it is."""
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    offset = -memory.ctypes.data % _ALIGNMENT
    return memory[offset : offset + size]


def _as_array(tensor: TensorProto, data: np.ndarray) -> np.ndarray:
    """Bytes as the elements of a tensor."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    if _bits(tensor.data_type) == 8 * dtype.itemsize and sys.byteorder == "little":
        array = data.view(dtype).reshape(tensor.dims)
    else:
        whole = TensorProto(dims=tensor.dims, data_type=tensor.data_type, raw_data=data.tobytes())
        array = onnx.numpy_helper.to_array(whole)
    array.flags.writeable = False
    return array


def _written(number: int, value: bytes) -> bytes:
    """A field of bytes."""
    return _encoded(number << 3 | _BYTES) + _encoded(len(value)) + value


def _encoded(value: int) -> bytes:
    """A varint."""
    groups = []
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])
