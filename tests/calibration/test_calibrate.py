"""`calibration.calibrate`: the ranges that the observers find, one state for each activation; and wrong arguments."""

import sys
import types
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.comparison import assert_equal
from support.histograms import observe
from support.observers import BATCHES, BINS, CHANNELS, activations

from jquant import DescriptorError, DescriptorTypeError, calibration


class Activations(NamedTuple):
    image: jax.Array
    layers: list[jax.Array]


def test_network():
    """Activations in a tree, of float32 and float16."""
    weights = np.random.default_rng(1).normal(size=(CHANNELS, 3)).astype(np.float32)
    chex.clear_trace_counter()

    @chex.assert_max_traces(n=2)  # once for the shapes of the states, and once for the program
    def network(image):
        hidden = jax.nn.relu(image @ weights)
        return Activations(image, [hidden, hidden.astype(jnp.float16)])

    x = activations()
    outputs = [jax.jit(lambda image: jax.nn.relu(image @ weights))(batch) for batch in x]
    for observer in (calibration.min_max(), calibration.percentile(90, num_bins=BINS)):
        chex.clear_trace_counter()
        ranges = calibration.calibrate(observer, iter(x), network)
        expected = [observe(observer, list(x)), observe(observer, outputs)]
        expected.append(observe(observer, [output.astype(jnp.float16) for output in outputs]))
        first, *rest = map(observer.compute_range, expected)
        assert_equal(ranges, Activations(first, rest))


def test_batches_are_their_own_activations():
    """Batches are trees, the last of which may be smaller."""
    x = activations()
    batches = [{"a": batch, "b": (-batch,)} for batch in (*x[:2], x[2, :3])]
    ranges = calibration.calibrate(calibration.min_max(axis=1), batches)
    together = np.concatenate([x[0], x[1], x[2, :3]])
    assert_equal(ranges["a"], calibration.Range(together.min(0), together.max(0)))
    assert_equal(ranges["b"][0], calibration.Range(-together.max(0), -together.min(0)))


def test_progress(monkeypatch):
    bars = []

    def tqdm(batches, **options):
        bars.append(options)
        return batches

    monkeypatch.setitem(sys.modules, "tqdm", types.SimpleNamespace(tqdm=tqdm))
    expected = calibration.calibrate(calibration.min_max(), activations())
    assert_equal(calibration.calibrate(calibration.min_max(), activations(), progress=True), expected)
    assert_equal(calibration.calibrate(calibration.min_max(), iter(activations()), progress=True), expected)
    options = {"desc": "calibrating", "unit": "batch"}
    assert bars == [options | {"total": BATCHES}, options | {"total": BATCHES}]  # an iterator of an array knows its length
    assert_equal(calibration.calibrate(calibration.min_max(), (x for x in activations()), progress=True), expected)
    assert bars[2:] == [options | {"total": None}]
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(ImportError, match="progress=True needs tqdm: pip install tqdm"):
        calibration.calibrate(calibration.min_max(), activations(), progress=True)


def calibrate(batches, *activations):
    return calibration.calibrate(calibration.min_max(), batches, *activations)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: calibrate([]), DescriptorError, "calibrate: batches is empty"),
        (lambda: calibrate([None]), DescriptorError, "calibrate: batches contains None, which holds no arrays"),
        (lambda: calibrate([{"a": []}]), DescriptorError, "calibrate: batches contains {'a': ..}, which holds no arrays"),
        (
            lambda: calibrate(["text"]),
            DescriptorTypeError,
            "whose batch is .text.; it must be an array",
        ),
        (
            lambda: calibrate([np.ones(3, np.float32), {"a": ["text"]}]),
            DescriptorTypeError,
            r"calibrate: batches contains a batch whose batch\['a'\]\[0\] is 'text'; it must be an array",
        ),
        (lambda: calibrate([np.ma.masked_array(np.ones(3))]), DescriptorTypeError, "whose batch is masked_array"),
        (
            lambda: calibrate([jax.ShapeDtypeStruct((3,), np.float32)]),
            DescriptorTypeError,
            "batch is ShapeDtypeStruct",
        ),
        (
            lambda: calibrate([np.ones(3, np.int32)]),
            DescriptorTypeError,
            r"calibrate: activations\(batch\) has data type INT32; it must be one of FLOAT32, FLOAT16, BFLOAT16",
        ),
        (
            lambda: calibrate([np.ones(3, np.float32)], lambda x: {"a": [x, x > 0]}),
            DescriptorTypeError,
            r"calibrate: activations\(batch\)\['a'\]\[1\] has data type BOOL; it must be one of FLOAT32",
        ),
        (
            lambda: calibrate([np.ones(3, np.float32)], lambda x: [x, "text"]),
            DescriptorTypeError,
            r"calibrate: activations\(batch\)\[1\] must be an array or a Python int or float, not str",
        ),
        (
            lambda: calibrate([np.ones(3, np.float32)], lambda x: None),
            DescriptorError,
            r"calibrate: activations\(batch\) is a PyTreeDef\(None\), which holds no arrays",
        ),
        (
            lambda: calibrate([{"a": np.ones(3, np.float32)}, {"b": np.ones(3, np.float32)}]),
            DescriptorError,
            r"calibrate: activations\(batch\) has structure PyTreeDef\({'b': \*}\); for the first batch it was .*'a'",
        ),
    ],
)
def test_wrong_value(call, error, message):
    with pytest.raises(error, match=message) as raised:
        call()
    assert type(raised.value) is error


class Unhashable:
    """A function of a batch that cannot be a static argument of `jax.jit`."""

    __hash__ = None

    def __call__(self, x):
        return x


X = np.ones((2, CHANNELS), np.float32)
# For each argument: a function of it, a valid value, and values of other types.
ARGUMENTS = {
    "observer": (
        lambda value: calibration.calibrate(value, [X]),
        calibration.min_max(),
        (None, "min_max", calibration.min_max, calibration.Range(0, 1)),
    ),
    "batches": (calibrate, [X], (None, 3, np.float32(3), jnp.float32(3), lambda: [X])),
    "activations": (lambda value: calibrate([X], value), abs, (None, 3, "text", Unhashable())),
    "progress": (
        lambda value: calibration.calibrate(calibration.min_max(), [X], progress=value),
        False,
        ("no", 1, 0.0, None, np.array(True)),
    ),
}


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_wrong_type(argument):
    function, valid, invalid = ARGUMENTS[argument]
    function(valid)
    for value in invalid:
        with pytest.raises(DescriptorTypeError, match=f"^calibrate: {argument} is "):
            function(value)
