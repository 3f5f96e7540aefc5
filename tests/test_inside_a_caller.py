"""The float operators inside a caller's jit: alone, and between the caller's own constant product and sum.

Parameters are traced, and constants folded into the caller's program: XLA rewrites the two differently.
The reference is NumPy, one float32 rounding a step.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import samples

import jquant
from jquant import reference

FLOAT32 = np.float32
FLOATS = np.float32, np.float16, ml_dtypes.bfloat16
BEFORE, AFTER, FACTOR = FLOAT32(0.1), FLOAT32(0.7), FLOAT32(1.3)
CHANNELS = 5


@pytest.fixture(scope="module")
def count(full) -> int:
    """How many values each operator sees in each of its programs."""
    return 10_000_000 if full else 250_000


@pytest.fixture(scope="module")
def assert_exact(full) -> Callable:
    return functools.partial(compare, every_program=full)


def compare(operator: Callable, model: Callable, input: np.ndarray, parameters: tuple, *, every_program: bool) -> None:
    """`operator` equals `model` for `input`, in the programs that a caller may put it in: in every second one, or in all."""
    befores = (unchanged, multiplied(BEFORE)) if jnp.issubdtype(input.dtype, jnp.floating) else (unchanged,)
    for first, before in enumerate(befores):
        with np.errstate(all="ignore"):
            result = model(before(input), *parameters)
        is_float = any(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(result))
        for last, after in enumerate((unchanged, added(AFTER), multiplied(FACTOR)) if is_float else (unchanged,)):

            def program(x, *parameters, before=before, after=after):
                return jax.tree.map(after, operator(before(x), *parameters))

            with np.errstate(all="ignore"):
                expected = jax.tree.map(after, result)
            if every_program or (first + last) % 2:
                traced = jax.jit(program)(input, *parameters)
                jax.tree.map(functools.partial(assert_equal, what="traced"), traced, expected)
            if every_program or (first + last) % 2 == 0:  # with both of the caller's constants, too
                constant = jax.jit(lambda x, program=program: program(x, *parameters))(input)
                jax.tree.map(functools.partial(assert_equal, what="constant"), constant, expected)


def unchanged(x):
    return x


def added(constant: np.float32) -> Callable:
    """What a caller does to float arrays; integers pass."""
    return lambda x: x + constant.astype(x.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x


def multiplied(constant: np.float32) -> Callable:
    return lambda x: x * constant.astype(x.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x


def assert_equal(actual, expected, what: str) -> None:
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.dtype == expected.dtype
    if expected.dtype == jnp.bfloat16:  # NumPy does not know that its NaN are equal
        actual, expected = actual.astype(FLOAT32), expected.astype(FLOAT32)
    if expected.dtype == FLOAT32:
        kept = ~samples.is_subnormal(expected)
        actual, expected = actual[kept], expected[kept]
    np.testing.assert_array_equal(actual, expected, what)


def integers(dtype, count: int) -> np.ndarray:
    limits = np.iinfo(dtype)
    values = np.random.default_rng(0).integers(limits.min, limits.max, count, dtype, endpoint=True)
    values[:2] = limits.min, limits.max
    return values.reshape(-1, CHANNELS)


def floats(dtype, count: int, scale: float) -> np.ndarray:
    """Half of them ties of `scale` and their neighbours."""
    rng = np.random.default_rng(1)
    wide = samples.wide_floats(rng, count - count // 2)
    with np.errstate(over="ignore"):
        return (
            np.concatenate([samples.near_ties(rng, count // 2, scale, -140, 270), wide]).astype(dtype).reshape(-1, CHANNELS)
        )


def per_axis(values, dtype) -> np.ndarray:
    return np.array(values, dtype).reshape(1, CHANNELS)


@pytest.mark.parametrize("scale_dtype", FLOATS)
@pytest.mark.parametrize("per", ["tensor", "axis"])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32])
def test_dequantize_linear(dtype, per, scale_dtype, count, assert_exact):
    if per == "tensor":
        parameters = scale_dtype(0.0123), dtype(100)
    else:
        parameters = per_axis([0.5, 1e-3, 0.3, 7.7, 0.0123], scale_dtype), per_axis([0, 1, 100, 7, 127], dtype)
    input = integers(dtype, count)
    operator = functools.partial(jquant.dequantize_linear, feature_level="EXTENDED")
    assert_exact(operator, reference.dequantize_linear, input, parameters)


@pytest.mark.parametrize("input_dtype", [*FLOATS, np.int32])
@pytest.mark.parametrize("per", ["tensor", "axis"])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_quantize_linear(dtype, per, input_dtype, count, assert_exact):
    is_float = jnp.issubdtype(input_dtype, jnp.floating)
    scale_dtype = input_dtype if is_float else FLOAT32
    if per == "tensor":
        parameters = scale_dtype(0.0123), dtype(101)
    else:
        parameters = per_axis([0.5, 1e-3, 0.3, 7.7, 0.0123], scale_dtype), per_axis([0, 1, 100, 7, 127], dtype)
    input = floats(input_dtype, count, 0.0123 / 0.1) if is_float else integers(np.int32, count)
    operator = functools.partial(jquant.quantize_linear, feature_level="EXTENDED")
    model = functools.partial(reference.quantize_linear, dtype=dtype)
    assert_exact(operator, model, input, parameters)


BLOCKS = {"axis": 0, "block_size": 64}


def blocks(dtype, count: int) -> tuple[np.ndarray, np.ndarray]:
    """A scale and a zero point for each block of rows, of which the last may be partial."""
    rng = np.random.default_rng(2)
    sizes = -(-count // CHANNELS // BLOCKS["block_size"]), CHANNELS
    return samples.scales(rng, sizes[0] * CHANNELS).reshape(sizes), samples.integers(rng, dtype, *sizes)


def test_dequantize_linear_in_blocks(count, assert_exact):
    input = samples.integers(np.random.default_rng(3), np.dtype(ml_dtypes.int4), count // CHANNELS, CHANNELS)
    operator = functools.partial(jquant.dequantize_linear, **BLOCKS)
    model = functools.partial(reference.dequantize_linear, **BLOCKS)
    assert_exact(operator, model, input, blocks(input.dtype, count))


def test_quantize_linear_in_blocks(count, assert_exact):
    dtype = np.dtype(ml_dtypes.uint4)
    operator = functools.partial(jquant.quantize_linear, **BLOCKS)
    model = functools.partial(reference.quantize_linear, dtype=dtype, **BLOCKS)
    assert_exact(operator, model, floats(FLOAT32, count, 0.25 / 0.1), blocks(dtype, count))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_dynamic_quantize_linear(dtype, count, assert_exact):
    def operator(x):
        return tuple(jquant.dynamic_quantize_linear(x, output_dtype=dtype))

    input = np.nan_to_num(floats(FLOAT32, count, 1.0)).clip(-140, 120)
    assert_exact(operator, functools.partial(reference.dynamic_quantize_linear, dtype=dtype), input, ())


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_scale_and_zero_point(dtype, symmetric, count, assert_exact):
    options = {"symmetric": symmetric, "narrow_range": symmetric}

    def operator(x, high):
        return tuple(jquant.scale_and_zero_point(x, jnp.broadcast_to(high, x.shape), dtype, **options))

    model = functools.partial(reference.scale_and_zero_point, dtype=dtype, **options)
    assert_exact(operator, model, floats(FLOAT32, count, 1.0), (FLOAT32(5.7),))


@pytest.mark.parametrize("channels", [1, 4])
def test_quantized_linear_convolution(channels, count, assert_exact):
    """Of shifted multiplications, and of products of matrices."""
    input = integers(np.uint8, count).reshape(1, channels, -1, 250)
    rng = np.random.default_rng(11)
    filter, zero_points = samples.integers(rng, np.int8, 3, channels, 2, 2), samples.integers(rng, np.int8, 3)
    scales = rng.uniform(0.01, 0.1, 3).astype(FLOAT32)

    def operands(x, x_scale, w_scale, y_scale):
        return x, x_scale, np.uint8(99), filter, w_scale, zero_points, y_scale, np.uint8(130)

    assert_exact(
        lambda *given: jquant.quantized_linear_convolution(*operands(*given)),
        lambda *given: reference.quantized_linear_convolution(*operands(*given), dtype=np.uint8),
        input,
        (FLOAT32(0.037), scales, FLOAT32(0.3)),
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bounds", [(-np.inf, np.inf), (-1.0, 5.9999)])
def test_clip(dtype, bounds, count, assert_exact):
    input = floats(dtype, count, 1.0)
    clip = functools.partial(jquant.clip, feature_level="EXTENDED")
    assert_exact(clip, reference.clip, input, tuple(map(FLOAT32, bounds)))

    def operator(x, low, high, scale, bias):
        return clip(x, low, high, scale_bias=jquant.ScaleBias(scale, bias))

    def model(x, low, high, scale, bias):
        return reference.clip(x, low, high, (scale, bias))

    parameters = (*map(FLOAT32, bounds), FLOAT32(1.1), FLOAT32(-0.3))
    assert_exact(operator, model, input, parameters)


@pytest.mark.parametrize("dtype", FLOATS)
def test_clip1(dtype, count, assert_exact):
    def operator(x, low, high, scale, bias):
        return jquant.clip1(x, low, high, scale_bias=jquant.ScaleBias(scale, bias), feature_level="EXTENDED")

    def model(x, low, high, scale, bias):
        return reference.clip1(x, low, high, (scale, bias))

    parameters = (dtype(-1), dtype(5.9999), FLOAT32(1.1), FLOAT32(-0.3))
    assert_exact(operator, model, floats(dtype, count, 1.0), parameters)


@pytest.mark.parametrize("dtype", FLOATS)
def test_clip_gradient(dtype, count, assert_exact):
    """With bounds that the caller's products reach by rounding. CLIP_GRAD1 differs in the type of the bounds alone."""

    def operator(x, low, high):
        return jquant.clip_gradient(x, x[::-1], low, high, feature_level="EXTENDED")

    def model(x, low, high):
        return reference.clip_gradient(x, x[::-1], low, high)

    bounds = tuple(FLOAT32(dtype(x) * dtype(BEFORE)) for x in (-61.5, 62.5))
    assert_exact(operator, model, floats(dtype, count, 1.0), bounds)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_quantized_linear(dtype, count, assert_exact):
    """Those of one tensor, the scale computed by the caller, and of two, the other one constant."""
    input, other = integers(dtype, count), per_axis([0, 1, 100, 7, 127], dtype)

    def scaled(function):
        return lambda x, scale, *others: function(x, scale * BEFORE, *others)

    def rectified(function, x, scale, alpha):
        return function(x, scale, dtype(100), FLOAT32(0.017), dtype(7), alpha=alpha)

    def multiplied(function, x, scale, output_scale):
        return function(x, scale, dtype(100), other, FLOAT32(0.3), dtype(3), output_scale, dtype(7))

    def joined(function, x, scale, output_scale):
        return function([(x, scale, dtype(100)), (x, FLOAT32(0.3), dtype(3))], output_scale, dtype(7), axis=0)

    for call, name, parameters in (
        (rectified, "quantized_linear_leaky_relu", (FLOAT32(0.123), FLOAT32(0.3))),
        (multiplied, "quantized_linear_multiply", (FLOAT32(0.123), FLOAT32(0.7))),
        (joined, "quantized_linear_concat", (FLOAT32(0.123), FLOAT32(0.017))),
    ):
        operator = functools.partial(call, getattr(jquant, name))
        model = functools.partial(call, functools.partial(getattr(reference, name), dtype=dtype))
        assert_exact(scaled(operator), scaled(model), input, parameters)


