"""Element-wise operators on quantized tensors, and their concatenation, compared with onnxruntime, bit for bit."""

import functools

import jax
import numpy as np
import pytest

import jquant
from jquant.cases import samples
from jquant.reference import rounding as reference

from .graph import Graph, onnx

FLOAT32 = np.float32
MICROSOFT = {"domain": "com.microsoft"}
PAIRS = np.stack(np.meshgrid(np.arange(256), np.arange(256), indexing="ij")).reshape(2, -1)  # all pairs of 8-bit values


@pytest.mark.parametrize("output_dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("b_dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("a_dtype", [np.int8, np.uint8])
def test_quantized_linear_add(a_dtype, b_dtype, output_dtype):
    """All 65,536 pairs, compared with the nodes DequantizeLinear, Add and QuantizeLinear."""
    rng = np.random.default_rng(3)
    count = 200
    inputs = {"a": PAIRS[0].astype(a_dtype), "b": PAIRS[1].astype(b_dtype)}
    graph, add = None, jax.jit(jquant.quantized_linear_add)
    for a_scale, b_scale, output_scale in samples.scales(rng, 3 * count).reshape(count, 3):
        operands = inputs | {
            "a_scale": np.asarray(a_scale),
            "b_scale": np.asarray(b_scale),
            "output_scale": np.asarray(np.maximum(output_scale, np.maximum(a_scale, b_scale) / 4)),
        }
        for name, dtype in (("a", a_dtype), ("b", b_dtype), ("output", output_dtype)):
            limits = np.iinfo(dtype)
            operands[f"{name}_zero_point"] = rng.integers(limits.min, limits.max, (), dtype, endpoint=True)
        graph = graph or Graph(
            ("DequantizeLinear", ["a", "a_scale", "a_zero_point"], ["a_value"], {}),
            ("DequantizeLinear", ["b", "b_scale", "b_zero_point"], ["b_value"], {}),
            ("Add", ["a_value", "b_value"], ["output_value"], {}),
            ("QuantizeLinear", ["output_value", "output_scale", "output_zero_point"], ["output"], {}),
            **operands,
        )
        np.testing.assert_array_equal(add(*in_order(operands)), graph(**operands), str(operands))


def random_output_scale(rng, scale, width):
    """`width` times a scale; for a quarter, `width` is rounded to a power of two, which results in many ties."""
    return np.float32(scale * width) if rng.random() < 0.75 else np.float32(scale * np.exp2(np.round(np.log2(width))))


@pytest.mark.parametrize("b_dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("a_dtype", [np.int8, np.uint8])
def test_quantized_linear_multiply(a_dtype, b_dtype):
    """All 65,536 pairs, compared with the formula of the documentation, node by node."""
    rng = np.random.default_rng(8)
    inputs = {"a": PAIRS[0].astype(a_dtype), "b": PAIRS[1].astype(b_dtype)}
    graph, multiply = None, jax.jit(jquant.quantized_linear_multiply)
    for operands in multiplications(rng, 100, inputs, a_dtype):
        graph = graph or Graph(
            *[
                ("Cast", [name], [f"{name}_integer"], {"to": onnx.TensorProto.INT32})
                for name in ("a", "a_zero_point", "b", "b_zero_point")
            ],
            *[("Sub", [f"{x}_integer", f"{x}_zero_point_integer"], [f"{x}_offset"], {}) for x in "ab"],
            ("Mul", ["a_offset", "b_offset"], ["product"], {}),
            ("Cast", ["product"], ["value"], {"to": onnx.TensorProto.FLOAT}),
            ("Mul", ["a_scale", "b_scale"], ["scale"], {}),
            ("Mul", ["value", "scale"], ["output_value"], {}),
            ("QuantizeLinear", ["output_value", "output_scale", "output_zero_point"], ["output"], {}),
            **operands,
        )
        np.testing.assert_array_equal(multiply(*in_order(operands)), graph(**operands), str(operands))


def multiplications(rng, count, inputs, output_dtype):
    """Operands by name: `inputs`, and random scales and zero points, for products in the range of the output and beyond."""
    for a_scale, b_scale in samples.scales(rng, 2 * count).reshape(count, 2):
        operands = inputs | {
            "a_scale": np.asarray(a_scale),
            "b_scale": np.asarray(b_scale),
            "output_scale": np.asarray(random_output_scale(rng, a_scale * b_scale, rng.uniform(3, 600))),
        }
        for name, dtype in (("a", inputs["a"].dtype), ("b", inputs["b"].dtype), ("output", output_dtype)):
            operands[f"{name}_zero_point"] = samples.integers(rng, dtype)
        yield operands


def in_order(operands):
    """The operands of a binary operator in the order of its arguments."""
    tensors = [operands[f"{tensor}{part}"] for tensor in "ab" for part in ("", "_scale", "_zero_point")]
    return *tensors, operands["output_scale"], operands["output_zero_point"]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_deviations_of_quantized_linear_multiply(dtype):
    """The kernel multiplies by a single ratio and adds the zero point before it rounds; other nodes round elsewhere."""
    rng = np.random.default_rng(9)
    inputs = {"a": PAIRS[0].astype(dtype), "b": PAIRS[1].astype(dtype)}
    kernel = nodes = None
    count, kernel_deviations, node_deviations = 0, 0, 0
    for operands in multiplications(rng, 100, inputs, dtype):
        order = [*("a", "a_scale", "a_zero_point", "b", "b_scale", "b_zero_point"), "output_scale", "output_zero_point"]
        kernel = kernel or Graph(("QLinearMul", order, ["output"], MICROSOFT), **operands)
        nodes = nodes or Graph(
            ("DequantizeLinear", ["a", "a_scale", "a_zero_point"], ["a_value"], {}),
            ("DequantizeLinear", ["b", "b_scale", "b_zero_point"], ["b_value"], {}),
            ("Mul", ["a_value", "b_value"], ["output_value"], {}),
            ("QuantizeLinear", ["output_value", "output_scale", "output_zero_point"], ["output"], {}),
            **operands,
        )
        ours, theirs = jquant.quantized_linear_multiply(*in_order(operands)), kernel(**operands)
        product = np.multiply(*(operands[x].astype(np.int32) - operands[f"{x}_zero_point"] for x in "ab"))
        ratio = operands["a_scale"] * operands["b_scale"] / operands["output_scale"]
        value = np.rint(product.astype(FLOAT32) * ratio + FLOAT32(operands["output_zero_point"]))
        np.testing.assert_array_equal(theirs, reference.saturate(value, dtype))
        count += theirs.size
        kernel_deviations += np.count_nonzero(theirs != ours)
        node_deviations += np.count_nonzero(nodes(**operands) != ours)
        assert np.max(abs(theirs.astype(int) - np.asarray(ours))) <= 1
    assert 0 < kernel_deviations < count / 100
    assert 0 < node_deviations < count / 1000


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_quantized_linear_leaky_relu(dtype):
    """All 256 values."""
    rng, count = np.random.default_rng(10), 2000
    x = np.arange(256).astype(dtype)
    for alpha in (0.01, 0.1, 0.25, -0.5, 1.7):
        parameters = []
        for x_scale, output_scale in samples.scales(rng, 2 * count).reshape(count, 2):
            if rng.random() < 0.5:
                output_scale = random_output_scale(rng, x_scale, rng.uniform(0.3, 3))
            parameters.append((x_scale, samples.integers(rng, dtype), output_scale, samples.integers(rng, dtype)))
        leaky_relu = functools.partial(jquant.quantized_linear_leaky_relu, x, alpha=alpha)
        assert_equal_to_node(leaky_relu, parameters, lambda *scalars: (x, *scalars), "QLinearLeakyRelu", alpha=alpha)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_quantized_linear_concat(dtype):
    """All 256 values of two tensors. onnxruntime copies a tensor with the scale and zero point of the output."""
    rng, count = np.random.default_rng(11), 2000
    x = np.arange(256).astype(dtype)
    parameters = []
    for scales in samples.scales(rng, 3 * count).reshape(count, 3):
        a, b, output = zip(scales, samples.integers(rng, dtype, 3), strict=True)
        parameters.append((*(a if rng.random() < 0.25 else output), *a, *b))

    def concat(output_scale, output_zero_point, a_scale, a_zero_point, b_scale, b_zero_point):
        triples = [(x, a_scale, a_zero_point), (x, b_scale, b_zero_point)]
        return jquant.quantized_linear_concat(triples, output_scale, output_zero_point, axis=0)

    def inputs(output_scale, output_zero_point, a_scale, a_zero_point, b_scale, b_zero_point):
        return output_scale, output_zero_point, x, a_scale, a_zero_point, x, b_scale, b_zero_point

    assert_equal_to_node(concat, parameters, inputs, "QLinearConcat", axis=0)


def assert_equal_to_node(function, parameters, inputs, op, **attributes):
    """`function` of each tuple of scalars, all in one program, equals a node of com.microsoft on `inputs` of these."""
    outputs = jax.jit(jax.vmap(function))(*map(np.stack, zip(*parameters, strict=True)))
    graph = None
    for ours, scalars in zip(np.asarray(outputs), parameters, strict=True):
        operands = {f"input{index}": np.asarray(value) for index, value in enumerate(inputs(*scalars))}
        graph = graph or Graph((op, list(operands), ["output"], MICROSOFT | attributes), **operands)
        np.testing.assert_array_equal(ours, graph(**operands), str(scalars))
