"""Comparisons of this installation with NumPy, on JAX's default device: what ``python -m jquant`` runs.

The identities of `jquant.exact`, every operator beside a caller's own arithmetic, and the integer products of one
implementation. Each is a generator of a name, a result and what it must equal; a name may come more than once.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

import jquant
from jquant import reference
from jquant.arithmetic import exact
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
    blocks: dict[str, Any] = {"axis": 0, "block_size": 48}  # the last one is partial
    scales = rng.uniform(0.01, 0.1, -(-_COUNT // 48)).astype(float32)
    for dtype in map(jnp.dtype, (jnp.int4, jnp.uint4)):
        quantized = _in_a_caller(functools.partial(jquant.quantize_linear, output_dtype=dtype, **blocks), x, scales)
        narrow = reference.quantize_linear(scaled, scales, 0, dtype, **blocks)
        yield "quantize_linear", quantized, narrow
        dequantized = _in_a_caller(lambda scales, x=narrow: jquant.dequantize_linear(x, scales, **blocks), scales)
        yield "dequantize_linear", dequantized, reference.dequantize_linear(narrow, scales * _FACTOR, **blocks)
        packed = reference.pack_integers(narrow)
        yield "pack_integers", jquant.pack_integers(narrow), packed
        yield "unpack_integers", jquant.unpack_integers(packed, dtype, size=_COUNT), narrow
    dynamic = _in_a_caller(lambda x: jquant.dynamic_quantize_linear(x).output, x)
    yield "dynamic_quantize_linear", dynamic, reference.dynamic_quantize_linear(scaled)[0]
    lows, highs = -abs(x), abs(x[::-1])
    expressed = _in_a_caller(lambda low: jquant.scale_and_zero_point(low, highs, np.uint8).scale, lows)
    yield "scale_and_zero_point", expressed, reference.scale_and_zero_point(lows * _FACTOR, highs, np.uint8)[0]
    added = _in_a_caller(lambda scale: jquant.quantized_linear_add(a, scale, 119, b, other_scale, -3, 0.05, 7), scale)
    operands = a, scale * _FACTOR, 119, b, other_scale, -3, float32(0.05), 7
    yield "quantized_linear_add", added, reference.quantized_linear_add(*operands, np.uint8)
    multiplied = _in_a_caller(lambda s: jquant.quantized_linear_multiply(a, s, 119, b, other_scale, -3, 0.05, 7), scale)
    yield "quantized_linear_multiply", multiplied, reference.quantized_linear_multiply(*operands, np.uint8)
    rectified = _in_a_caller(lambda scale: jquant.quantized_linear_leaky_relu(a, scale, 119, 0.002, 7, alpha=0.3), scale)
    expected = reference.quantized_linear_leaky_relu(a, scale * _FACTOR, 119, float32(0.002), 7, 0.3, np.uint8)
    yield "quantized_linear_leaky_relu", rectified, expected

    def concat(scale):
        return jquant.quantized_linear_concat([(a, scale, 119), (b, other_scale, -3)], 0.05, 7, axis=0)

    triples = [(a, scale * _FACTOR, 119), (b, other_scale, -3)]
    expected = reference.quantized_linear_concat(triples, float32(0.05), 7, 0, np.uint8)
    yield "quantized_linear_concat", _in_a_caller(concat, scale), expected
    rows, images = a.reshape(-1, 50), a.reshape(1000, 10, 2, 5)
    x_parameters = scale * _FACTOR, np.uint8(119)
    y_parameters, small = (float32(1 / 256), np.uint8(3)), (float32(1e-3), np.uint8(3))
    output = _in_a_caller(lambda scale: jquant.quantized_linear_sigmoid(a, scale, 119, *y_parameters), scale)
    yield "quantized_linear_sigmoid", output, reference.quantized_linear_sigmoid(a, *x_parameters, *y_parameters)
    output = _in_a_caller(lambda scale: jquant.quantized_linear_softmax(rows, scale, 119, *small, axis=1), scale)
    yield "quantized_linear_softmax", output, reference.quantized_linear_softmax(rows, *x_parameters, *small, axis=1)
    windows = {"window_sizes": (3, 2), "strides": (2, 1), "dilations": (1, 2), "padding": ((1, 1), (0, 1))}
    output = _in_a_caller(lambda scale: jquant.quantized_linear_average_pool(images, scale, 119, *small, **windows), scale)
    windows |= {"include_padding": False}
    averages = reference.quantized_linear_average_pool(images, *x_parameters, *small, np.uint8, **windows)
    yield "quantized_linear_average_pool", output, averages
    output = _in_a_caller(lambda scale: jquant.quantized_linear_global_average_pool(images, scale, 119, *small), scale)
    averages = reference.quantized_linear_global_average_pool(images, *x_parameters, *small)
    yield "quantized_linear_global_average_pool", output, averages
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
    yield "clip1", _in_a_caller(lambda x: jquant.clip1(x, -2, 6), x), reference.clip1(scaled, -2, 6)
    gradient = _floats(rng, 1)
    for operator in ("clip_gradient", "clip_gradient1"):
        passed = _in_a_caller(lambda g, operator=operator: getattr(jquant, operator)(x, g, -2, 6), gradient)
        yield operator, passed, getattr(reference, operator)(x, gradient * _FACTOR, -2, 6)
    modes = itertools.product(jquant.QuantizeMode, (np.int8, np.uint8, np.int16))
    for mode, dtype in modes:
        output = _in_a_caller(lambda x, mode=mode, dtype=dtype: jquant.quantize(x, -1.3, 2.9, dtype, mode=mode)[0], x)
        yield "quantize", output, reference.quantize(scaled, float32(-1.3), float32(2.9), dtype, mode)[0]
    bounds = float32(-1.3), float32(2.9)
    for round_mode in ("HALF_TO_EVEN", "HALF_UP"):
        output = _in_a_caller(lambda x, mode=round_mode: jquant.quantize_and_dequantize(x, *bounds, round_mode=mode), x)
        expected = reference.quantize_and_dequantize(scaled, *bounds, round_mode=round_mode)
        yield "quantize_and_dequantize", output, expected
    lowest = float32(-13)
    for mode, dtype in itertools.product(jquant.QuantizeMode, (np.int8, np.uint8, np.int32)):
        integers = _integers(rng, dtype, _COUNT)
        dequantized = _in_a_caller(
            lambda low, mode=mode, x=integers: jquant.dequantize(x, low, 2.9, mode=mode), float32(-13)
        )
        yield "dequantize", dequantized, reference.dequantize(integers, float32(-13) * _FACTOR, float32(2.9), mode)
    accumulators = _integers(rng, np.int32, _COUNT) >> rng.integers(0, 31, _COUNT, np.int32)
    for dtype in (np.int8, np.uint8):
        requested = float32(-0.2), float32(0.7)
        requantized = _in_a_caller(
            lambda low, dtype=dtype: jquant.requantize(accumulators, low, 2.9, -0.2, 0.7, dtype=dtype).output, lowest
        )
        expected, *_ = reference.requantize(accumulators, lowest * _FACTOR, float32(2.9), *requested, dtype)
        yield "requantize", requantized, expected
    of_range = accumulators >> 3, float32(-1.3), float32(2.9)
    shrunk = jquant.quantize_down_and_shrink_range(*of_range)
    yield from _each("quantize_down_and_shrink_range", shrunk, reference.quantize_down_and_shrink_range(*of_range))
    found = jquant.requantization_range(*of_range)
    yield from _each("requantization_range", found, reference.requantization_range(*of_range))
    low, high = np.array([[-1.3, -2, -0.7, -0.1, -5], [2.9, 1, 0.3, 0, 4]], float32)
    per_channel = accumulators.reshape(-1, 5), low, high
    found = jquant.requantization_range_per_channel(*per_channel)
    yield from _each("requantization_range_per_channel", found, reference.requantization_range_per_channel(*per_channel))
    requantized = jquant.requantize_per_channel(*per_channel, -0.2, 0.7)
    expected = reference.requantize_per_channel(*per_channel, float32(-0.2), float32(0.7), np.uint8)
    yield from _each("requantize_per_channel", requantized, expected)
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
        operands = a, a_scale[0], row[0], b, b_scale[0], column[0], _integers(rng, np.int16, n).astype(np.int32)
        quantized = jquant.quantized_gemm(*operands, float32(2.5), np.uint8(77), **options)
        expected = reference.quantized_gemm(*operands, float32(2.5), np.uint8(77), np.uint8)
        yield "quantized_gemm", quantized, expected


def _each(name: str, actual: tuple, expected: tuple) -> Iterator[Comparison]:
    for result, formula in zip(actual, expected, strict=True):
        yield name, result, np.asarray(formula)


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