MODES = [
    ("MIN_COMBINED", "HALF_AWAY_FROM_ZERO"),
    ("MIN_FIRST", "HALF_AWAY_FROM_ZERO"),
    ("SCALED", "HALF_AWAY_FROM_ZERO"),
    ("SCALED", "HALF_TO_EVEN"),
]
ONE_RANGE = None, FLOAT32(-5.7), FLOAT32(6.1)
PER_CHANNEL = 1, FLOAT32([-1, -2.3, 0, -1e-3, -77]), FLOAT32([1, 7, 3.3, 1e3, -1])


@pytest.mark.parametrize(
    ("mode", "round_mode", "axis", "low", "high"),
    [(*mode, *ONE_RANGE) for mode in MODES] + [(*mode, *PER_CHANNEL) for mode in MODES if mode[0] != "MIN_FIRST"],
)
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32])
def test_quantize(dtype, mode, round_mode, axis, low, high, count, assert_exact):
    step = (6.1 + 5.7) / (2.0 ** (8 * np.dtype(dtype).itemsize) - 1)

    def operator(x, low, high):
        return tuple(jquant.quantize(x, low, high, dtype, mode=mode, round_mode=round_mode, axis=axis))

    def model(x, low, high):
        return reference.quantize(x, low, high, dtype, mode, round_mode)

    input = floats(FLOAT32, count, step / 0.1)
    assert_exact(operator, model, input, (low, high))


