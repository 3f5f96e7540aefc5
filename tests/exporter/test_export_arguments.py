"""The arguments of export: parameters and inputs, names, operator sets, and what a model says of itself."""

import functools
import hashlib
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

import jquant  # noqa: E402
from jquant import transform  # noqa: E402
from jquant.onnx import ModelError, export  # noqa: E402

from .running import run  # noqa: E402
from .same_results import nodes, require_same  # noqa: E402

X = np.arange(12, dtype=np.float32).reshape(4, 3)


def inputs(model) -> list[str]:
    return [value.name for value in model.graph.input]


def outputs(model) -> list[str]:
    return [value.name for value in model.graph.output]


def parameters(model) -> list[str]:
    return [tensor.name for tensor in model.graph.initializer]


class Network:
    def __init__(self, factor: float):
        self.factor = factor

    def __call__(self, variables, image):
        return image * variables["scale"] * self.factor

    def encode(self, tokens, mask):
        return tokens * self.factor + mask


NAMES = {
    "function": (lambda x, y: x + y, (X, X), ["x", "y"]),
    "trees": (lambda x, y: x["a"] + x["b"][1] + y, ({"b": (X, X), "a": X}, X), None),
    "one tree": (lambda batch: batch["b"][0] + batch["a"], ({"b": [X], "a": X},), ["batch.a", "batch.b.0"]),
    "several": (lambda *x: x[0] + x[1], (X, X), ["x_0", "x_1"]),
    "some and several": (
        lambda x, *others, scale=2: x * scale + others[0] + others[1],
        (X, X, X),
        ["x", "others_0", "others_1"],
    ),
    "partial": (functools.partial(lambda w, x, y: w + x + y, X), (X, X), ["x", "y"]),
    "partial by name": (functools.partial(lambda x, y, scale: (x + y) * scale, scale=2), (X, X), ["x", "y"]),
    "method": (Network(3).encode, (X, X), ["tokens", "mask"]),
    "object": (Network(3), ({"scale": X}, X), ["image"]),
    "jitted": (jax.jit(Network(3).encode), (X, X), ["tokens", "mask"]),
    "mapped": (jax.vmap(Network(3).encode), (X, X), ["tokens", "mask"]),
    "jitted partial": (jax.jit(functools.partial(lambda w, x: w + x, X)), (X,), ["x"]),
    "number": (lambda x, n: x * n, (X, 3), ["x", "n"]),
    "unused": (lambda x, y, z: y * 2, (X, X, X), ["x", "y", "z"]),
    "none": (lambda: jnp.ones(3), (), []),
    "without": (lambda x, y, z: x if y is None else z, (X, None, X), ["x", "z"]),
}


@pytest.mark.parametrize("case", NAMES)
def test_names_of_inputs(case):
    function, arguments, names = NAMES[case]
    assert inputs(export(function, *arguments)) == (["y"] if names is None else names)


OUTPUTS = {
    "array": (lambda x: x + 1, ["output"]),
    "dict": (lambda x: {"logits": x + 1, "a b": x * 2, "aux": {"loss": x.sum(), "k": (x, x)}}, None),
    "tuple": (lambda x: (x + 1, x * 2), ["output_0", "output_1"]),
    "tuple of one": (lambda x: (x + 1,), ["output"]),
    "nested": (lambda x: [x + 1, {"k": x * 2}], ["output_0", "output_1.k"]),
    "numbers": (lambda x: (3, x.shape[0]), ["output_0", "output_1"]),
    "no name": (lambda x: {"": x + 1, "y": {"": x}}, ["output", "y."]),
    "taken": (lambda x: {"x": x + 1, "y": x}, ["x_1", "y"]),
}


@pytest.mark.parametrize("case", OUTPUTS)
def test_names_of_outputs(case):
    function, names = OUTPUTS[case]
    model = export(function, X)
    assert outputs(model) == (["a b", "aux.k.0", "aux.k.1", "aux.loss", "logits"] if names is None else names)
    require_same(model, function, [X])


def test_given_names():
    """They are kept as they are, whatever else has such a name."""
    params = {"w": X[0], "b": X[1]}

    def function(params, x, y):
        with jax.named_scope("a b"):
            return x * params["w"][None] + params["b"][None], x * y

    given = ["params.w", "a b.mul"], ["0/logits:0", "mul"]
    model = export(function, params, X, X, input_names=given[0], output_names=given[1])
    assert (inputs(model), outputs(model)) == given
    assert parameters(model) == ["params.w_1", "params.b"]
    require_same(model, functools.partial(function, params), [X, X])


