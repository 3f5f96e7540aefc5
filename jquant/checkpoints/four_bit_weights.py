"""Weights of 4-bit floats, two in a byte: compressed-tensors' NVFP4 and MXFP4, ModelOpt's NVFP4 and gpt-oss's MXFP4."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from jquant.checkpoints.entry import Entry
from jquant.checkpoints.four_bit_floats import doubled
from jquant.checkpoints.groups import Tensors
from jquant.checkpoints.rows import DecodedRows
from jquant.checkpoints.weight import QuantizedWeight, columns
from jquant.files.diagnostics import Warnings
from jquant.files.stored_tensor import StoredTensor

_POWERS_OF_TWO = "uint8", "float8_e8m0fnu"
_HalfScale = Callable[[np.ndarray], np.ndarray]


def pack_quantized(base: str, tensors: Tensors) -> Entry:
    """The weight `base` of compressed-tensors' nvfp4-pack-quantized or mxfp4-pack-quantized, as the scales' type tells.

    Raises:
      CheckpointError: tensors that are missing or do not fit together.
    """
    codes = tensors.pop(f"{base}.weight_packed").require(["uint8"], 2)
    scale = _beside(codes, f"{base}.weight_scale", tensors)
    if scale.dtype != ml_dtypes.float8_e4m3fn:
        scale.require(_POWERS_OF_TWO, 2)
        return _entry("mxfp4-pack-quantized", codes, scale, 32, _half_power)
    divisor = _one_number(codes, f"{base}.weight_global_scale", tensors)

    def half(scales: np.ndarray) -> np.ndarray:
        return scales.astype(np.float32) / divisor.read().reshape(()) / 2

    return _entry("nvfp4-pack-quantized", codes, scale, 16, half, divisor)


def modelopt(base: str, tensors: Tensors, config: Mapping[str, Any], warn: Warnings) -> Entry:
    """The weight `base` of ModelOpt's NVFP4, whose second scale is multiplied, where that of compressed-tensors divides.

    Raises:
      CheckpointError: tensors that are missing or do not fit together.
    """
    codes = tensors.pop(f"{base}.weight").require(["uint8"], 2)
    scale = _beside(codes, f"{base}.weight_scale", tensors).require(["float8_e4m3fn"], 2)
    factor = _one_number(codes, f"{base}.weight_scale_2", tensors)

    def half(scales: np.ndarray) -> np.ndarray:
        return scales.astype(np.float32) * factor.read().reshape(()) / 2

    return _entry("NVFP4 of ModelOpt", codes, scale, 16, half, factor)


def is_mxfp4(codes: StoredTensor, scale: StoredTensor) -> bool:
    """Whether these can be blocks of 16 bytes and their scales, as gpt-oss has them."""
    return codes.dtype == scale.dtype == np.uint8 and len(codes.shape) >= 3 and codes.shape == (*scale.shape, 16)


def mxfp4(codes: StoredTensor, scale: StoredTensor) -> Entry:
    """The weights of gpt-oss's experts, (E, N, K / 32, 16), as a batch of matrices (E, K, N), or of one matrix.

    Raises:
      CheckpointError: shapes or types that do not fit together.
    """
    if not is_mxfp4(codes, scale) or 0 in codes.shape:
        shapes = f"{codes.type_name} of shape {codes.shape} and {scale.type_name} of shape {scale.shape}"
        codes.refuse(f"it and its scales are {shapes}; MXFP4 has blocks of U8, (..., N, K / 32, 16), and a scale for each")
    in_rows = dataclasses.replace(codes, shape=(*codes.shape[:-2], 16 * codes.shape[-2]))
    return _entry("MXFP4", in_rows, scale, 32, _half_power)


def _beside(codes: StoredTensor, name: str, tensors: Tensors) -> StoredTensor:
    if name not in tensors:
        codes.refuse(f"there is no {name}")
    return tensors.pop(name)


def _one_number(codes: StoredTensor, name: str, tensors: Tensors) -> StoredTensor:
    tensor = _beside(codes, name, tensors)
    if tensor.shape not in ((), (1,)):
        tensor.refuse(f"has shape {tensor.shape}; it must be one number")
    return tensor.require(["float32"], len(tensor.shape))


def _half_power(codes: np.ndarray) -> np.ndarray:
    """Half of powers of two, which bfloat16 holds down to 2**-128, from their biased exponents; 255 is NaN."""
    exponent = codes.view(np.uint8).astype(np.int32) - 128
    half = np.ldexp(np.float32(1), exponent)
    return np.where(exponent == 127, np.float32(np.nan), half).astype(ml_dtypes.bfloat16)


def _entry(
    kind: str, codes: StoredTensor, scale: StoredTensor, block_size: int, half: _HalfScale, *others: StoredTensor
) -> Entry:
    """The weight of these codes, (..., N, K / 2): twice the floats, with `half` of the scales in the file."""
    k = 2 * codes.shape[-1]
    expected = *codes.shape[:-1], -(-k // block_size)
    if scale.shape != expected:
        scale.refuse(f"has shape {scale.shape}; blocks of {block_size} in {codes.name}, {codes.shape}, need {expected}")

    def decode(first: int, count: int) -> QuantizedWeight:
        pairs = codes.rows(first, count).read()
        with np.errstate(all="ignore"):  # the scales in a file may be anything
            halves = half(scale.rows(first, count).read())
        return QuantizedWeight(
            values=columns(doubled(np.stack([pairs & 15, pairs >> 4], axis=-1))),
            scale=columns(halves),
            zero_point=None,
            minimum=None,
            permutation=None,
            block_size=min(block_size, k),
            dequantized_dtype="float32",
        )

    nbytes = sum(tensor.nbytes for tensor in (codes, scale, *others))
    return DecodedRows(codes, decode, scale.shape[-1]).entry(kind, nbytes)
