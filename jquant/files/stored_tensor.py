"""A tensor in a file: its description in the header, and its bytes, which are read on demand."""

import dataclasses
import math
import operator
from collections.abc import Iterable, Sequence
from io import FileIO
from pathlib import Path
from typing import NoReturn

import numpy as np

from jquant.files.diagnostics import refuse

MAX_BYTES = 2**62  # more than any file has, and less than what overflows NumPy's sizes
_MAX_RANK = 32
_ALIGNMENT = 64  # of arrays on a CPU, in bytes


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file.

    Attributes:
      path: the file.
      name: the tensor's name in the file.
      dtype: the dtype of its elements, in the files' byte order, which is little-endian.
      shape: its shape in NumPy's order: the last dimension is contiguous.
      offset: the position of its first byte in the file.
      type_name: the format's name of its type, such as "F16" or "Q4_0".
    """

    path: Path
    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int
    type_name: str

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self) -> np.ndarray:
        """Reads its elements, and nothing else of the file.

        The file is read at an offset, not mapped into memory: if it is truncated in the meantime, this raises an error,
        where access to a mapping would end the process.
        """
        size = math.prod(self.shape)
        try:
            elements = np.fromfile(self.path, self.dtype, size, offset=self.offset)
        except (OSError, ValueError) as error:
            refuse(self.path, self.name, f"cannot be read: {error}")
        if elements.size != size:
            refuse(self.path, self.name, f"has {elements.size} of {size} elements in the file: the file has become shorter")
        return elements.astype(self.dtype.newbyteorder("="), copy=False).reshape(self.shape)

    def rows(self, first: int, count: int) -> "StoredTensor":
        """Some rows of it, whatever the dimensions in front of the last one, as a matrix."""
        columns = self.shape[-1]
        offset = self.offset + first * columns * self.dtype.itemsize
        return dataclasses.replace(self, shape=(count, columns), offset=offset)

    def read_part(self, index: Sequence[slice]) -> np.ndarray:
        """Reads the elements at these indices, a slice of step 1 for each dimension, and nothing else of the file."""
        ranges = [range(size)[each] for size, each in zip(self.shape, index, strict=True)]
        part = empty_aligned([len(each) for each in ranges], self.dtype)
        whole = [len(each) == size for each, size in zip(ranges, self.shape, strict=True)]
        # Elements follow one another in the file from the last dimension on that is not whole.
        first = next((number for number in reversed(range(len(whole))) if not whole[number]), 0)
        if not ranges:
            return self.read()
        strides = [math.prod(self.shape[number + 1 :]) for number in range(len(ranges))]
        try:
            with self.path.open("rb", buffering=0) as file:
                for outer in np.ndindex(part.shape[:first] if part.size else (0,)):
                    starts = [each[number] for each, number in zip(ranges, (*outer, 0), strict=False)]
                    self._read_into(file, part[outer], sum(map(operator.mul, starts, strides)))
        except OSError as error:
            refuse(self.path, self.name, f"cannot be read: {error}")
        return part.astype(self.dtype.newbyteorder("="), copy=False)

    def _read_into(self, file: FileIO, part: np.ndarray, start: int) -> None:
        """Reads the elements of a contiguous array, from the one of this number on."""
        file.seek(self.offset + start * self.dtype.itemsize)
        buffer = part.reshape(-1).view(np.uint8).data
        while buffer:
            count = file.readinto(buffer)
            if not count:
                refuse(self.path, self.name, "ends before its last element: the file has become shorter")
            buffer = buffer[count:]

    def refuse(self, reason: str) -> NoReturn:
        """Raises a `CheckpointError` about this tensor."""
        refuse(self.path, self.name, reason)

    def require(self, dtypes: Iterable[str], rank: int) -> "StoredTensor":
        """Returns the tensor if it has one of these dtypes and this rank, and is not empty.

        Raises:
          CheckpointError: another dtype or rank, or a dimension of size 0.
        """
        dtypes = tuple(dtypes)
        if self.dtype.newbyteorder("=").name not in dtypes:
            self.refuse(f"is {self.type_name}; it must be {' or '.join(dtypes)}")
        if len(self.shape) != rank or 0 in self.shape:
            self.refuse(f"has shape {self.shape}; it must have {rank} dimensions, none of size 0")
        return self


def empty_aligned(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """An array that `jax.device_put` hands to a CPU without a copy: XLA takes no other alignment."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % _ALIGNMENT
    return memory[first : first + size].view(dtype).reshape(shape)


def check_shape(path: Path, name: str, shape: object, itemsize: int) -> tuple[int, ...]:
    """The shape of a tensor in a header, as a tuple.

    Raises:
      CheckpointError: it is not a list of sizes, or the number of bytes would overflow.
    """
    if not isinstance(shape, list | tuple) or any(type(size) is not int or size < 0 for size in shape):
        refuse(path, name, f"its shape is {str(shape)[:100]}; it must be a list of sizes")
    if len(shape) > _MAX_RANK or math.prod(max(size, 1) for size in shape) * itemsize > MAX_BYTES:
        refuse(path, name, f"its shape is {str(shape)[:100]}, which has too many elements")
    return tuple(shape)


def check_offsets(tensors: Iterable[StoredTensor], path: Path, first: int, last: int, *, gaps: bool) -> None:
    """Checks that tensors lie inside the file and do not overlap.

    Args:
      tensors: all tensors of the file.
      path: the file.
      first: the position in the file where the tensors' bytes begin.
      last: the position where the file ends.
      gaps: whether there may be bytes between tensors that belong to none.

    Raises:
      CheckpointError: a tensor reaches beyond the file or into another tensor, or there is a gap where none may be.
    """
    end, previous = first, None
    extents = sorted((tensor.offset, tensor.offset + tensor.nbytes, tensor.name) for tensor in tensors)
    for begin, stop, name in extents:
        if begin < first or stop > last:
            refuse(
                path,
                name,
                f"lies at bytes {begin} to {stop}, but tensors lie at bytes {first} to {last} of the file; "
                "it may be truncated",
            )
        if begin < end:
            refuse(path, name, f"lies at bytes {begin} to {stop}, some of which belong to {previous!r}")
        if begin > end and not gaps:
            refuse(path, name, f"lies at bytes {begin} to {stop}; it must begin at {end}, where the previous tensor ends")
        end, previous = stop, name
    if end != last and not gaps:
        refuse(path, None, f"its tensors end at byte {end}, but the file ends at {last}")
