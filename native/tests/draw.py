"""Random operands of the library."""

import numpy as np

EXTREMES = (-128, -127, -1, 0, 1, 127)


def matrix(rng: np.random.Generator, shape: tuple[int, ...], dtype: type, only: tuple[int, ...] | None = None) -> np.ndarray:
    """Bytes, of all values or `only` of some; uint8 stands for the integers less 128."""
    values = rng.choice(only, shape) if only else rng.integers(-128, 128, shape)
    return (values + (128 if dtype == np.uint8 else 0)).astype(dtype)


def broadcast_shape(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to `shape`."""
    return tuple(size if rng.integers(2) else 1 for size in shape)


def array(rng: np.random.Generator, role: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """The array of an epilogue with that role; `dtype` is that of the output."""
    if role == "zero_point":
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max + 1, shape, np.int32)
    if role in ("term", "factor"):
        return rng.integers(-300, 300, shape, np.int32)
    if role == "integer_bias":
        return rng.integers(-(2**31), 2**31, shape, np.int32)
    magnitude = {"row_scale": 2.0**-10, "column_scale": 2.0**-6, "float_bias": 4.0, "multiplier": 2.0**-9}[role]
    return (rng.normal(size=shape) * magnitude).astype(np.float32)
