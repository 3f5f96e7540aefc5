"""Sums and products of quantized arrays: sizes that fill no vector and no part, and every way of broadcasting."""

import itertools

import numpy as np
from elementwise_calls import check, draw

# Around the sizes of a vector.
LENGTHS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 127, 500)


def test_sizes():
    rng = np.random.default_rng(0)
    check(*(draw(rng, (*rng.integers(1, 6, 2).tolist(), length)) for length in LENGTHS for _ in range(16)))


def test_work_for_several_threads():
    """Rows of several parts, and many rows."""
    rng = np.random.default_rng(1)
    sizes = ((1, 1, 200_001), (1, 3, 70_000), (2, 50, 1025), (40, 60, 99), (300, 400, 1))
    check(*(draw(rng, size) for size in sizes for _ in range(8)))


def test_empty():
    rng = np.random.default_rng(2)
    check(*(draw(rng, size) for size in itertools.product((0, 1, 7), (0, 1, 5), (0, 9)) if 0 in size))
