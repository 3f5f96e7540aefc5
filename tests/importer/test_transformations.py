"""A model through everything that JAX does with functions, over 8 devices, and called as it must not be."""

import functools
import importlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from . import small_models

pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

import jquant.onnx
from jquant.onnx import ModelError

PLATFORMS = ("cpu", "cuda", "tpu")


@functools.cache
def encoder() -> jquant.onnx.Model:
    return jquant.onnx.load(small_models.encoder())


def by_hand(weights: dict, tokens: jax.Array, noise: jax.Array) -> jax.Array:
    """The hidden states, as one writes the layer with these operators."""
    scale, packed = np.float32(0.003), {name: jquant.pack_matrix(x) for name, x in weights.items() if name != "table"}

    def product(x, *names):
        quantized, x_scale, zero_point = jquant.dynamic_quantize_linear(x)
        sums = (jquant.matmul_integer(quantized, packed[name], zero_point, feature_level="EXTENDED") for name in names)
        return [each.astype(jnp.float32) * (x_scale * scale) for each in sums]

    def heads(x):
        return jnp.moveaxis(x.reshape(*x.shape[:2], small_models.HEADS, -1), 2, 1)

    table = jquant.dequantize_linear(jnp.asarray(weights["table"])[tokens], np.float32(0.02), np.uint8(128))
    x = table + noise
    query, key, value = map(heads, product(x, "wq", "wk", "wv"))
    attention = jax.nn.softmax((query @ jnp.swapaxes(key, -1, -2)) * np.float32(0.35), -1)
    joined = jnp.moveaxis(attention @ value, 1, 2).reshape(x.shape)
    return x + product(joined, "wo")[0]


def hidden(model: jquant.onnx.Model, params, inputs) -> jax.Array:
    return model(params, inputs)["hidden"]


def stacked(count: int) -> dict[str, np.ndarray]:
    drawn = [small_models.inputs(seed=seed) for seed in range(count)]
    return {name: np.stack([each[name] for each in drawn]) for name in drawn[0]}


def outputs_of(model, inputs) -> dict:
    return jax.jit(model)(model.params, inputs)


def assert_same(actual: dict, expected: dict):
    assert list(actual) == list(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value, name, strict=True)


def test_jit_is_the_layer_by_hand():
    """One program for all values, of either kind of integers."""
    model, inputs = encoder(), small_models.inputs()
    program = jax.jit(model)
    outputs = program(model.params, inputs)
    expected = jax.jit(by_hand)(small_models.weights(), inputs["tokens"], inputs["noise"])
    np.testing.assert_array_equal(outputs["hidden"], expected, strict=True)
    assert outputs["likeliest"].dtype == np.int32
    np.testing.assert_array_equal(outputs["likeliest"], np.trunc(expected * np.float32(0.35)))
    compiled = program._cache_size()
    program(model.params, small_models.inputs(seed=1))
    assert program._cache_size() == compiled


def test_parameters():
    """Matrices of integers are packed, and nothing static is among the parameters."""
    params = encoder().params
    assert {name for name, x in params.items() if isinstance(x, jquant.PackedMatrix)} == {"wq", "wk", "wv", "wo"}
    assert all(params[name].zero_point is None for name in ("wq", "wk", "wv", "wo"))  # it is 0 in the file
    assert {"table", "table_scale", "scale"} <= set(params)
    assert not {"heads", "rest", "first", "second", "width"} & set(params)


def test_vmap():
    """Each call has ranges of its own."""
    model, inputs = encoder(), stacked(3)
    found = jax.jit(jax.vmap(functools.partial(hidden, model, model.params)))(inputs)
    for index in range(3):
        expected = outputs_of(model, {name: x[index] for name, x in inputs.items()})["hidden"]
        np.testing.assert_array_equal(found[index], expected, strict=True)


def test_vmap_over_parameters():
    model, inputs = encoder(), small_models.inputs()
    several = jax.tree.map(lambda x: jnp.stack([x, x]), model.params)
    found = jax.jit(jax.vmap(functools.partial(hidden, model), in_axes=(0, None)))(several, inputs)
    for index in range(2):
        np.testing.assert_array_equal(found[index], outputs_of(model, inputs)["hidden"], strict=True)


def test_scan():
    model, inputs = encoder(), stacked(3)

    @jax.jit
    def steps(params, inputs):
        return lax.scan(lambda count, each: (count + 1, hidden(model, params, each)), 0, inputs)

    count, found = steps(model.params, inputs)
    assert count == 3
    for index in range(3):
        expected = outputs_of(model, {name: x[index] for name, x in inputs.items()})["hidden"]
        np.testing.assert_array_equal(found[index], expected, strict=True)


