"""Comparisons of this installation with NumPy, on JAX's default device, for ``python -m jquant``.

They cover the identities of `jquant.exact`, every operator next to a caller's own arithmetic, and the integer products of an
implementation. Each function generates names, results and expected values; a name may occur more than once.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jquant
from jquant.arithmetic import exact, rounding
from jquant.cases import CASES, on_first_floats, samples
from jquant.modes import Implementation
from jquant.reference import products as reference
from jquant.reference.rounding import away, saturate

Comparison = tuple[str, jax.Array, np.ndarray]

float32 = np.float32
_COUNT = 100_000
# A caller multiplies by the factor before an operator, and adds the addend after it: XLA would contract these with the
# operator's own arithmetic.
_FACTOR, _ADDEND = float32(0.1), float32(1.7)


def differing(actual: jax.Array, expected: np.ndarray) -> int:
    """The number of elements that differ in any bit, where all NaN are equal."""
    result = np.asarray(actual)
    if (result.dtype, result.shape) != (expected.dtype, expected.shape):
        return max(1, expected.size)
    same = result == expected
    if np.issubdtype(expected.dtype, np.floating):
        same &= np.signbit(result) == np.signbit(expected)
    same |= (result != result) & (expected != expected)  # of every type: to NumPy, those of 16 bits and fewer are no floats
    return int(np.count_nonzero(~same))


def identities() -> Iterator[Comparison]:
    """The functions of `jquant.exact` in programs where XLA would change the results of plain arithmetic."""
    rng = np.random.default_rng(0)
    x, y, constant = _floats(rng, 4), _floats(rng, 4), float32(0.0123)
    operations = (
        (exact.product, np.multiply),
        (exact.sum, np.add),
        (exact.difference, np.subtract),
        (exact.quotient, np.divide),
    )
    for function, formula in operations:
        name = f"{function.__name__}, rounded once"

        def operation(x, y, function=function):
            return function(exact.widen(x), exact.widen(y))

        yield name, _inside_a_caller(operation, x, y), formula(x * _FACTOR, y)
        with_constant = _inside_a_caller(lambda x, operation=operation: operation(x, jnp.full_like(x, constant)), x)
        yield name, with_constant, formula(x * _FACTOR, constant)
    quotients = ((2.0**32 - 1) / abs(x).astype(np.float64)).astype(float32)
    yield "quotient of 2**32 - 1, rounded once", jax.jit(exact.quotient_of_uint32_max)(abs(x)), quotients
    a, b = samples.integers(rng, np.int32, _COUNT), samples.integers(rng, np.int32, _COUNT)
    differences = np.subtract(a, b, dtype=np.int64).astype(float32)
    yield "difference of integers, rounded once", jax.jit(exact.integer_difference)(a, b), differences
    ties = np.arange(-1000, 1001).astype(float32) / 2
    neighbours = np.concatenate([np.nextafter(ties, float32(side)) for side in (-np.inf, np.inf)])
    halves = np.concatenate([ties, neighbours[abs(neighbours) > 0.1]])
    yield "rounding, half to even", jax.jit(rounding.round_half_even)(halves), np.rint(halves)
    yield "rounding, half away from zero", jax.jit(rounding.round_half_away)(halves), away(halves)
    yield "rounding, half up", jax.jit(rounding.round_half_up)(halves), np.floor(halves + float32(0.5))
    extreme = np.concatenate([halves, x, np.array([np.nan, np.inf, -np.inf, 2.0**31, -(2.0**31), 3e9], float32)])
    for dtype in map(np.dtype, (np.int8, np.uint8, np.int16, np.int32)):
        cast = jax.jit(rounding.saturating_cast, static_argnums=1)(extreme, dtype)
        yield "saturation, NaN to 0", cast, saturate(np.trunc(extreme), dtype)


def wrong_rows_of_xla() -> int:
    """How many rows XLA gets wrong in a float program that has nothing of jquant: a product, and a reduction of its result.

    jaxlib 0.10.2 does, on CPUs, from row 32,768 on. The elements are small integers, so that
    the right sums are exact in any order.
    """
    x = np.random.default_rng(0).integers(1, 9, (2**15 + 1, 3)).astype(float32)
    product_and_reduction = jax.jit(lambda matrix, x: jnp.sum(jnp.dot(matrix, x.T, precision="highest"), axis=0))
    return differing(product_and_reduction(np.eye(3, dtype=float32), x), x.sum(1))


def operators() -> Iterator[Comparison]:
    """One or a few cases of each operator, between a caller's multiplication and addition."""
    for name, case in CASES.items():
        with np.errstate(all="ignore"):
            # Divided by the factor first, so that values near a tie are near a tie again in the operator.
            arguments = on_first_floats(lambda x: x / _FACTOR.astype(x.dtype), case.arguments(rows=case.rows_of(_COUNT)))
            expected = case.formula(*on_first_floats(lambda x: x * _FACTOR.astype(x.dtype), arguments))
        results = _inside_a_caller(case.function, *arguments)
        for result, formula in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
            yield name.split(",")[0], result, np.asarray(formula)


