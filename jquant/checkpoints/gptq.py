"""The weights of GPTQ and AWQ: packed into 32-bit words, as are the zero points, with a scale for each block and column."""

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from jquant.checkpoints.entry import Entry
from jquant.checkpoints.groups import SCALES, Tensors, block_size, contiguous
from jquant.checkpoints.stored import StoredTensor
from jquant.checkpoints.weight import QuantizedWeight
from jquant.checkpoints.words import plus_one, unpack

_FORMATS = {"gptq": True, "gptq_v2": False}  # whether the file has the zero points less 1
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # the position of each column in a word


def gptq(base: str, tensors: Tensors, config: Mapping[str, Any]) -> Entry:
    """The weight `base` of GPTQ. Removes its tensors from `tensors`.

    Format gptq has each 32-bit word of zero points less a constant, 0x11111111 for 4 bits, as GPTQModel and auto-round write
    it: a zero point of 0 borrows from the next one in its word. What is undone here is that, on whole words. AutoGPTQ's
    kernels and vLLM's add 1 to each zero point by itself, which differs for words with a borrow, and so only for those. (The
    packer of AutoGPTQ loses the rest of the word after a zero point of 0; nothing brings that back.)

    Raises:
      CheckpointError: tensors that are missing or do not fit together, or another format.
    """
    qweight = tensors.pop(f"{base}.qweight").require(["int32"], 2)
    format_ = config.get("checkpoint_format") or "gptq"
    if not isinstance(format_, str) or format_ not in _FORMATS:
        qweight.refuse(f"checkpoint_format is {str(format_)[:100]}; it must be {' or '.join(_FORMATS)}")
    lessened = _FORMATS[format_]
    qzeros, scales = (_piece(qweight, base, name, tensors) for name in ("qzeros", "scales"))
    qzeros.require(["int32"], 2)
    blocks, n = scales.require(SCALES, 2).shape
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
    rows_of_block = block_size(scales, k, blocks, _configured(qweight, config, bits))
    if g_idx is None and blocks > 1 and config.get("desc_act"):
        qweight.refuse(f"is in the order of activations (desc_act), but there is no {base}.g_idx to say which")

    def read() -> QuantizedWeight:
        values = unpack(qweight.read(), bits, -2)
        words = qzeros.read()
        zero_point = unpack(plus_one(words, bits) if lessened else words, bits, -1)
        size, permutation = (rows_of_block, None) if g_idx is None else contiguous(g_idx, blocks)
        if permutation is not None:
            values = values[permutation]
        dtype = np.uint8 if bits == 8 else ml_dtypes.uint4
        return QuantizedWeight(values.astype(dtype), scales.read(), zero_point.astype(dtype), None, permutation, size)

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
    blocks, n = scales.require(SCALES, 2).shape
    k = qweight.shape[0]
    if 8 * qweight.shape[1] != n or qzeros.shape != (blocks, qweight.shape[1]):
        shapes = f"{qweight.shape}, {qzeros.shape} and {scales.shape}"
        qweight.refuse(f"the shapes of qweight, qzeros and scales, {shapes}, do not fit together in 4 bits")
    rows_of_block = block_size(scales, k, blocks, _configured(qweight, config, 4))

    def columns(words: np.ndarray) -> np.ndarray:
        values = unpack(words, 4, -1).reshape(*words.shape, 8)[..., list(_AWQ_ORDER)]
        return values.reshape(words.shape[0], n).astype(ml_dtypes.uint4)

    def read() -> QuantizedWeight:
        return QuantizedWeight(columns(qweight.read()), scales.read(), columns(qzeros.read()), None, None, rows_of_block)

    return Entry("AWQ of 4 bits", qweight.nbytes + qzeros.nbytes + scales.nbytes, read)


def _piece(weight: StoredTensor, base: str, name: str, tensors: Tensors) -> StoredTensor:
    if f"{base}.{name}" not in tensors:
        weight.refuse(f"there is no {base}.{name}")
    return tensors.pop(f"{base}.{name}")


def _configured(weight: StoredTensor, config: Mapping[str, Any], bits: int) -> int | None:
    """The group size that the configuration gives, None if it gives none.

    Raises:
      CheckpointError: a group size that is not valid; or a number of bits other than that of the tensors.
    """
    size, of_all = config.get("group_size"), config.get("bits")
    if size is not None and (type(size) is not int or not (size == -1 or size > 0)):
        weight.refuse(f"group_size is {str(size)[:100]}; it must be a number of rows, or -1 for all of them")
    if config.get("dynamic"):  # sizes of their own for some of the layers, by patterns of their names
        return None
    if of_all not in (None, bits):
        weight.refuse(f"has {bits} bits, according to the shapes of its tensors, but {str(of_all)[:100]} are configured")
    return size
