"""The weights of GPTQ, AWQ and auto-round: integers and zero points in 32-bit words, and a scale per block and column."""

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from jquant.checkpoints.entry import Entry
from jquant.checkpoints.groups import SCALES, Tensors, activation_order, block_size, fitting_sizes
from jquant.checkpoints.packed_uint32 import plus_one, unpack
from jquant.checkpoints.weight import QuantizedWeight
from jquant.files.diagnostics import Warnings
from jquant.files.stored_tensor import StoredTensor

_FORMATS = {"gptq": True, "gptq_v2": False}  # whether zero points are stored minus 1
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # the position in a word of each of its columns
_EXAMPLE = "{..., 'group_size': SIZE}"
# The parts of auto-round's packing_format: a layout, and kernels, which make no difference to the file.
_MINUS_ONE_LAYOUTS = {"gptq", "auto_gptq"}
_AWQ_LAYOUTS = {"awq", "auto_awq"}
_KERNELS = {"auto_round", "gptqmodel", "exllamav2", "triton"}


def gptq(base: str, tensors: Tensors, config: Mapping[str, Any], warn: Warnings) -> Entry:
    """The weight `base` of GPTQ. Removes its tensors from `tensors`.

    Format gptq stores zero points minus 1. GPTQModel and auto-round subtract a constant from each 32-bit word of them,
    0x11111111 for 4 bits, so that a zero point of 0 borrows from the next one in its word. This reader adds the constant to
    the word, which restores both. The kernels of AutoGPTQ add 1 to each zero point by itself instead, which differs only for
    words with a borrow. (AutoGPTQ's packer loses the rest of a word after a zero point of 0; it cannot be restored.)

    Raises:
      CheckpointError: tensors that are missing or do not fit together, or another format.

    Warns:
      UserWarning: when the weight is read, where the configuration contradicts the tensors, but the weight is clear.
    """
    qweight = tensors[f"{base}.qweight"]
    keys = "checkpoint_format", "format"  # GPTQModel's old name and its new one
    formats = {key: config[key] for key in keys if config.get(key)}
    for key, format_ in formats.items():
        if not isinstance(format_, str) or format_ not in _FORMATS:
            qweight.refuse(f"{key} is {str(format_)[:100]}; it must be {' or '.join(_FORMATS)} (GPTQModel reads others)")
    if len(set(formats.values())) > 1:
        qweight.refuse(f"checkpoint_format is {formats['checkpoint_format']}, but format is {formats['format']}")
    format_ = next(iter(formats.values()), "gptq")
    return _gptq(base, tensors, config, warn, minus_one=_FORMATS[format_], format_=format_)


def auto_round(base: str, tensors: Tensors, config: Mapping[str, Any], warn: Warnings) -> Entry:
    """The weight `base` of auto-round, in GPTQ's layout, with zero points as they are or minus 1, or in AWQ's layout.

    Raises:
      CheckpointError: as in `gptq`.

    Warns:
      UserWarning: no packing_format is configured; or as in `gptq`.
    """
    qweight = tensors[f"{base}.qweight"]
    packing = config.get("packing_format") or config.get("backend")  # backend is what early releases call it
    if packing in (None, "", "auto"):
        packing = "auto_round:auto_gptq"
        reason = f"no packing_format is configured: {packing} is assumed, which has zero points less 1, as transformers does"
        warn("packing_format", qweight.path, qweight.name, reason)
    parts = set(packing.split(":")) if isinstance(packing, str) else set()
    if not parts or parts - _MINUS_ONE_LAYOUTS - _AWQ_LAYOUTS - _KERNELS:
        qweight.refuse(
            f"packing_format is {str(packing)[:100]}; it must be auto_round, auto_round:auto_gptq or auto_round:auto_awq"
        )
    data_type = config.get("data_type")
    if data_type is not None and "int" not in str(data_type):
        qweight.refuse(f"data_type is {str(data_type)[:100]}; it must be int")
    if parts & _AWQ_LAYOUTS:
        return awq(base, tensors, config, warn)
    return _gptq(base, tensors, config, warn, minus_one=bool(parts & _MINUS_ONE_LAYOUTS), format_=packing)


