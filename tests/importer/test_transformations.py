"""A model under JAX's transformations, exported, with other parameters, and over 8 devices."""

import functools
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

PLATFORMS = ("cpu", "cuda", "tpu")


@functools.cache
def encoder() -> jquant.onnx.Model:
    return jquant.onnx.load(small_models.encoder())


def encoder_layer(weights: dict, tokens: jax.Array, noise: jax.Array) -> jax.Array:
    """The hidden states, with the layer written by hand with jquant's operators."""
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


def stacked_inputs(count: int) -> dict[str, np.ndarray]:
    drawn = [small_models.inputs(seed=seed) for seed in range(count)]
    return {name: np.stack([each[name] for each in drawn]) for name in drawn[0]}


def outputs_of(model, inputs) -> dict:
    return jax.jit(model)(model.params, inputs)


def assert_same(actual: dict, expected: dict):
    assert list(actual) == list(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value, name, strict=True)


def test_jit_equals_the_layer_by_hand():
    """The same program serves for all values."""
    model, inputs = encoder(), small_models.inputs()
    program = jax.jit(model)
    outputs = program(model.params, inputs)
    expected = jax.jit(encoder_layer)(small_models.weights(), inputs["tokens"], inputs["noise"])
    np.testing.assert_array_equal(outputs["hidden"], expected, strict=True)
    assert outputs["likeliest"].dtype == np.int32
    np.testing.assert_array_equal(outputs["likeliest"], np.trunc(expected * np.float32(0.35)))
    compiled = program._cache_size()
    program(model.params, small_models.inputs(seed=1))
    assert program._cache_size() == compiled


def test_parameters():
    """Integer matrices are packed, and static initializers are not among the parameters."""
    params = encoder().params
    assert {name for name, x in params.items() if isinstance(x, jquant.PackedMatrix)} == {"wq", "wk", "wv", "wo"}
    assert all(params[name].zero_point is None for name in ("wq", "wk", "wv", "wo"))  # it is 0 in the file
    assert {"table", "table_scale", "scale"} <= set(params)
    assert not {"heads", "rest", "first", "second", "width"} & set(params)


def test_vmap():
    """Each mapped call quantizes with its own ranges."""
    model, inputs = encoder(), stacked_inputs(3)
    mapped = jax.jit(jax.vmap(functools.partial(hidden, model, model.params)))(inputs)
    for index in range(3):
        expected = outputs_of(model, {name: x[index] for name, x in inputs.items()})["hidden"]
        np.testing.assert_array_equal(mapped[index], expected, strict=True)


def test_vmap_over_parameters():
    model, inputs = encoder(), small_models.inputs()
    stacked_params = jax.tree.map(lambda x: jnp.stack([x, x]), model.params)
    mapped = jax.jit(jax.vmap(functools.partial(hidden, model), in_axes=(0, None)))(stacked_params, inputs)
    for index in range(2):
        np.testing.assert_array_equal(mapped[index], outputs_of(model, inputs)["hidden"], strict=True)


def test_scan():
    model, inputs = encoder(), stacked_inputs(3)

    @jax.jit
    def steps(params, inputs):
        return lax.scan(lambda count, each: (count + 1, hidden(model, params, each)), 0, inputs)

    count, outputs = steps(model.params, inputs)
    assert count == 3
    for index in range(3):
        expected = outputs_of(model, {name: x[index] for name, x in inputs.items()})["hidden"]
        np.testing.assert_array_equal(outputs[index], expected, strict=True)


# Calls an exported program without onnx. It imports jquant for the type of packed matrices alone.
CALL_EXPORTED = """
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
    """Exported once for three platforms and all batch sizes, and called in another process."""
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
    command = [sys.executable, "-c", CALL_EXPORTED, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["False", "False"]
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
    """Other parameters of the same structure, as from a checkpoint; those of the model do not change."""
    model, inputs = encoder(), small_models.inputs()
    weights = small_models.weights() | {"wo": small_models.weights()["wq"]}
    params = model.params | {"wo": jquant.pack_matrix(weights["wo"], np.int8(0))}
    expected = jax.jit(encoder_layer)(weights, inputs["tokens"], inputs["noise"])
    np.testing.assert_array_equal(jax.jit(model)(params, inputs)["hidden"], expected, strict=True)
    assert (outputs_of(model, inputs)["hidden"] != expected).any()


def test_derivative():
    """The derivative for a float input equals that of the layer by hand: it passes through the scales, not the integers."""
    model, inputs = encoder(), small_models.inputs()

    def loss(noise):
        return jnp.sum(hidden(model, model.params, inputs | {"noise": noise}) ** 2)

    gradient = jax.jit(jax.grad(loss))(inputs["noise"])
    expected = jax.jit(jax.grad(lambda noise: jnp.sum(encoder_layer(small_models.weights(), inputs["tokens"], noise) ** 2)))(
        inputs["noise"]
    )
    assert jnp.abs(gradient).max() > 0
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", ["batch", "columns", "both"])
def test_mesh(layout):
    """The batch, the columns of the packed weights, or both are split over 8 devices: the bits are those of one device.

    Each device has whole heads, because otherwise the float products of heads would be sums over devices.
    """
    model, inputs = encoder(), small_models.inputs()
    sizes = {"batch": (8, 1), "columns": (1, 8), "both": (2, 4)}[layout]
    mesh = jax.make_mesh(sizes, ("batch", "columns"), axis_types=(AxisType.Auto,) * 2)
    replicated = NamedSharding(mesh, P())

    def sharding(leaf):
        if isinstance(leaf, jquant.PackedMatrix):
            return leaf.sharding_for(NamedSharding(mesh, P(None, "columns")))
        return replicated

    def is_matrix(leaf):
        return isinstance(leaf, jquant.PackedMatrix)

    params = jax.device_put(model.params, jax.tree.map(sharding, model.params, is_leaf=is_matrix))
    assert len(params["wq"].data.sharding.device_set) == 8
    operands = jax.device_put({**inputs, "tokens": inputs["tokens"].astype(np.int32)}, NamedSharding(mesh, P("batch")))
    assert_same(jax.jit(model)(params, operands), outputs_of(model, inputs))


def test_qdq():
    """vmap, export and a mesh give the bits of a single call."""
    model = jquant.onnx.load(small_models.qdq())
    x = np.random.default_rng(0).normal(size=(8, small_models.WIDTH)).astype(np.float32)
    expected = jax.jit(model)(model.params, {"x": x})["y"]
    assert expected.shape == (8, 16)
    mapped = jax.jit(jax.vmap(lambda row: model(model.params, {"x": row[None]})["y"][0]))(x)
    np.testing.assert_array_equal(mapped, expected)
    (batch,) = export.symbolic_shape("batch")
    shape = {"x": jax.ShapeDtypeStruct((batch, small_models.WIDTH), np.float32)}
    program = export.export(jax.jit(functools.partial(model, model.params)), platforms=PLATFORMS)(shape)
    np.testing.assert_array_equal(program.call({"x": x})["y"], expected)
    devices = NamedSharding(jax.make_mesh((8,), ("batch",), axis_types=(AxisType.Auto,)), P("batch"))
    np.testing.assert_array_equal(jax.jit(model)(model.params, {"x": jax.device_put(x, devices)})["y"], expected)
