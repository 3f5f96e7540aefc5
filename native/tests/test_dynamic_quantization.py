"""Quantization by ranges: sizes that fill no vector and no part, values of every magnitude, and work for several threads."""

import itertools

import numpy as np
from dynamic_quantization_calls import check, draw

# Around the sizes of a vector, and of what a step reads.
LENGTHS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 500)


def test_sizes():
    rng = np.random.default_rng(0)
    check(*(draw(rng, int(rng.integers(1, 9)), length) for length in LENGTHS for _ in range(12)))


def test_work_for_several_threads():
    """Slices that threads share, and slices of which each has some."""
    rng = np.random.default_rng(1)
    check(*(draw(rng, *size) for size in ((1, 65536), (1, 200_001), (3, 70_000), (64, 1025), (1000, 99)) for _ in range(4)))


def test_empty():
    rng = np.random.default_rng(2)
    sizes = [size for size in itertools.product((0, 1, 7), (0, 5)) if 0 in size]
    check(*(draw(rng, *size) for size in sizes for _ in range(6)))
