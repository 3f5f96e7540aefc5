"""`dequantize`, `requantize` and their ranges: their values beside NumPy's, their derivatives, and what they refuse."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import samples
from cases import assert_equal

import jquant
from jquant import reference
from jquant.formulas import requantization

FLOAT32 = np.float32
TYPES = {"qint8": np.int8, "quint8": np.uint8, "qint16": np.int16, "quint16": np.uint16, "qint32": np.int32}


@pytest.mark.parametrize("mode", jquant.QuantizeMode)
def test_every_integer_of_8_and_16_bits(mode):
    low, high = FLOAT32([-5.7, 6.1])
    for dtype in (np.int8, np.uint8, np.int16, np.uint16):
        x = np.arange(np.iinfo(dtype).min, np.iinfo(dtype).max + 1).astype(dtype)
        for narrow_range in (False, True):
            options = {"mode": mode, "narrow_range": narrow_range}
            assert_equal(jquant.dequantize(x, low, high, **options), reference.dequantize(x, low, high, **options))


@pytest.mark.parametrize("mode", jquant.QuantizeMode)
@pytest.mark.parametrize("dtype", [name for name in TYPES if name != "qint32"])
def test_quantize_and_back(dtype, mode):
    """Integers come back as they were, and real numbers to within half a step."""
    limits = np.iinfo(TYPES[dtype])
    every = np.arange(limits.min, limits.max + 1).astype(TYPES[dtype])
    bounds = FLOAT32([-6, 6]) if mode != "SCALED" else FLOAT32([limits.min, limits.max])
    real = jquant.dequantize(every, *bounds, mode=mode)
    options = {"mode": mode, "ensure_minimum_range": 0}
    assert_equal(jquant.quantize(real, *bounds, dtype, **options).output, every)
    x = np.random.default_rng(0).uniform(*bounds, 10_000).astype(FLOAT32)
    back = jquant.dequantize(*jquant.quantize(x, *bounds, dtype, **options), mode=mode)
    step = (bounds[1] - bounds[0]) / (limits.max - limits.min)
    assert np.max(abs(np.asarray(back) - x)) <= step * 0.51 + 1e-6


def test_real_0():
    """MIN_FIRST has it among the steps; SCALED has it at integer 0."""
    output = jquant.quantize(FLOAT32(0), -1.3, 2.9, "quint8", mode="MIN_FIRST")
    assert jquant.dequantize(output.output, output.output_min, output.output_max, mode="MIN_FIRST") == 0
    assert jquant.dequantize(np.int16(0), -1.3, 2.9, mode="SCALED") == 0


def test_narrow_range():
    """The lowest integer is not in use, and the scale is that of the one above it."""
    assert jquant.dequantize(np.int8(-127), -127, 1, mode="SCALED", narrow_range=True) == -127
    assert jquant.dequantize(np.int8(-127), -128, 1, mode="SCALED") == -127
    assert jquant.dequantize(np.uint8(255), -128, 255, mode="SCALED", narrow_range=True) == 255


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_requantize(dtype):
    rng = np.random.default_rng(1)
    x = samples.integers(rng, np.int32, 20_000) >> rng.integers(0, 31, 20_000, np.int32)
    x[:3] = -(2**31), 2**31 - 1, 0
    for bounds in ((-6, 6, -1, 1), (0, 6, 0, 6), (-1e9, 3e9, -0.01, 0.01), (-1, 7, 0, 0), (3, 3, -1, 1), (-1e-12, 1, -5, 0)):
        bounds = tuple(map(FLOAT32, bounds))
        assert_equal(tuple(jquant.requantize(x, *bounds, dtype=dtype)), reference.requantize(x, *bounds, dtype))


def test_quotients_of_the_fixed_point():
    """As NumPy's float64 has them, whose last bit the 8 bits of a result hardly ever show."""
    rng = np.random.default_rng(3)
    x, width = (10 ** rng.uniform(-9, 9, (2, 100_000))).astype(FLOAT32)
    x[:1000] = width[:1000] * 4
    x = np.minimum(x, width * FLOAT32(2**36))
    low, high = jax.jit(requantization._twice_of_steps)(x, width)
    quotients = 255.0 * 2**16 * x.astype(np.float64) / width
    expected = np.floor(2 * quotients).astype(np.uint64)
    np.testing.assert_array_equal((np.asarray(high).astype(np.uint64) << 32) | np.asarray(low), expected)


