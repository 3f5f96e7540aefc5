"""A tensor in a file: its description in the header, and its bytes, which are read when they are asked for."""

import dataclasses
import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from jquant.checkpoints.errors import refuse

MOST_BYTES = 2**62  # more than any file has, and less than what overflows NumPy's sizes
_RANK = 32


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file.

    Attributes:
      path: the file.
      name: its name there.
      dtype: of its elements, in the byte order of the files, little-endian.
      shape: in NumPy's order, rows last but one.
      offset: of its first byte in the file.
      what: what the format calls its type.
    """

    path: Path
    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int
    what: str

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self) -> np.ndarray:
        """Its elements, reading nothing else of the file.

        It reads at an offset instead of mapping the file into memory. If the file is cut short in the meantime, this raises
        an error; with a mapping, it would end the process.
        """
        size = math.prod(self.shape)
        try:
            found = np.fromfile(self.path, self.dtype, size, offset=self.offset)
        except (OSError, ValueError) as error:
            refuse(self.path, self.name, f"cannot be read: {error}")
        if found.size != size:
            refuse(self.path, self.name, f"has {found.size} of {size} elements in the file: the file has become shorter")
        return found.astype(self.dtype.newbyteorder("="), copy=False).reshape(self.shape)

    def refuse(self, why: str):
        refuse(self.path, self.name, why)

    def require(self, dtypes: Iterable[str], rank: int) -> "StoredTensor":
        """Itself, if it has one of these types and this rank, and is not empty."""
        dtypes = tuple(dtypes)
        if self.dtype.newbyteorder("=").name not in dtypes:
            self.refuse(f"is {self.what}; it must be {' or '.join(dtypes)}")
        if len(self.shape) != rank or 0 in self.shape:
            self.refuse(f"has shape {self.shape}; it must have {rank} dimensions, none of size 0")
        return self


def check_shape(path: Path, name: str, shape: object, itemsize: int) -> tuple[int, ...]:
    """The shape, if an array can have it.

    Raises:
      CheckpointError: it is not a list of sizes, or would overflow.
    """
    if not isinstance(shape, list | tuple) or any(type(size) is not int or size < 0 for size in shape):
        refuse(path, name, f"its shape is {str(shape)[:100]}; it must be a list of sizes")
    if len(shape) > _RANK or math.prod(max(size, 1) for size in shape) * itemsize > MOST_BYTES:
        refuse(path, name, f"its shape is {str(shape)[:100]}, which has too many elements")
    return tuple(shape)


def check_offsets(tensors: Iterable[StoredTensor], path: Path, first: int, last: int, *, gaps: bool) -> None:
    """
    Args:
      tensors: all tensors of the file.
      path: the file.
      first: where the bytes of tensors begin in the file.
      last: where the file ends.
      gaps: whether there may be bytes between tensors that belong to none.

    Raises:
      CheckpointError: a tensor reaches beyond the file or into another tensor.
    """
    end, before = first, None
    places = sorted((each.offset, each.offset + each.nbytes, each.name) for each in tensors)
    for begin, stop, name in places:
        if begin < first or stop > last:
            refuse(
                path,
                name,
                f"lies at bytes {begin} to {stop}, but tensors lie at bytes {first} to {last} of the file; "
                "it may be truncated",
            )
        if begin < end:
            refuse(path, name, f"lies at bytes {begin} to {stop}, some of which belong to {before!r}")
        if begin > end and not gaps:
            refuse(path, name, f"lies at bytes {begin} to {stop}; it must begin at {end}, where the previous tensor ends")
        end, before = stop, name
    if end != last and not gaps:
        refuse(path, None, f"its tensors end at byte {end}, but the file ends at {last}")
