"""`jquant.arithmetic.rounding` against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jquant.arithmetic import rounding
from jquant.cases import samples

FLOAT32 = np.float32


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
    """``sat(rne(x) + zero_point)``, clipped twice: beyond 2**20, no zero point brings a number back into the range."""
    limits = np.iinfo(dtype)
    number = np.nan_to_num(np.rint(x), copy=False, nan=-zero_point)
    return np.clip(np.clip(number, -(2.0**20), 2.0**20).astype(np.int32) + zero_point, limits.min, limits.max).astype(dtype)


@pytest.mark.parametrize(
    ("dtype", "zero_point"),
    [(np.uint8, 133), (np.int8, -128), (np.int8, 127), (np.int8, None), (np.int16, -32768), (np.uint16, 65535)],
)
def test_nearest_integer(dtype, zero_point):
    """Numbers of each sign, exponent and first bits of a fraction, with last bits around possible ties."""
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


def test_round_half_even_and_away():
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
