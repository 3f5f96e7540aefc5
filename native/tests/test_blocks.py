"""Products with block scales: layouts, types, corrections, and sizes that fill no vector, no tile and no step."""

import itertools

import block_calls
import draw
import numpy as np
import pytest
from block_calls import OF_ROWS, check
from calls import BYTES, FLOATS

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 25, 49)
COLUMNS = (1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 47, 63, 64, 65, 97, 129, 200)
BLOCK_SIZES = (1, 2, 3, 4, 5, 7, 8, 12, 16, 20, 31, 32, 36, 63, 64, 65, 68, 100, 128, 260)
CORRECTIONS = ((), ("b_zero_point",), ("minimum",))
ROLES = [
    (*correction, *of_rows)
    for correction in CORRECTIONS
    for count in range(len(OF_ROWS) + 1)
    for of_rows in itertools.combinations(OF_ROWS, count)
]


def check_as_codes(*calls):
    """The same words of nibbles, read as codes of floats of 4 bits."""
    check(*(call._replace(are_codes=True) for call in calls))


@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize("roles", CORRECTIONS)
def test_sizes(words, roles):
    rng = np.random.default_rng(0)
    sizes = [size for size in BLOCK_SIZES if not words or size % 4 == 0]
    calls = []
    for rows, block_size in itertools.product(ROWS, sizes):
        shape = 1, rows, int(rng.choice(COLUMNS))
        calls.append(block_calls.call(rng, shape, int(rng.integers(1, 5)), block_size, roles, words=words))
    check(*calls)
    if words:
        check_as_codes(*calls)


@pytest.mark.parametrize("words", [False, True])
def test_every_number_of_columns(words):
    """Beyond the last column of the last row, there may be no memory to read."""
    rng = np.random.default_rng(1)
    calls = [block_calls.call(rng, (1, rows, n), 2, 8, words=words) for rows in (1, 9) for n in range(1, 140)]
    check(*calls)
    if words:
        check_as_codes(*calls)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("words", [False, True])
def test_every_combination_of_roles(words, dtype):
    rng = np.random.default_rng(2)
    shapes = [(1, 1, 1), (2, 13, 37), (1, 5, 70), (3, 1, 16), (1, 7, 130)]
    options = {"words": words, "dtype": dtype}
    calls = [block_calls.call(rng, shape, 3, 12, roles, **options) for roles in ROLES for shape in shapes]
    check(*calls)
    if words:
        check_as_codes(*calls)


@pytest.mark.parametrize("words", [False, True])
def test_extreme_values(words):
    """Instructions that saturate would be seen, in blocks of all of K, too."""
    rng = np.random.default_rng(3)
    shapes = ((1, 1, 33), 1, 70_000), ((1, 5, 17), 2, 4_096), ((1, 13, 70), 3, 1_028)
    for only in ((-128,), (127,), (-128, 127), draw.EXTREMES):
        for shape, blocks, block_size in shapes:
            call = block_calls.call(rng, shape, blocks, block_size, ("a_zero_point",), words=words, only=only)
            extreme = call._replace(b=np.full_like(call.b, rng.choice([0, 0xFFFF]))) if words else call
            check(extreme)
            if words:
                check_as_codes(call._replace(b=np.full_like(call.b, rng.choice([0x7777, 0xFFFF]))))


@pytest.mark.parametrize("words", [False, True])
def test_batches(words):
    """One matrix of each operand for all, or one each."""
    rng = np.random.default_rng(4)
    roles = "a_zero_point", "b_zero_point", "row_scale", "float_bias"
    calls = [
        block_calls.call(rng, (5, rows, 21), 2, 16, roles, words=words, batches=batches)
        for batches in (tuple(rng.choice([1, 5], 7)) for _ in range(20))
        for rows in (1, 6, 20)
    ]
    calls += [block_calls.call(rng, (0, 3, 21), 2, 16, roles, words=words)]
    check(*calls)


def test_each_operand_alone_has_a_batch():
    rng = np.random.default_rng(5)
    roles = "a_zero_point", "minimum", "row_scale", "float_bias"
    for place in range(7):
        batches = tuple(3 if place == other else 1 for other in range(7))
        check(block_calls.call(rng, (3, 4, 18), 3, 8, roles, words=True, batches=batches))


@pytest.mark.parametrize("words", [False, True])
def test_empty(words):
    """Without blocks, sums are 0, and not -0."""
    rng = np.random.default_rng(6)
    shapes = [shape for shape in itertools.product((0, 2), (0, 3), (0, 7)) if 0 in shape]
    check(*(block_calls.call(rng, shape, 2, 8, words=words) for shape in shapes))
    check(*(block_calls.call(rng, (1, 3, 70), 0, 8, roles, words=words) for roles in ((), ("row_scale",))))


def test_signs_of_zero():
    """Sums of -0 stay -0, whatever their number."""
    rng = np.random.default_rng(7)
    a, b = np.zeros((1, 3, 24), np.int8), draw.matrix(rng, (1, 24, 40), np.int8)
    for blocks in (1, 3):
        scale = np.full((1, blocks, 40), -1, np.float32)
        call = block_calls.BlockCall(a, b, scale, 24 // blocks)
        assert np.signbit(block_calls.expected(call)).all()
        check(call)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("role", ["scale", "minimum"])
def test_every_scale_of_16_bits_and_some_of_32(dtype, role):
    rng = np.random.default_rng(8)
    if dtype == np.float32:
        values = rng.integers(0, 2**32, 2**14, np.uint32).view(np.float32)
    else:
        values = np.arange(2**16, dtype=np.uint16).view(dtype)
    values = values.reshape(1, 1, -1)
    ones = np.ones_like(values)
    a = np.full((1, 2, 4), 1, np.int8)
    b = np.ones((1, 4, values.size), np.int8)
    call = block_calls.BlockCall(a, b, values if role == "scale" else ones, 4)
    if role == "minimum":
        call = call._replace(arrays=(values,), roles=("minimum",))
    check(call)


@pytest.mark.parametrize(
    ("shape", "blocks", "block_size"),
    [
        ((1, 1, 3000), 40, 32),
        ((1, 8, 1001), 9, 100),
        ((1, 300, 500), 5, 128),
        ((3, 130, 270), 4, 64),
        ((1, 1000, 17), 3, 32),
    ],
)
@pytest.mark.parametrize("words", [False, True])
def test_work_for_several_threads(shape, blocks, block_size, words):
    rng = np.random.default_rng(9)
    for roles in ((), ("a_zero_point", "minimum", "row_scale")):
        check(block_calls.call(rng, shape, blocks, block_size, roles, words=words))


def test_integers_wrap_around():
    """As all arithmetic in int32 does."""
    rng = np.random.default_rng(10)
    for a_dtype in BYTES:
        call = block_calls.call(rng, (1, 2, 3), 1, 140_000, only=(-128,))
        check(call._replace(a=draw.matrix(rng, (1, 2, 140_000), a_dtype, (-128,)), offset=100))
