"""Weights that are decoded a few rows of the file at a time, so that loading takes little more memory than the result."""

import dataclasses
import math
from collections.abc import Callable
from typing import TypeVar

import jax
import numpy as np

from jquant.checkpoints.entry import Entry
from jquant.checkpoints.weight import PackedWeight, QuantizedWeight
from jquant.files.stored_tensor import StoredTensor

_AT_ONCE = 2**18  # bytes of a file: decoding takes several times as much memory
_ALIGNMENT = 64
_Weight = TypeVar("_Weight", QuantizedWeight, PackedWeight)


@dataclasses.dataclass(frozen=True)
class DecodedRows:
    """A weight of shape (..., N) rows of a file, which any of its rows can be decoded into.

    Attributes:
      tensor: its largest tensor, of shape (..., N, bytes).
      decode: returns the weight, of shape (K, count), in `count` rows from `first` on, counted over all matrices of a batch.
      blocks: how many blocks a row has.
    """

    tensor: StoredTensor
    decode: Callable[[int, int], QuantizedWeight]
    blocks: int

    def entry(self, kind: str, nbytes: int) -> Entry:
        return Entry(kind=kind, nbytes=nbytes, read=self._read, pack=self._packed)

    def _read(self) -> QuantizedWeight:
        return self._all(self.decode)

    def _packed(self) -> PackedWeight:
        """The packed form, without ever having all integers in a byte each, unless a row is a single block."""
        if self.blocks == 1:
            return self._read().pack()
        return jax.device_put(self._all(lambda first, count: self.decode(first, count).pack()))  # no copies, on a CPU

    def _all(self, part: Callable[[int, int], _Weight]) -> _Weight:
        """The parts of all rows, put together in NumPy arrays of shape (..., N)."""
        *batch, n, bytes_of_a_row = self.tensor.shape
        at_once = max(_AT_ONCE // bytes_of_a_row, 1)
        arrays: list[np.ndarray] = []
        structure = None
        for matrix, index in enumerate(np.ndindex(*batch)):
            for first in range(0, n, at_once):
                leaves, structure = jax.tree.flatten(part(matrix * n + first, min(at_once, n - first)))
                arrays = arrays or [_aligned((*batch, *leaf.shape[:-1], n), leaf.dtype) for leaf in leaves]
                for array, leaf in zip(arrays, leaves, strict=True):
                    array[(*index, ..., slice(first, first + at_once))] = leaf
        assert structure is not None  # tensors are not empty
        return jax.tree.unflatten(structure, arrays)


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An empty array where JAX may have its own on a CPU, so that it need not copy it."""
    size = math.prod(shape) * dtype.itemsize
    data = np.empty(size + _ALIGNMENT, np.uint8)
    first = -data.ctypes.data % _ALIGNMENT
    return data[first : first + size].view(dtype).reshape(shape)
