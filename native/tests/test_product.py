"""Products without an epilogue: all signs, both orders of weights, batches, and sizes that fill no tile."""

import itertools
import os

import draw
import instruction_sets
import numpy as np
import pytest
from calls import BYTES, Call, check, instruction_set

# Around the sizes of a vector, of a tile and of what is packed at once, for each instruction set.
DEPTHS = (0, 1, 2, 3, 4, 5, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129, 257)
ROWS = (1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 23, 25, 49)
COLUMNS = (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 97)

every_pair_of_types = pytest.mark.parametrize(("a_type", "b_type"), [*itertools.product(BYTES, BYTES)])
both_orders = pytest.mark.parametrize("depth_minor", [False, True])


def product(rng, shape, depth, types=BYTES[:1] * 2, depth_minor=False, only=None):
    batch, rows, columns = shape
    b_shape = (columns, depth) if depth_minor else (depth, columns)
    a = draw.matrix(rng, (batch, rows, depth), types[0], only)
    b = draw.matrix(rng, (batch, *b_shape), types[1], only)
    return Call(a, b, depth_minor=depth_minor)


def test_the_instruction_set():
    """The one that the environment names, if any."""
    forced = os.environ.get("JQUANT_NATIVE_ISA")
    assert instruction_set() in ((forced,) if forced else instruction_sets.NAMES)


@every_pair_of_types
@both_orders
def test_sizes(a_type, b_type, depth_minor):
    rng = np.random.default_rng(0)
    sizes = [(rng.choice(ROWS), rng.choice(COLUMNS), depth) for depth in DEPTHS for _ in range(5)]
    check(*(product(rng, (1, m, n), k, (a_type, b_type), depth_minor) for m, n, k in sizes))


@every_pair_of_types
@both_orders
def test_extreme_values(a_type, b_type, depth_minor):
    """Instructions that saturate would be seen: all terms of a sum may be 2**14, or alternate."""
    rng = np.random.default_rng(1)
    values = ((-128,), (127,), (-128, 127), draw.EXTREMES)
    check(
        *(
            product(rng, (1, rows, 33), depth, (a_type, b_type), depth_minor, only=only)
            for only in values
            for rows, depth in ((1, 70_001), (5, 4_099), (13, 1_030))
        )
    )


@both_orders
def test_batches(depth_minor):
    """One matrix of A or of B for all, or one each."""
    rng = np.random.default_rng(2)
    check(
        *(
            Call(
                draw.matrix(rng, (a_batch, rows, 37), np.uint8),
                draw.matrix(rng, (b_batch, *((21, 37) if depth_minor else (37, 21))), np.int8),
                depth_minor=depth_minor,
            )
            for a_batch, b_batch in ((5, 5), (1, 5), (5, 1), (0, 0), (0, 1), (1, 0))
            for rows in (1, 6, 20)
        )
    )


@both_orders
def test_empty(depth_minor):
    rng = np.random.default_rng(3)
    shapes = [shape for shape in itertools.product((0, 2), (0, 3), (0, 5), (0, 7)) if 0 in shape]
    check(*(product(rng, shape[:3], shape[3], depth_minor=depth_minor) for shape in shapes))


@pytest.mark.parametrize(
    ("shape", "depth"),
    [((1, 300, 500), 700), ((1, 1, 3000), 2000), ((1, 8, 1001), 999), ((3, 130, 270), 513), ((1, 1000, 17), 300)],
)
@both_orders
def test_work_for_several_threads(shape, depth, depth_minor):
    rng = np.random.default_rng(4)
    check(product(rng, shape, depth, (np.uint8, np.int8), depth_minor))


@both_orders
def test_integers_wrap_around(depth_minor):
    rng = np.random.default_rng(5)
    check(product(rng, (1, 2, 3), 140_000, depth_minor=depth_minor, only=(-128,)))
