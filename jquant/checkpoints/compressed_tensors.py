"""The weights of compressed-tensors: integers packed into words, or 8-bit integers and floats as they are."""

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from jquant.checkpoints.entry import Entry
from jquant.checkpoints.errors import Warnings
from jquant.checkpoints.groups import SCALES, Tensors, block_size, contiguous
from jquant.checkpoints.packed_uint32 import unpack
from jquant.checkpoints.stored import StoredTensor
from jquant.checkpoints.weight import QuantizedWeight

FORMATS = (
    "dense",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "pack-quantized",
    "mixed-precision",
)
_FLOATS = ("float8_e4m3fn", "float8_e5m2")
_EXAMPLE = "{'quant_method': 'compressed-tensors', 'config_groups': {'group_0': {'weights': {%s}}}}"


def pack_quantized(base: str, tensors: Tensors, config: Mapping[str, Any], warn: Warnings) -> Entry:
    """The weight `base` of the format pack-quantized. Removes its tensors from `tensors`.

    Raises:
      CheckpointError: tensors that are missing or do not fit together, or another format.

    Warns:
      UserWarning: where the configuration contradicts the tensors, but what they hold is clear.
    """
    packed = tensors.pop(f"{base}.weight_packed")
    if packed.dtype != np.int32:
        packed.refuse(
            f"is {packed.what}; it must be int32, as in pack-quantized (not nvfp4-pack-quantized or mxfp4-pack-quantized)"
        )
    packed.require(["int32"], 2)
    _require_type(packed, "int", config)
    scale = _scale(packed, base, tensors)
    shape = tensors.pop(f"{base}.weight_shape", None)
    if shape is None:
        packed.refuse(f"there is no {base}.weight_shape")
    sizes = shape.require(["int32", "int64"], 1)
    if sizes.shape != (2,):
        shape.refuse(f"has shape {sizes.shape}; it must hold two sizes")
    n, k = map(int, sizes.read())
    if n != packed.shape[0] or not 0 < k <= 16 * packed.shape[1]:
        shape.refuse(f"is ({n}, {k}), which does not fit {base}.weight_packed, of shape {packed.shape}")
    fitting = [bits for bits in _bits(config) if -(-k * bits // 32) == packed.shape[1]]
    if len(fitting) != 1 or fitting[0] not in (2, 4, 8):
        found = " or ".join(map(str, fitting)) or "an unknown number of"
        packed.refuse(f"its rows of {packed.shape[1]} words hold {k} integers of {found} bits; it must be 2, 4 or 8 bits")
    (bits,) = fitting
    repeats, size = _structure(scale, n, k, config, warn)
    blocks = -(-k // size)
    dtype = np.dtype(np.int8 if bits == 8 else ml_dtypes.int4)
    zeros = tensors.pop(f"{base}.weight_zero_point", None)
    if zeros is not None:
        wanted = (-(-n * bits // 32), blocks) if zeros.dtype == np.int32 else (n, blocks)
        if zeros.require(["int32", "int8"], 2).shape != wanted:
            zeros.refuse(f"has shape {zeros.shape}; it must be {wanted}")
    else:
        _no_zero_points(packed, base, config, warn)
    g_idx = tensors.pop(f"{base}.weight_g_idx", None)
    if g_idx is None and blocks > 1 and _agreed(config, "actorder") in ("group", "dynamic", True):
        packed.refuse(f"is in the order of activations (actorder), but there is no {base}.weight_g_idx to say which")
    if g_idx is not None and g_idx.require(["int32", "int64"], 1).shape != (k,):
        g_idx.refuse(f"has shape {g_idx.shape}; it must have an index for each of the {k} columns")

    def signed(codes: np.ndarray) -> np.ndarray:
        return (codes.astype(np.int16) - 2 ** (bits - 1)).astype(dtype)

    def read() -> QuantizedWeight:
        values = signed(unpack(packed.read(), bits, -1)[:, :k].T)
        zero_point = None
        if zeros is not None and zeros.dtype == np.int32:
            zero_point = signed(unpack(zeros.read(), bits, -2)[:n].T)
        elif zeros is not None:
            zero_point = zeros.read().T
            limits = ml_dtypes.iinfo(dtype)
            if zero_point.min() < limits.min or zero_point.max() > limits.max:
                zeros.refuse(f"has values from {zero_point.min()} to {zero_point.max()}, outside the range of {bits} bits")
            zero_point = zero_point.astype(dtype)
        _compare_symmetry(zeros, zero_point, config, warn)
        permutation = None
        if g_idx is not None and not ((index := g_idx.read()) == -1).all():  # -1 throughout means columns in their order
            _, permutation = contiguous(g_idx, index, blocks, [size])
            values = values if permutation is None else values[permutation]
        scales = _columns(scale.read(), repeats, n)
        return QuantizedWeight(np.ascontiguousarray(values), scales, zero_point, None, permutation, size)

    pieces = [each for each in (packed, scale, sizes, zeros, g_idx) if each is not None]
    return Entry(f"pack-quantized of {bits} bits", sum(each.nbytes for each in pieces), read)


def naive_quantized(base: str, tensors: Tensors, config: Mapping[str, Any], warn: Warnings) -> Entry:
    """The weight `base` of the formats int-quantized, float-quantized and naive-quantized.

    Raises:
      CheckpointError: as in `pack_quantized`.

    Warns:
      UserWarning: as in `pack_quantized`.
    """
    weight = tensors.pop(f"{base}.weight").require(["int8", *_FLOATS], 2)
    n, k = weight.shape
    scale = _scale(weight, base, tensors)
    repeats, size = _structure(scale, n, k, config, warn)
    zeros = tensors.pop(f"{base}.weight_zero_point", None)
    whole = weight.dtype == np.int8
    _require_type(weight, "int" if whole else "float", config)
    if zeros is None and whole:
        _no_zero_points(weight, base, config, warn)
    if zeros is not None:
        if zeros.dtype.newbyteorder("=").name not in ("int8", *_FLOATS, *SCALES) or zeros.shape != scale.shape:
            zeros.refuse(
                f"is {zeros.what} of shape {zeros.shape}; it must be int8, with the shape of the scale, {scale.shape}"
            )
        if whole and zeros.dtype != np.int8:
            zeros.refuse(f"is {zeros.what}; it must be int8, like the weight")

    def read() -> QuantizedWeight:
        zero_point = None if zeros is None else _columns(zeros.read(), repeats, n)
        if zeros is not None and not whole:
            if (np.asarray(zero_point, np.float32) != 0).any():
                zeros.refuse("is not 0; floats have no zero point")
            zero_point = None
        _compare_symmetry(zeros, zero_point, config, warn)
        values = np.ascontiguousarray(weight.read().T)
        return QuantizedWeight(values, _columns(scale.read(), repeats, n), zero_point, None, None, size)

    pieces = [each for each in (weight, scale, zeros) if each is not None]
    kind = "int-quantized" if whole else "float-quantized"
    return Entry(f"{kind}, {weight.dtype.name}", sum(each.nbytes for each in pieces), read)


def _scale(weight: StoredTensor, base: str, tensors: Tensors) -> StoredTensor:
    scale = tensors.pop(f"{base}.weight_scale", None)
    if scale is None:
        weight.refuse(f"there is no {base}.weight_scale")
    if f"{base}.weight_global_scale" in tensors:
        weight.refuse(f"there is a {base}.weight_global_scale: formats with two scales are not supported")
    return scale.require(SCALES, len(scale.shape))


def _columns(array: np.ndarray, repeats: int, n: int) -> np.ndarray:
    """What each block of `repeats` rows has, (N / repeats, G), as (G, N); one value as (1, 1)."""
    if array.size == 1:
        return array.reshape(1, 1)
    return np.ascontiguousarray(np.repeat(array, repeats, axis=0)[:n].T)


def _structure(scale: StoredTensor, n: int, k: int, config: Mapping[str, Any], warn: Warnings) -> tuple[int, int]:
    """The rows and columns of the file that share a scale: as configured, or else as the shape of the scales says.

    Raises:
      CheckpointError: none of the configured sizes gives as many scales as there are, or two of them do; or none is
        configured, and the shape of the scales leaves it open.

    Warns:
      UserWarning: one scale, or one for each row, where another number is configured.
    """
    shape = scale.shape
    configured = {(min(rows or n, n), min(columns or k, k)) for rows, columns in map(_shared, _weights(config))}
    fitting = [each for each in configured if shape == (-(-n // each[0]), -(-k // each[1]))]
    sizes = " or ".join(f"{rows} x {columns}" for rows, columns in sorted(configured))
    if shape in ((), (1,), (1, 1), (n, 1)):
        one = shape != (n, 1) or n == 1
        clear = (n, k) if one else (1, k)
        if configured and clear not in configured:
            which = "one scale for the weight" if one else "one scale for each row"
            why = f"has shape {shape}, but blocks of {sizes} in {n} x {k} are configured: {which} is assumed"
            warn("scales", scale.path, scale.name, why)
        return clear
    if len(shape) != 2:
        scale.refuse(f"has shape {shape}; it must be a scalar or a matrix")
    if not configured and shape[0] == n:
        return 1, block_size(scale, k, shape[1], (), _EXAMPLE % "'group_size': SIZE")
    if not configured:
        blocks = _EXAMPLE % "'block_structure': [ROWS, COLUMNS]"
        scale.refuse(
            f"has shape {shape}, which does not fit groups in the rows of {n} x {k}, and no blocks are configured; say what "
            f"they are, in config.json or as load(..., quantization_config={blocks})"
        )
    if not fitting:
        scale.refuse(f"has shape {shape}, which does not fit blocks of {sizes} in {n} x {k}")
    if len(fitting) > 1:
        sizes = " and of ".join(f"{rows} x {columns}" for rows, columns in sorted(fitting))
        scale.refuse(f"has shape {shape}, which blocks of {sizes} in {n} x {k} give, and all of these are configured")
    return fitting[0]


def _require_type(weight: StoredTensor, kind: str, config: Mapping[str, Any]) -> None:
    """
    Raises:
      CheckpointError: all weights have another type according to the configuration.
    """
    found = _agreed(config, "type")
    if found is not None and found != kind:
        weight.refuse(f"is {weight.what}, for weights of type {kind}, but type {str(found)[:100]} is configured")


def _no_zero_points(weight: StoredTensor, base: str, config: Mapping[str, Any], warn: Warnings) -> None:
    if _agreed(config, "symmetric") is False:
        why = f"symmetric is false, but there is no {base}.weight_zero_point: zero points of 0 are assumed"
        warn("symmetric", weight.path, weight.name, why)


def _compare_symmetry(
    zeros: StoredTensor | None, zero_point: np.ndarray | None, config: Mapping[str, Any], warn: Warnings
) -> None:
    if zeros is not None and zero_point is not None and _agreed(config, "symmetric") is True and zero_point.any():
        why = "symmetric is true, but its zero points are not all 0: they are taken to be right"
        warn("symmetric", zeros.path, zeros.name, why)


def _agreed(config: Mapping[str, Any], key: str) -> Any:
    """What all of the configured weights have under `key`; None if they differ."""
    found = [weights.get(key) for weights in _weights(config)]
    return found[0] if found and all(each == found[0] for each in found) else None


def _weights(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    groups = config.get("config_groups")
    groups = groups.values() if isinstance(groups, dict) else ()
    found = (group.get("weights") for group in groups if isinstance(group, dict))
    return [weights for weights in found if isinstance(weights, dict)]


def _bits(config: Mapping[str, Any]) -> list[int]:
    """The numbers of bits in the configuration, or those that are supported."""
    given = (weights.get("num_bits") for weights in _weights(config))
    return sorted({bits for bits in given if isinstance(bits, int)}) or [2, 4, 8]


def _shared(weights: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """The configured rows and columns that share a scale; None for all of them."""
    structure, group_size = weights.get("block_structure"), weights.get("group_size")
    if isinstance(structure, list) and len(structure) == 2 and all(type(each) is int and each > 0 for each in structure):
        return structure[0], structure[1]
    if type(group_size) is int and group_size > 0:
        return 1, group_size
    whole = weights.get("strategy") == "tensor" or (weights.get("strategy") is None and group_size is None)  # the default
    return (None if whole else 1), None
