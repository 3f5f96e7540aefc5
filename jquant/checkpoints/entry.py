"""What a checkpoint holds under one name: an array as it is stored, or a quantized weight made of several tensors."""

import dataclasses
from collections.abc import Callable

import numpy as np

from jquant.checkpoints.stored import StoredTensor
from jquant.checkpoints.weight import QuantizedWeight


@dataclasses.dataclass(frozen=True)
class Entry:
    """
    Attributes:
      kind: what it is, in the terms of its format.
      nbytes: the bytes of its tensors in the file.
      read: reads them.
    """

    kind: str
    nbytes: int
    read: Callable[[], np.ndarray | QuantizedWeight]


def stored(tensor: StoredTensor) -> Entry:
    return Entry(tensor.dtype.newbyteorder("=").name, tensor.nbytes, tensor.read)
