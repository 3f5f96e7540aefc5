"""Every public operator once: how it is called, on which arguments, and the formula that it must equal.

A table for whoever puts all operators through one thing: an export, a transformation, another platform. Another
operator is another entry of `CASES`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import samples

import jquant
from jquant import reference

ROWS, CHANNELS, DEPTH = 24, 5, 96


@dataclasses.dataclass(frozen=True)
class Case:
    """One call of an operator.

    Attributes:
      function: the operator, its static arguments bound: from arrays to a tree of arrays.
      formula: the same in NumPy, from the same arguments to the same tree.
      draw: random arguments, each a NumPy array or a tree of them, of the same shapes and dtypes every time.
      rows: which of the arguments have a row for each row of the results: their first dimension.
    """

    function: Callable[..., Any]
    formula: Callable[..., Any]
    draw: Callable[[np.random.Generator], tuple]
    rows: tuple[int, ...] = (0,)

    def arguments(self, seed: int = 0) -> tuple:
        return self.draw(np.random.default_rng(seed))

    def first(self, count: int, arguments: tuple) -> tuple:
        """The arguments, with `count` of their rows."""
        return tuple(value[:count] if index in self.rows else value for index, value in enumerate(arguments))


def assert_equal(actual, expected, what: str = "") -> None:
    """Trees of the same structure, arrays of the same dtype, shape and values, zeros of the same sign."""

    def compare(actual, expected):
        actual, expected = np.asarray(actual), np.asarray(expected)
        if actual.dtype == expected.dtype == jax.numpy.bfloat16:  # NumPy does not know that its NaN are equal
            actual, expected = actual.astype(np.float32), expected.astype(np.float32)
        np.testing.assert_array_equal(actual, expected, what, strict=True)
        if np.issubdtype(expected.dtype, np.floating):
            signs = (np.signbit(np.nan_to_num(x)) for x in (actual, expected))
            np.testing.assert_array_equal(*signs, f"signs: {what}")

    jax.tree.map(compare, actual, expected)


def scales(rng, *shape):
    return rng.uniform(1e-3, 1e-1, shape).astype(np.float32)


def floats(rng, step):
    """Rows of ties of `step` and their neighbours, then of any magnitude, infinities and NaN among them."""
    half = ROWS // 2 * CHANNELS
    values = samples.near_ties(rng, half, step, -140, 270), samples.wide_floats(rng, ROWS * CHANNELS - half)
    return np.concatenate(values).reshape(ROWS, CHANNELS)


def packed(b, zero_point=None, block_size=DEPTH):
    """What `pack_matrix` says that it makes, in NumPy."""
    *batch, k, n = b.shape
    data = (b.astype(np.int16) - (128 if b.dtype == np.uint8 else 0)).astype(np.int8)
    block_sums = data.reshape(*batch, k // block_size, block_size, n).sum(-2, dtype=np.int32)
    if zero_point is not None:
        zero_point = np.broadcast_to(zero_point, (*batch, *np.shape(zero_point)[-2:]))
    return jquant.PackedMatrix(np.swapaxes(data, -1, -2), block_sums, zero_point, b.dtype)


def unpacked(matrix):
    """`packed`, undone: the matrix and its zero point."""
    b = np.swapaxes(np.asarray(matrix.data), -1, -2).astype(np.int16) + (128 if matrix.dtype == np.uint8 else 0)
    return b.astype(matrix.dtype), 0 if matrix.zero_point is None else np.asarray(matrix.zero_point)


def draw_product(rng):
    """A of uint8 and B of int8, with a scale and a zero point for each row and each column."""
    a = samples.integers(rng, np.uint8, ROWS, DEPTH), scales(rng, ROWS, 1), samples.integers(rng, np.uint8, ROWS, 1)
    return (
        *a,
        samples.integers(rng, np.int8, DEPTH, CHANNELS),
        scales(rng, 1, CHANNELS),
        samples.integers(rng, np.int8, 1, CHANNELS),
    )


def draw_matmul_integer(rng):
    a, _, a_zero_point, b, _, b_zero_point = draw_product(rng)
    return a, b, a_zero_point, b_zero_point


def of_packed(case: Case, b: int, b_zero_point: int) -> Case:
    """The case with its weights packed: argument `b` then holds its zero point, which is no argument of its own."""

    def draw(rng):
        arguments = list(case.draw(rng))
        arguments[b], arguments[b_zero_point] = packed(arguments[b], arguments[b_zero_point]), None
        return tuple(arguments)

    def formula(*arguments):
        plain = list(arguments)
        plain[b], plain[b_zero_point] = unpacked(arguments[b])
        return case.formula(*plain)

    return Case(case.function, formula, draw, case.rows)


def draw_with_range(rng, sizes=()):
    """Values, and the bounds of one range or of one for each channel."""
    low, high = rng.uniform(-6, -5, sizes), rng.uniform(6, 7, sizes)
    return floats(rng, 11.8 / 255), np.asarray(low, np.float32), np.asarray(high, np.float32)


def draw_with_ranges(rng):
    return draw_with_range(rng, CHANNELS)


def quantize(mode: str, axis: int | None = None, **options) -> Case:
    def formula(*arguments):
        return jquant.QuantizeOutput(*reference.quantize(*arguments, np.int8, mode, **options))

    function = functools.partial(jquant.quantize, dtype="qint8", mode=mode, axis=axis, **options)
    return Case(function, formula, draw_with_range if axis is None else draw_with_ranges)


CASES: dict[str, Case] = {
    "dequantize_linear": Case(
        jquant.dequantize_linear,
        reference.dequantize_linear,
        lambda rng: (
            samples.integers(rng, np.uint8, ROWS, CHANNELS),
            scales(rng, 1, CHANNELS),
            samples.integers(rng, np.uint8, 1, 1),
        ),
    ),
    "quantize_linear": Case(
        jquant.quantize_linear,
        functools.partial(reference.quantize_linear, dtype=np.int8),
        lambda rng: (
            floats(rng, 0.0123),
            np.full((1, CHANNELS), 0.0123, np.float32),
            samples.integers(rng, np.int8, 1, CHANNELS),
        ),
    ),
    "quantized_linear_add": Case(
        jquant.quantized_linear_add,
        functools.partial(reference.quantized_linear_add, dtype=np.int8),
        lambda rng: (
            *(samples.integers(rng, np.uint8, ROWS, CHANNELS), scales(rng), samples.integers(rng, np.uint8)),
            *(samples.integers(rng, np.int8, ROWS, CHANNELS), scales(rng), samples.integers(rng, np.int8)),
            *(scales(rng), samples.integers(rng, np.int8)),
        ),
        rows=(0, 3),
    ),
    "matmul_integer": Case(jquant.matmul_integer, reference.matmul_integer, draw_matmul_integer, rows=(0, 2)),
    "matmul_integer_to_float": Case(
        jquant.matmul_integer_to_float,
        reference.matmul_integer_to_float,
        lambda rng: (*draw_product(rng), (rng.normal(size=(1, CHANNELS)) * 100).astype(np.float32)),
        rows=(0, 1, 2),
    ),
    "quantized_linear_matmul": Case(
        jquant.quantized_linear_matmul,
        functools.partial(reference.quantized_linear_matmul, dtype=np.int8),
        lambda rng: (
            *draw_product(rng),
            rng.uniform(1, 9, (ROWS, 1)).astype(np.float32),
            samples.integers(rng, np.int8, ROWS, 1),
        ),
        rows=(0, 1, 2, 6, 7),
    ),
    "clip": Case(
        jquant.clip,
        reference.clip,
        lambda rng: (floats(rng, 0.1), np.float32(rng.uniform(-2, 0)), np.float32(rng.uniform(3, 6))),
    ),
    "clip, scale_bias": Case(
        lambda x, low, high, scale_bias: jquant.clip(x, low, high, scale_bias=scale_bias),
        reference.clip,
        lambda rng: (floats(rng, 0.1), np.float32(-2), np.float32(5), jquant.ScaleBias(scales(rng), scales(rng))),
    ),
    "quantize, MIN_COMBINED": quantize("MIN_COMBINED"),
    "quantize, MIN_FIRST": quantize("MIN_FIRST"),
    "quantize, SCALED": quantize("SCALED"),
    "quantize, SCALED, half to even": quantize("SCALED", round_mode="HALF_TO_EVEN", narrow_range=True),
    "quantize, SCALED, axis": quantize("SCALED", axis=1),
    "quantize_and_dequantize": Case(jquant.quantize_and_dequantize, reference.quantize_and_dequantize, draw_with_range),
    "quantize_and_dequantize, half up, axis": Case(
        functools.partial(jquant.quantize_and_dequantize, round_mode="HALF_UP", axis=1),
        functools.partial(reference.quantize_and_dequantize, round_mode="HALF_UP", axis=1),
        draw_with_ranges,
    ),
    "fake_quantize": Case(jquant.fake_quantize, reference.fake_quantize, draw_with_range),
    "fake_quantize, axis": Case(
        functools.partial(jquant.fake_quantize, axis=1), functools.partial(reference.fake_quantize, axis=1), draw_with_ranges
    ),
    "pack_matrix": Case(
        jquant.pack_matrix,
        packed,
        lambda rng: (
            samples.integers(rng, np.uint8, ROWS, DEPTH, CHANNELS),
            samples.integers(rng, np.uint8, 1, 1, CHANNELS),
        ),
    ),
}
for name, *positions in (("matmul_integer", 1, 3), ("matmul_integer_to_float", 3, 5), ("quantized_linear_matmul", 3, 5)):
    CASES[f"{name}, packed"] = of_packed(CASES[name], *positions)
