"""Random operands of the library."""

from collections.abc import Sequence

import numpy as np

EXTREMES = (-128, -127, -1, 0, 1, 127)


def matrix(rng: np.random.Generator, shape: tuple[int, ...], dtype: type, only: tuple[int, ...] | None = None) -> np.ndarray:
    """Bytes, of all values or `only` of some int8, of which uint8 are 128 more."""
    values = rng.choice(only, shape) if only else rng.integers(-128, 128, shape)
    return (values + (128 if dtype == np.uint8 else 0)).astype(dtype)


def broadcast_shape(rng: np.random.Generator, role: str, shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """A shape that broadcasts to `shape`, of an array with that role."""
    return kept(role, shape, rng.integers(2, size=3))


def kept(role: str, shape: tuple[int, int, int], is_kept: Sequence[bool]) -> tuple[int, int, int]:
    """`shape` with 1 in place of the sizes that are not kept, or that an array with that role does not have."""
    has_rows, has_columns = role != "b_zero_point", role not in ("a_zero_point", "row_scale", "zero_point")
    batch, rows, columns = is_kept
    sizes = zip(shape, (batch, rows and has_rows, columns and has_columns), strict=True)
    return tuple(size if keep else 1 for size, keep in sizes)


def block_sums(rng: np.random.Generator, b: np.ndarray, depth_minor: bool) -> np.ndarray:
    """Integers that add up, modulo 2**32, to the sums of the columns of B."""
    sums = b.astype(np.int64).sum(2 if depth_minor else 1)[:, None]
    others = rng.integers(-(2**31), 2**31, (sums.shape[0], rng.integers(4), sums.shape[2]))
    return np.concatenate([others, sums - others.sum(1, keepdims=True)], 1).astype(np.int32)


def array(rng: np.random.Generator, role: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """The array with that role, apart from `block_sums`; `dtype` is that of the output."""
    if role == "zero_point":
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max + 1, shape, np.int32)
    if role in ("a_zero_point", "b_zero_point"):
        return rng.integers(-300, 300, shape, np.int32)
    if role == "integer_bias":
        return rng.integers(-(2**31), 2**31, shape, np.int32)
    magnitude = {"row_scale": 2.0**-10, "column_scale": 2.0**-6, "float_bias": 4.0, "multiplier": 2.0**-9}[role]
    return (rng.normal(size=shape) * magnitude).astype(np.float32)
