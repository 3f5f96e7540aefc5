"""QDQ models from lines of nodes, and the comparison of their fused form with jquant's operators."""

import jax
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

import jquant.onnx  # noqa: E402

RNG = np.random.default_rng(18)
EXTENDED = jquant.FeatureLevel.EXTENDED
SCALES = {"x": 0.05, "z": 0.03, "y": 0.11, "v": 0.07}  # none is a power of 2
ZERO_POINTS = {"x": 119, "z": 131, "y": 107, "v": 125}  # of uint8; those of int8 are less by 128
OUTPUT = "\ny = QuantizeLinear(r, y_scale, y_zero)"
SAME_SCALE = "\ny = QuantizeLinear(r, x_scale, x_zero)"


def scale(name: str) -> np.ndarray:
    return np.float32(SCALES[name])


def zero_point(name: str, dtype: str) -> np.ndarray:
    return np.array(ZERO_POINTS[name] - (128 if dtype == "int8" else 0), dtype)


def initializers(dtypes: dict[str, str]) -> dict[str, np.ndarray]:
    """The initializers that the nodes of `qdq` read, by name."""
    return {
        name: array
        for value, dtype in dtypes.items()
        for name, array in ((f"{value}_scale", scale(value)), (f"{value}_zero", zero_point(value, dtype)))
    }


def qdq(name: str) -> str:
    """Lines that quantize the value `name`, and dequantize it as `name` with a "d"."""
    parameters = f"{name}_scale, {name}_zero"
    return f"{name}q = QuantizeLinear({name}, {parameters})\n{name}d = DequantizeLinear({name}q, {parameters})\n"


def qdq_model(nodes: str, inputs: dict, arrays: dict, outputs: dict | None = None, version: int = 21) -> onnx.ModelProto:
    """A model from lines of nodes.

    Args:
      inputs: the shapes of the inputs, which are float32, by name.
      arrays: the initializers, by name.
      outputs: the dtypes of the outputs, by name; by default, "y" is uint8.
      version: that of the operator set.
    """
    make, types = onnx.helper.make_tensor_value_info, {"y": np.uint8} if outputs is None else outputs
    parsed = [onnx.parser.parse_node(line.strip()) for line in nodes.strip().splitlines()]
    element_types = {name: onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)) for name, dtype in types.items()}
    graph = onnx.helper.make_graph(
        parsed,
        "graph",
        [make(name, onnx.TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [make(name, element_type, None) for name, element_type in element_types.items()],
        [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()],
    )
    opset = [onnx.helper.make_opsetid("", version), onnx.helper.make_opsetid("com.microsoft", 1)]
    return onnx.shape_inference.infer_shapes(onnx.helper.make_model(graph, opset_imports=opset, ir_version=10))


def random_floats(shape, name: str = "x") -> np.ndarray:
    """Floats in the range of the integers, and a little beyond it."""
    return (RNG.uniform(-140, 140, shape) * SCALES[name]).astype(np.float32)


def run_model(proto: onnx.ModelProto, inputs: dict, qdq: str):
    """The outputs as NumPy arrays, and the numbers of fused operators."""
    model = jquant.onnx.load(proto, qdq=qdq)
    return {name: np.asarray(value) for name, value in jax.jit(model)(model.params, inputs).items()}, model.fused


def quantized(array: np.ndarray, name: str, dtype: str) -> jax.Array:
    return jquant.quantize_linear(array, scale(name), zero_point(name, dtype), feature_level=EXTENDED)


def operand(array: np.ndarray, name: str, dtype: str) -> tuple:
    """Integers, their scale and their zero point: three operands of a quantized operator."""
    return quantized(array, name, dtype), scale(name), zero_point(name, dtype)


def parameters(name: str, dtype: str) -> tuple:
    return scale(name), zero_point(name, dtype)


def check_fused(nodes: str, inputs: dict, arrays: dict, expected, fused: dict, version: int = 21) -> None:
    """Checks that the output is `expected` bit for bit if the model is fused, and off by at most 1 as written.

    Args:
      fused: the numbers of fused operators, by name.
    """
    shapes = {name: array.shape for name, array in inputs.items()}
    expected = np.asarray(expected)
    proto = qdq_model(nodes, shapes, arrays, {"y": expected.dtype}, version)
    (outputs, fused_operators), (written, none) = (run_model(proto, inputs, form) for form in ("fused", "as_written"))
    assert (fused_operators, none) == (fused, {})
    assert outputs["y"].dtype == written["y"].dtype == expected.dtype
    np.testing.assert_array_equal(outputs["y"], expected)
    if expected.dtype.kind == "f":
        np.testing.assert_allclose(written["y"], expected, rtol=1e-5, atol=1e-5)
    else:
        assert len(np.unique(expected)) > 5
        np.testing.assert_allclose(written["y"].astype(int), expected.astype(int), rtol=0, atol=1)


def check_as_written(
    nodes: str, inputs: dict, arrays: dict, fused: dict | None = None, outputs=None, version: int = 21
) -> None:
    """Checks that all outputs of the fused model have the bits that they have as written."""
    shapes = {name: array.shape for name, array in inputs.items()}
    proto = qdq_model(nodes, shapes, arrays, outputs, version)
    (actual, fused_operators), (expected, _) = (run_model(proto, inputs, form) for form in ("fused", "as_written"))
    assert fused_operators == (fused or {})
    for name, array in expected.items():
        assert actual[name].dtype == array.dtype
        np.testing.assert_array_equal(actual[name], array)


# The dtype of weights, whether their scales are per channel, and whether they have zero points.
WEIGHTS = [("int8", False, False), ("uint8", False, True), ("int8", True, False), ("uint8", True, True)]


def random_weights(shape, axis: int, dtype: str, per_channel: bool, has_zero_point: bool):
    """Integers, scales and zero points; the initializers that they are; and the line that dequantizes them."""
    limits, count = np.iinfo(dtype), shape[axis] if per_channel else ()
    w = RNG.integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)
    w_scale = RNG.uniform(0.01, 0.02, count).astype(np.float32)
    w_zero = (RNG.integers(limits.min, limits.max, count) if has_zero_point else np.zeros(count)).astype(dtype)
    arrays = {"w": w, "w_scale": w_scale, "w_zero": w_zero}
    line = f"wd = DequantizeLinear <axis = {axis}> (w, w_scale, w_zero)\n"
    return w, w_scale, (w_zero if has_zero_point else None), arrays, line


def random_bias(size: int, unit) -> tuple[np.ndarray, dict, str]:
    """Integers in multiples of `unit`, the initializers that they are, and the line that dequantizes them."""
    b = RNG.integers(-(2**12), 2**12, size).astype(np.int32)
    b_scale = np.asarray(unit, np.float32)
    line = "bd = DequantizeLinear <axis = 0> (b, b_scale, b_zero)\n"
    return b, {"b": b, "b_scale": b_scale, "b_zero": np.zeros(b_scale.shape, np.int32)}, line
