"""Calls of the product of floats and weights of few bits, and the same products in NumPy, by native/src/weight_only.h."""

from typing import Any, NamedTuple

import calls
import numpy as np
from calls import FLOATS

ZERO_POINTS = (np.int8, np.uint8, *FLOATS)


class Call(NamedTuple):
    """A product; `arrays` are the zero point or the minimum, which go with the roles of the same position."""

    a: np.ndarray
    weights: np.ndarray
    scale: np.ndarray
    arrays: tuple[np.ndarray, ...]
    roles: tuple[str, ...]
    attributes: dict[str, Any]

    @property
    def target(self) -> str:
        return calls.WEIGHT_ONLY

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.float32)

    @property
    def operands(self) -> tuple[np.ndarray, ...]:
        return self.a, self.weights, self.scale, *self.arrays

    @property
    def shape(self) -> tuple[int, int]:
        return self.a.shape[0], self.weights.shape[0 if self.weights.dtype == np.uint8 else 1]


def draw(rng: np.random.Generator, rows: int, columns: int, depth: int, dtype: type, bits: int, block_size: int) -> Call:
    """A call whose sums are exact: its numbers have few bits."""
    blocks = -(-depth // block_size)
    if dtype == np.uint8:
        shape, by_block = (columns, blocks, block_size * bits // 8), (columns, blocks)
    else:
        shape, by_block = (blocks * block_size * bits // np.iinfo(dtype).bits, columns), (blocks, columns)
    limits = np.iinfo(dtype)
    weights = rng.integers(limits.min, limits.max + 1, shape).astype(dtype)
    role = [None, "zero_point", "minimum"][rng.integers(2 if dtype == np.uint8 else 3)]
    arrays = ()
    if role == "zero_point":
        arrays = (rng.integers(0, 2 ** min(bits, 7), by_block).astype(ZERO_POINTS[rng.integers(len(ZERO_POINTS))]),)
    elif role == "minimum":
        arrays = (rng.integers(-8, 9, by_block).astype(FLOATS[rng.integers(len(FLOATS))]),)
    return Call(
        rng.integers(-4, 5, (rows, depth)).astype(np.float32),
        weights,
        rng.choice([0.5, 1, -1], by_block).astype(FLOATS[rng.integers(len(FLOATS))]),
        arrays,
        (role,) if role else (),
        {"bits": bits, "block_size": block_size, "offset": int(rng.integers(-128, 129))},
    )


def expected(call: Call) -> np.ndarray:
    """The result in NumPy."""
    bits, block_size, depth = call.attributes["bits"], call.attributes["block_size"], call.a.shape[1]
    is_depth_minor = call.weights.dtype == np.uint8
    shifts, columns = np.arange(0, call.weights.dtype.itemsize * 8, bits), call.shape[1]
    padded = -(-depth // block_size) * block_size
    if is_depth_minor:
        integers = (call.weights[..., None] >> shifts & 2**bits - 1).reshape(columns, padded).T
    elif bits == 4:
        integers = (call.weights[:, None] >> shifts[:, None] & 15).reshape(padded, columns)
    else:
        integers = call.weights

    def of_rows(array):
        return np.repeat((array.T if is_depth_minor else array).astype(np.float64), block_size, axis=0)[:depth]

    arrays = {role: of_rows(array) for role, array in zip(call.roles, call.arrays, strict=True)}
    weights = integers[:depth].astype(np.float64) - call.attributes["offset"] - arrays.get("zero_point", 0)
    weights = weights * of_rows(call.scale) + arrays.get("minimum", 0)
    return (call.a.astype(np.float64) @ weights).astype(np.float32)


def check(*calls_: Call) -> None:
    """Compares the results of calls, which are made in one program, with NumPy's."""
    for call, actual in zip(calls_, calls.compute(*calls_), strict=True):
        sizes = [(array.shape, array.dtype) for array in call.operands]
        np.testing.assert_array_equal(actual, expected(call), err_msg=f"{sizes} {call.roles} {call.attributes}")
