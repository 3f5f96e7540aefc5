"""The blocks of GGUF's types: integers, and a scale and perhaps a minimum for each run of 16 or 32 of them."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import ml_dtypes
import numpy as np

from jquant.checkpoints.four_bit_floats import doubled

_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)


class Parts(NamedTuple):
    """What blocks of shape (..., G) consist of.

    Attributes:
      values: the integers, of shape (..., G, size of a block).
      scale: of shape (..., G, runs of a block).
      minimum: None, or of the shape of the scale.
    """

    values: np.ndarray
    scale: np.ndarray
    minimum: np.ndarray | None = None


def _float(blocks: np.ndarray, offset: int) -> np.ndarray:
    """The float16 at a byte offset of each block, of shape (..., G, 1)."""
    return np.ascontiguousarray(blocks[..., offset : offset + 2]).view("<f2").astype(np.float16)


def _product(blocks: np.ndarray, offset: int, integers: np.ndarray) -> np.ndarray:
    """The float16 at a byte offset of each block times integers of up to 8 bits, which float32 holds exactly."""
    return _float(blocks, offset).astype(np.float32) * integers.astype(np.float32)


def _fields(data: np.ndarray, bits: int, run: int) -> np.ndarray:
    """The unsigned integers of a few bits in bytes, where of each `run` bytes those in the lowest bits come first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    fields = data.reshape(*data.shape[:-1], -1, 1, run) >> shifts & np.uint8(2**bits - 1)
    return fields.reshape(*data.shape[:-1], -1)


def _q8_0(blocks: np.ndarray) -> Parts:
    return Parts(blocks[..., 2:].view(np.int8), _float(blocks, 0))


def _q4_0(blocks: np.ndarray) -> Parts:
    return Parts(_int4(_fields(blocks[..., 2:], 4, 16), 8), _float(blocks, 0))


def _q4_1(blocks: np.ndarray) -> Parts:
    return Parts(_fields(blocks[..., 4:], 4, 16).astype(ml_dtypes.uint4), _float(blocks, 0), _float(blocks, 2))


def _q5_0(blocks: np.ndarray) -> Parts:
    values = _fields(blocks[..., 6:], 4, 16) | _fields(blocks[..., 2:6], 1, 1) << 4
    return Parts(values.astype(np.int8) - np.int8(16), _float(blocks, 0))


def _q5_1(blocks: np.ndarray) -> Parts:
    values = _fields(blocks[..., 8:], 4, 16) | _fields(blocks[..., 4:8], 1, 1) << 4
    return Parts(values.astype(np.int8), _float(blocks, 0), _float(blocks, 2))


def _q2_k(blocks: np.ndarray) -> Parts:
    scales = blocks[..., :16]
    values = _fields(blocks[..., 16:80], 2, 32).astype(ml_dtypes.uint4)
    return Parts(values, _product(blocks, 80, scales & 15), -_product(blocks, 82, scales >> 4))


def _q3_k(blocks: np.ndarray) -> Parts:
    """The highest bits are stored apart. So are those of the scales, which have 6 bits."""
    values = _fields(blocks[..., 32:96], 2, 32) | _fields(blocks[..., :32], 1, 32) << 2
    scales = _fields(blocks[..., 96:104], 4, 8) | _fields(blocks[..., 104:108], 2, 4) << 4
    return Parts(_int4(values, 4), _product(blocks, 108, scales.astype(np.int8) - np.int8(32)))


def _q4_k(blocks: np.ndarray) -> Parts:
    values = _fields(blocks[..., 16:], 4, 32).astype(ml_dtypes.uint4)
    return Parts(values, *_scales_and_minima(blocks))


def _q5_k(blocks: np.ndarray) -> Parts:
    values = _fields(blocks[..., 48:], 4, 32) | _fields(blocks[..., 16:48], 1, 32) << 4
    return Parts(values.astype(np.int8), *_scales_and_minima(blocks))


def _scales_and_minima(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Those of Q4_K and Q5_K, eight of 6 bits each in 12 bytes: the highest 2 bits of four lie beside the other four."""
    first, second, lower = (blocks[..., offset : offset + 4] for offset in (4, 8, 12))
    scales = np.concatenate([first & 63, lower & 15 | first >> 6 << 4], axis=-1)
    minima = np.concatenate([second & 63, lower >> 4 | second >> 6 << 4], axis=-1)
    return _product(blocks, 0, scales), -_product(blocks, 2, minima)


def _q6_k(blocks: np.ndarray) -> Parts:
    values = _fields(blocks[..., :128], 4, 64) | _fields(blocks[..., 128:192], 2, 32) << 4
    return Parts(values.astype(np.int8) - np.int8(32), _product(blocks, 208, blocks[..., 192:208].view(np.int8)))


def _iq4_nl(blocks: np.ndarray) -> Parts:
    return Parts(_IQ4[_fields(blocks[..., 2:], 4, 16)], _float(blocks, 0))


def _iq4_xs(blocks: np.ndarray) -> Parts:
    scales = _fields(blocks[..., 4:8], 4, 1) | _fields(blocks[..., 2:4], 2, 1) << 4
    return Parts(_IQ4[_fields(blocks[..., 8:], 4, 16)], _product(blocks, 0, scales.astype(np.int8) - np.int8(32)))


def _mxfp4(blocks: np.ndarray) -> Parts:
    """With half the scale, a power of two, which bfloat16 holds down to 2**-128."""
    scale = np.ldexp(np.float32(1), blocks[..., :1].astype(np.int32) - 128)
    return Parts(doubled(_fields(blocks[..., 1:], 4, 16)), scale.astype(ml_dtypes.bfloat16))


def _nvfp4(blocks: np.ndarray) -> Parts:
    """With half the scales, 8-bit floats whose sign does not count; llama.cpp reads the code of NaN as 0."""
    codes = blocks[..., :4]
    scale = (codes & 127).view(ml_dtypes.float8_e4m3fn).astype(np.float32) / 2
    scale = np.where(codes & 127 == 127, np.where(codes == 127, np.float32(0), np.float32(240)), scale)
    return Parts(doubled(_fields(blocks[..., 4:], 4, 8)), scale.astype(ml_dtypes.bfloat16))


def _int4(values: np.ndarray, offset: int) -> np.ndarray:
    return (values.astype(np.int8) - np.int8(offset)).astype(ml_dtypes.int4)


PARTS: Mapping[str, Callable[[np.ndarray], Parts]] = {
    **{"Q8_0": _q8_0, "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1},
    **{"Q2_K": _q2_k, "Q3_K": _q3_k, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k},
    **{"IQ4_NL": _iq4_nl, "IQ4_XS": _iq4_xs, "MXFP4": _mxfp4, "NVFP4": _nvfp4},
}
"""By the names of types, what the bytes of blocks, of shape (..., G, bytes of a block), consist of."""