def _gptq(base: str, tensors: Tensors, config: Mapping[str, Any], warn: Warnings, *, minus_one: bool, format_: str) -> Entry:
    """A weight in GPTQ's layout, whose zero points are stored minus 1 or as they are; `format_` is the format's name."""
    qweight = tensors.pop(f"{base}.qweight").require(["int32"], 2)
    qzeros, scales = (_take_tensor(qweight, base, name, tensors) for name in ("qzeros", "scales"))
    qzeros.require(["int32"], 2)
    blocks, n = scales.require(SCALES, 2).shape
    bits = 32 * qzeros.shape[1] // n
    if bits not in (2, 4, 8):
        supported = "it must have 2, 4 or 8 (GPTQModel reads others)"
        qweight.refuse(f"has {bits} bits, according to the shapes of its zero points and scales; {supported}")
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
    sizes = fitting_sizes(k, blocks, configured)
    if g_idx is None or (configured and not sizes):  # otherwise the index may determine it
        sizes = [block_size(scales, k, blocks, configured, _EXAMPLE)]
    # With static groups, an activation order changes how the quantizer computes integers, but not the groups they belong to.
    ordered = blocks > 1 and config.get("desc_act") is True and config.get("static_groups") is not True
    if g_idx is None and ordered:
        qweight.refuse(f"is in the order of activations (desc_act), but there is no {base}.g_idx to say which")

    def read_order() -> tuple[int, np.ndarray | None]:
        """The size of the blocks, and the permutation of rows that makes them contiguous; None if they already are."""
        if g_idx is None:
            return sizes[0], None
        index = g_idx.read()
        if blocks > 1 and not index.any():  # a placeholder: ExLlama and others ignore it
            if ordered:
                g_idx.refuse(f"is 0 throughout, but the {blocks} blocks are in the order of activations (desc_act)")
            return block_size(scales, k, blocks, configured, _EXAMPLE), None
        size, permutation = activation_order(g_idx, index, blocks, sizes)
        if permutation is not None and config.get("desc_act") is False:
            reason = "has an order of activations, but desc_act is false: the order is followed"
            warn("desc_act", g_idx.path, g_idx.name, reason)
        return size, permutation

    def read() -> QuantizedWeight:
        values = unpack(qweight.read(), bits, -2)
        words = qzeros.read()
        zero_point = unpack(plus_one(words, bits) if minus_one else words, bits, -1)
        middle = 2 ** (bits - 1)
        if _symmetric(settings) and (zero_point != middle).any():
            in_other_format = unpack(words if minus_one else plus_one(words, bits), bits, -1)
            reason = f"sym is true, but format {format_} makes its zero points {_range(zero_point)}, not {middle}"
            if (in_other_format == middle).all():
                stored = "as they are" if minus_one else "less 1"
                warn("sym", qzeros.path, qzeros.name, f"{reason}: {middle} is assumed, as if they were stored {stored}")
                zero_point = in_other_format
            else:
                warn("sym", qzeros.path, qzeros.name, f"{reason}: they are taken to be right")
        size, permutation = read_order()
        if permutation is not None:
            values = values[permutation]
        dtype = np.uint8 if bits == 8 else ml_dtypes.uint4
        return QuantizedWeight(
            values=values.astype(dtype),
            scale=scales.read(),
            zero_point=zero_point.astype(dtype),
            minimum=None,
            permutation=permutation,
            block_size=size,
        )

    pieces = [qweight, qzeros, scales, *([] if g_idx is None else [g_idx])]
    method = "auto-round" if format_ not in _FORMATS else "GPTQ"
    nbytes = sum(tensor.nbytes for tensor in pieces)
    return Entry(kind=f"{method} of {bits} bits ({format_})", nbytes=nbytes, read=read)


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
        qweight.refuse(f"is from AWQ, version {version[:100]}; it must be gemm (AutoAWQ reads others)")
    qzeros, scales = (_take_tensor(qweight, base, name, tensors) for name in ("qzeros", "scales"))
    qzeros.require(["int32"], 2)
    blocks, n = scales.require(SCALES, 2).shape
    k = qweight.shape[0]
    if 8 * qweight.shape[1] != n or qzeros.shape != (blocks, qweight.shape[1]):
        shapes = f"{qweight.shape}, {qzeros.shape} and {scales.shape}"
        qweight.refuse(f"the shapes of qweight, qzeros and scales, {shapes}, do not fit together in 4 bits")
    settings = _settings(qweight, base, config, 4)
    size = block_size(scales, k, blocks, _sizes(settings), _EXAMPLE)
    symmetric = _symmetric(settings) or config.get("zero_point") is False

    def columns(words: np.ndarray) -> np.ndarray:
        values = unpack(words, 4, -1).reshape(*words.shape, 8)[..., list(_AWQ_ORDER)]
        return values.reshape(words.shape[0], n)

    def read() -> QuantizedWeight:
        zero_point = columns(qzeros.read())
        if symmetric and (zero_point != 8).any():
            reason = f"its zero points are {_range(zero_point)}, not 8 as in a symmetric weight: they are taken to be right"
            warn("sym", qzeros.path, qzeros.name, reason)
        return QuantizedWeight(
            values=columns(qweight.read()).astype(ml_dtypes.uint4),
            scale=scales.read(),
            zero_point=zero_point.astype(ml_dtypes.uint4),
            minimum=None,
            permutation=None,
            block_size=size,
        )

    return Entry(kind="AWQ of 4 bits", nbytes=qweight.nbytes + qzeros.nbytes + scales.nbytes, read=read)


