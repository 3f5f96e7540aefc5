"""Random operands of the library."""

import itertools

import numpy as np

EXTREMES = (-128, -127, -1, 0, 1, 127)


def matrix(rng: np.random.Generator, shape: tuple[int, ...], dtype: type, only: tuple[int, ...] | None = None) -> np.ndarray:
    """Bytes of all values, or `only` of some; those of uint8 are larger by 128."""
    values = rng.choice(only, shape) if only else rng.integers(-128, 128, shape)
    return (values + (128 if dtype == np.uint8 else 0)).astype(dtype)


# The axes along which all elements share one of an array.
_SHARED = {"a_zero_point": (2,), "b_zero_point": (1,), "row_scale": (2,), "output_scale": (2,), "zero_point": (2,)}


def broadcast_shapes(role: str, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The shapes that an array with that role may have if the output is of `shape`."""
    choices = ([1] if axis in _SHARED.get(role, ()) else [1, size] for axis, size in enumerate(shape))
    return sorted(set(itertools.product(*choices)))


def broadcast_shape(rng: np.random.Generator, role: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    shapes = broadcast_shapes(role, shape)
    return shapes[rng.integers(len(shapes))]


def array(rng: np.random.Generator, role: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """The array with that role; `dtype` is that of the output."""
    if role == "zero_point":
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max + 1, shape, np.int32).astype(rng.choice([np.int32, dtype]))
    if role in ("a_zero_point", "b_zero_point"):
        least, beyond, own = ((-128, 256, np.int32), (-128, 128, np.int8), (0, 256, np.uint8))[rng.integers(3)]
        return rng.integers(least, beyond, shape, own)
    if role == "integer_bias":
        return rng.integers(-(2**31), 2**31, shape, np.int32)
    magnitudes = {"row_scale": 2.0**-10, "column_scale": 2.0**-6, "float_bias": 4.0, "multiplier": 2.0**-9}
    return (rng.normal(size=shape) * (magnitudes | {"output_scale": 2.0**-7})[role]).astype(np.float32)
