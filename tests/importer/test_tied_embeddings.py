"""Embedding tables that are the matrix of the output layer, too: one packed matrix, and the same numbers as with two."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
import jquant.onnx  # noqa: E402
from jquant.formulas import lookup  # noqa: E402

parser = importlib.import_module("onnx.parser")

K, N, BLOCK = 64, 24, 32
X = np.random.default_rng(4).standard_normal((3, K), np.float32)
TOKENS = np.int32([[0, 5, 23], [-1, -24, 7]])


def arrays(bits=4, zero_points=True, dtype=np.float32):
    """The matrix as both operators read it, its scales, and its zero points if it has any."""
    rng = np.random.default_rng(3)
    blocks = K // BLOCK
    tensors = {
        "w": rng.integers(0, 256, (N, blocks, BLOCK * bits // 8), np.uint8),
        "s": rng.uniform(-0.02, 0.02, (N, blocks)).astype(dtype),
    }
    return tensors | ({"z": rng.integers(0, 256, (N, blocks * bits // 8), np.uint8)} if zero_points else {})


def model_of(tensors, bits=4, table="w", block_size=BLOCK, others=""):
    """The rows of a table, and a product, as onnxruntime-genai's builder writes them.

    Args:
      table: the matrix that is looked up, of `tensors`.
      block_size: of the look-up.
      others: more nodes.
    """
    dtype = {np.dtype(np.float32): "float", np.dtype(np.float16): "float16"}[tensors["s"].dtype]
    z = "z" if "z" in tensors else ""
    proto = parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
    tied (int32[b, t] tokens, {dtype}[rows, {K}] x) => ({dtype}[b, t, {K}] rows, {dtype}[rows, {N}] y) {{
      table = Reshape ({table}, shape)
      rows = com.microsoft.GatherBlockQuantized
          <bits = {bits}, block_size = {block_size}, gather_axis = 0, quantize_axis = 1>
          (table, tokens, s{table[1:]}, {z and z + table[1:]})
      y = com.microsoft.MatMulNBits <K = {K}, N = {N}, bits = {bits}, block_size = {BLOCK}, accuracy_level = 4>
          (x, w, s, {z})
      {others}
    }}""")
    for name, array in (tensors | {"shape": np.array([N, K * bits // 8])}).items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return proto


def untied(tensors, **options):
    """The same model with a matrix for each of the two."""
    return model_of(tensors | {f"{name}2": array for name, array in tensors.items()}, table="w2", **options)


def results(model, x=X, tokens=TOKENS, params=None):
    dtype = model.inputs["x"].dtype
    return jax.jit(model)(model.params if params is None else params, {"x": x.astype(dtype), "tokens": tokens})


def assert_equal(actual, expected):
    assert actual.keys() == expected.keys()
    for name in expected:
        assert actual[name].dtype == expected[name].dtype
        np.testing.assert_array_equal(np.asarray(actual[name]).view(np.uint8), np.asarray(expected[name]).view(np.uint8))


@pytest.mark.parametrize(
    ("bits", "dtype", "zero_points", "way"),
    [
        (4, np.float32, False, "int8"),
        (4, np.float32, True, "float"),
        (4, np.float16, True, "int8"),
        (8, np.float32, False, "float"),
    ],
)
def test_one_matrix(bits, dtype, zero_points, way):
    """It is packed, and nothing else is left. Tokens outside of the table give zeros, as they do with a table."""
    tensors = arrays(bits, zero_points, dtype)
    tied, apart = (jquant.onnx.load(make(tensors, bits=bits), n_bits=way) for make in (model_of, untied))
    assert list(tied.params) == ["w"]
    assert isinstance(tied.params["w"], jquant.PackedBlockMatrix)
    assert "jquant.columns_of_n_bits" in str(tied)
    assert "Reshape" not in str(tied)
    for tokens in (TOKENS, np.int32([[N, -N - 1, 2**31 - 1]]), np.zeros((1, 0), np.int32)):
        assert_equal(results(tied, tokens=tokens), results(apart, tokens=tokens))


def test_parameters_as_the_file_has_them():
    """A caller may pass them."""
    tensors = arrays()
    tied, apart = jquant.onnx.load(model_of(tensors)), jquant.onnx.load(untied(tensors))
    expected = results(apart, params=apart.params | tensors)
    assert_equal(results(tied, params=tied.params | tensors), expected)


def test_in_a_branch():
    """The table is looked up in a subgraph."""
    tensors = arrays()
    outer, inner = model_of(tensors), model_of(tensors).graph
    outer.graph.node.remove(outer.graph.node[1])
    look_up = inner.node[1]
    body = onnx.helper.make_graph([look_up], "body", [], [inner.output[0]])
    outer.graph.node.append(onnx.helper.make_node("If", ["c"], ["rows"], then_branch=body, else_branch=body))
    outer.graph.input.append(onnx.helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, []))
    model = jquant.onnx.load(outer)
    assert list(model.params) == ["w"]
    expected = results(jquant.onnx.load(untied(tensors)))
    assert_equal(jax.jit(model)(model.params, {"x": X, "tokens": TOKENS, "c": np.array(True)}), expected)


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({"others": "i = Identity (w)"}, {"w", "s"}),
        ({"others": "i = Gather (table, tokens)"}, {"w", "s"}),
        ({"others": "i = Identity (s)"}, {"s"}),
        ({"others": "i = Identity (shape)"}, set()),
    ],
)
def test_other_readers(options, left):
    """The matrix stays as it is if another node reads it, and scales stay if another node reads them."""
    tensors = arrays(zero_points=False)
    proto = model_of(tensors, **options)
    model = jquant.onnx.load(proto)
    assert left <= set(model.params) <= left | {"w", "shape"}
    assert isinstance(model.params["w"], jquant.PackedBlockMatrix) == ("w" not in left)
    expected = results(jquant.onnx.load(untied(tensors)))
    assert_equal({"rows": results(model)["rows"]}, {"rows": expected["rows"]})


def test_other_parameters():
    """The table has scales of its own, or is looked up in other blocks: it stays a table."""
    tensors = arrays(zero_points=False)
    proto = model_of(tensors | {"s2": tensors["s"] * 2})
    proto.graph.node[1].input[2] = "s2"
    halves = model_of(tensors | {"s2": np.repeat(tensors["s"], 2, axis=1)}, block_size=16)
    halves.graph.node[1].input[2] = "s2"
    for each, scale in ((proto, 2), (halves, 1)):
        model = jquant.onnx.load(each)
        assert set(model.params) == {"w", "s", "s2"}
        expected = results(jquant.onnx.load(untied(tensors)))["rows"]
        np.testing.assert_array_equal(results(model)["rows"], expected * np.float32(scale))


def test_an_override_of_the_look_up():
    """It receives the table of the file."""
    tensors = arrays(zero_points=False)
    received = []

    def gather(table, tokens, scales, zero_points=None, *, bits, block_size, gather_axis, quantize_axis):
        received.append(table.shape)
        return jnp.zeros((*tokens.shape, K))

    results(jquant.onnx.load(model_of(tensors), overrides={"com.microsoft.GatherBlockQuantized": gather}))
    assert set(received) == {(N, K // 2)}


def test_an_override_of_the_product():
    """It receives the matrix of the file, of which rows are still looked up."""
    tensors = arrays(zero_points=False)
    received = []

    def product(a, b, scales, zero_points=None, *, K, N, bits, block_size, accuracy_level):
        received.append(b.shape)
        return jnp.zeros((*a.shape[:-1], N), a.dtype)

    model = jquant.onnx.load(model_of(tensors), overrides={"com.microsoft.MatMulNBits": product})
    rows = results(model)["rows"]
    assert set(received) == {tensors["w"].shape}
    assert_equal({"rows": rows}, {"rows": results(jquant.onnx.load(untied(tensors)))["rows"]})


@pytest.mark.parametrize("spec", [("x", None), (None, "x")], ids=["indices", "columns"])
def test_columns_on_a_mesh(spec):
    """Indices that are split over explicit axes, and columns that are."""
    packed = jquant.onnx.load(model_of(arrays())).params["w"]
    tokens = np.arange(-N, N, dtype=np.int32).reshape(8, 6)
    mesh = jax.make_mesh((8,), ("x",))
    placed = jax.device_put(packed, packed.sharding_for(NamedSharding(mesh, P(None, spec[1]))))
    rows = jax.jit(lookup.columns)(placed, jax.device_put(tokens, NamedSharding(mesh, P(spec[0]))))
    np.testing.assert_array_equal(rows, lookup.columns(packed, jnp.asarray(tokens)))
