"""Packed matrices in files: NumPy's packing has the bits of `pack_matrix`, and what is written is what it was made from."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from support.sampling import one_in

import jquant
from jquant.kernels.packed import pack_codes
from jquant.packed import on_host

SIZES = [(1, 1), (4, 3), (5, 2), (16, 5), (33, 4), (64, 7)]
BLOCKS = [1, 3, 4, 6, 16, 32]


def drawn(dtype, *shape: int) -> np.ndarray:
    limits = jnp.iinfo(dtype)
    return np.random.default_rng(0).integers(limits.min, limits.max + 1, shape).astype(jnp.dtype(dtype))


def in_file(integers: np.ndarray) -> np.ndarray:
    """By hand: row after row of each column, two integers of 4 bits in a byte, the first in the lower bits."""
    if integers.dtype.itemsize == 1 and integers.dtype.name.endswith("int8"):
        return integers
    codes = integers.astype(np.int16) % 16
    rows = [codes[..., row, :] for row in range(codes.shape[-2])]
    rows += [np.zeros_like(rows[0])] * (len(rows) % 2)
    return np.stack([low + 16 * high for low, high in zip(rows[::2], rows[1::2], strict=True)], -2).astype(np.uint8)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_columns(dtype, count):
    for (rows, columns), batch in zip(SIZES[::2], [(), (2,), (2, 3)], strict=True):
        integers = drawn(dtype, *batch, rows, columns)
        for block_size in {1, rows}:
            matrix = jquant.pack_matrix(integers, block_size=block_size)
            np.testing.assert_array_equal(on_host.of_matrix(matrix), integers, strict=True)
            data, sums = on_host.pack(integers, block_size)
            np.testing.assert_array_equal(data, matrix.data, strict=True)
            np.testing.assert_array_equal(sums, matrix.block_sums, strict=True)
            count("packed integers", integers.size)


@one_in(
    19,
    ("dtype", "size", "block_size", "k_major"),
    itertools.product(["int4", "uint4", "int8", "uint8"], SIZES, BLOCKS, [False, True]),
    others="full",
)
def test_blocks(dtype, size, block_size, k_major, count):
    check_blocks(dtype, size, block_size, k_major, count)


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
def test_words_after_the_last_row(dtype, count):
    """They are 0, and so is the rest of the word that the last row begins."""
    check_blocks(dtype, (33, 4), 16, False, count)


def check_blocks(dtype, size, block_size, k_major, count):
    rows, columns = size
    batch = (2,) if columns % 2 else ()
    integers, blocks = drawn(dtype, *batch, rows, columns), -(-rows // block_size)
    scale = np.ones((*batch, blocks, columns), np.float32)
    matrix = jquant.pack_matrix(integers, scale=scale, block_size=block_size, k_major=k_major)
    stored = in_file(integers)
    np.testing.assert_array_equal(on_host.of_block_matrix(matrix), stored, strict=True)
    assert on_host.rows_in_file(matrix.dtype, rows) == stored.shape[-2]
    count("packed integers", integers.size)
    if k_major:
        return
    in_a_block = matrix.data.shape[-2] // blocks
    for first in range(blocks):  # parts of whole blocks, which may begin in the middle of a byte
        last = min(first + 2, blocks)
        start, end = first * block_size, min(last * block_size, rows)
        part = stored[..., start // 2 : -(-end // 2), :] if "int4" in dtype else stored[..., start:end, :]
        data = on_host.pack_blocks(on_host.from_row(part, matrix.dtype, start % 2), matrix.dtype, end - start, block_size)
        expected = np.asarray(matrix.data)[..., first * in_a_block : last * in_a_block, :]
        np.testing.assert_array_equal(data, expected, strict=True)
    data = on_host.pack_blocks(stored, matrix.dtype, rows, block_size)
    np.testing.assert_array_equal(data, matrix.data, strict=True)


def test_codes(count):
    """Floats of 4 bits, in files as integers without signs; parts may begin in the middle of a byte."""
    for rows, columns, block_size in [(1, 1, 4), (33, 4, 4), (36, 5, 12), (64, 7, 32)]:
        codes, blocks = drawn("uint4", rows, columns), -(-rows // block_size)
        matrix = pack_codes(codes.astype(np.uint8), np.ones((blocks, columns), np.float32), block_size)
        stored = in_file(codes)
        assert on_host.rows_in_file(matrix.stored_type, rows) == stored.shape[-2]
        np.testing.assert_array_equal(on_host.of_block_matrix(matrix), stored, strict=True)
        data = on_host.pack_blocks(stored, matrix.stored_type, rows, block_size)
        np.testing.assert_array_equal(data, matrix.data, strict=True)
        count("packed integers", codes.size)
