"""`dequantize`: every integer, the way there and back with `quantize`, derivatives, and errors."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.comparison import assert_equal, assert_refused, refusals
from support.sampling import one_in

import jquant
from jquant.reference import requantization as reference

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


@one_in(5, ("mode", "dtype"), itertools.product(jquant.QuantizeMode, list(TYPES)[:-1]))
def test_quantize_and_back(mode, dtype):
    """Integers come back unchanged, and real numbers to within half a step."""
    limits = np.iinfo(TYPES[dtype])
    integers = np.arange(limits.min, limits.max + 1).astype(TYPES[dtype])
    bounds = FLOAT32([-6, 6]) if mode != "SCALED" else FLOAT32([limits.min, limits.max])
    real = jquant.dequantize(integers, *bounds, mode=mode)
    options = {"mode": mode, "ensure_minimum_range": 0}
    assert_equal(jquant.quantize(real, *bounds, dtype, **options).output, integers)
    x = np.random.default_rng(0).uniform(*bounds, 10_000).astype(FLOAT32)
    back = jquant.dequantize(*jquant.quantize(x, *bounds, dtype, **options), mode=mode)
    step = (bounds[1] - bounds[0]) / (limits.max - limits.min)
    assert np.max(abs(np.asarray(back) - x)) <= step * 0.51 + 1e-6


def test_real_0():
    """MIN_FIRST represents real 0 by one of the integers, and SCALED by integer 0."""
    output = jquant.quantize(FLOAT32(0), -1.3, 2.9, "quint8", mode="MIN_FIRST")
    assert jquant.dequantize(output.output, output.output_min, output.output_max, mode="MIN_FIRST") == 0
    assert jquant.dequantize(np.int16(0), -1.3, 2.9, mode="SCALED") == 0


def test_narrow_range():
    """The lowest integer is not used, and the integer above it stands for the lower bound."""
    assert jquant.dequantize(np.int8(-127), -127, 1, mode="SCALED", narrow_range=True) == -127
    assert jquant.dequantize(np.int8(-127), -128, 1, mode="SCALED") == -127
    assert jquant.dequantize(np.uint8(255), -128, 255, mode="SCALED", narrow_range=True) == 255


def test_derivatives_in_the_range():
    x = np.uint8([0, 51, 255])
    low, high = jax.jacrev(lambda *bounds: jquant.dequantize(x, *bounds), argnums=(0, 1))(FLOAT32(-1.0), FLOAT32(2.0))
    np.testing.assert_allclose(low, 1 - x / 255, atol=1e-6)
    np.testing.assert_allclose(high, x / 255, rtol=1e-6)
    low, high = jax.jacrev(lambda *bounds: jquant.dequantize(np.int8([-128, 64]), *bounds, mode="SCALED"), argnums=(0, 1))(
        FLOAT32(-4.0), FLOAT32(2.0)
    )
    np.testing.assert_allclose(low, [1, -0.5])  # the lower bound determines the scale
    np.testing.assert_array_equal(high, 0)


def test_derivative_of_min_first():
    """The lower bound's rounding to a step has derivative 0; the derivative of a range of one point is finite."""
    x = np.uint8([0, 85, 255])  # the step 85 is real 0
    derivative = jax.jacrev(lambda high: jquant.dequantize(x, -1, high, mode="MIN_FIRST"))
    np.testing.assert_allclose(derivative(2.0), (x - 85.0) / 255, rtol=1e-6)
    assert np.all(np.isfinite(derivative(-1.0)))


X = np.zeros((3, 2), np.int8)
PAIR = FLOAT32([1, 1])
REFUSED = [
    (lambda: jquant.dequantize(X, 1, 0), "dequantize: max_range is 0.0, which is less than min_range, 1.0"),
    (lambda: jquant.dequantize(X, PAIR, PAIR, axis=2), "dequantize: axis is 2; it must be a dimension"),
    (lambda: jquant.dequantize(X, PAIR, 1), "dequantize: min_range has shape (2,); without axis it must have 1 element"),
    (lambda: jquant.dequantize(X, PAIR, 1, axis=1), "dequantize: max_range has shape (); with axis=1 it must be (2,)"),
    (
        lambda: jquant.dequantize(X, PAIR, PAIR, axis=1, mode="MIN_FIRST"),
        "dequantize: axis is 1; MIN_FIRST has a single range",
    ),
    (
        lambda: jquant.dequantize(X, 0, 1, mode="SCALED", dtype="bfloat16"),
        "dtype is BFLOAT16, which is for mode MIN_COMBINED only, not SCALED",
    ),
]
REFUSED_TYPES = [
    (lambda: jquant.dequantize(1, 0, 1), "dequantize: input is the Python scalar 1"),
    (
        lambda: jquant.dequantize(X.astype(FLOAT32), 0, 1),
        "dequantize: input has data type FLOAT32; the operator allows qint8 (INT8), quint8",
    ),
    (
        lambda: jquant.dequantize(X.astype(np.uint32), 0, 1),
        "dequantize: input has data type UINT32; the operator allows qint8 (INT8), quint8",
    ),
    (
        lambda: jquant.dequantize(X, 0, 1, dtype="float16"),
        "dequantize: dtype is FLOAT16; it must be one of FLOAT32, BFLOAT16",
    ),
    (lambda: jquant.dequantize(X, np.float16(0), 1), "dequantize: min_range has data type FLOAT16; it must be FLOAT32"),
]


@refusals(REFUSED, REFUSED_TYPES)
def test_refuses(call, message, error):
    assert_refused(call, message, error)


def test_arrays_are_not_read_back():
    assert jquant.dequantize(X, jnp.float32(1), jnp.float32(-1)).shape == X.shape
