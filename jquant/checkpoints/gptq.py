"""The weights of GPTQ and AWQ: packed into 32-bit words, as are the zero points, with a scale for each block and column."""

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from jquant.checkpoints.entry import Entry
from jquant.checkpoints.errors import Warnings
from jquant.checkpoints.groups import SCALES, Tensors, block_size, contiguous, fitting
from jquant.checkpoints.packed_uint32 import plus_one, unpack
from jquant.checkpoints.stored import StoredTensor
from jquant.checkpoints.weight import QuantizedWeight

_FORMATS = {"gptq": True, "gptq_v2": False}  # whether the file has the zero points less 1
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # the position of each column in a word
_EXAMPLE = "{..., 'group_size': SIZE}"
# The parts of auto-round's packing_format: whose layout, and for which kernels, which makes no difference.
_LESSENED, _AWQ, _KERNELS = {"gptq", "auto_gptq"}, {"awq", "auto_awq"}, {"auto_round", "gptqmodel", "exllamav2", "triton"}


def gptq(base: str, tensors: Tensors, config: Mapping[str, Any], warn: Warnings) -> Entry:
    """The weight `base` of GPTQ. Removes its tensors from `tensors`.

    Format gptq has each 32-bit word of zero points less a constant, 0x11111111 for 4 bits, as GPTQModel and auto-round write
    it: a zero point of 0 borrows from the next one in its word. What is undone here is that, on whole words. The kernels of
    AutoGPTQ add 1 to each zero point by itself, which differs for words with a borrow, and so only for those. (Its packer
    loses the rest of the word after a zero point of 0; nothing brings that back.)

    Raises:
      CheckpointError: tensors that are missing or do not fit together, or another format.

    Warns:
      UserWarning: when it is read, where the configuration contradicts the tensors, but what they hold is clear.
    """
    qweight = tensors[f"{base}.qweight"]
    given = {key: config[key] for key in ("checkpoint_format", "format") if config.get(key)}  # GPTQModel's name, old and new
    for key, format_ in given.items():
        if not isinstance(format_, str) or format_ not in _FORMATS:
            qweight.refuse(f"{key} is {str(format_)[:100]}; it must be {' or '.join(_FORMATS)}")
    if len(set(given.values())) > 1:
        qweight.refuse(f"checkpoint_format is {given['checkpoint_format']}, but format is {given['format']}")
    format_ = next(iter(given.values()), "gptq")
    return _gptq(base, tensors, config, warn, _FORMATS[format_], format_)


def auto_round(base: str, tensors: Tensors, config: Mapping[str, Any], warn: Warnings) -> Entry:
    """The weight `base` of auto-round: in GPTQ's layout, with the zero points as they are or less 1, or in AWQ's.

    Raises:
      CheckpointError: as in `gptq`.

    Warns:
      UserWarning: no packing_format is configured; or as in `gptq`.
    """
    qweight = tensors[f"{base}.qweight"]
    packing = config.get("packing_format") or config.get("backend")  # backend is what early releases call it
    if packing in (None, "", "auto"):
        packing = "auto_round:auto_gptq"
        why = f"no packing_format is configured: {packing} is assumed, which has zero points less 1, as transformers does"
        warn("packing_format", qweight.path, qweight.name, why)
    parts = set(packing.split(":")) if isinstance(packing, str) else set()
    if not parts or parts - _LESSENED - _AWQ - _KERNELS:
        qweight.refuse(
            f"packing_format is {str(packing)[:100]}; it must be auto_round, auto_round:auto_gptq or auto_round:auto_awq"
        )
    kind = config.get("data_type")
    if kind is not None and "int" not in str(kind):
        qweight.refuse(f"data_type is {str(kind)[:100]}; it must be int")
    if parts & _AWQ:
        return awq(base, tensors, config, warn)
    return _gptq(base, tensors, config, warn, bool(parts & _LESSENED), packing)


