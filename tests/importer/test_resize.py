"""Resize against onnxruntime, in every coordinate transformation mode, with sizes that are no multiple of a scale."""

import itertools

import jax
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

import jquant.onnx  # noqa: E402

COORDINATE_MODES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
)
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
SCALES = (0.6, 1.3, 0.37, 2, 0.5, 1.05, 3.7)
SIZES = ((3, 5), (7, 11), (1, 4), (20, 13), (8, 2), (2, 1))
DTYPES = (np.float32, np.int32, np.uint8, np.int8)  # the types that onnxruntime resizes
IMAGES = [((8, 7), (0, 1)), ((2, 2, 8, 7), (2, 3)), ((1, 8, 7, 3), (1, 2))]
VOLUMES = [((3, 8, 7), (1, 2)), ((4, 8, 7), (0, 2)), ((1, 2, 3, 8, 7), (2, 4))]
OTHERS = [((8,), (0,)), ((8, 3, 7, 2, 2, 2), (0, 2))]
BATCH = 60  # cases per model
KINDS = {  # the attributes, the shapes with the dimensions to resize, and the types
    "nearest": ({}, IMAGES + VOLUMES + OTHERS, [np.int8]),
    "linear": ({}, IMAGES + VOLUMES, DTYPES),
    "cubic": ({}, IMAGES, DTYPES),
    "cubic, nothing outside": ({"exclude_outside": 1}, IMAGES, DTYPES),
    "linear, antialias": ({"antialias": 1}, IMAGES + VOLUMES, DTYPES),
    "linear, antialias, nothing outside": ({"antialias": 1, "exclude_outside": 1}, IMAGES + VOLUMES, DTYPES[1:3]),
    "cubic, antialias": ({"antialias": 1, "cubic_coeff_a": -0.5}, IMAGES, DTYPES),
    "cubic, antialias, nothing outside": ({"antialias": 1, "exclude_outside": 1}, IMAGES, DTYPES[::3]),
}


def cases_of_kind(kind, shape, axes):
    """(attributes, operands by name) of every case of a kind."""
    mode = kind.split(",")[0]
    for coordinates, rounding in itertools.product(COORDINATE_MODES, ROUNDINGS if mode == "nearest" else ROUNDINGS[:1]):
        crops = coordinates == "tf_crop_and_resize"
        if crops and kind.startswith(("linear, a", "cubic")) and axes == (1, 2) and len(shape) == 4:
            continue  # onnxruntime writes extrapolation_value at the positions of another layout
        attributes = {
            "mode": mode,
            "coordinate_transformation_mode": coordinates,
            "nearest_mode": rounding,
            **KINDS[kind][0],
        }
        roi = np.repeat(np.float32([0, 1]), len(shape))
        for i, axis in enumerate(axes):
            roi[axis], roi[len(shape) + axis] = (0.1, 0.7) if i else (-0.2, 0.8)
        region = {"roi": roi} if crops else {}
        if crops:
            attributes["extrapolation_value"] = 7.0
        for factors in list(itertools.product(SCALES, repeat=len(axes)))[:: 1 if len(axes) == 1 else 3]:
            scales = np.ones(len(shape), np.float32)
            scales[list(axes)] = factors
            yield attributes, {**region, "scales": scales}
        for lengths in SIZES:
            sizes = np.array(shape, np.int64)
            sizes[list(axes)] = lengths[: len(axes)]
            yield attributes, {**region, "sizes": sizes}


def partial_cases():
    """Cases with the attribute axes, and cases that keep the aspect ratio."""
    for policy, axes in itertools.product(("stretch", "not_larger", "not_smaller"), ([2, 3], [3, 2], [3])):
        for lengths in SIZES:
            attributes = {"mode": "nearest", "axes": axes, "keep_aspect_ratio_policy": policy}
            yield attributes, {"sizes": np.array(lengths[: len(axes)], np.int64)}
    for factors in itertools.product(SCALES[:4], repeat=2):
        yield {"mode": "linear", "axes": [3, 2]}, {"scales": np.array(factors, np.float32)}
    roi = {"roi": np.float32([0.1, -0.2, 0.9, 0.5]), "scales": np.float32([1.3, 0.6])}
    yield {"mode": "linear", "axes": [3, 2], "coordinate_transformation_mode": "tf_crop_and_resize"}, roi


def older_cases():
    """Cases of operator set 10, in which ONNX does not say which pixel is nearest."""
    for mode, factors in itertools.product(("nearest", "linear"), itertools.product(SCALES[:5], repeat=2)):
        yield {"mode": mode}, {"scales": np.float32([1, 1, *factors])}


