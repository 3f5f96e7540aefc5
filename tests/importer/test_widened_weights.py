"""Products by integer weights that the file widens, with ``qdq="fused"``: products of floats by the integers themselves."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

import jquant.onnx  # noqa: E402

from .widened_models import BLOCK, VERSIONS, Case, Network, cases  # noqa: E402

parser = importlib.import_module("onnx.parser")

RNG = np.random.default_rng(11)
K, N = 24, 6
W = RNG.integers(-128, 128, (K, N)).astype(np.int8)
S = RNG.uniform(0.01, 0.1, N).astype(np.float32)
X = RNG.normal(size=(5, K)).astype(np.float32)
_IN_ONE_PROGRAM = 20


def check(network: Network, count) -> None:
    """All products are fused, within the bound of float64's results, and equal to those of the operator itself."""
    model = jquant.onnx.load(network.model(), qdq="fused")
    assert sum(model.fused.values()) == len(network.products)
    assert not [node for node in model.params if not isinstance(model.params[node], jquant.PackedBlockMatrix | jax.Array)]
    outputs = jax.jit(model)(model.params, network.inputs)
    equal = [each for each in network.products if each.factor == 1 and not np.any(each.addend)]

    def by_hand(rows, packed):
        return [jquant.matmul_n_bits(a, b) for a, b in zip(rows, packed, strict=True)]

    expected = jax.jit(by_hand)([each.rows for each in equal], [each.packed for each in equal])
    for each, array in zip(equal, expected, strict=True):
        np.testing.assert_array_equal(outputs[each.result], array)
    for each in network.products:
        each.check(np.asarray(outputs[each.result]))
    count("products by widened weights", len(network.products))


def sampled(version: int, number: int) -> list[Case]:
    known = list(cases(version))
    return [known[place] for place in np.random.default_rng(number).permutation(len(known))[:_IN_ONE_PROGRAM]]


@pytest.mark.parametrize(
    "version", [pytest.param(v, marks=pytest.mark.suite if v in (13, 25) else pytest.mark.gate) for v in VERSIONS]
)
def test_any_form(version, count):
    network = Network(version, seed=version)
    for case in sampled(version, version):
        network.add(case)
    check(network, count)


@pytest.mark.full
@pytest.mark.parametrize(("version", "dtype"), [(13, "float32"), (25, "float32"), (21, "float16"), (19, "bfloat16")])
def test_every_form(version, dtype, count):
    known = list(cases(version))
    for first in range(0, len(known), 4 * _IN_ONE_PROGRAM):
        network = Network(version, jnp.dtype(dtype), seed=first)
        for case in known[first : first + 4 * _IN_ONE_PROGRAM]:
            network.add(case)
        check(network, count)


@pytest.mark.suite
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_activations_keep_their_type(dtype, count):
    network = Network(21, jnp.dtype(dtype), seed=3)
    for case in sampled(21, 3)[:12]:
        network.add(case)
    check(network, count)


def loaded(nodes: str, arrays: dict, *, qdq="fused", outputs="float[m, n] y", version=21, **options) -> jquant.onnx.Model:
    """A model of an operand x of `K` columns."""
    text = f'<ir_version: 10, opset_import: ["" : {version}]> g (float[m, {K}] x, float t) => ({outputs}) {{ {nodes} }}'
    proto = parser.parse_model(text)
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(x), name) for name, x in arrays.items())
    return jquant.onnx.load(proto, qdq=qdq, **options)


def run(model: jquant.onnx.Model, x=X) -> dict:
    return jax.jit(model)(model.params, {"x": x, "t": np.float32(0.5)})


CAST = "f = Cast <to = 1> (w) "
WIDENED = f"{CAST} d = Mul (f, s) "
NAME = "MatMul of integer weights"


def test_parameters_are_the_bytes_of_the_file():
    model = loaded(f"{WIDENED} y = MatMul (x, d)", {"w": W, "s": S})
    assert list(model.params) == ["w"]
    assert repr(model.params["w"]) == f"PackedBlockMatrix(int8[{K},{N}], blocks of {K})"
    assert model.params["w"].data.nbytes == W.nbytes
    np.testing.assert_array_equal(model.params["w"].unpack(), W)
    assert "  fused: 1 MatMul of integer weights\n" in str(model)
    with pytest.raises(jquant.Error, match=r"B is int8\[24, 6\]; it must be a jquant.PackedBlockMatrix"):
        model({"w": W}, {"x": X, "t": np.float32(0.5)})


