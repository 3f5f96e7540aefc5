"""Calls that join quantized arrays, and the same in NumPy, by native/src/concatenation.cc."""

from typing import NamedTuple

import calls
import numpy as np
from calls import BYTES, flushed
from elementwise_calls import UNUSUAL, compute, draw_integers, quantized


class Call(NamedTuple):
    """Matrices with as many rows, each with a scale and a zero point of one element, and those of the output."""

    arrays: tuple[np.ndarray, ...]
    scales: tuple[np.ndarray, ...]
    zero_points: tuple[np.ndarray, ...]
    output_scale: np.ndarray
    output_zero_point: np.ndarray

    @property
    def target(self) -> str:
        return calls.CONCATENATE

    @property
    def operands(self) -> tuple[np.ndarray, ...]:
        of_arrays = zip(self.arrays, self.scales, self.zero_points, strict=True)
        return self.output_scale, self.output_zero_point, *(x for each in of_arrays for x in each)

    @property
    def results(self) -> list[tuple[tuple[int, ...], np.dtype]]:
        return [((len(self.arrays[0]), sum(x.shape[1] for x in self.arrays)), self.output_zero_point.dtype)]

    @property
    def attributes(self) -> dict[str, object]:
        return {}


def draw(rng: np.random.Generator, rows: int, *columns: int) -> Call:
    """Arrays of so many columns, of both types, with any zero points.

    Some scales are of any magnitude, or unusual; others are fractions of that of the output, by which many quotients are
    ties, but for what operations round.
    """
    dtypes = [BYTES[rng.integers(2)] for _ in range(len(columns) + 1)]
    zero_points = [np.asarray(draw_integers(rng, (), dtype)) for dtype in dtypes]
    output_scale = np.float32(10.0 ** rng.uniform(-3, 0) if rng.integers(4) else rng.choice(UNUSUAL))
    choices = (
        lambda: output_scale / np.float32(2 * rng.integers(1, 10)),
        lambda: np.float32(10.0 ** rng.uniform(-36, 36)),
        lambda: rng.choice(UNUSUAL),
    )
    with np.errstate(all="ignore"):
        scales = [np.asarray(choices[rng.choice(3, p=[0.8, 0.1, 0.1])](), np.float32) for _ in columns]
    arrays = [draw_integers(rng, (rows, size), dtype) for size, dtype in zip(columns, dtypes, strict=False)]
    return Call(tuple(arrays), tuple(scales), tuple(zero_points[:-1]), np.asarray(output_scale), zero_points[-1])


def expected(call: Call) -> np.ndarray:
    """The result in NumPy, where subnormal numbers are 0."""
    parts = []
    for array, scale, zero_point in zip(call.arrays, call.scales, call.zero_points, strict=True):
        with np.errstate(all="ignore"):
            value = flushed((array.astype(np.float32) - zero_point.astype(np.float32)) * flushed(scale))
        parts.append(quantized(value, flushed(call.output_scale), call.output_zero_point))
    return np.concatenate(parts, 1)


def check(*calls_: Call) -> None:
    """Compares the results of calls, which are made in one program, with NumPy's."""
    for call, actual in zip(calls_, compute(*calls_), strict=True):
        shapes = ", ".join(f"{x.dtype}{x.shape}" for x in call.arrays)
        np.testing.assert_array_equal(actual, expected(call), err_msg=f"{shapes}, {call.scales=} {call.output_scale=}")
