"""ONNX's float operators on windows and images, beyond ONNX's node cases, against onnxruntime."""

import functools

import jax
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

import jquant.onnx  # noqa: E402

pytestmark = pytest.mark.gate  # on the newest JAX alone

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.standard_normal(shape, np.float32)


def check(operator, *inputs, constants=(), opset=17, outputs=("output",), **attributes):
    """Compares every output with onnxruntime's: equal integers, floats within 1e-5.

    Args:
      constants: the positions of inputs that are fixed when the model is loaded.
    """
    helper, names = onnx.helper, [f"input{i}" for i in range(len(inputs))]
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in zip(names, inputs, strict=True)
    ]
    graph = helper.make_graph(
        [helper.make_node(operator, names, outputs, **attributes)],
        "graph",
        values,
        [helper.make_empty_tensor_value_info(name) for name in outputs],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    arrays = dict(zip(names, inputs, strict=True))
    expected = session.run(None, arrays)
    for value, result in zip(model.graph.output, expected, strict=True):
        dtype = helper.np_dtype_to_tensor_dtype(result.dtype)
        value.CopyFrom(helper.make_tensor_value_info(value.name, dtype, result.shape))
    fixed = {names[i]: arrays.pop(names[i]) for i in constants}
    ours = jquant.onnx.load(model, constants=fixed)
    actual = jax.jit(ours)(ours.params, arrays)
    for name, value in zip(outputs, expected, strict=True):
        assert actual[name].shape == value.shape
        compare = np.testing.assert_array_equal
        if value.dtype.kind == "f":
            compare = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
        compare(actual[name], value)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(("group", "channels", "filters"), [(1, 4, 6), (2, 4, 6), (4, 4, 4), (4, 4, 12)])
def test_convolutions(rank, group, channels, filters):
    x, w = normal(2, channels, *range(7, 7 + rank)), normal(filters, channels // group, *range(2, 2 + rank))
    sizes = {"strides": list(range(1, 1 + rank)), "group": group}
    check("Conv", x, w, normal(filters), pads=list(range(2 * rank)), dilations=[2] * rank, **sizes)
    check("Conv", x, w, auto_pad="SAME_UPPER", **sizes)
    check("Conv", x, w, auto_pad="SAME_LOWER", **sizes)
    check("Conv", x, normal(filters, channels // group, *[1] * rank), group=group)


@pytest.mark.parametrize("group", [1, 2])
def test_transposed_convolutions(group):
    x, w, b = normal(2, 4, 5, 3), normal(4, 3, 2, 3), normal(3 * group)
    check("ConvTranspose", x, w, b, group=group, strides=[2, 3])
    check("ConvTranspose", x, w, b, group=group, strides=[3, 2], pads=[1, 0, 0, 1], dilations=[1, 2], output_padding=[2, 1])
    check("ConvTranspose", x, w, b, group=group, strides=[2, 2], output_shape=[9, 6])
    check("ConvTranspose", x, w, b, group=group, strides=[1, 2], auto_pad="SAME_UPPER")


@pytest.mark.parametrize("ceil_mode", [0, 1])
def test_pools(ceil_mode):
    sizes = {"kernel_shape": [3, 2], "strides": [2, 3], "pads": [1, 0, 1, 1], "ceil_mode": ceil_mode, "opset": 19}
    x = np.round(normal(2, 3, 8, 9))  # with ties
    check("MaxPool", x, outputs=["output", "indices"], dilations=[1, 2], **sizes)
    check("MaxPool", x, outputs=["output", "indices"], storage_order=1, **sizes)
    check("MaxPool", x.astype(np.int8), **sizes)
    for count_include_pad in (0, 1):
        check("AveragePool", x, count_include_pad=count_include_pad, dilations=[2, 1], **sizes)


def test_softmax_of_flattened_dimensions():
    for operator in ("Softmax", "LogSoftmax", "Hardmax"):
        for axis in (0, 1, 2, -1):
            check(operator, np.round(normal(2, 3, 4), 1), axis=axis, opset=12)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_and_upsample(mode):
    x, roi = normal(1, 2, 5, 6), np.zeros(0, np.float32)
    for scales in (np.float32([1, 1, 2, 3]), np.float32([1, 1, 1.3, 0.6])):
        check("Resize", x, scales, constants=[1], mode=mode, opset=10)
        for coordinates in ("half_pixel", "pytorch_half_pixel", "asymmetric"):
            options = {"mode": mode, "coordinate_transformation_mode": coordinates}
            check("Resize", x, roi, scales, constants=[1, 2], **options)
    check("Upsample", x, opset=8, scales=[1.0, 1.0, 2.0, 3.0], mode=mode)
    check("Resize", x.view(np.uint8)[..., :6].copy(), roi, np.float32([1, 1, 2, 2]), constants=[1, 2], mode=mode)


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
def test_grid_sample(mode, padding_mode):
    x, grid = normal(2, 3, 5, 6), normal(2, 4, 3, 2)
    for align_corners in (0, 1):
        check("GridSample", x, grid, mode=mode, padding_mode=padding_mode, align_corners=align_corners)
