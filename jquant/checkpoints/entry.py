"""An entry of a checkpoint: an array as it is stored, or a quantized weight that consists of several tensors."""

import dataclasses
from collections.abc import Callable

import numpy as np

from jquant.checkpoints.weight import PackedWeight, QuantizedWeight
from jquant.files.stored_tensor import StoredTensor


@dataclasses.dataclass(frozen=True)
class Entry:
    """The value of one name, which is read on demand.

    Attributes:
      kind: what it is, in the terms of its format.
      nbytes: the number of bytes that its tensors have in the file.
      read: reads it.
      pack: reads a weight into its packed form, in less memory than the integers take; None if `read` has to come first.
    """

    kind: str
    nbytes: int
    read: Callable[[], np.ndarray | QuantizedWeight]
    pack: Callable[[], PackedWeight] | None = None

    def read_packed(self) -> np.ndarray | QuantizedWeight | PackedWeight:
        """Reads it, packed if it is a weight that has a packed form."""
        if self.pack is not None:
            return self.pack()
        value = self.read()
        return value.pack() if isinstance(value, QuantizedWeight) and value.packable else value


def array_entry(tensor: StoredTensor) -> Entry:
    """An array as it is stored."""
    return Entry(kind=tensor.dtype.newbyteorder("=").name, nbytes=tensor.nbytes, read=tensor.read)
