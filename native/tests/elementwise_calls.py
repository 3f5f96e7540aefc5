"""Calls of sums and products of quantized arrays, and the same in NumPy, by native/src/elementwise.h."""

from typing import NamedTuple

import calls
import jax
import numpy as np
from calls import BYTES, flushed

UNUSUAL = np.float32([0, -0.0, np.nan, np.inf, -np.inf, 1.2e-38, -1.2e-38, 1e-45, 3e38, -0.5])


class Call(NamedTuple):
    """Arrays of three dimensions, each with a scale and a zero point of one element; those of the output come last."""

    arrays: tuple[np.ndarray, np.ndarray]
    scales: tuple[np.ndarray, np.ndarray, np.ndarray]
    zero_points: tuple[np.ndarray, np.ndarray, np.ndarray]
    is_product: bool

    @property
    def target(self) -> str:
        return calls.ELEMENTWISE

    @property
    def operands(self) -> tuple[np.ndarray, ...]:
        of_arrays = zip(self.arrays, self.scales[:2], self.zero_points[:2], strict=True)
        return *(x for each in of_arrays for x in each), self.scales[2], self.zero_points[2]

    @property
    def results(self) -> list[tuple[tuple[int, ...], np.dtype]]:
        return [(np.broadcast_shapes(*(x.shape for x in self.arrays)), self.zero_points[2].dtype)]

    @property
    def attributes(self) -> dict[str, object]:
        return {"is_product": self.is_product}


def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> Call:
    """Arrays that broadcast to `shape`, with any zero points."""

    dtypes = [BYTES[rng.integers(2)] for _ in range(3)]
    shapes = [tuple(1 if not rng.integers(4) else size for size in shape) for _ in range(2)]
    if rng.integers(2):
        shapes[rng.integers(2)] = shape
    arrays = tuple(draw_integers(rng, each, dtype) for each, dtype in zip(shapes, dtypes[:2], strict=True))
    zero_points = tuple(np.asarray(draw_integers(rng, (), dtype)) for dtype in dtypes)
    is_product = bool(rng.integers(2))
    return Call(arrays, draw_scales(rng, is_product), zero_points, is_product)


def draw_integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def draw_scales(rng: np.random.Generator, is_product: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scales of any magnitude, some of them unusual; or some by which most results are in range, and many quotients ties.

    There, a quotient is a tie but for what its operations round, so that their order and number decide.
    """
    if rng.integers(2):
        a = b = np.float32(10.0 ** rng.uniform(-3, 0))
        if is_product:
            b = np.float32(10.0 ** rng.uniform(-3, 0))
        multiple = np.float32(2 * rng.integers(1, 300 if is_product else 4))
        scales = a, b, (a * b if is_product else a) * multiple
    else:
        scales = 10.0 ** rng.uniform(*((-36, 36) if not rng.integers(4) else (-2, 0)), 3)
        scales = np.where(rng.integers(0, 8, 3) == 0, rng.choice(UNUSUAL, 3), scales)
    a, b, output = (np.asarray(scale, np.float32) for scale in scales)
    return a, b, output


def compute(*calls_: Call) -> list[np.ndarray]:
    """The results of the library, from one program with all calls."""
    calls.instruction_set()

    def make(operands):
        return [
            jax.ffi.ffi_call(call.target, jax.ShapeDtypeStruct(*call.results[0]))(*of_call, **call.attributes)
            for call, of_call in zip(calls_, operands, strict=True)
        ]

    return [np.asarray(x) for x in jax.jit(make)(calls.operands(*calls_))]


def expected(call: Call) -> np.ndarray:
    """The result in NumPy, where subnormal numbers are 0."""
    a, b = (x.astype(np.int64) - zero_point for x, zero_point in zip(call.arrays, call.zero_points, strict=False))
    a_scale, b_scale, output_scale = map(flushed, call.scales)
    with np.errstate(all="ignore"):
        if call.is_product:
            value = flushed((a * b).astype(np.float32) * flushed(a_scale * b_scale))
        else:
            value = flushed(flushed(a.astype(np.float32) * a_scale) + flushed(b.astype(np.float32) * b_scale))
    return quantized(value, output_scale, call.zero_points[2])


def quantized(value: np.ndarray, scale: np.ndarray, zero_point: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        quotient = flushed(value / scale).astype(np.float64)
    limits = np.iinfo(zero_point.dtype)
    limited = np.clip(np.rint(quotient) + zero_point.astype(np.float64), limits.min, limits.max)
    return np.where(np.isnan(quotient), 0, limited).astype(zero_point.dtype)


def check(*calls_: Call) -> None:
    """Compares the results of calls, which are made in one program, with NumPy's."""
    for call, actual in zip(calls_, compute(*calls_), strict=True):
        shapes = " and ".join(f"{x.dtype}{x.shape}" for x in call.arrays)
        np.testing.assert_array_equal(actual, expected(call), err_msg=f"{shapes}, {call.scales=} {call.is_product=}")
