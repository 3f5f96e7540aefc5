"""Padding that onnxruntime computes, also where strides are longer than windows, so that it is negative."""

import itertools

import jax
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

from onnx import helper, numpy_helper, parser  # noqa: E402

import jquant.onnx  # noqa: E402
from jquant.onnx import ModelError  # noqa: E402

PADS = ("SAME_UPPER", "SAME_LOWER")
RNG = np.random.default_rng(0)
HALF, ZERO = np.float32(0.5), np.uint8(3)
REFUSED = (
    "Dilation not supported",
    "padding values must be non-negative",
    "Check kernel_shape, pads, strides and dilations",
)


def weights(*shape):
    return RNG.integers(-3, 4, shape)


def nodes(kernel, strides, dilations, auto_pad):
    """(operator, operands, attributes) of everything that pads by itself. "x" is of integers in floats, and "u" of uint8."""
    rank, window = len(kernel), {"strides": strides, "auto_pad": auto_pad}
    pool, dilated = {"kernel_shape": kernel, **window}, {"dilations": dilations}
    w = weights(3, 2, *kernel).astype(np.float32)
    yield "Conv", ["x", w], {**window, **dilated}
    yield "Conv", ["x", w[:2, :1]], {**window, **dilated, "group": 2}
    yield "ConvInteger", ["u", w.astype(np.int8), ZERO], {**window, **dilated}
    quantized = ["u", HALF, ZERO, w.astype(np.int8), HALF, np.int8(0), np.float32(2), ZERO]
    yield "QLinearConv", quantized, {**window, **dilated}
    yield "MaxPool", ["x"], {**pool, **dilated}
    for included in (0, 1):
        yield "AveragePool", ["x"], {**pool, **dilated, "count_include_pad": included}
        if set(dilations) == {1}:
            operands = ["u", HALF, ZERO, HALF, ZERO]
            yield "com.microsoft.QLinearAveragePool", operands, {**pool, "count_include_pad": included}
    yield "LpPool", ["x"], {**pool, **dilated, "p": 1}
    if set(dilations) == {1}:
        yield "ConvTranspose", ["x", w.swapaxes(0, 1)], window
        yield "ConvTranspose", ["x", w.swapaxes(0, 1)], {**window, "output_padding": [int(each > 1) for each in strides]}
        yield "com.microsoft.FusedConv", ["x", w], {**window, "activation": "Relu"}
    assert rank == len(strides)


def model_of(given, chosen):
    """A model with one output for each node."""
    tensors, made, outputs = [], [], []
    for number, (operator, operands, attributes) in enumerate(chosen):
        names = []
        for place, each in enumerate(operands):
            names.append(each if isinstance(each, str) else f"w{number}_{place}")
            if not isinstance(each, str):
                tensors.append(numpy_helper.from_array(np.asarray(each), names[-1]))
        domain, _, name = operator.rpartition(".")
        made.append(helper.make_node(name, names, [f"y{number}"], domain=domain, **attributes))
        outputs.append(helper.make_empty_tensor_value_info(f"y{number}"))
    inputs = [helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for k, x in given.items()]
    opsets = [helper.make_opsetid("", 19), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(made, "graph", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def theirs(given, node):
    """onnxruntime's result; None if it refuses."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    data = model_of(given, [node]).SerializeToString()
    try:
        return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, given)[0]
    except Exception as error:  # of onnxruntime's own types
        if any(each in str(error) for each in REFUSED):
            return None
        raise


def check(shape, chosen):
    """How many results are equal to onnxruntime's: integers, sums of integers, and quotients to an ulp."""
    values = RNG.integers(0, 10, (1, 2, *shape))
    given = {"x": values.astype(np.float32), "u": values.astype(np.uint8)}
    expected = [theirs(given, node) for node in chosen]
    kept = [i for i, result in enumerate(expected) if result is not None]
    model = jquant.onnx.load(model_of(given, [chosen[i] for i in kept]))
    results = jax.jit(model)(model.params, given)
    for number, i in enumerate(kept):
        message = f"{shape} {chosen[i][0]} {chosen[i][2]}"
        if chosen[i][0] == "AveragePool":
            np.testing.assert_array_max_ulp(np.asarray(results[f"y{number}"]), expected[i], 1)
        else:
            np.testing.assert_array_equal(results[f"y{number}"], expected[i], message)
    return len(kept)


def test_strides_that_are_longer_than_windows():
    """The first element may be left out, too: of 8 with a stride of 4, a convolution takes the second and the sixth."""
    windows = [((1,), (4,), (1,)), ((2,), (5,), (2,))]
    chosen = [node for window in windows for auto_pad in PADS for node in nodes(*window, auto_pad)]
    assert check((8,), chosen) > 20


@pytest.mark.full
@pytest.mark.parametrize("size", [3, 4, 5, 7, 8, 9, 12])
def test_all_windows(size, count):
    windows = itertools.product((1, 2, 3), range(1, 8), (1, 2, 3), PADS)
    compared = 0
    for kernel, stride, dilation, auto_pad in windows:
        compared += check((size,), list(nodes((kernel,), (stride,), (dilation,), auto_pad)))
    assert compared > 500
    count("automatic paddings equal to onnxruntime's", compared)


@pytest.mark.gate
@pytest.mark.parametrize("auto_pad", PADS)
def test_two_dimensions(auto_pad):
    """Each with its own."""
    assert check((8, 9), list(nodes((1, 3), (4, 2), (1, 1), auto_pad))) > 8
    assert check((12, 8), list(nodes((2, 1), (5, 5), (1, 2), auto_pad))) > 3


@pytest.mark.gate
def test_indices_of_pools():
    """They count the elements of the whole tensor, those that are left out included."""
    text = """<ir_version: 9, opset_import: ["" : 19]> net (float[1, 1, 8] x) => (float[1, 1, n] y, int64[1, 1, n] at) {
      y, at = MaxPool <kernel_shape = [2], strides = [5], dilations = [2], auto_pad = "SAME_UPPER"> (x) }"""
    proto, x = parser.parse_model(text), RNG.normal(size=(1, 1, 8)).astype(np.float32)
    model = jquant.onnx.load(proto)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    results = model(model.params, {"x": x})
    for name, expected in zip(("y", "at"), session.run(["y", "at"], {"x": x}), strict=True):
        np.testing.assert_array_equal(results[name], expected)


def test_sizes_that_are_left_open():
    """Where windows begin depends on them if two elements or more are left over; one is always the last."""
    text = """<ir_version: 9, opset_import: ["" : 19]> net (float[1, 1, n] x) => (float[1, 1, m] y) {{
      y = MaxPool <kernel_shape = [1], strides = [{stride}], auto_pad = "SAME_UPPER"> (x) }}"""
    x = {"x": jax.ShapeDtypeStruct(jax.export.symbolic_shape("1, 1, n"), np.float32)}
    model = jquant.onnx.load(parser.parse_model(text.format(stride=2)))
    jax.export.export(jax.jit(model))(model.params, x)
    model = jquant.onnx.load(parser.parse_model(text.format(stride=3)))
    with pytest.raises(ModelError, match=r"\(MaxPool, .*: where its windows begin depends on a size that is left open: fix"):
        jax.export.export(jax.jit(model))(model.params, x)
