"""`jquant.wide` beside Python's integers, and `jquant.float64` beside NumPy's, bit for bit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import samples

from jquant import float64, wide

FLOAT32, FLOAT64 = np.float32, np.float64
COUNT = 200_000


def words(numbers, count: int) -> wide.Words:
    return tuple(np.array([number >> 32 * index & 0xFFFFFFFF for number in numbers], np.uint32) for index in range(count))


def numbers(words: wide.Words) -> list[int]:
    return [sum(int(word) << 32 * index for index, word in enumerate(each)) for each in zip(*words, strict=True)]


@pytest.fixture(scope="module")
def integers() -> list[list[int]]:
    """Pairs of up to 96 bits, of every length, long carries among them."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 97, (2, 2000))
    some = [[int.from_bytes(rng.bytes(12), "little") >> (96 - length) for length in row] for row in bits.tolist()]
    carries = [2**96 - 1, 2**96 - 2**32, 1, 0, 2**32, 2**64 - 1]
    return [some[0] + [a for a in carries for _ in carries], some[1] + carries * len(carries)]


@jax.jit
def of_wide(a, b, count):
    results = wide.add(a, b), wide.negate(a), wide.product(a, b), wide.shift_left(a, count), *wide.shift_right(a, count)
    return results, wide.leading_zeros(a), wide.is_zero(a), wide.is_negative(a)


def test_wide(integers):
    a, b = integers
    shifts = [index % 97 for index in range(len(a))]
    results, zeros, is_zero, is_negative = of_wide(words(a, 3), words(b, 3), np.array(shifts, np.int32))
    modulus = 2**96
    expected = [
        [(x + y) % modulus for x, y in zip(a, b, strict=True)],
        [-x % modulus for x in a],
        [x * y for x, y in zip(a, b, strict=True)],
        [(x << shift) % modulus for x, shift in zip(a, shifts, strict=True)],
        [x >> shift for x, shift in zip(a, shifts, strict=True)],
        [(x << 96 - shift) % modulus for x, shift in zip(a, shifts, strict=True)],
    ]
    for result, formula in zip(results, expected, strict=True):
        assert numbers(result) == formula
    assert zeros.tolist() == [96 - x.bit_length() for x in a]
    assert is_zero.tolist() == [x == 0 for x in a]
    assert is_negative.tolist() == [x >= 2**95 for x in a]


def soft(x) -> float64.Float64:
    """A float64 as the module has it."""
    fraction, exponent = np.frexp(abs(x))
    significand = (fraction * 2.0**53).astype(np.uint64)
    low, high = (significand & 0xFFFFFFFF).astype(np.uint32), (significand >> 32).astype(np.uint32)
    return float64.Float64(x < 0, (exponent - 53).astype(np.int32), (low, high))


def hard(x: float64.Float64):
    """And back: exact."""
    low, high = (np.asarray(word).astype(FLOAT64) for word in x.significand)
    magnitude = np.ldexp(high * 2.0**32 + low, np.asarray(x.exponent))
    return np.where(x.is_negative, -magnitude, magnitude)


def draw(seed: int, decades: float = 9):
    """float64 values of any number of bits: few of them make ties."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 54, COUNT)
    significand = np.where(bits == 0, 0, rng.integers(0, 2**53, COUNT) >> (53 - bits)).astype(FLOAT64)
    return significand * 2.0 ** rng.integers(-40, 40, COUNT) * rng.choice([-1, 1], COUNT)


@pytest.mark.parametrize(("name", "formula"), [("product", np.multiply), ("sum", np.add)])
def test_operations(name, formula):
    a, b = draw(1), draw(2)
    b[: COUNT // 4] = -a[: COUNT // 4] * (1 + np.random.default_rng(3).integers(-2, 3, COUNT // 4) * 2.0**-52)  # cancels
    b[COUNT // 4 : COUNT // 2] = a[COUNT // 4 : COUNT // 2] * 2.0 ** np.random.default_rng(4).integers(-110, 110, COUNT // 4)
    a[:3], b[:3] = [0, 0, 5], [0, 7, 0]
    result = jax.jit(getattr(float64, name))(soft(a), soft(b))
    np.testing.assert_array_equal(hard(result), formula(a, b))


def test_sum_of_distant_numbers():
    """A tie, and what is just above and below it."""
    large = np.full(400, 2.0**53 + 1)
    small = np.repeat([1.0, -1.0], 200) * 2.0 ** -np.arange(200).repeat(2).reshape(2, 200).ravel()
    for a, b in ((large, small), (small, -large), (large - 1, small)):
        np.testing.assert_array_equal(hard(jax.jit(float64.sum)(soft(a), soft(b))), a + b)


def test_quotient():
    a, d = draw(5), samples.wide_floats(np.random.default_rng(6), COUNT, 9)
    d = np.where(np.isfinite(d) & (d != 0), d, FLOAT32(3))
    a[: COUNT // 2] = a[: COUNT // 2].astype(FLOAT32) * FLOAT64(d[: COUNT // 2])  # what divides without a remainder
    np.testing.assert_array_equal(hard(jax.jit(float64.quotient)(soft(a), d)), a / FLOAT64(d))


def test_conversions():
    x = samples.wide_floats(np.random.default_rng(7), COUNT, 9)
    x = np.where(np.isfinite(x), x, FLOAT32(0))
    np.testing.assert_array_equal(hard(jax.jit(float64.from_float32)(x)), x)
    x = draw(8)
    x[: COUNT // 2] = np.nextafter(x[: COUNT // 2].astype(FLOAT32), FLOAT32(1)) / 2 + x[: COUNT // 2].astype(FLOAT32) / 2
    narrow = jax.jit(float64.to_float32)(soft(x))
    np.testing.assert_array_equal(narrow, x.astype(FLOAT32))
    for value in (1 + 2.0**-32, 255.0 * 2**16, 2.0**31):
        np.testing.assert_array_equal(hard(float64.constant(value, jnp.zeros(3))), value)


def to_integer(x: float, rounding) -> int:
    return int(max(-(2**63) + 1, min(2**63 - 1, rounding(x))))


def half_away(x: float) -> int:
    whole = int(abs(x))
    return int(np.copysign(1, x)) * (whole + (abs(x) - whole >= 0.5))


@pytest.mark.parametrize(("function", "rounding"), [(float64.truncate, int), (float64.round_half_away, half_away)])
def test_integers(function, rounding):
    x = draw(9)[:20_000]
    x = np.concatenate(
        [x, np.round(x[:5000] * 2.0**-20) + 0.5, [0, 0.5, -0.5, 2.0**62, -(2.0**62), 2.0**-65, 2.0**-70, 1e30]]
    )
    result = numbers(jax.jit(functools.partial(function))(soft(x)))
    assert result == [to_integer(value, rounding) % 2**64 for value in x.tolist()]