def _take_tensor(weight: StoredTensor, base: str, name: str, tensors: Tensors) -> StoredTensor:
    if f"{base}.{name}" not in tensors:
        weight.refuse(f"there is no {base}.{name}")
    return tensors.pop(f"{base}.{name}")


def _settings(weight: StoredTensor, base: str, config: Mapping[str, Any], bits: int) -> list[Mapping[str, Any]]:
    """The settings that may apply to a weight: those of the whole configuration, or those of single layers.

    auto-round has settings for layers by their names or by patterns of names, GPTQModel by patterns. Patterns are not
    matched: all settings with the tensors' number of bits are returned.

    Raises:
      CheckpointError: no settings have that number of bits, or a group_size is invalid.
    """
    extra, dynamic = (value if isinstance(value := config.get(key), Mapping) else {} for key in ("extra_config", "dynamic"))
    layers = [extra[base]] if isinstance(extra.get(base), Mapping) else [{}, *extra.values(), *dynamic.values()]
    candidates: list[Mapping[str, Any]] = [{**config, **layer} for layer in layers if isinstance(layer, Mapping)]
    settings = [candidate for candidate in candidates if candidate.get("bits") in (None, bits)]
    if not settings:
        configured = " or ".join(dict.fromkeys(str(candidate.get("bits"))[:100] for candidate in candidates))
        weight.refuse(f"has {bits} bits, according to the shapes of its tensors, but {configured[:200]} are configured")
    for size in (setting.get("group_size") for setting in settings):
        if size is not None and (type(size) is not int or not (size == -1 or size > 0)):
            weight.refuse(f"group_size is {str(size)[:100]}; it must be a number of rows, or -1 for all of them")
    return settings


def _sizes(settings: list[Mapping[str, Any]]) -> set[int]:
    return {setting["group_size"] for setting in settings if setting.get("group_size") is not None}


def _symmetric(settings: list[Mapping[str, Any]]) -> bool:
    return all(setting.get("sym") is True for setting in settings)


def _range(array: np.ndarray) -> str:
    low, high = array.min(), array.max()
    return str(low) if low == high else f"{low} to {high}"
