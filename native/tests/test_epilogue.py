"""What follows a product: every role of an array, each broadcast, and the rounding to each type of output."""

import itertools

import draw
import numpy as np
import pytest
from calls import BYTES, DEQUANTIZE, FLOATS, REQUANTIZE, RESCALE, ZERO_POINTS, Call, block_sums, check

INTEGER_ROLES = [
    (),
    ZERO_POINTS[:1],
    ZERO_POINTS[1:],
    ZERO_POINTS,
    ("block_sums",),
    ("a_zero_point", "block_sums"),
    ("integer_bias",),
    (*ZERO_POINTS, "block_sums", "integer_bias"),
]
SCALINGS = [
    ((), np.int32),
    *((DEQUANTIZE[:count], dtype) for count in (2, 3) for dtype in FLOATS),
    *((REQUANTIZE[:count], dtype) for count in (1, 2) for dtype in BYTES),
    *((RESCALE[:count], dtype) for count in (3, 4) for dtype in BYTES),
]


@pytest.mark.parametrize("depth_minor", [False, True])
@pytest.mark.parametrize(("scaling", "dtype"), SCALINGS)
def test_every_combination_of_roles(depth_minor, scaling, dtype):
    rng = np.random.default_rng(0)
    calls = []
    for integer, shape in itertools.product(INTEGER_ROLES, [(1, 1, 1), (2, 13, 37), (1, 5, 70), (3, 1, 16), (1, 7, 300)]):
        batch, rows, columns = shape
        roles = (*integer, *scaling)
        a = draw.matrix(rng, (batch, rows, 40), rng.choice(BYTES))
        b = draw.matrix(rng, (1, *((columns, 40) if depth_minor else (40, columns))), rng.choice(BYTES))
        arrays = tuple(
            block_sums(rng, b, depth_minor)
            if role == "block_sums"
            else draw.array(rng, role, draw.broadcast_shape(rng, role, shape), dtype)
            for role in roles
        )
        calls.append(Call(a, b, arrays, roles, np.dtype(dtype), depth_minor))
    check(*calls)


@pytest.mark.parametrize(
    ("role", "roles", "dtype"),
    [
        *((role, (*ZERO_POINTS, "integer_bias"), np.int32) for role in (*ZERO_POINTS, "integer_bias")),
        *((role, DEQUANTIZE, np.float32) for role in DEQUANTIZE),
        *((role, REQUANTIZE, np.uint8) for role in REQUANTIZE),
        *((role, RESCALE, np.int8) for role in RESCALE),
    ],
)
def test_every_broadcast(role, roles, dtype):
    rng = np.random.default_rng(1)
    calls = []
    for of_role in draw.broadcast_shapes(role, (3, 14, 19)):
        arrays = tuple(draw.array(rng, name, of_role if name == role else (1, 1, 1), dtype) for name in roles)
        a, b = draw.matrix(rng, (3, 14, 20), np.int8), draw.matrix(rng, (1, 20, 19), np.uint8)
        calls.append(Call(a, b, arrays, roles, np.dtype(dtype)))
    check(*calls)


def test_a_batch_of_an_array_alone():
    rng = np.random.default_rng(7)
    a, b = draw.matrix(rng, (1, 6, 20), np.int8), draw.matrix(rng, (1, 20, 19), np.uint8)
    for role in (*ZERO_POINTS, "integer_bias"):
        shape = {"a_zero_point": (3, 6, 1), "b_zero_point": (3, 1, 19)}.get(role, (3, 6, 19))
        check(Call(a, b, (draw.array(rng, role, shape, np.int32),), (role,)))


def epilogue_alone(shape, roles, arrays, dtype):
    """A product over K = 0, so that the arrays alone determine the result."""
    batch, rows, columns = shape
    a, b = np.zeros((batch, rows, 0), np.int8), np.zeros((1, 0, columns), np.int8)
    return Call(a, b, tuple(arrays), tuple(roles), np.dtype(dtype))