@pytest.mark.parametrize(("axis", "low", "high"), [ONE_RANGE, PER_CHANNEL])
@pytest.mark.parametrize("round_mode", ["HALF_TO_EVEN", "HALF_UP"])
def test_quantize_and_dequantize(round_mode, axis, low, high, count, assert_exact):
    options = {"round_mode": round_mode, "axis": axis}
    operator = functools.partial(jquant.quantize_and_dequantize, **options)
    model = functools.partial(reference.quantize_and_dequantize, **options)
    assert_exact(operator, model, floats(FLOAT32, count, 6.1 / 127 / 0.1), (low, high))


@pytest.mark.parametrize(("axis", "low", "high"), [ONE_RANGE, PER_CHANNEL])
def test_fake_quantize(axis, low, high, count, assert_exact):
    operator = functools.partial(jquant.fake_quantize, axis=axis)
    model = functools.partial(reference.fake_quantize, axis=axis)
    assert_exact(operator, model, floats(FLOAT32, count, (6.1 + 5.7) / 255 / 0.1), (low, high))


@pytest.mark.parametrize(
    ("mode", "axis", "low", "high"),
    [("MIN_COMBINED", *PER_CHANNEL), ("MIN_FIRST", *ONE_RANGE), ("SCALED", *ONE_RANGE)],
)
@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32])
def test_dequantize(dtype, mode, axis, low, high, count, assert_exact):
    operator = functools.partial(jquant.dequantize, mode=mode, axis=axis)
    model = functools.partial(reference.dequantize, mode=mode, axis=axis)
    assert_exact(operator, model, integers(dtype, count), (low, high))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_requantize(dtype, count, assert_exact):
    """And the range of the output, which it passes on; the formula is in Python's integers, which take their time."""

    def operator(x, *bounds):
        return tuple(jquant.requantize(x, *bounds, dtype=dtype))

    model = functools.partial(reference.requantize, dtype=dtype)
    bounds = tuple(map(FLOAT32, (-5.7, 6.1, -0.3, 0.4)))
    x = integers(np.int32, count // 5) >> np.random.default_rng(2).integers(
        0, 31, (count // 5 // CHANNELS, CHANNELS), np.int32
    )
    assert_exact(operator, model, x, bounds)


@pytest.mark.parametrize("name", ["requantization_range", "quantize_down_and_shrink_range"])
def test_actual_range(name, count, assert_exact):
    x = integers(np.int32, count // 20) >> 3
    assert_exact(lambda *arguments: tuple(getattr(jquant, name)(*arguments)), getattr(reference, name), x, ONE_RANGE[1:])


def test_per_channel(count, assert_exact):
    x, bounds = integers(np.int32, count) >> 3, (np.minimum(*PER_CHANNEL[1:]), np.maximum(*PER_CHANNEL[1:]))

    def operator(x, low, high):
        found = jquant.requantization_range_per_channel(x, low, high)
        return tuple(found), tuple(jquant.requantize_per_channel(x, low, high, *found, dtype="qint8"))

    def model(x, low, high):
        found = reference.requantization_range_per_channel(x, low, high)
        return found, reference.requantize_per_channel(x, low, high, *found, np.int8)

    assert_exact(operator, model, x, bounds)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_quantized_linear_sigmoid(dtype, count, assert_exact):
    parameters = FLOAT32(0.0371), dtype(101), FLOAT32(0.0043), dtype(7)
    model = reference.quantized_linear_sigmoid
    assert_exact(jquant.quantized_linear_sigmoid, model, integers(dtype, count), parameters)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_quantized_linear_softmax(dtype, count, assert_exact):
    parameters = FLOAT32(0.0371), dtype(101), FLOAT32(0.0013), dtype(7)
    operator = functools.partial(jquant.quantized_linear_softmax, axis=0)
    model = functools.partial(reference.quantized_linear_softmax, axis=0)
    assert_exact(operator, model, integers(dtype, count).reshape(-1, CHANNELS * 2000), parameters)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_quantized_linear_average_pool(dtype, count, assert_exact):
    parameters = FLOAT32(0.0371), dtype(101), FLOAT32(0.0103), dtype(7)
    options = {"window_sizes": (2, 3), "strides": (1, 2), "dilations": (2, 1), "padding": ((1, 1), (0, 2))}
    operator = functools.partial(jquant.quantized_linear_average_pool, **options)
    model = functools.partial(reference.quantized_linear_average_pool, **options, include_padding=False, dtype=dtype)
    input = integers(dtype, count).reshape(-1, CHANNELS, 20, 10)
    assert_exact(operator, model, input, parameters)
    model = reference.quantized_linear_global_average_pool
    assert_exact(jquant.quantized_linear_global_average_pool, model, input, parameters)
