"""Packed matrices as files hold them, in no layout, and back: in NumPy, which compiles nothing, and part by part.

Integers of 8 bits have the shape (..., K, N) of the matrix. Those of 4 bits, two in a byte, have the shape (..., K / 2, N),
rounded up: the lower bits are the first of two rows. After the last row are zeros. So do codes of floats of 4 bits.
"""

import jax.numpy as jnp
import numpy as np

from jquant.arithmetic.packed_int4 import SIGN_BITS
from jquant.packed.block_matrix import Layout, PackedBlockMatrix, layout_for
from jquant.packed.matrix import PackedMatrix

_SIGN_BIT = np.uint8(0x80)
_WORDS = Layout.WORDS, Layout.K_MAJOR_WORDS, Layout.CODES
_K_MAJOR = Layout.K_MAJOR_WORDS, Layout.K_MAJOR_BYTES


def rows_in_file(dtype: np.dtype, rows: int) -> int:
    """How many rows of bytes a file has for so many rows of integers."""
    return -(-rows // 2) if _has_4_bits(dtype) else rows


def _has_4_bits(dtype: np.dtype) -> bool:
    return dtype.name.endswith("int4") or dtype == jnp.float4_e2m1fn


def of_matrix(matrix: PackedMatrix) -> np.ndarray:
    """The integers of a matrix."""
    data = np.swapaxes(np.asarray(matrix.data), -1, -2)
    return data if matrix.dtype == np.int8 else data.view(np.uint8) ^ _SIGN_BIT


def of_block_matrix(matrix: PackedBlockMatrix) -> np.ndarray:
    """The integers of a matrix in blocks, or codes of floats, without scales."""
    data = np.asarray(matrix.data)
    data = np.swapaxes(data, -1, -2) if matrix.layout in _K_MAJOR else data
    *_, rows, _ = matrix.shape
    if matrix.layout in _WORDS:
        codes = data ^ SIGN_BITS if matrix.offset else data
        return _bytes_of_words(codes, rows)
    data = data[..., :rows, :]
    if matrix.dtype == np.uint8:
        return data.view(np.uint8) ^ _SIGN_BIT
    return data if matrix.dtype == np.int8 else _bytes_of_codes(data.view(np.uint8) & np.uint8(15))


def _bytes_of_words(words: np.ndarray, rows: int) -> np.ndarray:
    *batch, count, n = words.shape
    in_pairs = np.stack([words & np.uint16(0xFF), words >> np.uint16(8)], axis=-2).astype(np.uint8)
    codes = in_pairs.reshape(*batch, 2 * count, n)[..., : -(-rows // 2), :]
    if rows % 2:
        codes[..., -1, :] &= np.uint8(15)
    return codes


def _bytes_of_codes(codes: np.ndarray) -> np.ndarray:
    if codes.shape[-2] % 2:
        codes = np.concatenate([codes, np.zeros_like(codes[..., :1, :])], axis=-2)
    return codes[..., 0::2, :] | codes[..., 1::2, :] << np.uint8(4)


def from_row(integers: np.ndarray, dtype: np.dtype, first: int) -> np.ndarray:
    """The integers, as files hold them, without the first row if `first` is 1 and the two rows of a byte are cut."""
    if not first or not _has_4_bits(dtype):
        return integers
    return _bytes_of_codes(_codes_of_bytes(integers, 2 * integers.shape[-2])[..., 1:, :])


def pack(integers: np.ndarray, block_size: int) -> tuple[np.ndarray, np.ndarray]:
    """`PackedMatrix.data` and `block_sums` of integers of 8 bits."""
    signed = integers if integers.dtype == np.int8 else (integers ^ _SIGN_BIT).view(np.int8)
    data = np.ascontiguousarray(np.swapaxes(signed, -1, -2))
    *batch, k, n = integers.shape
    sums = signed.reshape(*batch, k // block_size, block_size, n).sum(-2, dtype=np.int32)
    return data, sums


def pack_blocks(integers: np.ndarray, dtype: np.dtype, rows: int, block_size: int) -> np.ndarray:
    """`PackedBlockMatrix.data` of integers, as files hold them, in the layout that `layout_for` names."""
    missing = -(-rows // block_size) * block_size - rows
    if layout_for(dtype, block_size) != Layout.BYTES:
        return _words_of_bytes(integers, dtype, rows, (rows + missing) // 4)
    if _has_4_bits(dtype):
        integers = _codes_of_bytes(integers, rows)
        integers = (integers ^ np.uint8(8)) - np.uint8(8) if dtype.name == "int4" else integers
    elif dtype == np.uint8:
        integers = integers ^ _SIGN_BIT
    return _with_rows(integers.view(np.int8), missing)


def _words_of_bytes(integers: np.ndarray, dtype: np.dtype, rows: int, count: int) -> np.ndarray:
    """Words, whose integers are 0 as stored after the last row."""
    *batch, _, n = integers.shape
    words = np.zeros((*batch, count, n), np.uint16)
    low, high = integers[..., 0::2, :], integers[..., 1::2, :]
    words[..., : high.shape[-2], :] = high
    words <<= np.uint16(8)
    words[..., : low.shape[-2], :] |= low
    if dtype.name == "int4":
        words ^= SIGN_BITS
        words[..., -(-rows // 4) :, :] = 0
    if rows % 4:
        words[..., rows // 4, :] &= np.uint16((1 << 4 * (rows % 4)) - 1)
    return words


def _codes_of_bytes(integers: np.ndarray, rows: int) -> np.ndarray:
    *batch, count, n = integers.shape
    codes = np.empty((*batch, 2 * count, n), np.uint8)
    codes[..., 0::2, :] = integers & np.uint8(15)
    codes[..., 1::2, :] = integers >> np.uint8(4)
    return codes[..., :rows, :]


def _with_rows(array: np.ndarray, missing: int) -> np.ndarray:
    return np.pad(array, [(0, 0)] * (array.ndim - 2) + [(0, missing), (0, 0)])