def rounded(values, dtype):
    """A call that converts float32 values, as a bias that is added to 0."""
    one = np.ones((1, 1, 1), np.float32)
    return epilogue_alone((1, *values.shape), DEQUANTIZE, (one, one, values[None]), dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_rounding_of_floats(dtype):
    """Every upper half of float32, infinities and NaN included, with the lower halves around the ties of each type."""
    upper = np.arange(2**16, dtype=np.uint32)[:, None] << 16
    ties_of_float16 = np.add.outer(np.arange(8) << 13, [0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF]).reshape(-1)
    lower = np.unique([*ties_of_float16, 0x7FFF, 0x8000, 0x8001, 0xFFFF]).astype(np.uint32)
    check(rounded((upper | lower).view(np.float32), dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_last_columns_are_rounded_like_the_others(dtype):
    rng = np.random.default_rng(2)
    patterns = rng.integers(0, 2**32, (2000, 7), np.uint32)
    halves = (rng.integers(1, 2**11, (2000, 7)) * 2.0**-25).astype(np.float32)  # subnormal as float16, every other one a tie
    check(rounded(patterns.view(np.float32), dtype), rounded(halves, dtype), rounded(-halves, dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_large_sums_become_floats(dtype):
    """Sums of more than 24 bits are rounded, to even, before they are scaled."""
    rng = np.random.default_rng(3)
    sums = rng.integers(-(2**31), 2**31, (1, 500, 33), np.int32)
    sums[0, :, :4] = np.ldexp(1, 24).astype(np.int32) + rng.integers(-99, 99, (500, 4))
    for scale in (1.0, 2.0**-24, 1e-30, -3e-9, 1e38, np.inf, np.nan, 0.0, 1e-39):
        scales = np.full((1, 1, 1), scale, np.float32), np.full((1, 500, 1), 0.7, np.float32)
        check(epilogue_alone(sums.shape, ("integer_bias", *DEQUANTIZE[:2]), (sums, *scales), dtype))


def test_scales_are_multiplied_first():
    """Their product may overflow, or vanish, where another order would not."""
    scales = np.array([1e-30, 1e-20, 1e-10, 1.0, 1e20, 1e30, np.inf, np.nan, -2.0, 0.0], np.float32)
    sums = np.full((1, 1, 1), 2**30, np.int32)
    arrays = sums, scales.reshape(1, -1, 1), scales.reshape(1, 1, -1)
    for dtype in FLOATS:
        check(epilogue_alone((1, 10, 10), ("integer_bias", *DEQUANTIZE[:2]), arrays, dtype))


@pytest.mark.parametrize("dtype", BYTES)
def test_multipliers(dtype):
    """Of scales of every magnitude: their product is rounded before it is divided, and may overflow, or vanish."""
    rng = np.random.default_rng(8)
    unusual = np.float32([1e-40, 1.2e-38, 1e-30, 1e-20, 1.0, 1e20, 1e30, 3e38, np.inf, np.nan, -2.0, 0.0, -0.0])
    scales = np.concatenate([unusual, np.exp2(rng.uniform(-20, 0, 30)).astype(np.float32)])
    sums = np.concatenate([rng.integers(-(2**20), 2**20, 50), [0, 1, -1, 2**31 - 1, -(2**31)]]).astype(np.int32)
    roles, calls = ("integer_bias", *RESCALE[:3]), []
    for output_scale in scales:
        of_output = np.full((1, scales.size, 1), output_scale)
        for sum in sums[:: 1 + rng.integers(9)]:
            arrays = np.full((1, 1, 1), sum), scales.reshape(1, -1, 1), scales.reshape(1, 1, -1), of_output
            calls.append(epilogue_alone((1, scales.size, scales.size), roles, arrays, dtype))
    check(*calls[::3])


@pytest.mark.parametrize("dtype", FLOATS)
def test_signs_of_zero(dtype):
    """Of scales and biases, whether there is one for all columns or one for each."""
    rng = np.random.default_rng(6)
    roles, calls = ("integer_bias", *DEQUANTIZE), []
    for shapes in itertools.product(*(draw.broadcast_shapes(role, (1, 5, 37)) for role in DEQUANTIZE)):
        zeros = (rng.choice(np.array([0.0, -0.0], np.float32), shape) for shape in shapes)
        calls.append(epilogue_alone((1, 5, 37), roles, (rng.integers(-9, 9, (1, 5, 37), np.int32), *zeros), dtype))
    check(*calls)


@pytest.mark.parametrize("dtype", BYTES)
def test_requantization(dtype):
    """Ties, saturation, NaN and infinities, by multipliers, with every zero point."""
    multipliers = [0.5, 0.25, 1.0, -0.5, 1.5, 3e-3, 1e30, -1e30, np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-40, 2.0**-31]
    sums = np.concatenate([np.arange(-1100, 1101), [-(2**31), 2**31 - 1, -(2**24) - 1, 2**24 + 1]]).astype(np.int32)
    limits = np.iinfo(dtype)
    zero_points = np.arange(limits.min, limits.max + 1, dtype=np.int32)
    for multiplier in multipliers:
        arrays = sums.reshape(1, 1, -1), np.full((1, 1, 1), multiplier, np.float32), zero_points.reshape(1, -1, 1)
        check(epilogue_alone((1, 256, sums.size), ("integer_bias", *REQUANTIZE), arrays, dtype))


@pytest.mark.parametrize("dtype", BYTES)
def test_requantization_by_random_multipliers(dtype):
    rng = np.random.default_rng(4)
    sums = rng.integers(-(2**20), 2**20, (1, 700, 45), np.int32)
    multipliers = (rng.normal(size=(1, 1, 45)) * 2.0 ** rng.integers(-20, 0, (1, 1, 45))).astype(np.float32)
    zero_point = draw.array(rng, "zero_point", (1, 700, 1), np.dtype(dtype))
    check(epilogue_alone(sums.shape, ("integer_bias", *REQUANTIZE), (sums, multipliers, zero_point), dtype))


@pytest.mark.parametrize("depth_minor", [False, True])
@pytest.mark.parametrize("rows", [3, 12])
def test_zero_points_wrap_around(depth_minor, rows):
    """As all arithmetic in int32 does; their values are not limited to those of bytes."""
    rng = np.random.default_rng(5)
    a = draw.matrix(rng, (1, rows, 40), np.uint8)
    b = draw.matrix(rng, (1, *((21, 40) if depth_minor else (40, 21))), np.int8)
    for roles in (ZERO_POINTS, (*ZERO_POINTS, "block_sums")):
        arrays = [rng.integers(-(2**31), 2**31, shape, np.int32) for shape in ((1, rows, 1), (1, 1, 21))]
        arrays += [block_sums(rng, b, depth_minor)] * (len(roles) - 2)
        check(Call(a, b, tuple(arrays), roles, depth_minor=depth_minor))
