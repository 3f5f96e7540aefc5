"""Quantized files that onnxruntime saves with all optimizations, and their operators on channels-last images."""

import itertools

import numpy as np
import pytest
from support.saturation import need_exact_products

pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

import jax
from onnx import parser

import jquant.onnx
from jquant.cases import samples
from jquant.onnx import compare

from .quantized_nodes import Node, onnx, onnxruntime

FLOAT32 = np.float32
TYPES = [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)]  # onnxruntime does not multiply int8 by uint8
every_type = pytest.mark.parametrize("dtype", [np.uint8, np.int8])


def scalar(x) -> np.ndarray:
    return np.asarray(FLOAT32(x))


def integers(rng: np.random.Generator, dtype, *sizes: int) -> np.ndarray:
    return np.asarray(samples.integers(rng, dtype, *sizes))


CONVOLUTIONS = [  # channels first, as filters always are
    ((2, 4, 12, 11), (6, 2, 5, 3), {"strides": [2, 3], "pads": [0, 2, 3, 1], "dilations": [2, 1], "group": 2}),
    ((2, 6, 8, 9), (6, 1, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2], "group": 6}),
    ((1, 16, 5, 5), (32, 16, 1, 1), {}),
    ((2, 3, 13, 11), (6, 3, 3, 3), {"pads": [1, 1, 1, 1], "kernel_shape": [3, 3]}),
    ((2, 6, 8, 8), (12, 1, 3, 3), {"auto_pad": "SAME_LOWER", "strides": [2, 2], "group": 6}),
    ((2, 3, 8, 8), (6, 3, 3, 3), {"auto_pad": "VALID", "dilations": [1, 2]}),
    ((2, 5, 20), (4, 5, 4), {"strides": [2], "pads": [3, 0]}),
    ((1, 3, 6, 7, 5), (4, 3, 3, 2, 3), {"pads": [1, 0, 1, 1, 1, 0]}),
]


def convolution(rng, x_dtype, w_dtype, sizes, filter_sizes, per_filter: bool, with_bias: bool) -> tuple[np.ndarray, ...]:
    """The operands of QLinearConv, with scales per filter or per tensor."""
    scale_sizes = filter_sizes[:1] if per_filter else ()
    x_scale, w_scale = scalar(10 ** rng.uniform(-3, 0)), np.asarray(10 ** rng.uniform(-3, 0, scale_sizes), FLOAT32)
    y_scale = scalar(x_scale * w_scale.mean() * rng.uniform(300, 5000))
    w_zero_point = np.broadcast_to(0 if w_dtype == np.int8 else integers(rng, w_dtype), scale_sizes).astype(w_dtype)
    x, x_zero_point = integers(rng, x_dtype, *sizes), integers(rng, x_dtype)
    w = integers(rng, w_dtype, *filter_sizes)
    bias = rng.integers(-3000, 3000, filter_sizes[0]).astype(np.int32)
    operands = x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, integers(rng, x_dtype)
    return (*operands, bias) if with_bias else operands


