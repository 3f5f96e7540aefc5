"""auto_pad against onnxruntime, including strides longer than windows, for which the padding is negative."""

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


def window_operators(kernel, strides, dilations, auto_pad):
    """(operator, operands, attributes) of every operator with auto_pad. "x" holds integers as floats, and "u" as uint8."""
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


def model_of(inputs, cases):
    """A model with one node and one output for each case."""
    tensors, nodes, outputs = [], [], []
    for number, (operator, operands, attributes) in enumerate(cases):
        names = []
        for position, each in enumerate(operands):
            names.append(each if isinstance(each, str) else f"w{number}_{position}")
            if not isinstance(each, str):
                tensors.append(numpy_helper.from_array(np.asarray(each), names[-1]))
        domain, _, name = operator.rpartition(".")
        nodes.append(helper.make_node(name, names, [f"y{number}"], domain=domain, **attributes))
        outputs.append(helper.make_empty_tensor_value_info(f"y{number}"))
    declared = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for name, x in inputs.items()
    ]
    opsets = [helper.make_opsetid("", 19), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "graph", declared, outputs, tensors)
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def theirs(inputs, case):
    """onnxruntime's result; None if it refuses."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    data = model_of(inputs, [case]).SerializeToString()
    try:
        return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, inputs)[0]
    except Exception as error:  # of onnxruntime's own types
        if any(each in str(error) for each in REFUSED):
            return None
        raise


def check(shape, cases):
    """Compares with onnxruntime: integers and sums of integers for equality, quotients to an ulp.

    Returns:
      The number of cases that onnxruntime computes.
    """
    values = RNG.integers(0, 10, (1, 2, *shape))
    inputs = {"x": values.astype(np.float32), "u": values.astype(np.uint8)}
    results = [(case, theirs(inputs, case)) for case in cases]
    results = [(case, expected) for case, expected in results if expected is not None]
    model = jquant.onnx.load(model_of(inputs, [case for case, _ in results]))
    outputs = jax.jit(model)(model.params, inputs)
    for number, ((operator, _, attributes), expected) in enumerate(results):
        if operator == "AveragePool":
            np.testing.assert_array_max_ulp(np.asarray(outputs[f"y{number}"]), expected, 1)
        else:
            np.testing.assert_array_equal(outputs[f"y{number}"], expected, f"{shape} {operator} {attributes}")
    return len(results)


def test_strides_longer_than_windows():
    """Even the first element may be left out: of 8 with a stride of 4, a convolution takes the second and the sixth."""
    windows = [((1,), (4,), (1,)), ((2,), (5,), (2,))]
    cases = [case for window in windows for auto_pad in PADS for case in window_operators(*window, auto_pad)]
    assert check((8,), cases) > 20


@pytest.mark.full
@pytest.mark.parametrize("size", [3, 4, 5, 7, 8, 9, 12])
def test_all_windows(size, count):
    windows = itertools.product((1, 2, 3), range(1, 8), (1, 2, 3), PADS)
    compared = 0
    for kernel, stride, dilation, auto_pad in windows:
        compared += check((size,), list(window_operators((kernel,), (stride,), (dilation,), auto_pad)))
    assert compared > 500
    count("automatic paddings equal to onnxruntime's", compared)


@pytest.mark.gate
@pytest.mark.parametrize("auto_pad", PADS)
def test_two_dimensions(auto_pad):
    """Each dimension has a kernel, a stride and a dilation of its own."""
    assert check((8, 9), list(window_operators((1, 3), (4, 2), (1, 1), auto_pad))) > 8
    assert check((12, 8), list(window_operators((2, 1), (5, 5), (1, 2), auto_pad))) > 3


@pytest.mark.gate
def test_indices_of_pools():
    """They count all elements of the tensor, including those that negative padding crops."""
    text = """<ir_version: 9, opset_import: ["" : 19]> net (float[1, 1, 8] x) => (float[1, 1, n] y, int64[1, 1, n] at) {
      y, at = MaxPool <kernel_shape = [2], strides = [5], dilations = [2], auto_pad = "SAME_UPPER"> (x) }"""
    proto, x = parser.parse_model(text), RNG.normal(size=(1, 1, 8)).astype(np.float32)
    model = jquant.onnx.load(proto)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    results = model(model.params, {"x": x})
    for name, expected in zip(("y", "at"), session.run(["y", "at"], {"x": x}), strict=True):
        np.testing.assert_array_equal(results[name], expected)


def test_open_sizes():
    """Where windows begin depends on the size if two or more elements may be left over; a single one is always the last."""
    text = """<ir_version: 9, opset_import: ["" : 19]> net (float[1, 1, n] x) => (float[1, 1, m] y) {{
      y = MaxPool <kernel_shape = [1], strides = [{stride}], auto_pad = "SAME_UPPER"> (x) }}"""
    x = {"x": jax.ShapeDtypeStruct(jax.export.symbolic_shape("1, 1, n"), np.float32)}
    model = jquant.onnx.load(parser.parse_model(text.format(stride=2)))
    jax.export.export(jax.jit(model))(model.params, x)
    model = jquant.onnx.load(parser.parse_model(text.format(stride=3)))
    with pytest.raises(ModelError, match=r"\(MaxPool, .*: where its windows begin depends on a size that is left open: fix"):
        jax.export.export(jax.jit(model))(model.params, x)
