"""`scale_and_zero_point`: against its formula, edge cases, other operators, TensorFlow's modes, and errors."""

import jax.numpy as jnp
import numpy as np
import pytest
from support.sampling import one_in

import jquant
from jquant import DescriptorError, DescriptorTypeError
from jquant.cases import samples
from jquant.reference import linear as reference

DTYPES = ("INT8", "UINT8", "INT16", "UINT16", "INT4", "UINT4", "INT2", "UINT2")


def ranges(count: int = 2000) -> tuple[np.ndarray, np.ndarray]:
    """Ranges of every magnitude, on one or both sides of zero, and ranges of zero only."""
    rng = np.random.default_rng(0)
    x = samples.without_subnormals((rng.normal(size=(2, count)) * 10 ** rng.uniform(-30, 30, count)).astype(np.float32))
    x[0, :9] = 0
    x[1, 5:20] = 0
    return x.min(0), x.max(0)


@one_in(3, "dtype", DTYPES)
def test_formula(dtype):
    low, high = ranges()
    for symmetric in (False, True):
        for narrow_range in (False, True):
            options = {"symmetric": symmetric, "narrow_range": narrow_range}
            actual = jquant.scale_and_zero_point(low, high, dtype, **options)
            expected = reference.scale_and_zero_point(low, high, jnp.dtype(dtype.lower()), **options)
            for actual_part, expected_part in zip(actual, expected, strict=True):
                np.testing.assert_array_equal(actual_part, expected_part, strict=True)


@pytest.mark.parametrize("dtype", ["INT8", "UINT8"])
def test_dynamic_quantize_linear(dtype):
    """It has the same scale and zero point for the same range, except the zero point of zeros."""
    for low, high in np.stack(ranges(50), 1):
        _, scale, zero_point = jquant.dynamic_quantize_linear(np.array([low, high]), output_dtype=dtype)
        actual = jquant.scale_and_zero_point(low, high, dtype)
        expected = (scale, 0) if low == high == 0 else (scale, zero_point)
        np.testing.assert_array_equal(actual, expected)


INFINITY, NAN = np.inf, np.nan
LARGEST, TINY = np.finfo(np.float32).max, np.finfo(np.float32).tiny


@pytest.mark.parametrize(
    ("low", "high", "symmetric", "scale", "zero_point"),
    [
        (0, 0, False, 1, 0),
        (0, 0, True, 1, 0),
        (5, 5, False, np.float32(5) / np.float32(255), -128),  # the range is widened to include 0
        (-5, -5, False, np.float32(5) / np.float32(255), 127),
        (-TINY, TINY, False, 1, 0),  # a subnormal scale
        (-TINY * 200, TINY, True, np.float32(TINY * 200) / np.float32(127.5), 0),
        (-LARGEST, LARGEST, False, INFINITY, -128),  # the width overflows float32
        (-LARGEST, LARGEST, True, np.float32(LARGEST) / np.float32(127.5), 0),
        (-INFINITY, 1, False, INFINITY, 0),
        (-1, INFINITY, False, INFINITY, -128),
        (-1, INFINITY, True, INFINITY, 0),
        (NAN, 1, False, NAN, 0),
        (-1, NAN, True, NAN, 0),
        (NAN, NAN, False, NAN, 0),
    ],
)
def test_edges(low, high, symmetric, scale, zero_point):
    actual = jquant.scale_and_zero_point(np.float32(low), np.float32(high), "INT8", symmetric=symmetric)
    np.testing.assert_array_equal(actual, (np.float32(scale), zero_point))


@pytest.mark.parametrize("dtype", DTYPES)
def test_zero_and_the_ends_are_expressed(dtype):
    """Zero exactly, and the ends to within half a step and the error of rounding the scale."""
    low, high = (bound[abs(bound) < 1e20] for bound in ranges())
    low, high = low[: high.size], high[: low.size]
    low, high = np.minimum(low, high), np.maximum(low, high)
    limits = jnp.iinfo(dtype.lower())
    for symmetric in (False, True):
        scale, zero_point = jquant.scale_and_zero_point(low, high, dtype, symmetric=symmetric)
        for bound, allowed in ((np.zeros_like(low), 0), (low, 0.5), (high, 0.5)):
            level = "EXTENDED"
            x = jquant.quantize_linear(bound, scale, zero_point, feature_level=level)
            steps = np.asarray(x, np.int64) - np.asarray(zero_point, np.int64)
            off = abs(bound.astype(np.float64) / np.asarray(scale) - steps)
            assert np.max(off, where=np.asarray(scale) != 1, initial=0) <= allowed + (limits.max - limits.min) * 2.0**-23


