"""The observers against onnxruntime's calibrators, and `scale_and_zero_point` against its quantizer."""

import importlib
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.histograms import best_ranges, bin_edges, candidates, observe

import jquant
from jquant import calibration
from jquant.cases import samples

from .graph import onnx

calibrate = importlib.import_module("onnxruntime.quantization.calibrate")
quant_utils = importlib.import_module("onnxruntime.quantization.quant_utils")

BINS, BATCHES, COUNT = 512, 4, 2003
DISTRIBUTIONS = {
    "normal": lambda rng, size: rng.normal(size=size),
    "heavy tails": lambda rng, size: rng.standard_t(3, size),
    "rectified": lambda rng, size: np.maximum(rng.standard_t(3, size), 0),
    "lopsided": lambda rng, size: rng.lognormal(size=size) - 0.5,
}


def batches(distribution: str, *shape: int) -> np.ndarray:
    return DISTRIBUTIONS[distribution](np.random.default_rng(0), (BATCHES, *shape)).astype(np.float32)


class Reader(calibrate.CalibrationDataReader):
    def __init__(self, batches):
        self.batches = iter(batches)

    def get_next(self):
        batch = next(self.batches, None)
        return None if batch is None else {"x": batch}


def extremes(folder, x, **options) -> tuple[np.ndarray, np.ndarray]:
    """The range that onnxruntime's calibrator finds for the input of a model.

    It collects the batches one after the other. Per channel, it can collect only once: all batches together.
    """
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
    for collected in [x] if "per_channel" in options else x[:, None]:
        calibrator.collect_data(Reader(collected))
    return calibrator.compute_data().data["x"].range_value


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_min_max(distribution, tmp_path):
    x = batches(distribution, 20, 5)
    for observer, options in (
        (calibration.min_max(), {}),
        (calibration.min_max(axis=1), {"per_channel": True}),
        (calibration.moving_average(0.1), {"moving_average": True, "averaging_constant": 0.1}),
    ):
        ours, theirs = observer.compute_range(observe(observer, x)), extremes(tmp_path, x, **options)
        np.testing.assert_array_equal(np.stack(ours).squeeze(), np.stack(theirs).squeeze())


def collector(method: str, **options):
    defaults = {"symmetric": False, "num_bins": BINS, "num_quantized_bins": 64, "percentile": 99.9, "scenario": "same"}
    return calibrate.HistogramCollector(method, **defaults | options)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("percentile", [99.9, 90])
def test_percentile_of_one_histogram(percentile, distribution):
    """Equal, because no share is met exactly: onnxruntime's sum of shares, in float64, might then lie below the share."""
    observer, theirs = calibration.percentile(percentile, num_bins=BINS), collector("percentile", percentile=percentile)
    state = observe(observer, batches(distribution, COUNT))
    np.testing.assert_array_equal(observer.compute_range(state), range_of_histogram(theirs, state))