def _gptq(base: str, tensors: Tensors, config: Mapping[str, Any], warn: Warnings, lessened: bool, format_: str) -> Entry:
    qweight = tensors.pop(f"{base}.qweight").require(["int32"], 2)
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
    settings = _settings(qweight, base, config, bits)
    configured = _sizes(settings)
    sizes = fitting(k, blocks, configured)
    if g_idx is None or (configured and not sizes):  # otherwise the index may say it
        sizes = [block_size(scales, k, blocks, configured, _EXAMPLE)]
    # In static groups, an activation order changes how integers are found, and not which group they belong to.
    ordered = blocks > 1 and config.get("desc_act") is True and config.get("static_groups") is not True
    if g_idx is None and ordered:
        qweight.refuse(f"is in the order of activations (desc_act), but there is no {base}.g_idx to say which")

    def order() -> tuple[int, np.ndarray | None]:
        """The size of the blocks, and the order of rows that makes them contiguous."""
        if g_idx is None:
            return sizes[0], None
        index = g_idx.read()
        if blocks > 1 and not index.any():  # a placeholder: ExLlama and others treat it as no index
            if ordered:
                g_idx.refuse(f"is 0 throughout, but the {blocks} blocks are in the order of activations (desc_act)")
            return block_size(scales, k, blocks, configured, _EXAMPLE), None
        size, permutation = contiguous(g_idx, index, blocks, sizes)
        if permutation is not None and config.get("desc_act") is False:
            why = "has an order of activations, but desc_act is false: the order is followed"
            warn("desc_act", g_idx.path, g_idx.name, why)
        return size, permutation

    def read() -> QuantizedWeight:
        values = unpack(qweight.read(), bits, -2)
        words = qzeros.read()
        zero_point = unpack(plus_one(words, bits) if lessened else words, bits, -1)
        middle = 2 ** (bits - 1)
        if _symmetric(settings) and (zero_point != middle).any():
            other = unpack(words if lessened else plus_one(words, bits), bits, -1)
            why = f"sym is true, but format {format_} makes its zero points {_range(zero_point)}, not {middle}"
            if (other == middle).all():
                stored = "as they are" if lessened else "less 1"
                warn("sym", qzeros.path, qzeros.name, f"{why}: {middle} is assumed, as if they were stored {stored}")
                zero_point = other
            else:
                warn("sym", qzeros.path, qzeros.name, f"{why}: they are taken to be right")
        size, permutation = order()
        if permutation is not None:
            values = values[permutation]
        dtype = np.uint8 if bits == 8 else ml_dtypes.uint4
        return QuantizedWeight(values.astype(dtype), scales.read(), zero_point.astype(dtype), None, permutation, size)

    pieces = [qweight, qzeros, scales, *([] if g_idx is None else [g_idx])]
    method = "auto-round" if format_ not in _FORMATS else "GPTQ"
    return Entry(f"{method} of {bits} bits ({format_})", sum(each.nbytes for each in pieces), read)


def awq(base: str, tensors: Tensors, config: Mapping[str, Any], warn: Warnings) -> Entry:
    """The weight `base` of AWQ. Removes its tensors from `tensors`.

    Raises:
      CheckpointError: as in `gptq`.

    Warns:
      UserWarning: as in `gptq`.
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
    settings = _settings(qweight, base, config, 4)
    rows_of_block = block_size(scales, k, blocks, _sizes(settings), _EXAMPLE)
    symmetric = _symmetric(settings) or config.get("zero_point") is False

    def columns(words: np.ndarray) -> np.ndarray:
        values = unpack(words, 4, -1).reshape(*words.shape, 8)[..., list(_AWQ_ORDER)]
        return values.reshape(words.shape[0], n)

    def read() -> QuantizedWeight:
        zero_point = columns(qzeros.read())
        if symmetric and (zero_point != 8).any():
            why = f"its zero points are {_range(zero_point)}, not 8 as in a symmetric weight: they are taken to be right"
            warn("sym", qzeros.path, qzeros.name, why)
        values, zero_point = (each.astype(ml_dtypes.uint4) for each in (columns(qweight.read()), zero_point))
        return QuantizedWeight(values, scales.read(), zero_point, None, None, rows_of_block)

    return Entry("AWQ of 4 bits", qweight.nbytes + qzeros.nbytes + scales.nbytes, read)


def _piece(weight: StoredTensor, base: str, name: str, tensors: Tensors) -> StoredTensor:
    if f"{base}.{name}" not in tensors:
        weight.refuse(f"there is no {base}.{name}")
    return tensors.pop(f"{base}.{name}")


def _settings(weight: StoredTensor, base: str, config: Mapping[str, Any], bits: int) -> list[Mapping[str, Any]]:
    """What the configuration may say of a weight: of all of them, unless some have settings of their own.

    auto-round names such layers, or gives patterns of their names; GPTQModel gives patterns. Patterns are not matched: of
    the settings that they give, those with the number of bits of the tensors are returned.

    Raises:
      CheckpointError: no settings have that number of bits.
    """
    extra, dynamic = (found if isinstance(found := config.get(key), Mapping) else {} for key in ("extra_config", "dynamic"))
    own = [extra[base]] if isinstance(extra.get(base), Mapping) else [{}, *extra.values(), *dynamic.values()]
    settings: list[Mapping[str, Any]] = [{**config, **each} for each in own if isinstance(each, Mapping)]
    found = [each for each in settings if each.get("bits") in (None, bits)]
    if not found:
        given = " or ".join(dict.fromkeys(str(each.get("bits"))[:100] for each in settings))
        weight.refuse(f"has {bits} bits, according to the shapes of its tensors, but {given[:200]} are configured")
    for size in (each.get("group_size") for each in found):
        if size is not None and (type(size) is not int or not (size == -1 or size > 0)):
            weight.refuse(f"group_size is {str(size)[:100]}; it must be a number of rows, or -1 for all of them")
    return found


def _sizes(settings: list[Mapping[str, Any]]) -> set[int]:
    return {each["group_size"] for each in settings if each.get("group_size") is not None}


def _symmetric(settings: list[Mapping[str, Any]]) -> bool:
    return all(each.get("sym") is True for each in settings)


def _range(array: np.ndarray) -> str:
    low, high = array.min(), array.max()
    return str(low) if low == high else f"{low} to {high}"
