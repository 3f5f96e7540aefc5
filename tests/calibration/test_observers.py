"""What all observers have in common: empty batches, the order of the batches, and equality of observers."""

import numpy as np
import pytest
from support.comparison import assert_equal
from support.histograms import observe, wide_counts
from support.observers import CHANNELS, OBSERVERS, activations, assert_bits, finite, with_special_values
from support.sampling import one_in

from jquant import calibration


@one_in(4, "name", OBSERVERS)
def test_no_numbers(name):
    """The range is [0, 0], as in onnxruntime, and a batch without a number changes nothing."""
    observer, x = OBSERVERS[name], activations()
    shape = (CHANNELS,) if "axis" in name else ()
    for bound in observer.compute_range(observer.init(x[0])):
        np.testing.assert_array_equal(bound, np.zeros(shape, np.float32), strict=True)
    state = observer.update(observer.init(x[0]), x[0])
    assert_equal(observer.update(state, np.full_like(x[0], np.nan)), state)
    assert_equal(observer.update(state, x[0][:0]), state)


@pytest.mark.parametrize("name", ["min_max", "min_max, axis", "percentile"])
def test_order_and_split_do_not_matter(name):
    """The bits of a state are the same, also with subnormal numbers, zeros of both signs, NaN and infinities."""
    observer, x = OBSERVERS[name], with_special_values(activations()).reshape(-1, CHANNELS)
    expected = observe(observer, [x])
    rng = np.random.default_rng(0)
    for parts in (4, 16):
        for _ in range(5):
            assert_bits(observe(observer, np.split(rng.permutation(x), parts)), expected)
    if name == "percentile":
        assert sum(wide_counts(expected)) == finite(x).size


def test_observers_of_equal_arguments_are_equal():
    for name, arguments in (("min_max", {"axis": 1}), ("percentile", {"num_bins": 64}), ("entropy", {})):
        constructor = getattr(calibration, name)
        assert constructor(**arguments) == constructor(**arguments)
        assert hash(constructor(**arguments)) == hash(constructor(**arguments))
    assert calibration.mean_squared_error("INT8") == calibration.mean_squared_error(np.int8)
    assert calibration.min_max() != calibration.min_max(axis=1)


def test_numbers_of_numpy():
    """NumPy's scalars are the same arguments as Python's numbers."""
    assert calibration.min_max(axis=np.int64(-1), axis_name=()) == calibration.min_max(axis=-1)
    assert calibration.moving_average(np.float32(0.5)) == calibration.moving_average(0.5)
    assert calibration.moving_average(np.int8(1)) == calibration.moving_average(1.0)
    observer = calibration.percentile(np.float64(90), symmetric=np.True_, num_bins=np.uint16(64))
    assert observer == calibration.percentile(90, symmetric=True, num_bins=64)
    observer = calibration.entropy(num_bins=np.int32(64), num_quantized_bins=np.int8(8))
    assert observer == calibration.entropy(num_bins=64, num_quantized_bins=8)
    observer = calibration.mean_squared_error("INT8", symmetric=np.True_, narrow_range=np.False_)
    assert observer == calibration.mean_squared_error("INT8", symmetric=True)
