"""`jquant.arithmetic.exact` against NumPy, bit for bit, under jit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from support.comparison import assert_same_bits

from jquant.arithmetic import exact
from jquant.cases import samples

FLOAT32 = np.float32


def test_seal_changes_nothing():
    x = samples.any_floats(np.random.default_rng(0), 1_000_000)
    assert_same_bits(jax.jit(exact.seal)(x), x)
    for dtype in (jnp.float16, jnp.bfloat16):
        numbers = np.arange(2**16, dtype=np.uint16).view(dtype)
        with np.errstate(invalid="ignore"):
            assert_same_bits(np.asarray(jax.jit(exact.seal)(numbers)).astype(FLOAT32), numbers.astype(FLOAT32))


def test_float16_subnormals_survive():
    """The subnormal numbers of float16 are normal in float32, and are part of the promise."""
    numbers = np.arange(2**16, dtype=np.uint16).view(np.float16)
    with np.errstate(invalid="ignore"):
        expected = numbers.astype(FLOAT32)
    assert_same_bits(jax.jit(exact.widen)(numbers), expected)


@pytest.mark.parametrize(
    ("name", "formula"),
    [("product", np.multiply), ("sum", np.add), ("difference", np.subtract), ("quotient", np.divide)],
)
def test_arithmetic_in_a_callers_program(name, formula):
    """Alone, and between a product and a sum with constants, with traced and with constant operands."""
    rng = np.random.default_rng(1)
    x, y = samples.wide_floats(rng, 1_000_000), samples.wide_floats(rng, 1_000_000)
    constant, before, after = FLOAT32(0.0123), FLOAT32(0.1), FLOAT32(3.7)
    operation = getattr(exact, name)
    with np.errstate(all="ignore"):
        alone, with_constant, from_constant = formula(x, y), formula(x, constant), formula(constant, x)
        before_sum = formula(x * before, constant) + after
        before_product = formula(x * before, constant) * after
    assert_same_bits(jax.jit(operation)(x, y), alone)
    assert_same_bits(jax.jit(operation)(x, constant), with_constant)
    assert_same_bits(jax.jit(lambda x: operation(x, constant))(x), with_constant)
    assert_same_bits(jax.jit(lambda x: operation(constant, x))(x), from_constant)
    for parameter in (True, False):

        def caller(x, c=constant):
            return operation(exact.seal(x * before), c) + after

        def caller_product(x, c=constant):
            return operation(exact.seal(x * before), c) * after

        arguments = (x, constant) if parameter else (x,)
        assert_same_bits(jax.jit(caller)(*arguments), before_sum)
        assert_same_bits(jax.jit(caller_product)(*arguments), before_product)


@pytest.mark.parametrize(("operation", "formula"), [(jnp.add, np.add), (jnp.multiply, np.multiply)])
def test_constants_are_not_merged(operation, formula):
    """XLA would add up or multiply the constants first."""
    x, constants = samples.wide_floats(np.random.default_rng(12), 100_000), FLOAT32([0.1, 1.7, -0.3, 11.3, 0.7])
    scalars, expected = list(map(jnp.float32, constants)), functools.reduce(formula, constants, x)

    def combined(*operands):
        return functools.reduce(lambda total, operand: exact.unmerged_on_cpu(operation(total, operand)), operands)

    assert_same_bits(jax.jit(lambda x: combined(x, *scalars))(x), expected)
    assert_same_bits(jax.jit(lambda x: combined(x, *(jnp.full_like(x, each) for each in constants)))(x), expected)
    assert_same_bits(jax.jit(lambda x: combined(scalars[0], x, *scalars[1:]))(x), expected)


def test_quotient_of_constants_by_one_number():
    """XLA knows the dividend, and that the divisor is a single number, by whose reciprocal it would multiply."""
    x = samples.near_ties(np.random.default_rng(11), 100_000, 0.3, -9999, 9999)  # without a NaN
    for d in FLOAT32([0.3, -7.7, 1e-3]):
        with np.errstate(all="ignore"):
            expected = x / d
        assert_same_bits(jax.jit(lambda d: exact.quotient(jnp.asarray(x), d))(d), expected)


def test_quotient_of_random_bits():
    rng = np.random.default_rng(2)
    x, d = samples.any_floats(rng, 4_000_000), samples.any_floats(rng, 4_000_000)
    with np.errstate(all="ignore"):
        expected = x / d
    # A quotient that rounds up to the smallest normal number is subnormal before that.
    expected = np.where(abs(expected) == samples.TINY, samples.TINY / 2, expected).astype(FLOAT32)
    for function in (exact.quotient, exact.native_quotient, exact.corrected_quotient):
        assert_same_bits(jax.jit(function)(x, d), expected)


def test_quotient_of_special_values():
    special = FLOAT32([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, np.finfo(FLOAT32).max, samples.TINY, 3])
    x, d = (side.ravel() for side in np.meshgrid(special, special))
    with np.errstate(all="ignore"):
        expected = x / d
    assert_same_bits(jax.jit(exact.corrected_quotient)(x, d), expected)


def test_quotient_of_uint32_max():
    """Against the float64 quotient rounded to float32, with the divisors that make it a tie."""
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


def test_derivative_of_a_quotient_of_operands_that_broadcast():
    """It broadcasts as well, whatever JAX's settings are."""
    x, d = jnp.ones((3, 2, 4)), jnp.full((2, 1), 2.0)
    with jax.numpy_rank_promotion("raise"):
        by_x, by_d = jax.grad(lambda x, d: exact.quotient(x, d).sum(), (0, 1))(x, d)
    assert (by_x == 0.5).all()
    assert (by_d == -3.0).all()


@pytest.mark.parametrize("name", ["product", "sum", "difference", "quotient"])
def test_derivatives(name):
    """The derivatives are those of the plain operation, in both modes and to second order."""
    operation = getattr(exact, name)
    check_grads(operation, (jnp.float32(1.7), jnp.float32(0.6)), order=2, modes=["fwd", "rev"], atol=1e-2, rtol=1e-2)
    plain = {"product": jnp.multiply, "sum": jnp.add, "difference": jnp.subtract, "quotient": jnp.divide}[name]
    for argument in (0, 1):
        ours, theirs = (jax.grad(function, argument)(jnp.float32(1.5), jnp.float32(0.5)) for function in (operation, plain))
        np.testing.assert_array_equal(ours, theirs)