# Knows nothing of ONNX: of jquant it needs the type of the packed matrices alone.
PROCESS = """
import pathlib, sys
import jax, numpy as np
from jax import export
import jquant
folder = pathlib.Path(sys.argv[1])
program = export.deserialize((folder / "program").read_bytes())
with np.load(folder / "operands.npz") as leaves:
    arguments, options = jax.tree.unflatten(program.in_tree, list(leaves.values()))
np.savez(folder / "results.npz", **program.call(*arguments, **options))
print("onnx" in sys.modules, "jquant.onnx" in sys.modules)
"""


def test_export(tmp_path):
    """Once, for three platforms and every batch; called in another process."""
    model = encoder()
    batch, length = export.symbolic_shape("batch, length")
    shapes = {
        "tokens": jax.ShapeDtypeStruct((batch, length), np.int32),
        "noise": jax.ShapeDtypeStruct((batch, length, small_models.WIDTH), np.float32),
    }
    params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), model.params)
    program = export.export(jax.jit(model), platforms=PLATFORMS)(params, shapes)
    assert program.platforms == PLATFORMS
    (tmp_path / "program").write_bytes(program.serialize())
    inputs = small_models.inputs(batch=3, length=7)
    inputs["tokens"] = inputs["tokens"].astype(np.int32)
    np.savez(tmp_path / "operands.npz", *jax.tree.leaves((model.params, inputs)))
    command = [sys.executable, "-c", PROCESS, str(tmp_path)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.split() == ["False", "False"]
    with np.load(tmp_path / "results.npz") as results:
        assert_same(dict(results), {name: np.asarray(x) for name, x in outputs_of(model, inputs).items()})


def test_donated_parameters():
    model, inputs = encoder(), small_models.inputs()
    expected = outputs_of(model, inputs)
    copies = jax.tree.map(jnp.copy, model.params)

    @functools.partial(jax.jit, donate_argnums=0)
    def call(params, inputs):
        return model(params, inputs), params

    outputs, kept = call(copies, inputs)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(copies))
    assert_same(outputs, expected)
    assert_same(model(kept, inputs), model(model.params, inputs))


def test_replaced_parameters():
    """Others of the same structure, as from a checkpoint; those of the model stay what they were."""
    model, inputs = encoder(), small_models.inputs()
    weights = small_models.weights() | {"wo": small_models.weights()["wq"]}
    params = model.params | {"wo": jquant.pack_matrix(weights["wo"], np.int8(0))}
    expected = jax.jit(by_hand)(weights, inputs["tokens"], inputs["noise"])
    np.testing.assert_array_equal(jax.jit(model)(params, inputs)["hidden"], expected, strict=True)
    assert (outputs_of(model, inputs)["hidden"] != expected).any()


def test_derivative():
    """With respect to float inputs: that of the layer by hand, through its scales and around its integers."""
    model, inputs = encoder(), small_models.inputs()

    def loss(noise):
        return jnp.sum(hidden(model, model.params, inputs | {"noise": noise}) ** 2)

    found = jax.jit(jax.grad(loss))(inputs["noise"])
    expected = jax.jit(jax.grad(lambda noise: jnp.sum(by_hand(small_models.weights(), inputs["tokens"], noise) ** 2)))(
        inputs["noise"]
    )
    assert jnp.abs(found).max() > 0
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", ["batch", "columns", "both"])
def test_mesh(layout):
    """Over 8 devices: the batch, the columns of the packed weights, or both; the bits of one device.

    Each device has whole heads, or else their float products would be sums over devices.
    """
    model, inputs = encoder(), small_models.inputs()
    sizes = {"batch": (8, 1), "columns": (1, 8), "both": (2, 4)}[layout]
    mesh = jax.make_mesh(sizes, ("batch", "columns"), axis_types=(AxisType.Auto,) * 2)
    whole = NamedSharding(mesh, P())

    def sharding(leaf):
        if isinstance(leaf, jquant.PackedMatrix):
            return leaf.sharding_for(NamedSharding(mesh, P(None, "columns")))
        return whole

    def is_matrix(leaf):
        return isinstance(leaf, jquant.PackedMatrix)

    params = jax.device_put(model.params, jax.tree.map(sharding, model.params, is_leaf=is_matrix))
    assert len(params["wq"].data.sharding.device_set) == 8
    operands = jax.device_put({**inputs, "tokens": inputs["tokens"].astype(np.int32)}, NamedSharding(mesh, P("batch")))
    assert_same(jax.jit(model)(params, operands), outputs_of(model, inputs))