def test_parameters():
    """The first of several arguments, if it is a tree of arrays."""

    def function(p, x):
        return x * p["layer"]["w"][0][None] + p["layer"]["b"][None]

    params = {"layer": {"w": [X[0] + 1], "b": X[1].astype(np.float64), "unused": X}}
    model = export(function, params, X)
    assert inputs(model) == ["x"]
    assert parameters(model) == ["p.layer.w.0", "p.layer.b"]
    require_same(model, functools.partial(function, params), [X])
    types = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32), params)
    assert inputs(export(function, types, X)) == ["p.layer.b", "p.layer.unused", "p.layer.w.0", "x"]
    assert inputs(export(lambda p: function(p, X), params)) == ["p.layer.b", "p.layer.unused", "p.layer.w.0"]
    assert inputs(export(lambda p, x: p * x, X, X)) == ["p", "x"]
    assert inputs(export(lambda p, x: x * 2, {}, X)) == ["x"]


def test_weights_of_unrolled_steps():
    """What is computed of them, in each step, stands once in the model."""

    def function(params, x):
        def step(carry, x):
            return jnp.tanh(params["w"].T @ carry + params["scale"].astype(jnp.float32) * x), carry

        return jax.lax.scan(step, x[0], x)[0]

    params = {"w": np.linspace(-1, 1, 9, dtype=np.float32).reshape(3, 3), "scale": np.float16([1, 2, 3])}
    model = export(function, params, X)
    assert sorted(name for name in parameters(model) if name.startswith("params")) == ["params.scale", "params.w"]
    assert nodes(model).count("Tanh") == 4


def test_equal_parameters_keep_their_names():
    params = {"a": np.ones((3,), np.float32), "b": np.ones((3,), np.float32)}
    model = export(lambda params, x: x * params["a"][None] + params["b"][None], params, X)
    assert parameters(model) == ["params.a", "params.b"]


def test_large_parameters_are_not_repeated():
    """One initializer for equal constants and for a parameter that is read twice; none for what is repeated in memory."""
    big = np.arange(1000, dtype=np.float32)

    def function(params, x):
        repeated = jnp.broadcast_to(params["w"][:1, None], (500, 1000))
        return x * params["w"] + params["w"], x * big + np.array(big), repeated * x[None]

    model = export(function, {"w": big + 1}, X[:1, 0])
    sizes = sorted(int(np.prod(tensor.dims)) for tensor in model.graph.initializer)
    assert sizes[-2:] == [1000, 1000]
    assert all(size < 1000 for size in sizes[:-2])


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.bool_, np.float16])
def test_outputs_that_are_inputs_and_parameters(dtype):
    """And constants, and results that are returned several times."""

    def function(params, x, y):
        x = x.astype(dtype)
        return y, y, params["w"], params["w"], jnp.ones(3, dtype), x, x

    params = {"w": X.astype(dtype)}
    model = export(function, params, X, X)
    assert len(set(outputs(model))) == 7
    results = run(model, [X, X], optimized=True)
    expected = [np.asarray(x) for x in function(params, jnp.asarray(X), X)]
    for result, x in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, x)


def test_narrow_inputs():
    """An input of four bits that is returned; onnxruntime has no Identity for it."""
    function = lambda x: (x, x.astype(jnp.float32))  # noqa: E731
    model = export(function, X.astype(ml_dtypes.int4))
    onnx.checker.check_model(model, full_check=True)
    assert "Identity" not in nodes(model)
    jquant.onnx.onnxruntime_session.session(model.SerializeToString(), optimized=True)


def test_output_that_another_reads():
    function = lambda x: (x + 1, jnp.broadcast_to(x[:1] + 1, (3, 4, 3)), (x + 1) * 2)  # noqa: E731
    require_same(export(function, X), function, [X])

    def shared(x):
        y = x + 1
        return y, jax.lax.cond(x[0, 0] > 5, lambda: y * 2, lambda: y), jnp.broadcast_to(y, (2, 4, 3))

    require_same(export(shared, X), shared, [X])


