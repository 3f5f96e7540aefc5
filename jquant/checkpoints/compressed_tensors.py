"""The weights of compressed-tensors: integers packed into 32-bit words, and unpacked 8-bit integers and floats."""

import re
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from jquant.checkpoints import four_bit_weights
from jquant.checkpoints.entry import Entry
from jquant.checkpoints.fp8 import FLOATS
from jquant.checkpoints.groups import SCALES, Tensors, activation_order, block_size
from jquant.checkpoints.packed_uint32 import unpack
from jquant.checkpoints.weight import QuantizedWeight
from jquant.files.diagnostics import Warnings
from jquant.files.stored_tensor import StoredTensor

FORMATS = (
    "dense",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "pack-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mixed-precision",
)
_EXAMPLE = "{'quant_method': 'compressed-tensors', 'config_groups': {'group_0': {'weights': {%s}}}}"


def pack_quantized(base: str, tensors: Tensors, config: Mapping[str, Any], warn: Warnings) -> Entry:
    """The weight `base` of the format pack-quantized, of integers or 4-bit floats. Removes its tensors from `tensors`.

    Raises:
      CheckpointError: tensors that are missing or do not fit together, or another format.

    Warns:
      UserWarning: where the configuration contradicts the tensors, but the weight is clear; some only when it is read.
    """
    packed = tensors[f"{base}.weight_packed"]
    if packed.dtype == np.uint8:
        _require_type(packed, "float", config)
        return four_bit_weights.pack_quantized(base, tensors)
    tensors.pop(packed.name).require(["int32"], 2)
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
    widths = [bits for bits in _bit_widths(config) if -(-k * bits // 32) == packed.shape[1]]
    if len(widths) != 1 or widths[0] not in (2, 4, 8):
        possible = " or ".join(map(str, widths)) or "an unknown number of"
        packed.refuse(f"its rows of {packed.shape[1]} words hold {k} integers of {possible} bits; it must be 2, 4 or 8 bits")
    (bits,) = widths
    repeats, size = _block_shape(scale, n, k, config, warn)
    blocks = -(-k // size)
    dtype = np.dtype(np.int8 if bits == 8 else ml_dtypes.int4)
    zeros = tensors.pop(f"{base}.weight_zero_point", None)
    if zeros is not None:
        expected = (-(-n * bits // 32), blocks) if zeros.dtype == np.int32 else (n, blocks)
        if zeros.require(["int32", "int8"], 2).shape != expected:
            zeros.refuse(f"has shape {zeros.shape}; it must be {expected}")
    else:
        _warn_of_missing_zero_points(packed, base, config, warn)
    g_idx = tensors.pop(f"{base}.weight_g_idx", None)
    if g_idx is None and blocks > 1 and _common_setting(config, "actorder") in ("group", "dynamic", True):
        packed.refuse(f"is in the order of activations (actorder), but there is no {base}.weight_g_idx to say which")
    if g_idx is not None and g_idx.require(["int32", "int64"], 1).shape != (k,):
        g_idx.refuse(f"has shape {g_idx.shape}; it must have an index for each of the {k} columns")

    def signed(codes: np.ndarray) -> np.ndarray:
        """The integers that are stored with an offset, as unsigned codes."""
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
        _warn_of_asymmetry(zeros, zero_point, config, warn)
        permutation = None
        if g_idx is not None and not ((index := g_idx.read()) == -1).all():  # all -1: the columns are in order
            _, permutation = activation_order(g_idx, index, blocks, [size])
            values = values if permutation is None else values[permutation]
        return QuantizedWeight(
            values=np.ascontiguousarray(values),
            scale=_transposed(scale.read(), repeats, n),
            zero_point=zero_point,
            minimum=None,
            permutation=permutation,
            block_size=size,
        )

    nbytes = sum(tensor.nbytes for tensor in (packed, scale, sizes, zeros, g_idx) if tensor is not None)
    return Entry(kind=f"pack-quantized of {bits} bits", nbytes=nbytes, read=read)


def naive_quantized(base: str, tensors: Tensors, config: Mapping[str, Any], warn: Warnings) -> Entry:
    """The weight `base` of the formats int-quantized, float-quantized and naive-quantized.

    Raises:
      CheckpointError: as in `pack_quantized`.

    Warns:
      UserWarning: as in `pack_quantized`.
    """
    weight = tensors.pop(f"{base}.weight").require(["int8", *FLOATS], 2)
    n, k = weight.shape
    scale = _scale(weight, base, tensors)
    repeats, size = _block_shape(scale, n, k, config, warn)
    zeros = tensors.pop(f"{base}.weight_zero_point", None)
    is_integer = weight.dtype == np.int8
    _require_type(weight, "int" if is_integer else "float", config)
    if zeros is None and is_integer:
        _warn_of_missing_zero_points(weight, base, config, warn)
    if zeros is not None:
        if zeros.dtype.newbyteorder("=").name not in ("int8", *FLOATS, *SCALES) or zeros.shape != scale.shape:
            zeros.refuse(
                f"is {zeros.type_name} of shape {zeros.shape}; it must be int8, with the shape of the scale, {scale.shape}"
            )
        if is_integer and zeros.dtype != np.int8:
            zeros.refuse(f"is {zeros.type_name}; it must be int8, like the weight")

    def read() -> QuantizedWeight:
        zero_point = None if zeros is None else _transposed(zeros.read(), repeats, n)
        if zeros is not None and not is_integer:
            if (np.asarray(zero_point, np.float32) != 0).any():
                zeros.refuse("is not 0; floats have no zero point")
            zero_point = None
        _warn_of_asymmetry(zeros, zero_point, config, warn)
        return QuantizedWeight(
            values=np.ascontiguousarray(weight.read().T),
            scale=_transposed(scale.read(), repeats, n),
            zero_point=zero_point,
            minimum=None,
            permutation=None,
            block_size=size,
        )

    nbytes = sum(tensor.nbytes for tensor in (weight, scale, zeros) if tensor is not None)
    format_ = "int-quantized" if is_integer else "float-quantized"
    return Entry(kind=f"{format_}, {weight.dtype.name}", nbytes=nbytes, read=read)


def _scale(weight: StoredTensor, base: str, tensors: Tensors) -> StoredTensor:
    scale = tensors.pop(f"{base}.weight_scale", None)
    if scale is None:
        weight.refuse(f"there is no {base}.weight_scale")
    if f"{base}.weight_global_scale" in tensors:
        weight.refuse(f"there is a {base}.weight_global_scale, which only nvfp4-pack-quantized has, of U8")
    return scale.require(SCALES, len(scale.shape))


def _transposed(array: np.ndarray, repeats: int, n: int) -> np.ndarray:
    """An array (N / repeats, G), with a row for each `repeats` rows of the file, as (G, N); a single value as (1, 1)."""
    if array.size == 1:
        return array.reshape(1, 1)
    return np.ascontiguousarray(np.repeat(array, repeats, axis=0)[:n].T)


def _block_shape(scale: StoredTensor, n: int, k: int, config: Mapping[str, Any], warn: Warnings) -> tuple[int, int]:
    """The rows and columns of the file that share a scale: as configured, or else as the shape of the scales implies.

    Raises:
      CheckpointError: none of the configured block shapes fits the shape of the scales, or two of them do; or none is
        configured, and the shape of the scales is ambiguous.

    Warns:
      UserWarning: there is one scale, or one for each row, where another number is configured.
    """
    shape = scale.shape
    configured = {
        (min(rows or n, n), min(columns or k, k))
        for rows, columns in (_configured_block(scale, weights) for weights in _weight_settings(config))
    }
    fitting = [(rows, columns) for rows, columns in configured if shape == (-(-n // rows), -(-k // columns))]
    sizes = " or ".join(f"{rows} x {columns}" for rows, columns in sorted(configured))
    if shape in ((), (1,), (1, 1), (n, 1)):
        per_tensor = shape != (n, 1) or n == 1
        block = (n, k) if per_tensor else (1, k)
        if configured and block not in configured:
            granularity = "one scale for the weight" if per_tensor else "one scale for each row"
            reason = f"has shape {shape}, but blocks of {sizes} in {n} x {k} are configured: {granularity} is assumed"
            warn("scales", scale.path, scale.name, reason)
        return block
    if len(shape) != 2:
        scale.refuse(f"has shape {shape}; it must be a scalar or a matrix")
    if not configured and shape[0] == n:
        return 1, block_size(scale, k, shape[1], (), _EXAMPLE % "'group_size': SIZE")
    if not configured:
        example = _EXAMPLE % "'block_structure': [ROWS, COLUMNS]"
        scale.refuse(
            f"has shape {shape}, which does not fit groups in the rows of {n} x {k}, and no blocks are configured; say what "
            f"they are, in config.json or as load(..., quantization_config={example})"
        )
    if not fitting:
        scale.refuse(f"has shape {shape}, which does not fit blocks of {sizes} in {n} x {k}")
    if len(fitting) > 1:
        sizes = " and of ".join(f"{rows} x {columns}" for rows, columns in sorted(fitting))
        scale.refuse(f"has shape {shape}, which blocks of {sizes} in {n} x {k} give, and all of these are configured")
    return fitting[0]


def _require_type(weight: StoredTensor, type_: str, config: Mapping[str, Any]) -> None:
    """Checks that the weight's type, "int" or "float", may be the configured one.

    Raises:
      CheckpointError: all weights have another type according to the configuration.
    """
    configured = _common_setting(config, "type")
    if configured is not None and configured != type_:
        weight.refuse(f"is {weight.type_name}, for weights of type {type_}, but type {str(configured)[:100]} is configured")


def _warn_of_missing_zero_points(weight: StoredTensor, base: str, config: Mapping[str, Any], warn: Warnings) -> None:
    if _common_setting(config, "symmetric") is False:
        reason = f"symmetric is false, but there is no {base}.weight_zero_point: zero points of 0 are assumed"
        warn("symmetric", weight.path, weight.name, reason)


def _warn_of_asymmetry(
    zeros: StoredTensor | None, zero_point: np.ndarray | None, config: Mapping[str, Any], warn: Warnings
) -> None:
    if zeros is not None and zero_point is not None and _common_setting(config, "symmetric") is True and zero_point.any():
        reason = "symmetric is true, but its zero points are not all 0: they are taken to be right"
        warn("symmetric", zeros.path, zeros.name, reason)


def _common_setting(config: Mapping[str, Any], key: str) -> Any:
    """The setting `key` of the weights, if it is the same in all groups of layers; otherwise None."""
    settings = [weights.get(key) for weights in _weight_settings(config)]
    return settings[0] if settings and all(setting == settings[0] for setting in settings) else None


def _weight_settings(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The settings of the weights in each group of layers in the configuration."""
    groups = config.get("config_groups")
    groups = groups.values() if isinstance(groups, dict) else ()
    settings = (group.get("weights") for group in groups if isinstance(group, dict))
    return [weights for weights in settings if isinstance(weights, dict)]


def _bit_widths(config: Mapping[str, Any]) -> list[int]:
    """The numbers of bits in the configuration; if there are none, those that are supported."""
    configured = (weights.get("num_bits") for weights in _weight_settings(config))
    return sorted({bits for bits in configured if isinstance(bits, int)}) or [2, 4, 8]


def _configured_block(scale: StoredTensor, weights: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """The configured rows and columns that share a scale; None for all of them."""
    structure, group_size = weights.get("block_structure"), weights.get("group_size")
    if isinstance(structure, str) and re.fullmatch(r"[0-9]{1,9}x[0-9]{1,9}", structure):
        structure = list(map(int, structure.split("x")))
    if isinstance(structure, list) and len(structure) == 2 and all(type(size) is int and size > 0 for size in structure):
        return structure[0], structure[1]
    if type(group_size) is int and group_size > 0:
        return 1, group_size
    strategy = weights.get("strategy")
    if structure is not None and strategy in (None, "block"):
        scale.refuse(f"block_structure is {str(structure)[:100]}; it must be two sizes, such as [128, 128] or '128x128'")
    per_tensor = strategy == "tensor" or (strategy is None and group_size is None)  # the default
    return (None if per_tensor else 1), None