def test_qdq():
    model = jquant.onnx.load(small_models.qdq())
    x = np.random.default_rng(0).normal(size=(8, small_models.WIDTH)).astype(np.float32)
    found = jax.jit(model)(model.params, {"x": x})["y"]
    assert found.shape == (8, 16)
    mapped = jax.jit(jax.vmap(lambda row: model(model.params, {"x": row[None]})["y"][0]))(x)
    np.testing.assert_array_equal(mapped, found)
    (batch,) = export.symbolic_shape("batch")
    shape = {"x": jax.ShapeDtypeStruct((batch, small_models.WIDTH), np.float32)}
    program = export.export(jax.jit(functools.partial(model, model.params)), platforms=PLATFORMS)(shape)
    np.testing.assert_array_equal(program.call({"x": x})["y"], found)
    devices = NamedSharding(jax.make_mesh((8,), ("batch",), axis_types=(AxisType.Auto,)), P("batch"))
    np.testing.assert_array_equal(jax.jit(model)(model.params, {"x": jax.device_put(x, devices)})["y"], found)


def wrong(**changes) -> dict:
    given = small_models.inputs() | changes
    return {name: value for name, value in given.items() if value is not None}


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (wrong(noise=None), "inputs lacks 'noise'; the model takes 'tokens', 'noise'"),
        (wrong(mask=np.ones(3)), "inputs has 'mask'; the model takes 'tokens', 'noise'"),
        (
            wrong(tokens=np.ones((8, 5), np.float32)),
            "the input 'tokens' has dtype float32; the model takes int64[batch, length]",
        ),
        (
            wrong(noise=np.ones((8, 5, 32), np.float16)),
            "the input 'noise' has dtype float16; the model takes float32[batch, length, 32]",
        ),
        (
            wrong(noise=np.ones((8, 5, 31), np.float32)),
            "the input 'noise' has shape (8, 5, 31); the model takes float32[batch, length, 32]",
        ),
        (wrong(tokens=np.ones(8, np.int64)), "the input 'tokens' has shape (8,); the model takes int64[batch, length]"),
        (wrong(tokens=np.full((8, 5), 2**31)), "the input 'tokens' holds 2147483648, which int32 cannot hold"),
        (
            wrong(noise=small_models.inputs(length=4)["noise"]),
            "'length' must be one size, but is 5 in 'tokens', 4 in 'noise'",
        ),
        (wrong(tokens=np.ones((2, 5), np.int64)), "'batch' must be one size, but is 2 in 'tokens', 8 in 'noise'"),
        ([1, 2], "inputs is a list; it must be a mapping with the names 'tokens', 'noise'"),
        (np.ones((8, 5)), "inputs is an array; it must be a mapping with the names 'tokens', 'noise'"),
    ],
)
def test_wrong_inputs(inputs, message):
    model = encoder()
    with pytest.raises(ModelError, match=f"^{re.escape(message)}$"):
        model(model.params, inputs)


def test_missing_parameters():
    params = {name: value for name, value in encoder().params.items() if name != "wk"}
    with pytest.raises(ModelError, match=r"^params lacks 'wk'$"):
        encoder()(params, small_models.inputs())
    every, first = list(encoder().params), ", ".join(map(repr, list(encoder().params)[:5]))
    with pytest.raises(ModelError, match=rf"^params lacks {first} and {len(every) - 5} more$"):
        encoder()({}, small_models.inputs())
    with pytest.raises(ModelError, match=rf"^params lacks {first}$"):
        encoder()({name: encoder().params[name] for name in every[5:]}, small_models.inputs())


def test_initializer_that_does_not_fit():
    model = small_models.qdq()
    text = "agraph (float[n] x) => (int64[n] y) <int64 large = {3000000000}> { i = Cast <to = 7> (x) y = Add (i, large) }"
    model.graph.CopyFrom(importlib.import_module("onnx.parser").parse_graph(text))
    with pytest.raises(ModelError, match="the initializer 'large' holds 3000000000, which int32 cannot hold"):
        jquant.onnx.load(model)


def test_shapes_that_do_not_fit_each_other():
    params = encoder().params | {"table": np.zeros((50, 16), np.uint8)}
    with pytest.raises(ModelError, match=r"^node 'x' \(Add, version 18\): .*float32\[8, 5, 16\], float32\[8, 5, 32\]\)$"):
        encoder()(params, small_models.inputs())


def process(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)


def test_jquant_does_not_import_onnx():
    finished = process("import sys, jquant; print('onnx' in sys.modules); jquant.onnx; print('onnx' in sys.modules)")
    assert finished.stdout.split() == ["False", "True"], finished.stderr


def test_without_onnx():
    finished = process("import sys; sys.modules['onnx'] = None\nimport jquant\njquant.onnx")
    assert finished.returncode == 1
    expected = 'ModuleNotFoundError: jquant.onnx needs the package onnx: pip install "jquant-jax[onnx]"'
    assert finished.stderr.strip().splitlines()[-1] == expected
