"""Products of floats and weights of few bits: every layout, and sizes that fill no tile, no vector and no block."""

import itertools

import numpy as np
import pytest
from weight_only_calls import check, draw

# The types of weights, their bits, and block sizes.
LAYOUTS = [
    *((np.uint8, bits, size) for bits in (2, 4, 8) for size in (16, 32, 80, 256)),
    *((np.uint16, 4, size) for size in (4, 16, 44, 256)),
    *((np.int8, 8, size) for size in (1, 3, 32, 61, 300)),
]
# Around the sizes of few rows, of a vector, of a tile, of a run, of a chunk, and of what several threads compute.
ROWS = (1, 2, 3, 4, 5, 8, 11, 12, 13, 25, 193)
COLUMNS = (1, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 47, 65, 97)
DEPTHS = (1, 2, 5, 16, 31, 32, 33, 64, 127, 128, 129, 255, 257, 500)


@pytest.mark.parametrize(("dtype", "bits", "block_size"), LAYOUTS)
def test_sizes(dtype, bits, block_size):
    rng = np.random.default_rng(0)
    sizes = [(rng.choice(ROWS), rng.choice(COLUMNS), depth) for depth in DEPTHS for _ in range(3)]
    check(*(draw(rng, *map(int, size), dtype, bits, block_size) for size in sizes))


@pytest.mark.parametrize(("dtype", "bits", "block_size"), LAYOUTS[::4])
def test_work_for_several_threads(dtype, bits, block_size):
    rng = np.random.default_rng(1)
    check(*(draw(rng, *size, dtype, bits, block_size) for size in ((1, 1000, 700), (3, 1001, 600), (400, 130, 300))))


@pytest.mark.parametrize(("dtype", "bits", "block_size"), LAYOUTS[::4])
def test_empty(dtype, bits, block_size):
    rng = np.random.default_rng(2)
    sizes = [size for size in itertools.product((0, 1, 7), (0, 5), (0, 33)) if 0 in size]
    check(*(draw(rng, *size, dtype, bits, block_size) for size in sizes))