def range_of_histogram(collector, state) -> tuple[np.ndarray, np.ndarray]:
    """The range that onnxruntime computes from a histogram of jquant."""
    counts, edges = np.asarray(state.counts[0], np.int64), bin_edges(state)
    collector.histogram_dict = {"x": (counts, edges, *map(np.asarray, state.range), edges[-1])}
    return collector.compute_collection_result()["x"][:2]


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("quantized", [64, 128])
def test_entropy_of_one_histogram(quantized, distribution):
    """Both are among the ranges whose divergence is the smallest in float32, in which both compute."""
    observer = calibration.entropy(num_bins=BINS, num_quantized_bins=quantized)
    state = observe(observer, batches(distribution, COUNT))
    best = best_ranges(candidates(state, quantized))
    assert tuple(observer.compute_range(state)) in best
    assert tuple(range_of_histogram(collector("entropy", num_quantized_bins=quantized), state)) in best


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("percentile", [99.9, 95])
def test_percentile_of_one_data_set(percentile, symmetric, distribution):
    """Both return the lower edge of the bin that holds the percentile, so they differ by less than the wider bin."""
    x = batches(distribution, COUNT)
    observer = calibration.percentile(percentile, symmetric=symmetric, num_bins=BINS)
    state = observe(observer, x)
    theirs = collector("percentile", percentile=percentile, symmetric=symmetric)
    for batch in x:
        theirs.collect({"x": batch})
    edges = theirs.histogram_dict["x"][1]
    width = max(edges[1] - edges[0], bin_edges(state)[BINS // 2 + 1])
    for ours, bound in zip(observer.compute_range(state), theirs.compute_collection_result()["x"][:2], strict=True):
        assert abs(ours - bound) < width * (1 + 1e-6)  # onnxruntime rounds its edges


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_entropy_of_one_data_set(distribution):
    """The largest magnitude is 1 ulp below a power of two, so that the bins, and thus the ranges, differ by as little."""
    x = batches(distribution, COUNT).clip(-8, 8)
    x[0, 0] = np.nextafter(np.float32(8), np.float32(0))
    x = x.clip(-x[0, 0], x[0, 0])
    observer, theirs = calibration.entropy(num_bins=BINS, num_quantized_bins=64), collector("entropy")
    state = observe(observer, x)
    for batch in x:
        theirs.collect({"x": batch})
    np.testing.assert_array_equal(theirs.histogram_dict["x"][0], state.counts[0])
    bounds = theirs.compute_collection_result()["x"][:2]
    best = best_ranges(candidates(state, 64))
    assert any(np.allclose(bounds, each, rtol=2.0**-22, atol=0) for each in best)
    assert tuple(observer.compute_range(state)) in best


def scales_and_zero_points(low, high, dtype, **options):
    """Those of onnxruntime."""
    limits, symmetric = jnp.iinfo(dtype), options["symmetric"]
    bounds = [np.array(bound, dtype) for bound in (limits.min + options["narrow_range"], limits.max)]
    both = [quant_utils.compute_scale_zp(*pair, *bounds, symmetric) for pair in zip(low, high, strict=True)]
    return np.array([scale for _, scale in both]), np.array([zero_point for zero_point, _ in both], np.int64)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int4", "uint4"])
def test_scale_and_zero_point(dtype):
    """Equal where the range is rounded once: symmetric, or on one side of 0. Otherwise onnxruntime divides in float64."""
    dtype, limits, count = jnp.dtype(dtype), jnp.iinfo(dtype), 2000
    rng = np.random.default_rng(0)
    ends = (rng.normal(size=(2, count)) * 10 ** rng.uniform(-20, 20, count)).astype(np.float32)
    ends[0, :5] = 0
    ends[1, :2] = 0
    low, high = ends.min(0), ends.max(0)
    for symmetric, narrow_range in itertools.product((False, True), (False, True)):
        if narrow_range and limits.min == 0:
            continue  # onnxruntime needs the integer 0 of an unsigned type
        options = {"symmetric": symmetric, "narrow_range": narrow_range}
        ours = jquant.scale_and_zero_point(low, high, dtype, **options)
        scale, zero_point = np.asarray(ours.scale), np.asarray(ours.zero_point).astype(np.int64)
        their_scale, their_zero_point = scales_and_zero_points(low, high, dtype, **options)
        once = options["symmetric"] | (low >= 0) | (high <= 0)
        np.testing.assert_array_equal(scale[once], their_scale[once])
        assert np.all(abs(scale - their_scale) <= np.spacing(their_scale))
        assert options["symmetric"] or np.any(scale != their_scale)
        # The quotients differ by up to three roundings: next to a tie, they may lie on different sides of it.
        differ = zero_point != their_zero_point
        steps = int(limits.max) - int(limits.min)
        exact = low / np.maximum((high.astype(np.float64) - low) / (steps - options["narrow_range"]), 1e-300)
        tie = abs(abs(exact - np.floor(exact)) - 0.5)
        assert not np.any(differ & (once | (tie > steps * 2.0**-22)))
        assert np.all(abs(zero_point - their_zero_point) <= 1)


def test_ranges_of_models():
    """The two kinds of ranges in quantized models: of int8 weights, symmetric and narrow, and of uint8 activations."""
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
