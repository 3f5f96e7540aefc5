"""The observers against onnxruntime's calibrators, and the scale and the zero point against those of its quantizer."""

import importlib
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.histograms import all_edges, close_to_least, divergences, observed

import jquant
from jquant import calibration
from jquant.cases import samples

from .graph import onnx

calibrate = importlib.import_module("onnxruntime.quantization.calibrate")
quant_utils = importlib.import_module("onnxruntime.quantization.quant_utils")

BINS, BATCHES, COUNT = 512, 4, 2003
KINDS = {
    "normal": lambda rng, size: rng.normal(size=size),
    "heavy tails": lambda rng, size: rng.standard_t(3, size),
    "rectified": lambda rng, size: np.maximum(rng.standard_t(3, size), 0),
    "lopsided": lambda rng, size: rng.lognormal(size=size) - 0.5,
}


def batches(kind: str, *shape: int) -> np.ndarray:
    return KINDS[kind](np.random.default_rng(0), (BATCHES, *shape)).astype(np.float32)


class Reader(calibrate.CalibrationDataReader):
    def __init__(self, batches):
        self.batches = iter(batches)

    def get_next(self):
        batch = next(self.batches, None)
        return None if batch is None else {"x": batch}


def extremes(folder, x, **options) -> tuple[np.ndarray, np.ndarray]:
    """What their calibrator finds of the input of a model, given a batch at a time; of channels it can take no second."""
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    values = [helper.make_tensor_value_info(name, float32, x.shape[1:]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "graph", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, folder / "model.onnx")
    calibrator = calibrate.MinMaxCalibrater(
        folder / "model.onnx", augmented_model_path=str(folder / "augmented.onnx"), **options
    )
    calibrator.augment_graph()
    calibrator.create_inference_session()
    for part in [x] if "per_channel" in options else x[:, None]:
        calibrator.collect_data(Reader(part))
    return calibrator.compute_data().data["x"].range_value


@pytest.mark.parametrize("kind", KINDS)
def test_min_max(kind, tmp_path):
    x = batches(kind, 20, 5)
    for observer, options in (
        (calibration.min_max(), {}),
        (calibration.min_max(axis=1), {"per_channel": True}),
        (calibration.moving_average(0.1), {"moving_average": True, "averaging_constant": 0.1}),
    ):
        ours, theirs = observer.compute_range(observed(observer, x)), extremes(tmp_path, x, **options)
        np.testing.assert_array_equal(np.stack(ours).squeeze(), np.stack(theirs).squeeze())


def collector(method: str, **options):
    given = {"symmetric": False, "num_bins": BINS, "num_quantized_bins": 64, "percentile": 99.9, "scenario": "same"}
    return calibrate.HistogramCollector(method, **given | options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("percentile", [99.9, 90])
def test_percentile_of_one_histogram(percentile, kind):
    """Equal, where no share is met exactly: their sum of shares, in float64, may then lie below it."""
    observer, theirs = calibration.percentile(percentile, num_bins=BINS), collector("percentile", percentile=percentile)
    state = observed(observer, batches(kind, COUNT))
    np.testing.assert_array_equal(observer.compute_range(state), of_histogram(theirs, state))


def of_histogram(collector, state) -> tuple[np.ndarray, np.ndarray]:
    """What they make of our histogram."""
    at = all_edges(state)
    collector.histogram_dict = {"x": (np.asarray(state.counts[0], np.int64), at, *map(np.asarray, state.range), at[-1])}
    return collector.compute_collection_result()["x"][:2]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("quantized", [64, 128])
def test_entropy_of_one_histogram(quantized, kind):
    """Equal, but where float32, in which both compute, cannot tell the least divergences apart: there, both are of those."""
    observer = calibration.entropy(num_bins=BINS, num_quantized_bins=quantized)
    state = observed(observer, batches(kind, COUNT))
    least = close_to_least(divergences(state, quantized))
    for bounds in (observer.compute_range(state), of_histogram(collector("entropy", num_quantized_bins=quantized), state)):
        assert tuple(bounds) in map(tuple, least)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("percentile", [99.9, 95])
def test_percentile_of_one_data_set(percentile, symmetric, kind):
    """Both give the lower edge of the bin that the percentile lies in: they are less than the wider of the bins apart."""
    x = batches(kind, COUNT)
    observer = calibration.percentile(percentile, symmetric=symmetric, num_bins=BINS)
    state = observed(observer, x)
    theirs = collector("percentile", percentile=percentile, symmetric=symmetric)
    for batch in x:
        theirs.collect({"x": batch})
    at = theirs.histogram_dict["x"][1]
    width = max(at[1] - at[0], all_edges(state)[BINS // 2 + 1])
    for ours, bound in zip(observer.compute_range(state), theirs.compute_collection_result()["x"][:2], strict=True):
        assert abs(ours - bound) < width * (1 + 1e-6)  # the rounding of their edges


@pytest.mark.parametrize("kind", KINDS)
def test_entropy_of_one_data_set(kind):
    """The largest magnitude lies below a power of two by 1 ulp: their bins are ours but for that, and so are the ranges."""
    x = batches(kind, COUNT).clip(-8, 8)
    x[0, 0] = np.nextafter(np.float32(8), np.float32(0))
    x = x.clip(-x[0, 0], x[0, 0])
    observer, theirs = calibration.entropy(num_bins=BINS, num_quantized_bins=64), collector("entropy")
    state = observed(observer, x)
    for batch in x:
        theirs.collect({"x": batch})
    np.testing.assert_array_equal(theirs.histogram_dict["x"][0], state.counts[0])
    bounds = theirs.compute_collection_result()["x"][:2]
    least = close_to_least(divergences(state, 64))
    assert any(np.allclose(bounds, each, rtol=2.0**-22, atol=0) for each in least)
    assert tuple(observer.compute_range(state)) in map(tuple, least)


def scales_and_zero_points(low, high, dtype, **options):
    limits, symmetric = jnp.iinfo(dtype), options["symmetric"]
    bounds = [np.array(bound, dtype) for bound in (limits.min + options["narrow_range"], limits.max)]
    both = [quant_utils.compute_scale_zp(*pair, *bounds, symmetric) for pair in zip(low, high, strict=True)]
    return np.array([scale for _, scale in both]), np.array([zero_point for zero_point, _ in both], np.int64)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int4", "uint4"])
def test_scale_and_zero_point(dtype):
    """Equal where there is one rounding: symmetric, or on one side of 0. Else they divide in float64, and round last."""
    dtype, limits, count = jnp.dtype(dtype), jnp.iinfo(dtype), 2000
    rng = np.random.default_rng(0)
    ends = (rng.normal(size=(2, count)) * 10 ** rng.uniform(-20, 20, count)).astype(np.float32)
    ends[0, :5] = 0
    ends[1, :2] = 0
    low, high = ends.min(0), ends.max(0)
    for symmetric, narrow_range in itertools.product((False, True), (False, True)):
        if narrow_range and limits.min == 0:
            continue  # of an unsigned type, they want the 0
        options = {"symmetric": symmetric, "narrow_range": narrow_range}
        ours = jquant.scale_and_zero_point(low, high, dtype, **options)
        scale, zero_point = np.asarray(ours.scale), np.asarray(ours.zero_point).astype(np.int64)
        their_scale, their_zero_point = scales_and_zero_points(low, high, dtype, **options)
        once = options["symmetric"] | (low >= 0) | (high <= 0)
        np.testing.assert_array_equal(scale[once], their_scale[once])
        assert np.all(abs(scale - their_scale) <= np.spacing(their_scale))
        assert options["symmetric"] or np.any(scale != their_scale)
        # Of two quotients that differ by three roundings, next to a tie, one may lie on each side of it.
        differ = zero_point != their_zero_point
        steps = int(limits.max) - int(limits.min)
        exact = low / np.maximum((high.astype(np.float64) - low) / (steps - options["narrow_range"]), 1e-300)
        tie = abs(abs(exact - np.floor(exact)) - 0.5)
        assert not np.any(differ & (once | (tie > steps * 2.0**-22)))
        assert np.all(abs(zero_point - their_zero_point) <= 1)


def test_ranges_of_models():
    """The two that their quantizer asks for: int8 weights, symmetric and narrow, and uint8 activations."""
    for dtype, symmetric in (("INT8", True), ("UINT8", False)):
        limits = quant_utils.get_qmin_qmax_for_qType(getattr(onnx.TensorProto, dtype), symmetric=symmetric)
        for low, high in samples.wide_floats(np.random.default_rng(0), 200)[:150].reshape(-1, 2):
            low, high = min(low, 0), max(high, 0)
            zero_point, scale = quant_utils.compute_scale_zp(np.float32(low), np.float32(high), *limits, symmetric)
            ours = jquant.scale_and_zero_point(
                np.float32(low), np.float32(high), dtype, symmetric=symmetric, narrow_range=symmetric
            )
            np.testing.assert_array_equal(jax.device_get(ours.zero_point), zero_point)
            np.testing.assert_allclose(ours.scale, scale, rtol=2.0**-23)
