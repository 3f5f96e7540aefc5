"""Random numbers that provoke rounding errors."""

import math

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

TINY = np.finfo(np.float32).tiny


def is_subnormal(x: np.ndarray) -> np.ndarray:
    """Whether a float32 is subnormal; such numbers are excluded from the promise of exactness."""
    with np.errstate(invalid="ignore"):
        return (abs(x) < TINY) & (x != 0)


def without_subnormals(x: np.ndarray) -> np.ndarray:
    """`x` with subnormal numbers replaced by 1."""
    return np.where(is_subnormal(x), np.float32(1), x).astype(np.float32)


def any_floats(rng: np.random.Generator, count: int) -> np.ndarray:
    """float32 values with uniformly distributed bits: every magnitude, some NaN and infinities."""
    return without_subnormals(rng.integers(0, 2**32, count, dtype=np.uint32).view(np.float32))


def wide_floats(rng: np.random.Generator, count: int, decades: float = 4) -> np.ndarray:
    """Normally distributed float32 values over several decades, with zeros, infinities and a NaN at the end."""
    x = (rng.normal(size=count) * 10 ** rng.uniform(-decades, decades, count)).astype(np.float32)
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, -0.5, np.finfo(np.float32).max], np.float32)
    x[count - min(count, special.size) :] = special[: min(count, special.size)]
    return without_subnormals(x)


def near_ties(rng: np.random.Generator, count: int, step: np.ndarray | float, low: int, high: int) -> np.ndarray:
    """Multiples of `step` halfway between integers of [low, high], and their neighbours one ulp away."""
    ties = ((rng.integers(low, high, count) + 0.5) * np.float64(step)).astype(np.float32)
    side = rng.integers(-1, 2, count)
    up, down = np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(-np.inf))
    return without_subnormals(np.where(side > 0, up, np.where(side < 0, down, ties)))


def floats(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    step: ArrayLike,
    *,
    offset: ArrayLike = 0,
    dtype: DTypeLike = np.float32,
) -> np.ndarray:
    """Rows of ties of `step`, shifted by an offset, and their neighbours; then rows of any magnitude, infinities and NaN.

    Each channel, along the last dimension, may have its own step and offset.
    """
    half = shape[0] // 2 * math.prod(shape[1:])
    ties = near_ties(rng, half, np.resize(step, half), -140, 270) + np.resize(np.asarray(offset, np.float32), half)
    with np.errstate(over="ignore"):
        values = np.concatenate([ties, wide_floats(rng, math.prod(shape) - half)]).astype(dtype)
    return values.reshape(shape)


def small_scales(rng: np.random.Generator, *shape: int, dtype: DTypeLike = np.float32) -> np.ndarray:
    """Scales from 1e-3 to 1e-1, typical of the tensors of models."""
    return np.asarray(rng.uniform(1e-3, 1e-1, shape)).astype(dtype)


def scales(rng: np.random.Generator, count: int) -> np.ndarray:
    """float32 scales: a quarter are powers of two, which result in ties, and the others log-uniform in [1e-4, 1e2]."""
    scale = (10 ** rng.uniform(-4, 2, count)).astype(np.float32)
    powers = np.ldexp(np.float32(1), rng.integers(-12, 6, count)).astype(np.float32)
    return np.where(np.arange(count) % 4 == 0, powers, scale)


def narrow_floats(rng: np.random.Generator, dtype, *shape: int) -> np.ndarray:
    """Uniformly distributed over all codes of an 8- or 4-bit float type, which include infinities and NaN."""
    return rng.integers(0, 2 ** jnp.finfo(dtype).bits, shape, np.uint8).view(dtype)


def integers(rng: np.random.Generator, dtype, *shape: int) -> np.ndarray:
    """Uniformly distributed over all integers of `dtype`."""
    limits = jnp.iinfo(dtype)
    wide = np.int8 if limits.bits < 8 else dtype  # NumPy draws no integers narrower than a byte
    return np.asarray(rng.integers(limits.min, limits.max, shape, wide, endpoint=True)).astype(dtype)
