"""The weights in the tensors of a GGUF file: in blocks, decoded a few rows at a time, or dequantized by the package gguf."""

import math
from collections.abc import Callable
from typing import TypeVar

import jax
import numpy as np

from jquant.checkpoints.entry import Entry, array_entry
from jquant.checkpoints.gguf_blocks import PARTS
from jquant.checkpoints.gguf_files import UNQUANTIZED, package
from jquant.checkpoints.stored_tensor import StoredTensor
from jquant.checkpoints.weight import PackedWeight, QuantizedWeight

_AT_ONCE = 2**18  # bytes of a file: decoding takes several times as much memory
_ALIGNMENT = 64
_Weight = TypeVar("_Weight", QuantizedWeight, PackedWeight)


def entry(tensor: StoredTensor) -> Entry:
    """A tensor as an array if it is not quantized, as a weight if products take its blocks, and dequantized otherwise."""
    if tensor.type_name in UNQUANTIZED:
        return array_entry(tensor)
    if tensor.type_name in PARTS and len(tensor.shape) >= 2:
        return Entry(kind=tensor.type_name, nbytes=tensor.nbytes, read=lambda: _weight(tensor), pack=lambda: _packed(tensor))

    def read() -> np.ndarray:
        gguf = package()
        try:
            with np.errstate(all="ignore"):
                return gguf.quants.dequantize(tensor.read(), gguf.GGMLQuantizationType[tensor.type_name])
        except NotImplementedError:
            tensor.refuse(f"is {tensor.type_name}, which the package gguf does not dequantize")

    return Entry(kind=f"{tensor.type_name}, dequantized to float32", nbytes=tensor.nbytes, read=read)


def _weight(tensor: StoredTensor) -> QuantizedWeight:
    return _of_all_rows(tensor, lambda part: part)


def _packed(tensor: StoredTensor) -> PackedWeight:
    """The packed form, without ever having all integers in a byte each, unless a row is a single block."""
    if tensor.shape[-1] == _bytes_of_a_block(tensor):
        return _weight(tensor).pack()
    return jax.device_put(_of_all_rows(tensor, QuantizedWeight.pack))  # without copies, on a CPU


def _of_all_rows(tensor: StoredTensor, convert: Callable[[QuantizedWeight], _Weight]) -> _Weight:
    """What `convert` makes of the weights in a few rows of the file at a time, in NumPy arrays of shape (..., N)."""
    *batch, n, bytes_of_a_row = tensor.shape
    at_once = max(_AT_ONCE // bytes_of_a_row, 1)
    arrays: list[np.ndarray] = []
    structure = None
    for matrix, index in enumerate(np.ndindex(*batch)):
        for first in range(0, n, at_once):
            part = convert(_decoded(tensor.rows(matrix * n + first, min(at_once, n - first))))
            leaves, structure = jax.tree.flatten(part)
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


def _decoded(rows: StoredTensor) -> QuantizedWeight:
    """The weight in some rows, of shape (N, bytes)."""
    data = rows.read()
    blocks = data.reshape(len(data), -1, _bytes_of_a_block(rows))
    with np.errstate(all="ignore"):  # the scales in a file may be anything
        parts = PARTS[rows.type_name](blocks)
    values, scale = _columns(parts.values), _columns(parts.scale)
    return QuantizedWeight(
        values=values,
        scale=scale,
        zero_point=None,
        minimum=None if parts.minimum is None else _columns(parts.minimum),
        permutation=None,
        block_size=len(values) // len(scale),
        dequantized_dtype="float32",
    )


def _columns(array: np.ndarray) -> np.ndarray:
    """An array of shape (N, G, size) as one of shape (G * size, N)."""
    return np.ascontiguousarray(array.reshape(len(array), -1).T)


def _bytes_of_a_block(tensor: StoredTensor) -> int:
    gguf = package()
    return gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[tensor.type_name]][1]
