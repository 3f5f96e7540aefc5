"""Comparisons of this installation with NumPy, on JAX's default device: what ``python -m jquant`` runs.

The identities of `jquant.exact`, every operator beside a caller's own arithmetic, and the integer products of one
implementation. Each is a generator of a name, a result and what it must equal; a name may come more than once.
"""

import itertools
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

import jquant
from jquant import exact, reference
from jquant.modes import Implementation

Comparison = tuple[str, jax.Array, np.ndarray]

float32 = np.float32
_COUNT = 100_000
# What a caller multiplies with before an operator, and adds after it: XLA would merge that with the operator's.
_FACTOR, _ADDEND = float32(0.1), float32(1.7)


def differing(actual: jax.Array, expected: np.ndarray) -> int:
    """How many elements differ in a bit; all NaN are alike."""
    given = np.asarray(actual)
    if (given.dtype, given.shape) != (expected.dtype, expected.shape):
        return max(1, expected.size)
    same = given == expected
    if np.issubdtype(expected.dtype, np.floating):
        same = (same & (np.signbit(given) == np.signbit(expected))) | (np.isnan(given) & np.isnan(expected))
    return int(np.count_nonzero(~same))


def identities() -> Iterator[Comparison]:
    """What `jquant.exact` promises, where XLA would do otherwise."""
    rng = np.random.default_rng(0)
    x, y, constant = _floats(rng, 4), _floats(rng, 4), float32(0.0123)
    operations = (
        (exact.product, np.multiply),
        (exact.sum, np.add),
        (exact.difference, np.subtract),
        (exact.quotient, np.divide),
    )
    for ours, formula in operations:
        name = f"{ours.__name__}, rounded once"

        def operation(x, y, ours=ours):
            return ours(exact.widen(x), exact.widen(y))

        yield name, _in_a_caller(operation, x, y), formula(x * _FACTOR, y)
        by_constant = _in_a_caller(lambda x, operation=operation: operation(x, jnp.full_like(x, constant)), x)
        yield name, by_constant, formula(x * _FACTOR, constant)
    quotients = ((2.0**32 - 1) / abs(x).astype(np.float64)).astype(float32)
    yield "quotient of 2**32 - 1, rounded once", jax.jit(exact.quotient_of_uint32_max)(abs(x)), quotients
    a, b = _integers(rng, np.int32, _COUNT), _integers(rng, np.int32, _COUNT)
    differences = np.subtract(a, b, dtype=np.int64).astype(float32)
    yield "difference of integers, rounded once", jax.jit(exact.integer_difference)(a, b), differences
    ties = np.arange(-1000, 1001).astype(float32) / 2
    near = np.concatenate([np.nextafter(ties, float32(side)) for side in (-np.inf, np.inf)])
    halves = np.concatenate([ties, near[abs(near) > 0.1]])
    yield "rounding, half to even", jax.jit(exact.round_half_even)(halves), np.rint(halves)
    yield "rounding, half away from zero", jax.jit(exact.round_half_away)(halves), reference.away(halves)
    yield "rounding, half up", jax.jit(exact.round_half_up)(halves), np.floor(halves + float32(0.5))
    extreme = np.concatenate([halves, x, np.array([np.nan, np.inf, -np.inf, 2.0**31, -(2.0**31), 3e9], float32)])
    for dtype in map(np.dtype, (np.int8, np.uint8, np.int16, np.int32)):
        cast = jax.jit(exact.saturating_cast, static_argnums=1)(extreme, dtype)
        yield "saturation, NaN to 0", cast, reference.saturate(np.trunc(extreme), dtype)


