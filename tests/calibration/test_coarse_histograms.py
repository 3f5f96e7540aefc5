"""Observers warn if one number is so large that the bins of a histogram are too wide, and not for ordinary numbers."""

import fractions
import itertools
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.comparison import assert_equal
from support.histograms import histogram
from support.sampling import one_in

from jquant import calibration, transform

COUNT = 20_000
OBSERVERS: dict[str, Callable[[], calibration.Observer]] = {
    "percentile": calibration.percentile,
    "percentile(99.99)": lambda: calibration.percentile(99.99),
    "percentile(99)": lambda: calibration.percentile(99),
    "percentile(50)": lambda: calibration.percentile(50),
    "percentile(99.9), symmetric": lambda: calibration.percentile(99.9, symmetric=True),
    "entropy": calibration.entropy,
    "mean_squared_error, UINT8": lambda: calibration.mean_squared_error("UINT8"),
    "mean_squared_error, INT16": lambda: calibration.mean_squared_error("INT16"),
    "mean_squared_error, INT4, symmetric": lambda: calibration.mean_squared_error("INT4", symmetric=True),
    "mean_squared_error, INT2": lambda: calibration.mean_squared_error("INT2"),
}


def ordinary_numbers() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    normal = rng.normal(size=COUNT)
    many = {
        "normal": normal,
        "far from 0": 1000 + normal,
        "uniform": rng.uniform(size=COUNT),
        "relu": np.maximum(normal, 0),
        "gelu": np.asarray(jax.nn.gelu(normal.astype(np.float32))),
        "laplace": rng.laplace(size=COUNT),
        "t distribution": rng.standard_t(3, size=COUNT),
        "lognormal": np.exp(normal) - 0.5,
        "all 0": np.zeros(COUNT),
        "all 1": np.ones(COUNT),
        "all -0.3": np.full(COUNT, -0.3),
        "0 and 0.3": 0.3 * rng.integers(0, 2, COUNT),
        "subnormal": np.full(10, 1e-40),
        "none": np.zeros(0),
    }
    few = {f"{count} of {name}": many[name][:count] for name in ("normal", "relu") for count in (1, 2, 3, 10, 100)}
    return {name: padded(x.astype(np.float32)) for name, x in {**many, **few}.items()}


def padded(x: np.ndarray) -> np.ndarray:
    """`x` and NaN, which observers ignore: all arrays have the same shape, for which one program is compiled."""
    return np.append(x, np.full(COUNT - x.size, np.nan, np.float32))


def compute_range(observer: calibration.Observer, x: np.ndarray) -> calibration.Range:
    return observer.compute_range(observer.update(observer.init(), x))


@one_in(9, "name", OBSERVERS, first=1)
def test_no_false_alarm(name):
    """Warnings are errors in these tests."""
    for x in ordinary_numbers().values():
        compute_range(OBSERVERS[name](), x)


NORMAL = np.random.default_rng(0).normal(size=COUNT).astype(np.float32)
OUTLIERS = {"huge": 1e9, "huge, negative": -1e9, "large": 1000, "large, negative": -1000}
PERCENTILES = "99.9", "99", "90"


@one_in(13, ("outlier", "percentile", "symmetric"), itertools.product(OUTLIERS, PERCENTILES, [False, True]))
def test_percentile(outlier, percentile, symmetric):
    """The warning says how much may be cut off, and how much should be, or how far the lower end may be too low."""
    x = np.append(NORMAL, np.float32(OUTLIERS[outlier]))
    observer = calibration.percentile(float(percentile), symmetric=symmetric)
    with pytest.warns(UserWarning, match=r"^percentile: the bins are \S+ wide, because the numbers go from .*: ") as record:
        low, high = map(float, compute_range(observer, x))
    (warning,) = record
    assert warning.filename == __file__
    to_cut = (1 - fractions.Fraction(percentile) / 100) / (1 if symmetric else 2)
    outside = np.mean(abs(x) >= max(high, -low)) if symmetric else np.mean(x >= high)
    if high == 0 and symmetric:
        outside = 1
    end = "both ends" if symmetric else "its upper end"
    cut = f"cuts off up to {100 * outside:.3g} % of the numbers at {end}, where {float(100 * to_cut):.3g} % were to be; "
    too_low = "its lower end is up to 1.049e+06 too low, half of the range or more; "
    remedy = "take more bins (num_bins is 2048), or leave the largest"
    assert (too_low if low < -1000 else cut + remedy) in str(warning.message)