def channels_last(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


@pytest.mark.parametrize(("number", "x_dtype", "w_dtype"), [(i, *each) for i, each in enumerate(TYPES)])
def test_convolution(number, x_dtype, w_dtype):
    rng, (sizes, filter_sizes, attributes) = np.random.default_rng(number), CONVOLUTIONS[number]
    x, *rest = convolution(rng, x_dtype, w_dtype, sizes, filter_sizes, number != 1, number != 2)
    operands = channels_last(x), *rest
    node = Node("QLinearConv", *operands, microsoft=True, constant=range(1, len(operands)), channels_last=1, **attributes)
    node.assert_equal(*operands)


@pytest.mark.gate
@pytest.mark.parametrize(("x_dtype", "w_dtype"), TYPES)
def test_convolutions_of_every_geometry(x_dtype, w_dtype, count, full):
    """Scales per filter, with a bias; in a full run also scales per tensor, no bias, and channels first."""
    need_exact_products(x_dtype, w_dtype)
    rng = np.random.default_rng(3)
    for (sizes, filter_sizes, attributes), variant in itertools.product(CONVOLUTIONS, range(4 if full else 1)):
        x, *rest = convolution(rng, x_dtype, w_dtype, sizes, filter_sizes, variant % 2 == 0, variant < 2)
        for images, is_last in ((channels_last(x), 1), (x, 0))[: 2 if full else 1]:
            node = Node("QLinearConv", images, *rest, microsoft=True, channels_last=is_last, **attributes)
            count("elements of com.microsoft.QLinearConv", node.assert_equal(images, *rest))


def test_convolution_with_a_wrong_kernel_shape():
    rng, (sizes, filter_sizes, _) = np.random.default_rng(4), CONVOLUTIONS[3]
    operands = convolution(rng, np.uint8, np.uint8, sizes, filter_sizes, False, False)
    node = Node("QLinearConv", *operands, microsoft=True)
    node.proto.graph.node[0].attribute.append(onnx.helper.make_attribute("kernel_shape", [3, 2]))
    with pytest.raises(jquant.onnx.ModelError, match=r"kernel_shape is \(3, 2\), but the filter has \(3, 3\)"):
        node.ours(*operands)


POOLS = [  # channels last
    ((2, 9, 10, 5), {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}),
    ((1, 11, 12, 3), {"kernel_shape": [3, 3], "strides": [3, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1}),
    ((1, 7, 9, 4), {"kernel_shape": [2, 3], "strides": [4, 4], "ceil_mode": 1}),
    ((1, 13, 14, 3), {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((1, 13, 14, 3), {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    ((1, 13, 14, 33), {"kernel_shape": [3, 3], "dilations": [3, 2], "auto_pad": "VALID"}),
    ((2, 20, 3), {"kernel_shape": [3], "strides": [2], "ceil_mode": 1}),
    ((2, 5, 6, 7, 3), {"kernel_shape": [2, 3, 3], "pads": [1, 1, 1, 0, 1, 1]}),
]


@every_type
@pytest.mark.parametrize("pools", [POOLS[1:2], pytest.param(POOLS, marks=pytest.mark.gate)], ids=["one", "all"])
def test_max_pool(pools, dtype):
    rng = np.random.default_rng(1)
    for sizes, attributes in pools:
        x = integers(rng, dtype, *sizes)
        Node("NhwcMaxPool", x, microsoft=True, **attributes).assert_equal(x)


NETWORK = """<ir_version: 9, opset_import: ["" : 17]>
network (float[batch, 3, 17, 16] x) => (float[batch, 5] y)
  <float low = {0}, float high = {6}, int64[2] shape = {0, -1}> {
    first = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, filters, biases0)
    positive = Relu (first)
    pooled = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1], ceil_mode = 1> (positive)
    deep = Conv <pads = [1, 1, 1, 1], group = 8> (pooled, depthwise, biases1)
    clipped = Clip (deep, low, high)
    wide = Conv <pads = [2, 2, 2, 2], dilations = [2, 2]> (clipped, dilated, biases2)
    sum = Add (wide, pooled)
    scaled = LeakyRelu <alpha = 0.1> (sum)
    both = Concat <axis = 1> (scaled, clipped)
    averages = AveragePool <kernel_shape = [2, 2], pads = [1, 1, 0, 0]> (both)
    average = GlobalAveragePool (averages)
    features = Reshape (average, shape)
    y = Gemm <transB = 1> (features, matrix, ends)
}"""


class Images:
    """The calibration data of `quantize_static`."""

    def __init__(self):
        self.images = iter([{"x": image(seed)} for seed in (1, 2)])

    def get_next(self):
        return next(self.images, None)


def image(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(2, 3, 17, 16)).astype(FLOAT32)


def network():
    rng, model = np.random.default_rng(7), parser.parse_model(NETWORK)
    sizes = {"filters": (8, 3, 3, 3), "depthwise": (8, 1, 3, 3), "dilated": (8, 8, 3, 3), "matrix": (5, 16)}
    for name, size in {**sizes, **{f"biases{i}": (8,) for i in range(3)}, "ends": (5,)}.items():
        values = (rng.normal(size=size) / 3).astype(FLOAT32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return model


def session(model, level: str, path=None):
    """A session of onnxruntime, which also writes the optimized model to `path`."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.qdqisint8allowed", "1")  # as on ARM
    if path is not None:
        options.optimized_model_filepath = str(path)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(
    ("form", "activations", "weights", "per_channel"),
    [
        ("QDQ", "QUInt8", "QInt8", True),
        *(
            pytest.param(*each, marks=mark)
            for mark, *each in (
                (pytest.mark.full, "QDQ", "QInt8", "QInt8", False),
                (pytest.mark.full, "QOperator", "QUInt8", "QUInt8", False),
                (pytest.mark.gate, "QOperator", "QInt8", "QInt8", True),
            )
        ),
    ],
)
def test_a_file_with_all_optimizations(form, activations, weights, per_channel, tmp_path, count):
    """The integers of every node are equal, and so are the outputs, which are integers times a scale."""
    need_exact_products(*(np.uint8 if name == "QUInt8" else np.int8 for name in (activations, weights)))
    quantization = pytest.importorskip("onnxruntime.quantization", reason="onnxruntime's tools are not installed")
    quantization.quantize_static(
        network(),
        tmp_path / "quantized.onnx",
        Images(),
        quant_format=quantization.QuantFormat[form],
        activation_type=quantization.QuantType[activations],
        weight_type=quantization.QuantType[weights],
        per_channel=per_channel,
    )
    optimized = session(onnx.load(tmp_path / "quantized.onnx"), "ORT_ENABLE_ALL", tmp_path / "optimized.onnx")
    saved = onnx.load(tmp_path / "optimized.onnx")
    operators = [f"{node.domain}.{node.op_type}" for node in saved.graph.node]
    assert (operators.count("com.microsoft.QLinearConv"), operators.count("com.microsoft.NhwcMaxPool")) == (3, 1)
    x = image(3)
    model = jquant.onnx.load(saved)
    y = np.asarray(jax.jit(model)(model.params, {"x": x})["y"])
    np.testing.assert_array_equal(y, optimized.run(None, {"x": x})[0])
    np.testing.assert_array_equal(y, session(saved, "ORT_DISABLE_ALL").run(None, {"x": x})[0])
    rows = compare.nodes(saved, {"x": x})
    assert not any(row.different for row in rows)
    count("integers in optimized files", sum(row.integers for row in rows))


def test_a_layout_that_is_refused(tmp_path):
    """With all optimizations, float convolutions have the layout of one processor."""
    session(network(), "ORT_ENABLE_ALL", tmp_path / "optimized.onnx")
    with pytest.raises(jquant.onnx.ModelError, match=r"nchwc\.Conv.*extended optimizations at most"):
        jquant.onnx.load(tmp_path / "optimized.onnx")
