"""Quantized arrays that are joined: rows and parts that fill no vector, and many threads."""

import numpy as np
from concatenation_calls import check, draw

PART = 8192  # elements, of kElementsOfPart in native/src/parts.h


def test_sizes():
    """Single rows, and short ones, of one array or several."""
    rng = np.random.default_rng(0)
    check(*(draw(rng, rows, *rng.integers(1, 70, rng.integers(1, 6))) for rows in (1, 2, 3, 7, 50) for _ in range(20)))


def test_rows_and_parts():
    """Rows that are shorter than a part, as long, and longer, so that parts begin and end anywhere within rows."""
    rng = np.random.default_rng(1)
    lengths = 1, 2, 31, 100, 1023, PART - 1, PART, PART + 1, 3 * PART + 5
    check(*(draw(rng, rows, *rng.choice(lengths, 3)) for rows in (1, 2, 5, 90) for _ in range(8)))
    check(draw(rng, 30_000, 1, 3), draw(rng, 1, 200_001), draw(rng, 20, 3 * PART), draw(rng, 1000, *[4] * 40))


def test_empty():
    rng = np.random.default_rng(2)
    check(*(draw(rng, rows, *columns) for rows in (0, 1, 4) for columns in ((0,), (0, 0), (0, 3), (5, 0, 2), (7, 2))))
