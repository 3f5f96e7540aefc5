"""Integer convolutions compared with onnxruntime, bit for bit."""

import functools
import itertools

import numpy as np
import pytest
from support import random_convolutions
from support.programs import together
from support.sampling import one_in
from support.saturation import need_exact_products

import jquant
from jquant.cases import samples

from .graph import DTYPE_PAIRS, Graph, onnx, pairs_with_kernel, run

FLOAT32 = np.float32
DEVIATION = 74  # the standard deviation of uniform 8-bit integers
# The shapes of input and filter, and ONNX's attributes.
CONVOLUTIONS = [
    ((2, 3, 33, 31), (16, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((1, 16, 41, 40), (33, 16, 1, 1), {}),
    ((3, 8, 30, 29), (12, 8, 5, 3), {"strides": [2, 3], "pads": [0, 2, 3, 1], "dilations": [2, 1]}),
    ((2, 24, 28, 28), (24, 1, 3, 3), {"pads": [1, 1, 1, 1], "group": 24}),
    ((2, 24, 29, 28), (48, 1, 5, 5), {"strides": [2, 2], "pads": [2, 1, 1, 2], "group": 24}),
    ((1, 32, 20, 20), (32, 4, 3, 3), {"pads": [1, 1, 1, 1], "group": 8}),
    ((4, 5, 200), (10, 5, 4), {"strides": [2], "pads": [3, 0]}),
    ((1, 3, 12, 11, 13), (8, 3, 3, 2, 3), {"pads": [1, 0, 1, 1, 1, 0]}),
    ((1, 200, 9, 8), (64, 200, 3, 3), {"pads": [1, 1, 1, 1]}),
]


def convolution_options(rank, pads=None, group=1, **windows):
    """The arguments of jquant's operators for ONNX's attributes."""
    padding = "VALID" if pads is None else list(zip(pads[: len(pads) // 2], pads[len(pads) // 2 :], strict=True))
    level = "EXTENDED" if rank > 4 else "6_4"  # DirectML has no third spatial dimension
    return {**windows, "padding": padding, "groups": group, "feature_level": level}


@one_in(3, ("a_dtype", "b_dtype"), DTYPE_PAIRS, first=1)
def test_convolution_integer(a_dtype, b_dtype):
    """Without zero points, with that of the input, and with both; onnxruntime supports zero points per tensor only."""
    need_exact_products(a_dtype, b_dtype)
    rng = np.random.default_rng(8)
    for index, (sizes, filter_sizes, attributes) in [*enumerate(CONVOLUTIONS)] * 2:
        options = convolution_options(len(sizes), **attributes)
        x, w = samples.integers(rng, a_dtype, *sizes), samples.integers(rng, b_dtype, *filter_sizes)
        zero_points = (samples.integers(rng, a_dtype), samples.integers(rng, b_dtype))[: index % 3]
        theirs = run("ConvInteger", x, w, *zero_points, **attributes)
        np.testing.assert_array_equal(jquant.convolution_integer(x, w, *zero_points, **options), theirs)


def test_convolution_integer_wraps():
    x, w = np.full((1, 140_000, 1, 1), 255, np.uint8), np.full((1, 140_000, 1, 1), 255, np.uint8)
    assert jquant.convolution_integer(x, w) == run("ConvInteger", x, w) == 513_565_408


@one_in(3, ("a_dtype", "b_dtype"), DTYPE_PAIRS, first=2)
def test_convolution_integer_to_float(a_dtype, b_dtype):
    """ConvInteger, Cast, Mul and Add, with scales and biases per tensor and per filter."""
    need_exact_products(a_dtype, b_dtype)
    rng = np.random.default_rng(10)
    for (index, (sizes, filter_sizes, attributes)), per_filter in itertools.product(enumerate(CONVOLUTIONS), (False, True)):
        options = convolution_options(len(sizes), **attributes)
        shape = (1, filter_sizes[0] if per_filter else 1, *(1,) * (len(sizes) - 2))
        x, w = samples.integers(rng, a_dtype, *sizes), samples.integers(rng, b_dtype, *filter_sizes)
        x_scale, w_scale = samples.scales(rng, 1)[0], samples.scales(rng, shape[1]).reshape(shape)
        spread = DEVIATION**2 * np.sqrt(np.prod(filter_sizes[1:])) * x_scale * w_scale.mean()
        inputs = {
            **{"x": x, "x_scale": np.asarray(x_scale), "x_zero_point": samples.integers(rng, a_dtype)},
            **{"w": w, "w_scale": w_scale, "w_zero_point": samples.integers(rng, b_dtype)},
        }
        with_bias = (index + per_filter) % 3 > 0
        nodes = [
            ("ConvInteger", ["x", "w", "x_zero_point", "w_zero_point"], ["product"], attributes),
            ("Cast", ["product"], ["value"], {"to": onnx.TensorProto.FLOAT}),
            ("Mul", ["x_scale", "w_scale"], ["scale"], {}),
            ("Mul", ["value", "scale"], ["scaled" if with_bias else "output"], {}),
        ]
        if with_bias:
            nodes.append(("Add", ["scaled", "bias"], ["output"], {}))
            inputs["bias"] = (rng.normal(size=shape) * spread).astype(FLOAT32)
        theirs = Graph(*nodes, **inputs)(**inputs)
        ours = jquant.convolution_integer_to_float(*inputs.values(), **options)
        np.testing.assert_array_equal(ours, theirs, strict=True)


@pairs_with_kernel
def test_quantized_linear_convolution(a_dtype, b_dtype):
    """QLinearConv, whose output has the dtype of the input, with and without saturation."""
    need_exact_products(a_dtype, b_dtype)
    rng = np.random.default_rng(9)
    for (index, (sizes, filter_sizes, attributes)), width in itertools.product(enumerate(CONVOLUTIONS), (30, 300)):
        options = convolution_options(len(sizes), **attributes)
        filters, per_filter = filter_sizes[0], (index + (a_dtype == b_dtype)) % 2
        parameters = (filters,) if per_filter else ()
        x, w = samples.integers(rng, a_dtype, *sizes), samples.integers(rng, b_dtype, *filter_sizes)
        x_scale, x_zero_point = samples.scales(rng, 1)[0], samples.integers(rng, a_dtype)
        w_scale = np.resize(samples.scales(rng, filters), parameters)
        w_zero_point = samples.integers(rng, b_dtype, *parameters)
        spread = DEVIATION**2 * np.sqrt(np.prod(filter_sizes[1:])) * x_scale * w_scale.mean()
        y_scale, y_zero_point = np.float32(spread / width), samples.integers(rng, a_dtype)
        operands = x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point
        bias = [rng.integers(-(10**5), 10**5, filters, np.int32)] if per_filter else []
        theirs = run("QLinearConv", *operands, *bias, **attributes)
        broadcast_bias = [values.reshape(1, -1, *(1,) * (len(sizes) - 2)) for values in bias]
        np.testing.assert_array_equal(jquant.quantized_linear_convolution(*operands, *broadcast_bias, **options), theirs)


def drawn(rng, rank):
    """A random convolution without negative padding, and with zero points as ConvInteger takes them, one for all filters."""
    case = random_convolutions.draw(rng, rank, negative_padding=False)
    zero_points = [
        np.zeros((), x.dtype) if x_zero_point is None else x_zero_point.reshape(-1)[0]
        for x, x_zero_point in ((case.x, case.x_zero_point), (case.w, case.w_zero_point))
    ]
    return case._replace(x_zero_point=zero_points[0], w_zero_point=zero_points[1])


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_random_convolutions(gate, full, count, rank):
    """ConvInteger and QLinearConv, over one to three spatial dimensions."""
    need_exact_products(np.uint8, np.int8)
    rng = np.random.default_rng(rank)
    for _ in range(67 if full else 2 if gate else 1):
        calls, theirs = [], []
        for case in (drawn(rng, rank) for _ in range(15 if gate else 5)):
            windows, sizes = case.windows, case.x.shape
            attributes = {
                "strides": windows.strides,
                "dilations": windows.dilations,
                "pads": [*(low for low, _ in windows.padding), *(high for _, high in windows.padding)],
                "group": case.groups,
            }
            options = convolution_options(len(sizes), **attributes)
            options |= {"feature_level": "EXTENDED"}
            integers = case.x, case.w, case.x_zero_point, case.w_zero_point
            calls.append((functools.partial(jquant.convolution_integer, **options), integers))
            theirs.append(run("ConvInteger", *integers, **attributes))
            if (case.x.dtype, case.w.dtype) == (np.int8, np.uint8):
                continue
            y_zero_point = case.y_zero_point.astype(case.x.dtype)
            operands = case.x, case.x_scale, case.x_zero_point, case.w, case.w_scale, case.w_zero_point, case.y_scale
            bias = () if case.integer_bias is None else (case.integer_bias,)
            calls.append(
                (functools.partial(jquant.quantized_linear_convolution, **options), (*operands, y_zero_point, *bias))
            )
            theirs.append(run("QLinearConv", *operands, y_zero_point, *bias, **attributes))
        for (function, _), ours, expected in zip(calls, together(calls), theirs, strict=True):
            np.testing.assert_array_equal(ours, expected, f"{function}", strict=True)
        count("convolutions beside onnxruntime", len(calls))
