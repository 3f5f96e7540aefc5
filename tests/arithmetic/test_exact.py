"""`jquant.arithmetic.exact` against NumPy, bit for bit, under jit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from support.comparison import assert_same_bits

from jquant.arithmetic import exact, rounding
from jquant.cases import samples

FLOAT32 = np.float32


def test_seal_changes_nothing():
    x = samples.any_floats(np.random.default_rng(0), 1_000_000)
    assert_same_bits(jax.jit(exact.seal)(x), x)
    for dtype in (jnp.float16, jnp.bfloat16):
        every = np.arange(2**16, dtype=np.uint16).view(dtype)
        with np.errstate(invalid="ignore"):
            assert_same_bits(np.asarray(jax.jit(exact.seal)(every)).astype(FLOAT32), every.astype(FLOAT32))


def test_float16_subnormals_survive():
    """Those of float16 are normal numbers in float32, and are part of the promise."""
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    with np.errstate(invalid="ignore"):
        expected = every.astype(FLOAT32)
    assert_same_bits(jax.jit(exact.widen)(every), expected)


@pytest.mark.parametrize(
    ("name", "formula"),
    [("product", np.multiply), ("sum", np.add), ("difference", np.subtract), ("quotient", np.divide)],
)
def test_arithmetic_between_the_callers(name, formula):
    """Alone, and between a constant product and a constant sum, with operands traced and constant."""
    rng = np.random.default_rng(1)
    x, y = samples.wide_floats(rng, 1_000_000), samples.wide_floats(rng, 1_000_000)
    constant, before, after = FLOAT32(0.0123), FLOAT32(0.1), FLOAT32(3.7)
    operation = getattr(exact, name)
    with np.errstate(all="ignore"):
        alone, by_constant, from_constant = formula(x, y), formula(x, constant), formula(constant, x)
        among = formula(x * before, constant) + after
        then_product = formula(x * before, constant) * after
    assert_same_bits(jax.jit(operation)(x, y), alone)
    assert_same_bits(jax.jit(operation)(x, constant), by_constant)
    assert_same_bits(jax.jit(lambda x: operation(x, constant))(x), by_constant)
    assert_same_bits(jax.jit(lambda x: operation(constant, x))(x), from_constant)
    for parameter in (True, False):

        def caller(x, c=constant):
            return operation(exact.seal(x * before), c) + after

        def caller_product(x, c=constant):
            return operation(exact.seal(x * before), c) * after

        arguments = (x, constant) if parameter else (x,)
        assert_same_bits(jax.jit(caller)(*arguments), among)
        assert_same_bits(jax.jit(caller_product)(*arguments), then_product)


@pytest.mark.parametrize(("operation", "formula"), [(jnp.add, np.add), (jnp.multiply, np.multiply)])
def test_constants_are_not_merged(operation, formula):
    """XLA would add up, or multiply, the constants first."""
    x, constants = samples.wide_floats(np.random.default_rng(12), 100_000), FLOAT32([0.1, 1.7, -0.3, 11.3, 0.7])
    scalars, expected = list(map(jnp.float32, constants)), functools.reduce(formula, constants, x)

    def result(*operands):
        return functools.reduce(lambda total, each: exact.unmerged_on_cpu(operation(total, each)), operands)

    assert_same_bits(jax.jit(lambda x: result(x, *scalars))(x), expected)
    assert_same_bits(jax.jit(lambda x: result(x, *(jnp.full_like(x, each) for each in constants)))(x), expected)
    assert_same_bits(jax.jit(lambda x: result(scalars[0], x, *scalars[1:]))(x), expected)


def test_quotient_of_constants_by_one_number():
    """XLA knows all of the dividend, and that the divisor is one number, of which it would take the reciprocal."""
    x = samples.near_ties(np.random.default_rng(11), 100_000, 0.3, -9999, 9999)  # without a NaN
    for d in FLOAT32([0.3, -7.7, 1e-3]):
        with np.errstate(all="ignore"):
            expected = x / d
        assert_same_bits(jax.jit(lambda d: exact.quotient(jnp.asarray(x), d))(d), expected)


def test_quotient_of_every_kind():
    rng = np.random.default_rng(2)
    x, d = samples.any_floats(rng, 4_000_000), samples.any_floats(rng, 4_000_000)
    with np.errstate(all="ignore"):
        expected = x / d
    # What rounds up to the smallest normal number was a subnormal before that.
    expected = np.where(abs(expected) == samples.TINY, samples.TINY / 2, expected).astype(FLOAT32)
    for function in (exact.quotient, exact.native_quotient, exact.corrected_quotient):
        assert_same_bits(jax.jit(function)(x, d), expected)


def test_quotient_of_special_values():
    special = FLOAT32([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, np.finfo(FLOAT32).max, samples.TINY, 3])
    x, d = (side.ravel() for side in np.meshgrid(special, special))
    with np.errstate(all="ignore"):
        expected = x / d
    assert_same_bits(jax.jit(exact.corrected_quotient)(x, d), expected)


@pytest.mark.parametrize("error", [-2, -1, 0, 1, 2])
def test_correction_of_a_quotient_that_is_off(error):
    rng = np.random.default_rng(3)
    x, d = (rng.uniform(1, 2, 1_000_000).astype(FLOAT32) for _ in range(2))
    significands = [(value.view(np.int32) & (2**23 - 1) | 2**23).astype(np.int64) for value in (x, d)]
    shift = 23 + (significands[0] < significands[1])
    numerator = significands[0] << shift
    expected = np.rint(numerator / significands[1]).astype(np.int32)  # 53 bits are enough: there are no ties
    approximation = (expected + error).astype(FLOAT32)
    wrapped = numerator.astype(np.uint64).astype(np.uint32).view(np.int32)
    corrected = jax.jit(significands.nearest_integer_quotient)(wrapped, significands[1].astype(np.int32), approximation)
    np.testing.assert_array_equal(corrected, expected)


def test_quotient_of_uint32_max():
    """Against the double quotient rounded to float32, with the divisors that make it a tie."""
    rng = np.random.default_rng(4)
    d = abs(samples.any_floats(rng, 2_000_000))
    d[:200] = np.ldexp(FLOAT32(255), np.arange(-100, 100))
    d[200:204] = [0, np.inf, np.nan, samples.TINY]
    with np.errstate(all="ignore"):
        expected = (np.float64(2**32 - 1) / d.astype(np.float64)).astype(FLOAT32)
    assert_same_bits(jax.jit(exact.quotient_of_uint32_max)(d), expected)
    np.testing.assert_array_equal(jax.jit(lambda: exact.quotient_of_uint32_max(jnp.float32(255)))(), expected[100])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32])
def test_integer_difference(dtype):
    rng, limits = np.random.default_rng(5), np.iinfo(dtype)
    a, b = (rng.integers(limits.min, limits.max, 1_000_000, dtype, endpoint=True) for _ in range(2))
    a[:4], b[:4] = [limits.min, limits.max, limits.min, limits.max], [limits.max, limits.min, limits.min, limits.max]
    b[4::3] = a[4::3] - rng.integers(-3, 3, b[4::3].size).astype(dtype)
    expected = (a.astype(np.int64) - b.astype(np.int64)).astype(FLOAT32)
    assert_same_bits(jax.jit(exact.integer_difference)(a, b), expected)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32])
def test_saturating_cast(dtype):
    limits = np.iinfo(dtype)
    rng = np.random.default_rng(6)
    edges = [edge + step for edge in (limits.min, limits.max, 0) for step in (-2, -1, -0.5, 0, 0.5, 1, 2)]
    x = np.concatenate([FLOAT32(edges), samples.any_floats(rng, 1_000_000), FLOAT32([np.nan, np.inf, -np.inf])])
    with np.errstate(all="ignore"):
        number = np.trunc(np.where(np.isnan(x), 0, x)).astype(np.float64)
    expected = np.clip(number, limits.min, limits.max).astype(dtype)
    np.testing.assert_array_equal(jax.jit(rounding.saturating_cast, static_argnums=1)(x, jnp.dtype(dtype)), expected)


def rounded_and_saturated(x: np.ndarray, zero_point: int, dtype: type) -> np.ndarray:
    """In steps that lose nothing: beyond the limits, no zero point brings a number back."""
    limits = np.iinfo(dtype)
    number = np.nan_to_num(np.rint(x), copy=False, nan=-zero_point)
    return np.clip(np.clip(number, -(2.0**20), 2.0**20).astype(np.int32) + zero_point, limits.min, limits.max).astype(dtype)


@pytest.mark.parametrize(
    ("dtype", "zero_point"),
    [(np.uint8, 133), (np.int8, -128), (np.int8, 127), (np.int8, None), (np.int16, -32768), (np.uint16, 65535)],
)
def test_nearest_integer(dtype, zero_point):
    """Of each sign, exponent and first bits of a fraction, with last bits around what may be a tie."""
    last = np.uint32([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
    x = (np.arange(2**16, dtype=np.uint32)[:, None] << 16 | last).view(FLOAT32)
    offset = None if zero_point is None else jnp.asarray(zero_point, dtype)
    actual = jax.jit(rounding.nearest_integer, static_argnums=2)(x, offset, jnp.dtype(dtype))
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(actual, rounded_and_saturated(x, zero_point or 0, dtype))


@pytest.mark.full
@pytest.mark.parametrize(("dtype", "zero_point"), [(np.uint8, 133), (np.int16, -3)])
def test_nearest_integer_of_every_float32(dtype, zero_point):
    nearest = jax.jit(lambda x: rounding.nearest_integer(x, jnp.asarray(zero_point, dtype), jnp.dtype(dtype)))
    for first in range(0, 2**32, 2**24):
        x = np.arange(first, first + 2**24, dtype=np.uint32).view(FLOAT32)
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(nearest(x), rounded_and_saturated(x, zero_point, dtype))


def test_rounding():
    x = np.concatenate(
        [np.arange(-70000, 70000, dtype=FLOAT32) / 2, samples.any_floats(np.random.default_rng(7), 1_000_000)]
    )
    with np.errstate(all="ignore"):
        x = np.concatenate([x, np.nextafter(x, FLOAT32(np.inf)), np.nextafter(x, FLOAT32(-np.inf))])
        x = samples.without_subnormals(x)
        away = (np.sign(x) * np.floor(abs(x.astype(np.float64)) + 0.5)).astype(FLOAT32)
        even = np.rint(x)
    np.testing.assert_array_equal(jax.jit(rounding.round_half_even)(x), even)
    np.testing.assert_array_equal(jax.jit(rounding.round_half_away)(x), away)


@pytest.mark.parametrize("name", ["product", "sum", "difference", "quotient"])
def test_derivatives(name):
    """Those of the plain operation, in both modes and to second order."""
    operation = getattr(exact, name)
    check_grads(operation, (jnp.float32(1.7), jnp.float32(0.6)), order=2, modes=["fwd", "rev"], atol=1e-2, rtol=1e-2)
    plain = {"product": jnp.multiply, "sum": jnp.add, "difference": jnp.subtract, "quotient": jnp.divide}[name]
    for argument in (0, 1):
        ours, theirs = (jax.grad(function, argument)(jnp.float32(1.5), jnp.float32(0.5)) for function in (operation, plain))
        np.testing.assert_array_equal(ours, theirs)