def test_requantize_to_the_actual_range():
    """In one operator, or in two."""
    x = np.random.default_rng(2).integers(-(2**24), 2**26, 1000, np.int32)
    found = jquant.requantization_range(x, -60.0, 60.0)
    assert found.output_min < 0 < found.output_max
    expected = jquant.requantize(x, -60.0, 60.0, *found, dtype="quint8")
    assert_equal(jquant.quantize_down_and_shrink_range(x, -60.0, 60.0), expected)
    assert {0, 255} < set(np.asarray(expected.output).tolist())


def test_range_without_elements():
    found = jquant.requantization_range(np.zeros((0, 3), np.int32), -2, 1)
    assert_equal(list(found), [FLOAT32(0), FLOAT32(-2)])


def test_nan_in_a_range_per_channel():
    x, one = np.full((4, 2), 2**30, np.int32), FLOAT32([1, 1])
    assert jquant.requantization_range_per_channel(x, FLOAT32([np.nan, -3]), one).output_max == 1.5
    assert jquant.requantization_range_per_channel(x, -one, one, clip_value_max=np.nan).output_max == 0.5


class TestDerivatives:
    def test_of_dequantize(self):
        x = np.uint8([0, 51, 255])
        low, high = jax.jacrev(lambda *bounds: jquant.dequantize(x, *bounds), argnums=(0, 1))(FLOAT32(-1.0), FLOAT32(2.0))
        np.testing.assert_allclose(low, 1 - x / 255, atol=1e-6)
        np.testing.assert_allclose(high, x / 255, rtol=1e-6)
        low, high = jax.jacrev(
            lambda *bounds: jquant.dequantize(np.int8([-128, 64]), *bounds, mode="SCALED"), argnums=(0, 1)
        )(FLOAT32(-4.0), FLOAT32(2.0))
        np.testing.assert_allclose(low, [1, -0.5])  # which has the larger scale
        np.testing.assert_array_equal(high, 0)

    def test_of_min_first(self):
        """The lower end stays the step that it was rounded to; a range that is one point has no infinite derivative."""
        x = np.uint8([0, 85, 255])  # the step 85 is real 0
        derivative = jax.jacrev(lambda high: jquant.dequantize(x, -1, high, mode="MIN_FIRST"))
        np.testing.assert_allclose(derivative(2.0), (x - 85.0) / 255, rtol=1e-6)
        assert np.all(np.isfinite(derivative(-1.0)))

    def test_of_the_actual_range(self):
        x = np.int32([-(2**30), 2**29])
        jacobian = jax.jacrev(lambda *bounds: jquant.requantization_range(x, *bounds), argnums=(0, 1))
        (min_low, min_high), (max_low, max_high) = jacobian(-2.0, 2.0)
        assert (min_low, min_high, max_low, max_high) == (0.75, 0.25, 0.375, 0.625)
        (min_low, min_high), _ = jax.jacrev(lambda *bounds: jquant.requantization_range(-x, *bounds), argnums=(0, 1))(
            1.0, 2.0
        )
        assert (min_low, min_high) == (0, 0)  # 0 is less

    def test_of_the_range_per_channel(self):
        x, bounds = np.int32([[2**30, -(2**29)]]), FLOAT32([3, 1])
        gradient = jax.grad(lambda high: jquant.requantization_range_per_channel(x, -bounds, high).output_max)
        np.testing.assert_array_equal(gradient(bounds * 2), [0.5, 0])


