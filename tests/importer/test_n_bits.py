"""MatMulNBits: the parameters that remain beside packed weights, what overrides receive, and invalid attributes."""

import importlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
import jquant.onnx  # noqa: E402
from jquant.onnx import ModelError  # noqa: E402

parser = importlib.import_module("onnx.parser")


def matmul_4_bits(also_read: str = "t", **attributes) -> onnx.ModelProto:
    """A model of MatMulNBits, and of another node that reads the initializer `also_read`."""
    attributes = {"K": 16, "N": 2, "block_size": 16} | attributes
    text = ", ".join(f"{name} = {value}" for name, value in attributes.items())
    return parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
    product (float[1, 16] x) => (float[1, 2] y, float[2, 1] z)
      <uint8[2, 1, 8] w = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}}, float[2, 1] s = {{0.5, 2}},
       uint8[2, 1] o = {{8, 7}}, float[2, 1] t = {{1, 1}}> {{
      y = com.microsoft.MatMulNBits <{text}> (x, w, s, o)
      z = Neg ({also_read})
    }}""")


def test_parameters_inside_packed_weights():
    """The scales and zero points of packed weights are parameters only where another node reads them."""
    x = {"x": np.arange(16, dtype=np.float32)[None]}
    alone, shared = (jquant.onnx.load(matmul_4_bits(name), fold=False) for name in ("t", "s"))
    assert set(alone.params) == {"w", "t"}
    assert set(shared.params) == {"w", "s", "t"}
    expected = alone(alone.params, x)["y"]
    np.testing.assert_array_equal(shared(shared.params, x)["y"], expected)
    unpacked = {
        "w": jnp.arange(1, 17, dtype=jnp.uint8).reshape(2, 1, 8),
        "s": jnp.float32([[0.5], [2]]),
        "o": jnp.uint8([[8], [7]]),
    }
    np.testing.assert_array_equal(alone(alone.params | unpacked, x)["y"], expected)


def test_overrides_receive_blocks_as_stored():
    """An override receives the operands in the file, not the weights that would be packed for the operator."""
    received = {}

    def product(a, b, scales, zero_points, *, K, N, block_size):
        received.update(b=b, scales=scales, zero_points=zero_points)
        return jnp.zeros((1, N), a.dtype)

    model = jquant.onnx.load(matmul_4_bits(), overrides={"com.microsoft.MatMulNBits": product})
    np.testing.assert_array_equal(model(model.params, {"x": np.ones((1, 16), np.float32)})["y"], np.zeros((1, 2)))
    assert {name: (array.shape, array.dtype.name) for name, array in received.items()} == {
        "b": ((2, 1, 8), "uint8"),
        "scales": ((2, 1), "float32"),
        "zero_points": ((2, 1), "uint8"),
    }


def test_overrides_receive_integers_as_stored():
    proto = parser.parse_model("""<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
    product (float[1, 2] x) => (float[1, 2] y) <int8[2, 2] w = {1, 2, 3, 4}, float s = {0.5}> {
      y = com.microsoft.DynamicQuantizeMatMul (x, w, s)
    }""")

    def product(a, b, scale):
        return jnp.matmul(a, b.astype(a.dtype)) * scale

    model = jquant.onnx.load(proto, overrides={"com.microsoft.DynamicQuantizeMatMul": product})
    np.testing.assert_array_equal(model(model.params, {"x": np.ones((1, 2), np.float32)})["y"], [[2, 3]])


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"bits": 3}, "its attribute bits is 3; supported are 2, 4 and 8"),
        ({"block_size": 0}, "its attribute block_size is 0; it must be a positive integer"),
        ({"block_size": -16}, "its attribute block_size is -16; it must be a positive integer"),
        ({"block_size": 1}, "its attribute block_size is 1; blocks of integers of 4 bits must fill whole bytes"),
        ({"K": -1}, "its attribute K is -1; it must be a positive integer"),
        ({"N": None}, "its attribute N is missing; it must be a positive integer"),
    ],
)
def test_invalid_attributes(attributes, message):
    """They are refused when the model is loaded."""
    proto = matmul_4_bits(**{name: value for name, value in attributes.items() if value is not None})
    attribute = proto.graph.node[0].attribute
    for each in [each for each in attribute if each.name in attributes and attributes[each.name] is None]:
        attribute.remove(each)
    with pytest.raises(ModelError, match=f"node 'y' .*: {re.escape(message)}"):
        jquant.onnx.load(proto)


def of_random_weights(accuracy_level, bits=4):
    rng = np.random.default_rng(3)
    tensors = {
        "w": rng.integers(0, 256, (24, 2, 16 * bits // 4), np.uint8),
        "s": rng.uniform(0.01, 0.02, (24, 2)).astype(np.float32),
        "t": rng.standard_normal(24, np.float32),
    }
    proto = parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
    product (float[rows, 64] x) => (float[rows, 24] y) {{
      y = com.microsoft.MatMulNBits <K = 64, N = 24, bits = {bits}, block_size = 32, accuracy_level = {accuracy_level}>
          (x, w, s, , , t)
    }}""")
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in tensors.items())
    return proto


@pytest.mark.parametrize("bits", [4, 8])
def test_rows_of_int8(bits):
    """The composition of operators, where the file allows it; onnxruntime, which rounds by block, is about as far away."""
    proto = of_random_weights(4, bits)
    x = np.random.default_rng(4).standard_normal((5, 64), np.float32)
    model = jquant.onnx.load(proto, n_bits="int8")
    rows, scale, _ = jquant.dynamic_quantize_linear(
        x, axis=-1, symmetric=True, output_dtype="INT8", feature_level="EXTENDED"
    )
    expected = jquant.block_scaled_matmul(rows, scale, None, model.params["w"], bias=model.params["t"])
    actual = jax.jit(model)(model.params, {"x": x})["y"]
    np.testing.assert_array_equal(actual, expected)
    in_float = jquant.onnx.load(proto)
    distance = np.abs(actual - in_float(in_float.params, {"x": x})["y"]).max()
    assert 0 < distance < 0.02 * np.abs(actual).max()
    assert "matmul_n_bits_of_int8_rows" in str(model)


def test_where_rows_stay_floats():
    """At other levels, for weights that are not known, and where the caller has another function."""
    x = {"x": np.random.default_rng(4).standard_normal((5, 64), np.float32)}
    for level in (0, 1):
        as_floats, allowed = (jquant.onnx.load(of_random_weights(level), n_bits=way) for way in ("float", "int8"))
        np.testing.assert_array_equal(allowed(allowed.params, x)["y"], as_floats(as_floats.params, x)["y"])
    proto = of_random_weights(4)
    model = jquant.onnx.load(proto, n_bits="int8")
    as_stored = {each.name: onnx.numpy_helper.to_array(each) for each in proto.graph.initializer}
    as_floats = jquant.onnx.load(proto)
    np.testing.assert_allclose(model(as_stored, x)["y"], as_floats(as_floats.params, x)["y"], rtol=1e-5, atol=1e-5)

    def nothing(a, b, scales, zero_points, g_idx, bias, *, K, N, bits, block_size, accuracy_level):
        return jnp.zeros((*a.shape[:-1], N), a.dtype)

    replaced = jquant.onnx.load(proto, n_bits="int8", overrides={"com.microsoft.MatMulNBits": nothing})
    assert not replaced(replaced.params, x)["y"].any()


def test_a_way_that_does_not_exist():
    with pytest.raises(jquant.onnx.ModelError, match="n_bits is 'int4'; it must be 'float' or 'int8'"):
        jquant.onnx.load(of_random_weights(4), n_bits="int4")