def operators() -> Iterator[Comparison]:
    """Every operator but the products of matrices, between a caller's multiplication and addition."""
    rng = np.random.default_rng(1)
    x, a, b = _floats(rng, 1), _integers(rng, np.uint8, _COUNT), _integers(rng, np.int8, _COUNT)
    scaled = x * _FACTOR
    scale, other_scale, zero_point = float32(0.0371), float32(0.0523), np.uint8(119)

    dequantized = _in_a_caller(lambda scale: jquant.dequantize_linear(a, scale, zero_point), scale)
    yield "dequantize_linear", dequantized, reference.dequantize_linear(a, scale * _FACTOR, zero_point)
    quantized = _in_a_caller(jquant.quantize_linear, x, scale, zero_point)
    yield "quantize_linear", quantized, reference.quantize_linear(scaled, scale, zero_point, np.uint8)
    added = _in_a_caller(lambda scale: jquant.quantized_linear_add(a, scale, 119, b, other_scale, -3, 0.05, 7), scale)
    operands = a, scale * _FACTOR, 119, b, other_scale, -3, float32(0.05), 7
    yield "quantized_linear_add", added, reference.quantized_linear_add(*operands, np.uint8)
    image, weights = _integers(rng, np.uint8, 2, 12, 30, 31), _integers(rng, np.int8, 24, 12, 3, 3)
    options = {"strides": (2, 1), "padding": ((1, 1), (0, 2))}
    for filters, groups in ((weights, 1), (weights[:, :3], 4), (weights[:, :1], 12)):
        integers = jquant.convolution_integer(image, filters, 119, -3, groups=groups, **options)
        expected = reference.convolution_integer(image, filters, 119, -3, groups=groups, **options)
        yield "convolution_integer", integers, expected
        convolved = _in_a_caller(
            lambda scale, filters=filters, groups=groups: jquant.quantized_linear_convolution(
                image, scale, 119, filters, other_scale, -3, 25.0, zero_point, groups=groups, **options
            ),
            scale,
        )
        operands = image, scale * _FACTOR, 119, filters, other_scale, -3, float32(25), zero_point
        expected = reference.quantized_linear_convolution(*operands, dtype=np.uint8, groups=groups, **options)
        yield "quantized_linear_convolution", convolved, expected
    for scale_bias in (None, (float32(0.7), float32(0.3))):
        clipped = _in_a_caller(
            lambda x, scale_bias=scale_bias: jquant.clip(x, -2, 6, scale_bias=scale_bias and jquant.ScaleBias(*scale_bias)),
            x,
        )
        yield "clip", clipped, reference.clip(scaled, -2, 6, scale_bias)
    modes = itertools.product(jquant.QuantizeMode, (np.int8, np.uint8, np.int16))
    for mode, dtype in modes:
        output = _in_a_caller(lambda x, mode=mode, dtype=dtype: jquant.quantize(x, -1.3, 2.9, dtype, mode=mode)[0], x)
        yield "quantize", output, reference.quantize(scaled, float32(-1.3), float32(2.9), dtype, mode)[0]
    bounds = float32(-1.3), float32(2.9)
    for round_mode in ("HALF_TO_EVEN", "HALF_UP"):
        output = _in_a_caller(lambda x, mode=round_mode: jquant.quantize_and_dequantize(x, *bounds, round_mode=mode), x)
        expected = reference.quantize_and_dequantize(scaled, *bounds, round_mode=round_mode)
        yield "quantize_and_dequantize", output, expected
    faked = _in_a_caller(jquant.fake_quantize, x, *bounds)
    yield "fake_quantize", faked, reference.fake_quantize(scaled, *bounds)


def products(implementation: Implementation) -> Iterator[Comparison]:
    """The integer products of one implementation: signs, zero points, sizes, outputs, packed and not."""
    rng = np.random.default_rng(2)
    integers = (np.int8, np.uint8)
    sizes = (1, 300, 200), (7, 256, 33), (130, 129, 258), (256, 512, 384)
    for (m, k, n), a_dtype, b_dtype in itertools.product(sizes, integers, integers):
        a, b = _integers(rng, a_dtype, m, k), _integers(rng, b_dtype, k, n)
        row, column = _integers(rng, a_dtype, m, 1), _integers(rng, b_dtype, 1, n)
        a_scale, b_scale = (rng.uniform(1e-3, 1e-1, shape).astype(float32) for shape in ((m, 1), (1, n)))
        bias = rng.normal(size=(1, n)).astype(float32)
        options = {"implementation": implementation}
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


def _in_a_caller(function: Callable[..., jax.Array], x: ArrayLike, *others: ArrayLike) -> jax.Array:
    """``function(x * 0.1, *others)``, the result of which is multiplied and added to beside it."""

    @jax.jit
    def caller(x, *others):
        output = function(x * _FACTOR, *others)
        return output, output.astype(jnp.float32) * _FACTOR + _ADDEND

    return caller(x, *others)[0]


def _floats(rng: np.random.Generator, decades: float) -> np.ndarray:
    return (rng.normal(size=_COUNT) * 10 ** rng.uniform(-decades, decades, _COUNT)).astype(float32)


def _integers(rng: np.random.Generator, dtype: type, *shape: int) -> np.ndarray:
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