def products(implementation: Implementation) -> Iterator[Comparison]:
    """The integer products of an implementation, for all dtypes, zero points and outputs, several sizes, packed and not."""
    rng = np.random.default_rng(2)
    integers = (np.int8, np.uint8)
    sizes = (1, 300, 200), (7, 256, 33), (130, 129, 258), (256, 512, 384)
    for (m, k, n), a_dtype, b_dtype in itertools.product(sizes, integers, integers):
        a, b = samples.integers(rng, a_dtype, m, k), samples.integers(rng, b_dtype, k, n)
        row, column = samples.integers(rng, a_dtype, m, 1), samples.integers(rng, b_dtype, 1, n)
        a_scale, b_scale = (rng.uniform(1e-3, 1e-1, shape).astype(float32) for shape in ((m, 1), (1, n)))
        bias = rng.normal(size=(1, n)).astype(float32)
        options: dict[str, Any] = {"implementation": implementation}
        for zero_points in ((None, None), (row[0, 0], None), (row[0, 0], column[0, 0]), (row, column)):
            az, bz = (0 if zero_point is None else zero_point for zero_point in zero_points)
            expected = reference.matmul_integer(a, b, az, bz)
            yield "matmul_integer", jquant.matmul_integer(a, b, *zero_points, **options), expected
            packed = jquant.pack_matrix(b, zero_points[1])
            yield "matmul_integer, packed", jquant.matmul_integer(a, packed, zero_points[0], **options), expected
        to_float = jquant.matmul_integer_to_float(a, a_scale, row, b, b_scale, column, bias, **options)
        expected = reference.matmul_integer_to_float(a, a_scale, row, b, b_scale, column, bias)
        yield "matmul_integer_to_float", to_float, expected
        for scale in (a_scale, a_scale[:1]):
            operands = a, scale, row, b, b_scale, column, float32(2.5), np.uint8(77)
            quantized = jquant.quantized_linear_matmul(*operands, **options)
            yield "quantized_linear_matmul", quantized, reference.quantized_linear_matmul(*operands, np.uint8)
        operands = a, a_scale[0], row[0], b, b_scale[0], column[0], samples.integers(rng, np.int16, n).astype(np.int32)
        quantized = jquant.quantized_gemm(*operands, float32(2.5), np.uint8(77), **options)
        expected = reference.quantized_gemm(*operands, float32(2.5), np.uint8(77), np.uint8)
        yield "quantized_gemm", quantized, expected


def _inside_a_caller(function: Callable[..., Any], *arguments: Any) -> Any:
    """``function(x * 0.1, ...)``, x the first float argument, in a program that also computes ``result * 0.1 + 1.7``."""

    @jax.jit
    def caller(*arguments):
        outputs = function(*on_first_floats(lambda x: x * _FACTOR.astype(x.dtype), arguments))
        return outputs, jax.tree.map(lambda x: x.astype(jnp.float32) * _FACTOR + _ADDEND, outputs)

    return caller(*arguments)[0]


def _floats(rng: np.random.Generator, decades: float) -> np.ndarray:
    return (rng.normal(size=_COUNT) * 10 ** rng.uniform(-decades, decades, _COUNT)).astype(float32)