def test_twice_the_share():
    """`percentile` cuts a range off at 1, where it should cut 5 %. There is a warning if it may have cut more than 10 %."""
    observer = calibration.percentile(90, num_bins=8)
    for count, warns in ((50, False), (51, True)):
        state = histogram([0] * 4 + [950 - count, count, 0, 50], 0.0, 3.5)
        with warnings.catch_warnings(record=True) as record:
            warnings.simplefilter("always")
            assert_equal(observer.compute_range(state), calibration.Range(np.float32(0), np.float32(1)))
        assert bool(record) == warns


@one_in(7, "outlier", OUTLIERS)
def test_entropy(outlier):
    x = np.append(NORMAL, np.float32(OUTLIERS[outlier]))
    text = r"^entropy: .*: the numbers that it holds lie between \S+ and \S+, less than half of it; take more bins"
    with pytest.warns(UserWarning, match=text):
        low, high = compute_range(calibration.entropy(), x)
    inside = x[(low <= x) & (x <= high)]
    assert high - low > 2 * (inside.max() - inside.min())


def test_mean_squared_error():
    """There are so many small numbers, in only 8 bins, that the outlier is cut off."""
    counts = [0] * 2048
    counts[1020:1028] = [2**40 // 8] * 8
    counts[2000] = 1
    observer = calibration.mean_squared_error("INT4")
    text = r"^mean_squared_error: the bins are 1 wide, .*: a bin is wider than a step of int4, so that the error of"
    with pytest.warns(UserWarning, match=text):
        low, high = observer.compute_range(histogram(counts, -4, 976.5))
    assert high - low < 16


@pytest.mark.gate
def test_largest_number_of_bins():
    """The warning does not advise more bins than there can be."""
    x = np.append(NORMAL, np.float32(1e9))
    with pytest.warns(UserWarning, match=r" were to be; leave the largest numbers out of the batches$"):
        compute_range(calibration.percentile(99.9, num_bins=65_536), x)


@pytest.mark.gate
def test_more_bins_are_enough():
    x = np.append(NORMAL, np.float32(1000))
    low, high = compute_range(calibration.percentile(99.9, num_bins=65_536), x)
    np.testing.assert_allclose([low, high], np.quantile(NORMAL, [0.0005, 0.9995]), atol=0.04)


def test_no_warning_if_traced():
    """Under `jax.jit` and `jax.vmap`, an observer does not warn, and finds the same range."""
    x = np.append(NORMAL, np.float32(1000))
    observer = calibration.percentile(99.9)
    state = observer.update(observer.init(), x)
    with pytest.warns(UserWarning, match="too coarse"):
        expected = observer.compute_range(state)
    assert_equal(jax.jit(observer.compute_range)(state), expected)
    several = jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), state)
    assert_equal(jax.vmap(observer.compute_range)(several), jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), expected))


def test_calibrate_names_the_activation():
    batches = [{"clean": NORMAL, "spoilt": (np.append(NORMAL, np.float32(1e9)),)}]
    with pytest.warns(UserWarning, match="too coarse") as record:
        calibration.calibrate(calibration.percentile(99.9), batches)
    (warning,) = record
    assert str(warning.message).startswith("calibrate: activations(batch)['spoilt'][0]: percentile: the bins are 1.049e+06 ")
    assert warning.filename == __file__


@pytest.mark.gate
def test_transform_calibrate_names_the_site_and_the_layer():
    def apply(params, x):
        def layer(x, weights):
            return (x @ weights["kernel"]) * weights["gain"], None

        return jax.lax.scan(layer, x, params)[0]

    kernel = jnp.stack([jnp.eye(16)] * 3)
    params = {"kernel": kernel, "gain": jnp.ones((3, 1, 16)).at[1, 0, 3].set(1e6)}  # so that layer 2 sees large numbers
    x = NORMAL[:16_000].reshape(1000, 16).copy()
    x[:, 3] = 0
    x[0, 3] = 1
    recipe = transform.Recipe([("*", transform.Scheme(activations="STATIC", observer=("percentile", 99.9)))])
    with pytest.warns(UserWarning, match="too coarse") as record:
        ranges = transform.calibrate(apply, params, [x], recipe)
    (warning,) = record
    assert str(warning.message).startswith("transform.calibrate: kernel[2]: percentile: the bins are ")
    assert warning.filename == __file__
    assert [bound.shape for bound in ranges["kernel"]] == [(3,), (3,)]
