"""An entry of a checkpoint: an array as it is stored, or a quantized weight that consists of several tensors."""

import dataclasses
from collections.abc import Callable

import numpy as np

from jquant.checkpoints.stored_tensor import StoredTensor
from jquant.checkpoints.weight import QuantizedWeight


@dataclasses.dataclass(frozen=True)
class Entry:
    """The value of one name, which is read on demand.

    Attributes:
      kind: what it is, in the terms of its format.
      nbytes: the number of bytes that its tensors have in the file.
      read: reads it.
    """

    kind: str
    nbytes: int
    read: Callable[[], np.ndarray | QuantizedWeight]


def array_entry(tensor: StoredTensor) -> Entry:
    """An array as it is stored."""
    return Entry(kind=tensor.dtype.newbyteorder("=").name, nbytes=tensor.nbytes, read=tensor.read)
