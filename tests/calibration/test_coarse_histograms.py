"""Observers warn where one number is so large that the bins of a histogram are too wide, and on nothing ordinary."""

import fractions
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.comparison import assert_equal
from support.histograms import of_counts
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


def numbers() -> dict[str, np.ndarray]:
    """Ordinary ones."""
    rng = np.random.default_rng(0)
    normal = rng.normal(size=COUNT)
    drawn = {
        "normal": normal,
        "far from 0": 1000 + normal,
        "uniform": rng.uniform(size=COUNT),
        "relu": np.maximum(normal, 0),
        "gelu": np.asarray(jax.nn.gelu(normal.astype(np.float32))),
        "laplace": rng.laplace(size=COUNT),
        "of a t distribution": rng.standard_t(3, size=COUNT),
        "lognormal": np.exp(normal) - 0.5,
        "all 0": np.zeros(COUNT),
        "all 1": np.ones(COUNT),
        "all -0.3": np.full(COUNT, -0.3),
        "0 and 0.3": 0.3 * rng.integers(0, 2, COUNT),
        "subnormal": np.full(10, 1e-40),
        "none": np.zeros(0),
    }
    few = {f"{count} of {name}": drawn[name][:count] for name in ("normal", "relu") for count in (1, 2, 3, 10, 100)}
    return {name: of_one_shape(x.astype(np.float32)) for name, x in {**drawn, **few}.items()}


def of_one_shape(x: np.ndarray) -> np.ndarray:
    """With NaN, which no observer counts: another shape would be another program."""
    return np.append(x, np.full(COUNT - x.size, np.nan, np.float32))


def ranges(observer: calibration.Observer, x: np.ndarray) -> calibration.Range:
    return observer.compute_range(observer.update(observer.init(), x))


@one_in(5, "name", OBSERVERS, first=1)
def test_no_false_alarm(name):
    """Warnings are errors here."""
    for x in numbers().values():
        ranges(OBSERVERS[name](), x)


NORMAL = np.random.default_rng(0).normal(size=COUNT).astype(np.float32)
OUTLIERS = {"huge": 1e9, "huge, negative": -1e9, "large": 1000, "large, negative": -1000}
PERCENTILES = [(given, symmetric) for given in ("99.9", "99", "90") for symmetric in (False, True)]


@one_in(7, ("outlier", "given", "symmetric"), [(name, *each) for name in OUTLIERS for each in PERCENTILES])
def test_percentile(outlier, given, symmetric):
    """Exactly where more than twice the share is beyond the edge, or the lower end is half the range away from its bin's."""
    x = np.append(NORMAL, np.float32(OUTLIERS[outlier]))
    observer = calibration.percentile(float(given), symmetric=symmetric)
    with pytest.warns(UserWarning, match=r"^percentile: the bins are \S+ wide, because the numbers go from .*: ") as found:
        low, high = map(float, ranges(observer, x))
    (text,) = (str(each.message) for each in found)
    assert found[0].filename == __file__
    to_cut = (1 - fractions.Fraction(given) / 100) / (1 if symmetric else 2)
    beyond = np.mean(abs(x) >= max(high, -low)) if symmetric else np.mean(x >= high)
    if high == 0 and symmetric:
        beyond = 1
    shown = f"cuts off up to {100 * beyond:.3g} % of the numbers at {'both ends' if symmetric else 'its upper end'}, where "
    too_low = "its lower end is up to 1.049e+06 too low, half of the range or more; "
    share = f"{float(100 * to_cut):.3g} % were to be; take more bins (num_bins is 2048), or leave the largest"
    assert (too_low if low < -1000 else shown + share) in text


def test_the_bound_of_the_share():
    """A range from 0 to 1, where 5 % were to be cut off at its end, and 10 % may be, or more."""
    observer = calibration.percentile(90, num_bins=8)
    for beyond, warns in ((50, False), (51, True)):
        state = of_counts([0] * 4 + [950 - beyond, beyond, 0, 50], 0.0, 3.5)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            assert_equal(observer.compute_range(state), calibration.Range(np.float32(0), np.float32(1)))
        assert bool(found) == warns


@one_in(4, "outlier", OUTLIERS)
def test_entropy(outlier):
    x = np.append(NORMAL, np.float32(OUTLIERS[outlier]))
    text = r"^entropy: .*: the numbers that it holds lie between \S+ and \S+, less than half of it; take more bins"
    with pytest.warns(UserWarning, match=text):
        low, high = ranges(calibration.entropy(), x)
    inside = x[(low <= x) & (x <= high)]
    assert high - low > 2 * (inside.max() - inside.min())


def test_mean_squared_error():
    """So many small numbers that the outlier is cut off, in 8 bins."""
    counts = [0] * 2048
    counts[1020:1028] = [2**40 // 8] * 8
    counts[2000] = 1
    observer = calibration.mean_squared_error("INT4")
    text = r"^mean_squared_error: the bins are 1 wide, .*: a bin is wider than a step of int4, so that the error of"
    with pytest.warns(UserWarning, match=text):
        low, high = observer.compute_range(of_counts(counts, -4, 976.5))
    assert high - low < 16


@pytest.mark.gate
def test_the_most_bins():
    """There are no more to take."""
    x = np.append(NORMAL, np.float32(1e9))
    with pytest.warns(UserWarning, match=r" were to be; leave the largest numbers out of the batches$"):
        ranges(calibration.percentile(99.9, num_bins=65_536), x)


@pytest.mark.gate
def test_more_bins_are_enough():
    x = np.append(NORMAL, np.float32(1000))
    low, high = ranges(calibration.percentile(99.9, num_bins=65_536), x)
    np.testing.assert_allclose([low, high], np.quantile(NORMAL, [0.0005, 0.9995]), atol=0.04)


def test_where_no_warning_is_possible():
    """Traced, for example by `jax.vmap`, an observer says nothing, and finds the same range."""
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
    with pytest.warns(UserWarning, match="too coarse") as found:
        calibration.calibrate(calibration.percentile(99.9), batches)
    (warning,) = found
    assert str(warning.message).startswith("calibrate: activations(batch)['spoilt'][0]: percentile: the bins are 1.049e+06 ")
    assert warning.filename == __file__


def test_the_transforms_calibrate_names_the_site_and_the_layer():
    def apply(params, x):
        def layer(x, weights):
            return (x @ weights["kernel"]) * weights["gain"], None

        return jax.lax.scan(layer, x, params)[0]

    kernel = jnp.stack([jnp.eye(16)] * 3)
    params = {"kernel": kernel, "gain": jnp.ones((3, 1, 16)).at[1, 0, 3].set(1e6)}  # so that layer 2 sees large numbers
    x = NORMAL[:16_000].reshape(1000, 16).copy()
    x[:, 3] = 0
    x[0, 3] = 1
    recipe = transform.Recipe([("*", transform.Scheme(observer=("percentile", 99.9)))])
    with pytest.warns(UserWarning, match="too coarse") as found:
        ranges = transform.calibrate(apply, params, [x], recipe)
    (warning,) = found
    assert str(warning.message).startswith("transform.calibrate: kernel[2]: percentile: the bins are ")
    assert warning.filename == __file__
    assert [bound.shape for bound in ranges["kernel"]] == [(3,), (3,)]