def test_operator_set():
    """The lowest that has all nodes, from 13 on; or the one that is asked for."""

    def version(function, **options):
        model = export(function, X, **options)
        return {entry.domain: entry.version for entry in model.opset_import}

    assert version(lambda x: x + 1) == {"": 13}
    assert version(lambda x: x.at[0].add(1.0)) == {"": 16}
    assert version(lambda x: x.at[0].max(1.0)) == {"": 18}
    assert version(lambda x: x.at[0].max(1.0), opset=21) == {"": 21}
    with pytest.raises(
        ModelError, match=r"opset is 15, but ScatterND \(in head\) needs version 16 of the operator set ai.onnx"
    ):
        version(jax.named_call(lambda x: x.at[0].add(1.0), name="head"), opset=15)
    message = r"ScatterND needs version 16 of the operator set ai.onnx, or a newer one; all nodes need version 18$"
    with pytest.raises(ModelError, match=message):
        version(lambda x: x.at[0].add(1.0).at[0].max(1.0), opset=15)
    with pytest.raises(ModelError, match=r"needs version 18 of the operator set ai.onnx, or a newer one$"):
        version(lambda x: x.at[0].add(1.0).at[0].max(1.0), opset=16)


def test_domains():
    for domains in ((), ("",), ("com.microsoft",), ["", "com.microsoft"]):
        assert [entry.domain for entry in export(lambda x: x + 1, X, domains=domains).opset_import] == [""]


def test_names_of_parts():
    """Values, and the nodes that compute them, are called after the named scopes of the function."""

    def layer(x):
        with jax.named_scope("attention"):
            return jax.jit(lambda x: jax.named_call(lambda x: (x * 2) @ X.T, name="scores")(x))(x)

    model = export(lambda x: jax.named_call(layer, name="block")(x) + 1, X)
    assert [node.name for node in model.graph.node] == [
        "block.attention.scores.mul",
        "block.attention.scores.product",
        "output",
    ]
    assert all(node.name == node.output[0] for node in model.graph.node)


def test_names_of_parts_that_are_transformed():
    def part(x):
        with jax.named_scope("part"):
            return jnp.tanh(x) * 2

    model = export(jax.vmap(jax.grad(lambda x: part(x).sum())), X)
    assert {node.name.rpartition(".")[0] for node in model.graph.node} <= {"", "part"}
    assert "part.tanh" in {node.name for node in model.graph.node}


def test_what_a_model_says_of_itself():
    model = export(jax.jit(Network(2).encode), X, X)
    assert (model.producer_name, model.producer_version) == ("jquant", jquant.__version__)
    assert model.graph.name == "encode"
    assert export(Network(2), {"scale": X}, X).graph.name == "Network"


def quantized():
    """A quantized function, its parameters and an input."""
    x = np.linspace(-2, 3, 128, dtype=np.float32).reshape(4, 32)
    weights = {"hidden": np.linspace(-1, 1, 1024, dtype=np.float32).reshape(32, 32), "bias": np.ones((1, 32), np.float32)}

    def apply(weights, features):
        return {"logits": jax.nn.relu(features @ weights["hidden"] + weights["bias"])}

    return *transform.quantize(apply, weights, transform.dynamic_int8, x), x


def test_quantized_function():
    """Inputs are called as in the function that was quantized; and an export knows nothing of what has run."""
    function, params, x = quantized()
    before = export(function, params, x).SerializeToString(deterministic=True)
    jax.block_until_ready(jax.jit(function)(params, x))
    jax.block_until_ready(function(params, x))
    model = export(function, params, x)
    assert model.SerializeToString(deterministic=True) == before
    assert (inputs(model), outputs(model)) == (["features"], ["logits"])
    assert "weights.float.bias" in parameters(model)
    assert model.graph.name == "quantized_apply"
    assert export(jax.jit(function), params, x).graph.input[0].name == "features"


def digest() -> str:
    function, params, x = quantized()
    model = export(function, params, x, domains={"com.microsoft", ""})
    return hashlib.sha256(model.SerializeToString()).hexdigest()


SCRIPT = """
from tests.exporter import test_export_arguments as cases
print(cases.digest())
"""


@pytest.mark.gate
def test_the_same_bytes_in_every_process():
    """Whose sets have another order."""
    environment = os.environ | {"PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"}
    result = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.split() == [digest()]


def test_external_data(tmp_path):
    """As for models of more than 2 GB."""
    params = {"w": np.arange(3000, dtype=np.float32).reshape(3, 1000), "n": np.ones((300,), ml_dtypes.int4)}
    function = lambda params, x: (x @ params["w"], params["n"].astype(jnp.float32) + x[0, 0])  # noqa: E731
    model = export(function, params, X)
    expected = run(model, [X], optimized=True)
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, size_threshold=100, location="weights")
    assert path.stat().st_size < 1000 < (tmp_path / "weights").stat().st_size
    loaded = onnx.load(path)
    for result, x in zip(run(loaded, [X], optimized=True), expected, strict=True):
        np.testing.assert_array_equal(result, x)
