"""The observers of extreme values, `min_max` and `moving_average`, against NumPy."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from support.comparison import assert_equal
from support.histograms import observe
from support.observers import CHANNELS, OBSERVERS, PERCENTILE, activations, assert_bits, finite, with_special_values

from jquant import calibration


def test_min_max():
    x = with_special_values(activations())
    for observer, axis in ((OBSERVERS["min_max"], None), (OBSERVERS["min_max, axis"], 1)):
        actual = observer.compute_range(observe(observer, x))
        values = np.where(np.isfinite(x), x, np.nan).reshape(-1, CHANNELS)
        dimensions = None if axis is None else 0
        assert_equal(actual, calibration.Range(np.nanmin(values, dimensions), np.nanmax(values, dimensions)))


def test_axis_from_the_end():
    x = activations()
    for constructor in (calibration.min_max, calibration.moving_average):
        for axis in (0, 1):
            expected = observe(constructor(axis=axis), x)
            assert_bits(observe(constructor(axis=axis - 2), x), expected)
    observer = calibration.min_max(axis=-1)  # for batches of any rank
    assert_bits(observe(observer, [x]), observe(observer, x))


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16])
def test_16_bits(dtype):
    x = activations()[3].astype(dtype)
    for observer in (OBSERVERS["min_max"], PERCENTILE):
        assert_equal(observe(observer, [x]), observe(observer, [x.astype(np.float32)]))


def test_zeros_have_an_order():
    """The maximum of two zeros, as floats, would depend on which comes first; that of subnormal numbers, on the platform."""
    observer = OBSERVERS["min_max"]
    x = np.float32([0, -0.0, 1e-40, -1e-40])
    for values in itertools.permutations(x, 2):
        state = observe(observer, [np.float32(values)])
        low, high = sorted(values, key=lambda value: (value, not np.signbit(value)))
        assert_bits(state, (np.float32(low), np.float32(high)))
        assert_bits(observe(observer, [np.float32([value]) for value in values]), state)


@pytest.mark.suite
def test_moving_average():
    constant, x = np.float32(0.1), with_special_values(activations())
    x[1] = np.nan  # ignored
    low, high = None, None
    for batch in x:
        values = finite(batch)
        if low is None:
            low, high = values.min(), values.max()
        elif values.size:
            low, high = low + constant * (values.min() - low), high + constant * (values.max() - high)
    observer = OBSERVERS["moving_average"]
    assert_equal(observer.compute_range(observe(observer, x)), calibration.Range(low, high))
    zeros = np.float32([-0.0, -0.0])
    assert_bits(observe(observer, [zeros]), calibration.Range(*zeros))  # the first batch sets the range