def test_weights_that_are_read_twice():
    """By two products: one matrix. By a product in each order: a matrix for each. By what needs integers: their own."""
    twice = f"{WIDENED} u = MatMul (x, d) v = MatMul (z, d) z = Neg (x) y = Add (u, v)"
    model = loaded(twice, {"w": W, "s": S})
    assert (model.fused, list(model.params)) == ({NAME: 2}, ["w"])
    np.testing.assert_array_equal(run(model)["y"], 0 * X[:, :N])
    square = RNG.integers(-128, 128, (K, K)).astype(np.int8)
    both = f"{CAST} d = Mul (f, s) u = MatMul (x, d) y = Gemm <transB = 1> (u, d)"
    model = loaded(both, {"w": square, "s": np.float32(0.01)})
    assert model.fused == {NAME: 1, "Gemm of integer weights": 1}
    assert sorted(model.params) == ["w", "w/matrix"]
    real = square * 0.01
    np.testing.assert_allclose(run(model)["y"], X @ real @ real.T, rtol=1e-4, atol=1e-3)
    others = f"{WIDENED} p = MatMul (x, d) g = Gather (w, i) h = Cast <to = 1> (g) y = Add (p, h)"
    model = loaded(others, {"w": W, "s": S, "i": np.int64(2)})
    assert (model.fused, sorted(model.params)) == ({NAME: 1}, ["h", "w/matrix"])
    np.testing.assert_allclose(run(model)["y"], X @ (W * S) + W[2].astype(np.float32), rtol=1e-5, atol=1e-4)


def test_names_that_the_file_has():
    """Its own scales keep their names where something else reads them."""
    arrays = {"w": W, "w/scale": S}
    model = loaded('f = Cast <to = 1> (w) d = Mul (f, "w/scale") p = MatMul (x, d) y = Add (p, "w/scale")', arrays)
    assert sorted(model.params) == ["w", "w/scale"]
    np.testing.assert_allclose(run(model)["y"], X @ (W * S) + S, rtol=1e-5, atol=1e-4)


ROW_SCALES = {"w": W, "s": np.repeat(S, 4)[:, None]}
IN_BLOCKS = {"w": W, "s": np.ones((K, 2), np.float32)}
LEFT = {  # what the integers do not become operands for
    "a scale for each row": (f"{WIDENED} y = MatMul (x, d)", ROW_SCALES),
    "a computed scale": (f"{CAST} d = Mul (f, t) y = MatMul (x, d)", {"w": W}),
    "a zero point that is no integer": (f"{CAST} e = Sub (f, z) y = MatMul (x, e)", {"w": W, "z": np.float32(0.5)}),
    "a zero point out of range": (f"{CAST} e = Sub (f, z) y = MatMul (x, e)", {"w": W, "z": np.float32(128)}),
    "a constant less the weights": (f"{CAST} e = Sub (z, f) y = MatMul (x, e)", {"w": W, "z": np.float32(3)}),
    "two scales": (f"{WIDENED} e = Mul (d, s) y = MatMul (x, e)", {"w": W, "s": S}),
    "blocks of columns": (
        "d = DequantizeLinear <axis = 1, block_size = 3> (w, s) y = MatMul (x, d)",
        IN_BLOCKS,
    ),
    "a scale that adds rows": (
        f"{WIDENED} y = MatMul (x, d)",
        {"w": W[:1], "s": np.linspace(0.1, 0.2, K * N, dtype=np.float32).reshape(K, N)},
    ),
    "integers of 16 bits": (f"{WIDENED} y = MatMul (x, d)", {"w": W.astype(np.int16), "s": S}),
    "weights on the left": (
        f"{WIDENED} u = Transpose (x) y = MatMul (e, u) e = Transpose (d)",
        {"w": W, "s": S},
    ),
    "floats that something else reads": (
        f"{WIDENED} p = MatMul (x, d) g = Gather (d, i) y = Add (p, g)",
        {"w": W, "s": S, "i": np.int64(2)},
    ),
    "floats on both sides": (
        f"{WIDENED} p = MatMul (x, d) e = Transpose (d) q = MatMul (e, d) y = MatMul (p, q)",
        {"w": W, "s": S},
    ),
    "unscaled floats that something else reads": (
        f"{WIDENED} p = MatMul (x, d) g = Gather (f, i) y = Add (p, g)",
        {"w": W, "s": S, "i": np.int64(2)},
    ),
    "a batch of matrices": (f"{WIDENED} y = MatMul (x, d)", {"w": W[None], "s": S}),
}


IN_SUITE = "a scale for each row", "floats that something else reads", "floats on both sides"


@pytest.mark.parametrize("case", [pytest.param(case, marks=[pytest.mark.suite] * (case in IN_SUITE)) for case in LEFT])
def test_what_stays_as_written(case):
    nodes, arrays = LEFT[case]
    outputs = "float[o, m, n] y" if case == "a batch of matrices" else "float[m, n] y"
    nodes = nodes.replace("y = MatMul (e, u) e = Transpose (d)", "e = Transpose (d) y = MatMul (e, u)")
    fused, written = (loaded(nodes, arrays, qdq=qdq, outputs=outputs) for qdq in ("fused", "as_written"))
    assert (fused.fused, fused.params.keys()) == ({}, written.params.keys())
    np.testing.assert_array_equal(run(fused)["y"], run(written)["y"])


