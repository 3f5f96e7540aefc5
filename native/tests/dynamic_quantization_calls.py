"""Calls of the quantization by ranges, and the same in NumPy, by native/src/dynamic_quantization.h."""

from typing import Any, NamedTuple

import calls
import jax
import numpy as np
from calls import FLOATS

UNUSUAL = np.float32([0, -0.0, np.nan, np.inf, -np.inf, 1.2e-38, -1.2e-38, 3e38, -3e38])


class Call(NamedTuple):
    """A quantization of slices, (slices, length), to bytes."""

    x: np.ndarray
    dtype: np.dtype
    attributes: dict[str, Any]

    @property
    def target(self) -> str:
        return calls.DYNAMIC_QUANTIZE

    @property
    def operands(self) -> tuple[np.ndarray, ...]:
        return (self.x,)

    @property
    def results(self) -> list[tuple[tuple[int, ...], np.dtype]]:
        """The shapes and the types of the integers, the scales and the zero points."""
        slices = self.x.shape[:1]
        return [(self.x.shape, self.dtype), (slices, np.dtype(np.float32)), (slices, self.dtype)]


def draw(rng: np.random.Generator, slices: int, length: int) -> Call:
    """Values of every magnitude, of both signs or of one, some of them unusual."""
    x = rng.normal(size=(slices, length)).astype(np.float32) * np.float32(10.0 ** rng.integers(-36, 37))
    signs = (lambda x: x), np.abs, lambda x: -np.abs(x), np.zeros_like
    x = signs[rng.integers(len(signs))](x)
    if x.size and rng.integers(2):
        x.flat[rng.integers(0, x.size, 3)] = rng.choice(UNUSUAL, 3)
    attributes = {"is_symmetric": bool(rng.integers(2)), "is_by_row": bool(rng.integers(2))}
    with np.errstate(all="ignore"):
        x = x.astype(FLOATS[rng.integers(len(FLOATS))])
    return Call(x, np.dtype((np.int8, np.uint8)[rng.integers(2)]), attributes)


def compute(*calls_: Call) -> list[list[np.ndarray]]:
    """The results of the library, from one program with all calls."""
    calls.instruction_set()

    def make(operands):
        results = []
        for call, of_call in zip(calls_, operands, strict=True):
            types = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in call.results]
            results.append(jax.ffi.ffi_call(call.target, types)(*of_call, **call.attributes))
        return results

    return [[np.asarray(x) for x in results] for results in jax.jit(make)(calls.operands(*calls_))]


def expected(call: Call) -> list[np.ndarray]:
    """The results in NumPy, where subnormal numbers are 0."""
    one, tiny = np.float32(1), np.finfo(np.float32).tiny
    lowest = np.iinfo(call.dtype).min
    with np.errstate(all="ignore"):
        x = _flushed(call.x.astype(np.float32))
        high, low = x.max(1, initial=0), x.min(1, initial=0)
        if call.attributes["is_symmetric"]:
            scale = _flushed(np.maximum(-low, high) / np.float32(127))
            empty = scale < tiny
            zero_point = np.where(empty | np.isnan(scale), 0, lowest + 128)
            scale = np.where(empty, one, scale)
        else:
            width = _flushed(high - low)
            scale = _flushed(width / np.float32(255))
            empty = scale < tiny if call.attributes["is_by_row"] else width == 0
            scale = np.where(empty, one, scale)
            offset = np.float32(lowest) - _flushed(low / scale)
            offset = np.where(empty, np.float32(lowest), offset) if call.attributes["is_by_row"] else offset
            zero_point = _nearest(offset, 0, lowest)
        values = _nearest(_flushed(x / scale[:, None]), zero_point[:, None], lowest)
    return [values.astype(call.dtype), scale, zero_point.astype(call.dtype)]


def _flushed(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)


def _nearest(x: np.ndarray, zero_point: np.ndarray | int, lowest: int) -> np.ndarray:
    """sat(rne(x) + zero_point); NaN becomes 0."""
    rounded = np.clip(np.rint(x.astype(np.float64)) + zero_point, lowest, lowest + 255)
    return np.where(np.isnan(x), 0, rounded).astype(np.int64)


def check(*calls_: Call) -> None:
    """Compares the results of calls, which are made in one program, with NumPy's."""
    for call, actual in zip(calls_, compute(*calls_), strict=True):
        for mine, theirs in zip(actual, expected(call), strict=True):
            np.testing.assert_array_equal(mine, theirs, err_msg=f"{call.x.shape} {call.x.dtype} {call.attributes}")