def model_of(x, cases, opset):
    """A model with one node for each case, all of which resize the same image."""
    helper, dtype = onnx.helper, onnx.helper.np_dtype_to_tensor_dtype(x.dtype)
    nodes, tensors = [], []
    for number, (attributes, operands) in enumerate(cases):
        names = ["x", *(f"{name}{number}" if name in operands else "" for name in ("roi", "scales", "sizes"))]
        if opset == 10:
            names = ["x", f"scales{number}"]
        while not names[-1]:
            names.pop()
        nodes.append(helper.make_node("Resize", names, [f"y{number}"], **attributes))
        tensors += [onnx.numpy_helper.from_array(array, f"{name}{number}") for name, array in operands.items()]
    inputs = [helper.make_tensor_value_info("x", dtype, x.shape)]
    outputs = [helper.make_tensor_value_info(f"y{i}", dtype, ["?"] * x.ndim) for i in range(len(cases))]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def theirs(x, case, opset):
    """onnxruntime's result; None if it has no kernel for the case."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    data = model_of(x, [case], opset).SerializeToString()
    try:
        return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    except Exception as error:  # of onnxruntime's own types
        if "mode only supports" in str(error) or "Tensor type mismatch" in str(error):
            return None
        raise


def check(x, cases, opset=19):
    """Compares shapes and elements with onnxruntime's, and returns the number of cases that onnxruntime computes."""
    results = [(case, theirs(x, case, opset)) for case in cases]
    results = [(case, expected) for case, expected in results if expected is not None]
    if not results:
        return 0
    model = jquant.onnx.load(model_of(x, [case for case, _ in results], opset))
    outputs = jax.jit(model)(model.params, {"x": x})
    for number, (case, expected) in enumerate(results):
        np.testing.assert_array_equal(outputs[f"y{number}"], expected, f"{x.dtype}{list(x.shape)}, {case}")
    return len(results)


def image(shape, dtype):
    rng = np.random.default_rng(0)
    if dtype == np.float32:
        return rng.normal(size=shape).astype(dtype)
    limits = np.iinfo(np.uint8 if dtype == np.uint8 else np.int8)
    return rng.integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_all_sizes(kind, count):
    compared = 0
    for (shape, axes), dtype in itertools.product(KINDS[kind][1], KINDS[kind][2]):
        selected = list(cases_of_kind(kind, shape, axes))
        for first in range(0, len(selected), BATCH):
            compared += check(image(shape, dtype), selected[first : first + BATCH])
    assert compared > 300
    count("cases of Resize equal to onnxruntime's", compared)


SAMPLE = {
    "nearest": ((2, 2, 8, 7), (2, 3), np.int8, 29),
    "linear": ((2, 2, 8, 7), (2, 3), np.uint8, 7),
    "cubic": ((8, 7), (0, 1), np.float32, 9),
    "linear, antialias": ((3, 8, 7), (1, 2), np.uint8, 9),
}


@pytest.mark.parametrize("kind", SAMPLE)
def test_some_sizes(kind):
    shape, axes, dtype, step = SAMPLE[kind]
    selected = list(cases_of_kind(kind, shape, axes))[::step]
    assert check(image(shape, dtype), selected) == len(selected) > 10


def test_corners_are_those_of_the_result():
    """8 x 0.6 is 4.8, but the corner is that of the length of the result, 4."""
    attributes = {"mode": "nearest", "coordinate_transformation_mode": "align_corners"}
    assert check(np.arange(8, dtype=np.int32), [(attributes, {"scales": np.float32([0.6])})]) == 1


def test_a_kernel_that_reaches_many_pixels():
    """XLA computes the sums once, or this test does not end."""
    attributes = {"mode": "cubic", "antialias": 1}
    case = (attributes, {"sizes": np.array([2, 2, 2, 1])})
    assert check(image((2, 2, 8, 7), np.int32), [case]) == 1


@pytest.mark.gate
def test_axes_and_policies():
    cases = list(partial_cases())
    assert check(image((1, 2, 8, 7), np.uint8), cases) == len(cases)


@pytest.mark.gate
def test_older_versions():
    cases = list(older_cases())
    assert check(image((1, 2, 8, 7), np.int8), cases, opset=10) == len(cases)


@pytest.mark.gate
@pytest.mark.parametrize("rounding", ROUNDINGS[:2])
def test_positions_next_to_ties(rounding):
    """onnxruntime treats positions within a millionth of the middle between two pixels as the middle."""
    attributes = {"mode": "nearest", "coordinate_transformation_mode": "tf_crop_and_resize", "nearest_mode": rounding}
    distances = np.concatenate([[0], np.outer([-1, 1], np.logspace(-8, -4, 25)).reshape(-1)])
    cases = []
    for start in np.float32((2.5 + distances) / 16):  # the size is a power of two plus 1, so that no product is rounded
        cases.append((attributes, {"roi": np.float32([start, start]), "sizes": np.array([3])}))
    assert check(np.arange(17, dtype=np.int32), cases) == len(cases)