@pytest.mark.suite
def test_weights_on_the_left_of_others():
    """Of two products, one keeps its floats, because the other has them as its first operand."""
    square = RNG.integers(-128, 128, (2, K, K)).astype(np.int8)
    arrays = {"w": square[0], "v": square[1], "s": np.float32(0.01)}
    nodes = f"{WIDENED} g = Cast <to = 1> (v) e = Mul (g, s) p = MatMul (x, d) q = MatMul (d, e) y = MatMul (p, q)"
    model = loaded(nodes, arrays)
    assert (model.fused, sorted(model.params)) == ({NAME: 1}, ["d", "v"])
    first, second = (each * 0.01 for each in square)
    np.testing.assert_allclose(run(model)["y"], X @ first @ first @ second, rtol=1e-4, atol=1e-2)


def test_floats_that_are_a_result_stay():
    nodes, outputs = f"{WIDENED} y = MatMul (x, d)", f"float[m, n] y, float[{K}, {N}] d"
    model = loaded(nodes, {"w": W, "s": S}, outputs=outputs)
    assert model.fused == {}
    np.testing.assert_array_equal(run(model)["d"], W * S)


def test_overrides_win():
    model = loaded(f"{WIDENED} y = MatMul (x, d)", {"w": W, "s": S}, overrides={"MatMul": lambda a, b: jnp.matmul(a, b) + 1})
    assert model.fused == {}
    np.testing.assert_allclose(run(model)["y"], X @ (W * S) + 1, rtol=1e-4, atol=1e-4)


def test_quantized_activations_stay_integer_products():
    nodes = "q = QuantizeLinear (x, a, z) p = DequantizeLinear (q, a, z) d = DequantizeLinear (w, s) y = MatMul (p, d)"
    model = loaded(nodes, {"w": W, "s": np.float32(0.1), "a": np.float32(0.05), "z": np.uint8(128)})
    assert model.fused == {"MatMul to float": 1}


def test_in_the_body_of_a_loop():
    """A product there, by weights of the file's outermost graph."""
    square = RNG.integers(-128, 128, (K, K)).astype(np.int8)
    nodes = f"""{CAST} d = Mul (f, s)
      y = Loop (three, , x) <body = b (int64 i, bool c, float[m, {K}] h) => (bool c2, float[m, {K}] h2) {{
        c2 = Identity (c) h2 = MatMul (h, d) }}>"""
    arrays = {"w": square, "s": np.float32(0.004), "three": np.int64(3)}
    fused, written = (loaded(nodes, arrays, qdq=qdq) for qdq in ("fused", "as_written"))
    assert fused.fused == {NAME: 1}
    np.testing.assert_allclose(run(fused)["y"], run(written)["y"], rtol=1e-5, atol=1e-4)


def test_transformations():
    """Derivatives with respect to activations, and a batch of them."""
    model = loaded(f"{WIDENED} y = MatMul (x, d)", {"w": W, "s": S})
    cotangent = RNG.normal(size=(5, N)).astype(np.float32)

    def total(x):
        return jnp.vdot(model(model.params, {"x": x, "t": np.float32(0)})["y"], cotangent)

    np.testing.assert_allclose(jax.jit(jax.grad(total))(X), cotangent @ (W * S).T, rtol=1e-5, atol=1e-5)
    batch = np.stack([X, -X, 2 * X])
    mapped = jax.jit(jax.vmap(lambda x: model(model.params, {"x": x, "t": np.float32(0)})["y"]))(batch)
    np.testing.assert_allclose(mapped, batch @ (W * S), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("form", ["qdq", "exact"])
def test_exported_again(form, count):
    """The file holds integers, and onnxruntime's results are within the bound."""
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")
    network = Network(21, seed=8)
    kinds = [case for case in cases(21) if case.product in ("MatMul of 3", "Gemm with C") and case.source == "initializer"]
    for place in np.random.default_rng(8).permutation(len(kinds))[:12]:
        network.add(kinds[place])
    model = jquant.onnx.load(network.model(), qdq="fused")
    written = jquant.onnx.export(model, model.params, network.inputs, form=form)
    types = {tensor.data_type for tensor in written.graph.initializer}
    assert types & {onnx.TensorProto.INT8, onnx.TensorProto.UINT8, onnx.TensorProto.INT4, onnx.TensorProto.UINT4}
    session = runtime.InferenceSession(written.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [each.result for each in network.products]
    for each, result in zip(network.products, session.run(names, network.inputs), strict=True):
        each.check(result)
    count("products exported again", len(network.products))


def test_blocks_of_rows_keep_their_scales():
    """In parameters that a caller reads."""
    scale = RNG.uniform(0.01, 0.1, (2, N)).astype(np.float32)
    nodes = f"d = DequantizeLinear <axis = 0, block_size = {BLOCK}> (w, s) y = MatMul (x, d)"
    model = loaded(nodes, {"w": W, "s": scale})
    assert repr(model.params["w"]) == f"PackedBlockMatrix(int8[{K},{N}], blocks of {BLOCK})"
    np.testing.assert_array_equal(model.params["w"].scale, scale)
