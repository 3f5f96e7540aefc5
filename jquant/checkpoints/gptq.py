"""The weights of GPTQ and AWQ: packed into 32-bit words, as are the zero points, with a scale for each block and column."""

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from jquant.checkpoints.entry import Entry
from jquant.checkpoints.stored import StoredTensor
from jquant.checkpoints.weight import QuantizedWeight
from jquant.checkpoints.words import unpack

_SCALES = ("float16", "bfloat16", "float32")
_FORMATS = {"gptq": 1, "gptq_v2": 0}  # what to add to the zero points in the file
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # the position of each column in a word

Tensors = dict[str, StoredTensor]


def gptq(base: str, tensors: Tensors, config: Mapping[str, Any]) -> Entry:
    """The weight `base` of GPTQ. Removes its tensors from `tensors`.

    Raises:
      CheckpointError: tensors that are missing or do not fit together, or another format.
    """
    qweight = tensors.pop(f"{base}.qweight").require(["int32"], 2)
    format_ = config.get("checkpoint_format") or "gptq"
    if not isinstance(format_, str) or format_ not in _FORMATS:
        qweight.refuse(f"checkpoint_format is {str(format_)[:100]}; it must be {' or '.join(_FORMATS)}")
    added = _FORMATS[format_]
    qzeros, scales = (_piece(qweight, base, name, tensors) for name in ("qzeros", "scales"))
    qzeros.require(["int32"], 2)
    blocks, n = scales.require(_SCALES, 2).shape
    bits = 32 * qzeros.shape[1] // n
    if bits not in (2, 4, 8):
        qweight.refuse(f"has {bits} bits, according to the shapes of its zero points and scales; it must have 2, 4 or 8")
    rows, columns = qweight.shape
    k = 32 // bits * rows
    if columns != n or qzeros.shape != (blocks, n * bits // 32) or n * bits % 32:
        shapes = f"{qweight.shape}, {qzeros.shape} and {scales.shape}"
        qweight.refuse(f"the shapes of qweight, qzeros and scales, {shapes}, do not fit together")
    g_idx = tensors.pop(f"{base}.g_idx", None)
    if g_idx is not None and g_idx.require(["int32", "int64"], 1).shape != (k,):
        g_idx.refuse(f"has shape {g_idx.shape}; it must have an index for each of the {k} rows")
    block_size = _block_size(scales, k, blocks, config.get("group_size"))

    def read() -> QuantizedWeight:
        values = unpack(qweight.read(), bits, -2)
        zero_point = unpack(qzeros.read(), bits, -1).astype(np.int16) + np.int16(added)
        size, permutation = (block_size, None) if g_idx is None else contiguous(g_idx, blocks)
        if permutation is not None:
            values = values[permutation]
        narrow = zero_point.max() < 16 and bits <= 4
        values = values.astype(ml_dtypes.uint4) if narrow else values
        if zero_point.max() < 256:
            zero_point = zero_point.astype(values.dtype)
        return QuantizedWeight(values, scales.read(), zero_point, None, permutation, size)

    pieces = [qweight, qzeros, scales, *([] if g_idx is None else [g_idx])]
    return Entry(f"GPTQ of {bits} bits ({format_})", sum(each.nbytes for each in pieces), read)


def awq(base: str, tensors: Tensors, config: Mapping[str, Any]) -> Entry:
    """The weight `base` of AWQ. Removes its tensors from `tensors`.

    Raises:
      CheckpointError: as in `gptq`.
    """
    qweight = tensors.pop(f"{base}.qweight").require(["int32"], 2)
    version = str(config.get("version", "gemm"))
    if version.lower() != "gemm":
        qweight.refuse(f"is from AWQ, version {version[:100]}; it must be gemm")
    qzeros, scales = (_piece(qweight, base, name, tensors) for name in ("qzeros", "scales"))
    qzeros.require(["int32"], 2)
    blocks, n = scales.require(_SCALES, 2).shape
    k = qweight.shape[0]
    if 8 * qweight.shape[1] != n or qzeros.shape != (blocks, qweight.shape[1]):
        shapes = f"{qweight.shape}, {qzeros.shape} and {scales.shape}"
        qweight.refuse(f"the shapes of qweight, qzeros and scales, {shapes}, do not fit together in 4 bits")
    block_size = _block_size(scales, k, blocks, config.get("group_size"))

    def columns(words: np.ndarray) -> np.ndarray:
        values = unpack(words, 4, -1).reshape(*words.shape, 8)[..., list(_AWQ_ORDER)]
        return values.reshape(words.shape[0], n).astype(ml_dtypes.uint4)

    def read() -> QuantizedWeight:
        return QuantizedWeight(columns(qweight.read()), scales.read(), columns(qzeros.read()), None, None, block_size)

    return Entry("AWQ of 4 bits", qweight.nbytes + qzeros.nbytes + scales.nbytes, read)


def contiguous(g_idx: StoredTensor, blocks: int) -> tuple[int, np.ndarray | None]:
    """The size of the blocks, and the order of the rows that makes each block contiguous; None if they already are.

    Raises:
      CheckpointError: an index out of range, or blocks of different sizes, which no packed matrix can have.
    """
    index = g_idx.read()
    if index.min() < 0 or index.max() >= blocks:
        g_idx.refuse(f"has indices from {index.min()} to {index.max()}, but there are {blocks} blocks")
    sizes = np.bincount(index, minlength=blocks)
    if (sizes[:-1] != sizes[0]).any() or not 0 < sizes[-1] <= sizes[0]:
        g_idx.refuse(f"makes blocks of {sizes.min()} to {sizes.max()} rows; all but the last must be equally long")
    if (np.diff(index) >= 0).all():
        return int(sizes[0]), None
    return int(sizes[0]), np.argsort(index, kind="stable").astype(np.int32)


def _piece(weight: StoredTensor, base: str, name: str, tensors: Tensors) -> StoredTensor:
    if f"{base}.{name}" not in tensors:
        weight.refuse(f"there is no {base}.{name}")
    return tensors.pop(f"{base}.{name}")


def _block_size(scales: StoredTensor, k: int, blocks: int, given: object) -> int:
    """How many rows a block has if no index says: as configured, or K in equal parts."""
    if type(given) is int and given > 0 and -(-k // given) == blocks:
        return min(given, k)
    if k % blocks:
        scales.refuse(f"has {blocks} rows, which do not fit {k} rows of the weight and a group_size of {str(given)[:100]}")
    return k // blocks