X, ACCUMULATORS, PAIR = np.zeros((3, 2), np.int8), np.zeros((3, 2), np.int32), FLOAT32([1, 1])
REFUSED = [
    (lambda: jquant.dequantize(X, 1, 0), "Dequantize: max_range, 0.0, is less than min_range, 1.0"),
    (lambda: jquant.dequantize(X, PAIR, PAIR, axis=2), "Dequantize: axis is 2; it must be a dimension"),
    (lambda: jquant.dequantize(X, PAIR, 1), "Dequantize: min_range has sizes (2,); without axis it must have 1 element"),
    (lambda: jquant.dequantize(X, PAIR, 1, axis=1), "Dequantize: max_range has sizes (); with axis=1 they must be (2,)"),
    (lambda: jquant.dequantize(X, PAIR, PAIR, axis=1, mode="MIN_FIRST"), "Dequantize: MIN_FIRST has one range: axis=1"),
    (
        lambda: jquant.dequantize(X, 0, 1, mode="SCALED", dtype="bfloat16"),
        "BFLOAT16 is for mode MIN_COMBINED only, not SCALED",
    ),
    (lambda: jquant.requantize(ACCUMULATORS, 1, 0, -1, 1, dtype="quint8"), "input_max, 0.0, is less than input_min, 1.0"),
    (
        lambda: jquant.requantize(ACCUMULATORS, 0, 1, 1, 2, dtype="quint8"),
        "requested_output_min is 1.0; it must be 0 or less",
    ),
    (lambda: jquant.requantize(ACCUMULATORS, PAIR, 1, -1, 2, dtype="quint8"), "input_min has sizes (2,); without axis"),
    (lambda: jquant.requantization_range(ACCUMULATORS, PAIR, PAIR), "RequantizationRange: input_min has sizes (2,)"),
    (
        lambda: jquant.requantization_range_per_channel(ACCUMULATORS, 0, 1),
        "input_min has sizes (); with axis=1 they must be (2,)",
    ),
    (lambda: jquant.requantization_range_per_channel(np.int32(1), 0, 1), "input is a scalar; it must have channels"),
    (
        lambda: jquant.requantization_range_per_channel(ACCUMULATORS, -PAIR, PAIR, clip_value_max=PAIR),
        "clip_value_max has sizes (2,), but must have 1 element",
    ),
    (
        lambda: jquant.requantize_per_channel(ACCUMULATORS, -PAIR, PAIR, 0, 1, dtype="qint8"),
        "requested_output_min is 0.0; for out_type INT8 it must be less than 0",
    ),
]
REFUSED_TYPES = [
    (lambda: jquant.dequantize(1, 0, 1), "Dequantize: input is the Python scalar 1"),
    (
        lambda: jquant.dequantize(X.astype(FLOAT32), 0, 1),
        "Dequantize: the data type of input is FLOAT32; the document has qint8 (INT8), quint8",
    ),
    (
        lambda: jquant.dequantize(X.astype(np.uint32), 0, 1),
        "Dequantize: the data type of input is UINT32; the document has qint8 (INT8), quint8",
    ),
    (
        lambda: jquant.dequantize(X, 0, 1, dtype="float16"),
        "Dequantize: dtype is FLOAT16; the document has FLOAT32, BFLOAT16",
    ),
    (lambda: jquant.dequantize(X, np.float16(0), 1), "Dequantize: min_range has data type FLOAT16, but is a FLOAT"),
    (
        lambda: jquant.requantize(X, 0, 1, 0, 1, dtype="quint8"),
        "Requantize: the data type of input is INT8; the document has qint32 (INT32)",
    ),
    (
        lambda: jquant.requantize(ACCUMULATORS, 0, 1, 0, 1, dtype="qint16"),
        "Requantize: dtype is INT16; the document has quint8 (UINT8), qint8 (INT8)",
    ),
    (
        lambda: jquant.requantize_per_channel(ACCUMULATORS, -PAIR, PAIR, 0, 1, dtype="qint16"),
        "RequantizePerChannel: dtype is INT16; the document has quint8 (UINT8), qint8 (INT8)",
    ),
    (
        lambda: jquant.requantization_range(X, 0, 1),
        "RequantizationRange: the data type of input is INT8; the document has qint32 (INT32)",
    ),
    (lambda: jquant.quantize_down_and_shrink_range(X, 0, 1), "QuantizeDownAndShrinkRange: the data type of input is INT8"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_refuses(call, message):
    with pytest.raises(jquant.DescriptorError, match=re.escape(message)):
        call()


@pytest.mark.parametrize(("call", "message"), REFUSED_TYPES)
def test_refuses_types(call, message):
    with pytest.raises(jquant.DescriptorTypeError, match=re.escape(message)):
        call()


def test_arrays_are_not_read_back():
    low, high = jnp.float32(1), jnp.float32(-1)
    assert jquant.dequantize(X, low, high).shape == X.shape
    assert jquant.requantize(ACCUMULATORS, 0, 1, low, high, dtype="quint8").output.shape == X.shape