class TestTensorFlow:
    """Which of TensorFlow's modes have a zero point, an integer that stands for real 0."""

    LOW, HIGH = (np.random.default_rng(0).uniform(*side, 40).astype(np.float32) for side in ((-9, -1), (1, 9)))
    X = np.linspace(-10, 10, 2001, dtype=np.float32)

    def cases(self, mode, dtype):
        for low, high in [*zip(self.LOW, self.HIGH, strict=True), (np.float32(-6), np.float32(6))]:
            options = {} if mode == "MIN_FIRST" else {"mode": mode}
            yield low, high, jquant.quantize(self.X, low, high, dtype, mode=mode, ensure_minimum_range=0), options

    @pytest.mark.parametrize("dtype", ["qint8", "quint8"])
    def test_scaled_has_zero_point_0(self, dtype):
        different = count = 0
        for *_, (output, _, output_max), _ in self.cases("SCALED", dtype):
            largest = np.float32(np.iinfo(output.dtype).max)
            linear = jquant.quantize_linear(self.X, output_max / largest, output_dtype=output.dtype)
            differs = np.asarray(linear) != np.asarray(output)
            different += np.count_nonzero(off_ties(self.X, output_max / largest) & differs)
            count += linear.size
        assert different == 0 < count

    @pytest.mark.parametrize("dtype", ["qint8", "quint8"])
    def test_min_first_has_that_of_the_range(self, dtype):
        for low, high, (output, *_), _ in self.cases("MIN_FIRST", dtype):
            scale, zero_point = jquant.scale_and_zero_point(low, high, dtype)
            linear = jquant.quantize_linear(self.X, scale, zero_point)
            kept = off_ties(self.X, scale)
            if off_ties(low, scale):
                np.testing.assert_array_equal(np.asarray(linear)[kept], np.asarray(output)[kept])

    @pytest.mark.parametrize("dtype", ["qint8", "quint8"])
    def test_min_combined_has_none(self, dtype):
        """In these ranges, no integer stands for real 0, and no zero point gives the integers of the mode."""
        for low, high, (output, *_), _ in self.cases("MIN_COMBINED", dtype):
            limits = np.iinfo(output.dtype)
            integers = np.arange(limits.min, limits.max + 1).astype(output.dtype)
            assert np.all(np.asarray(jquant.dequantize(integers, low, high)) != 0)
            scale = jquant.scale_and_zero_point(low, high, dtype).scale
            linear = np.stack([jquant.quantize_linear(self.X, scale, zero_point) for zero_point in integers[126:129]])
            if (low, high) == (-6, 6):
                assert not np.any(np.all(linear == np.asarray(output), axis=1))

    def test_the_docstrings_example(self):
        assert jquant.quantize(0.0, -6, 6, "qint8").output == -1
        step = 12 / 255
        np.testing.assert_allclose(jquant.dequantize(np.int8([-1, 0]), -6, 6), [-step / 2, step / 2], rtol=1e-5)


def off_ties(x, scale):
    """Whether `x` is so far from ties that multiplying by the scale's reciprocal rounds like dividing by the scale."""
    steps = np.asarray(x, np.float64) / np.asarray(scale, np.float64)
    return abs(abs(steps - np.floor(steps)) - 0.5) > 1e-4


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0.0, 1.0, "INT32"), DescriptorTypeError, "dtype is INT32; it must be one of INT16, INT8, INT4, INT2, UINT16"),
        ((0.0, 1.0, "FLOAT32"), DescriptorTypeError, "dtype is FLOAT32; it must be one of"),
        ((np.float16(0), 1.0, "INT8"), DescriptorTypeError, "min has data type FLOAT16; it must be FLOAT32"),
        ((0.0, np.int32(1), "INT8"), DescriptorTypeError, "max has data type INT32; it must be FLOAT32"),
        (
            (0.0, np.ones(3, np.float32), "INT8"),
            DescriptorError,
            r"min has shape \(\), max has \(3,\); they must be the same",
        ),
        ((2.0, 1.0, "INT8"), DescriptorError, "max is 1.0, which is less than min, 2.0"),
    ],
)
def test_errors(arguments, error, message):
    with pytest.raises(error, match=f"scale_and_zero_point: {message}") as raised:
        jquant.scale_and_zero_point(*arguments)
    assert type(raised.value) is error
