"""A quantized function on a mesh with automatic axes: the bits of one device, and what devices send each other."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from support.sampling import one_in

from jquant import transform

P = PartitionSpec
RECIPES = "dynamic_int8", "weight_only_int4", "weight_only_mxfp4", "weight_only_nvfp4", "weight_only_float8"
SPLITS = {  # the specs of the two matrices and of the batch, and the collectives of the program
    "columns": (P(None, "d"), P(None, "d"), P(), ["s8 all-gather"]),  # of the input of the second product, in int8
    "rows": (P("d"), P("d"), P(), ["s32 all-reduce"] * 2),
    "columns, then rows": (P(None, "d"), P("d"), P(), ["s32 all-reduce"]),
    "batch": (P(), P(), P("d"), []),
}


def apply(params, x):
    return jax.nn.relu(x @ params["up"] + params["bias"]) @ params["down"]


@pytest.fixture(scope="module")
def operands():
    """The parameters and an input."""
    up, down, x = (jax.random.normal(jax.random.key(seed), shape) / 45 for seed, shape in enumerate([(2048, 512)] * 3))
    params = {"up": up, "down": jnp.tile(down.T, (4, 1)), "bias": jnp.ones((1, 512))}
    params["up"] = jnp.tile(up, (1, 4))
    params["bias"] = jnp.ones((1, 2048))
    return params, 45 * jnp.resize(x, (16, 2048))


def collectives(text: str) -> list[str]:
    """The first type and the kind of each collective of a compiled program."""
    kinds = "all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter"
    return [f"{dtype} {kind}" for dtype, kind in re.findall(rf"= \(?(\w+)\[[^=]*? ({kinds})(?:-start)?\(", text)]


@one_in(5, ("split", "activations"), itertools.product(SPLITS, ["STATIC", "DYNAMIC", "DYNAMIC_ROW"]), first=2, gate=2)
def test_splits(operands, split, activations):
    params, x = operands
    recipe = transform.Recipe([("*", transform.Scheme(activations=activations))])
    calibration = transform.calibrate(apply, params, [x], recipe) if activations == "STATIC" else None
    quantized_apply, quantized_params = transform.quantize(apply, params, recipe, x, calibration=calibration)
    expected = jax.jit(quantized_apply)(quantized_params, x)

    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
    *specs, batch_spec, expected_collectives = SPLITS[split]
    shardings = jax.tree.map(lambda _: NamedSharding(mesh, P()), quantized_params)
    for name, spec in zip(("up", "down"), specs, strict=True):
        site = quantized_params["sites"][name]
        scale_spec = P(spec[1]) if len(spec) > 1 else P()
        shardings["sites"][name] = {
            "values": site["values"].sharding_for(NamedSharding(mesh, spec)),
            "scale": NamedSharding(mesh, scale_spec),
        }
    placed, x = jax.device_put(quantized_params, shardings), jax.device_put(x, NamedSharding(mesh, batch_spec))
    compiled = jax.jit(quantized_apply).lower(placed, x).compile()
    np.testing.assert_array_equal(compiled(placed, x), expected, strict=True)
    if activations == "STATIC":  # a dynamic range of a split tensor needs one or two more collectives
        assert collectives(compiled.as_text()) == expected_collectives


AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit


@pytest.mark.gate
@one_in(
    5,
    ("split", "axis_type"),
    [("columns", AUTO), ("columns", EXPLICIT), ("rows", AUTO), ("batch", EXPLICIT), ("batch", AUTO)],
    first=2,
)
def test_smoothed_and_rotated_inputs(split, axis_type):
    """The bits of one device, however the weights, the factors and the input are split.

    On explicit axes, channels that a rotation mixes may not be split: `hadamard_transform` does not take them.
    """
    weights, x = jax.random.normal(jax.random.key(1), (512, 256)), jax.random.normal(jax.random.key(2), (16, 512))
    scheme = transform.Scheme(activations="DYNAMIC_ROW", smoothing="SMOOTHQUANT", rotation="HADAMARD", k_parts=8)
    recipe, apply = transform.Recipe([("*", scheme)]), lambda w, x: jnp.maximum(x, -1) @ w
    calibration = transform.calibrate(apply, weights, [x], recipe)
    quantized_apply, stored = transform.quantize(apply, weights, recipe, x, calibration=calibration)
    expected = jax.jit(quantized_apply)(stored, x)
    mesh = jax.make_mesh((8,), ("d",), axis_types=(axis_type,))
    spec, scale, factors, rows = {
        "columns": (P(None, "d"), P("d"), P(), P()),
        "rows": (P("d"), P(), P("d"), P(None, "d")),
        "batch": (P(), P(), P(), P("d")),
    }[split]
    on = functools.partial(NamedSharding, mesh)
    site = stored["sites"]["matmul"]
    shardings = {"values": site["values"].sharding_for(on(spec)), "scale": on(scale), "smoothing": on(factors)}
    placed = {**stored, "sites": {"matmul": jax.device_put(site, shardings)}}
    with jax.set_mesh(mesh):
        actual = jax.jit(quantized_apply)(placed, jax.device_put(x, on(rows)))
    np.testing.assert_array_equal(actual, expected, strict=True)


@one_in(
    3, "options", [{}, {"weight_type": "UINT4", "block_size": 4}, {"weight_type": "INT8", "block_size": 8}], others="gate"
)
def test_split_rows_of_few(options):
    """`k_parts` lets a mesh split rows between blocks of any size, with the bits of one device."""
    rng = np.random.default_rng(2)
    weights, x = rng.normal(size=(64, 24)).astype(np.float32), rng.normal(size=(5, 64)).astype(np.float32)
    apply = lambda w, x: x @ w  # noqa: E731
    quantized: dict = {}
    stored: dict = {}
    for parts in (1, 8):
        scheme = transform.Scheme(activations="DYNAMIC_ROW", k_parts=parts, **options)
        quantized[parts], stored[parts] = transform.quantize(apply, weights, transform.Recipe([("*", scheme)]), x)
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
    shardings = jax.tree.map(lambda _: NamedSharding(mesh, P()), stored[8])
    split = NamedSharding(mesh, P("d"))
    site = stored[8]["sites"]["matmul"]["values"]
    shardings["sites"]["matmul"]["values"] = site.sharding_for(split)
    placed = jax.device_put(stored[8], shardings)
    expected = jax.jit(quantized[8])(stored[8], x)
    np.testing.assert_array_equal(jax.jit(quantized[8])(placed, x), expected, strict=True)
    if not options:  # 64 rows are one block of column sums
        with pytest.raises(ValueError, match="must not be split"):
            stored[1]["sites"]["matmul"]["values"].sharding_for(split)


def test_rows_that_have_no_equal_parts():
    for options, reason in (
        ({"k_parts": 8}, "k_parts is 8 for matmul, whose 36 rows have no 8 equal parts"),
        ({"k_parts": 4, "block_size": 16}, "k_parts is 4 for matmul, whose 3 blocks have no 4 equal parts"),
    ):
        recipe = transform.Recipe([("*", transform.Scheme(**options))])
        with pytest.raises(transform.TransformError, match=reason):
            transform.quantize(lambda w, x: x @ w, np.ones((36, 24), np.float32), recipe, np.ones((2, 36), np.float32))


@pytest.mark.gate
@one_in(10, ("recipe", "split"), itertools.product(RECIPES, [P(None, "x"), P("x")]), gate=3)
def test_weights_over_explicit_axes(recipe, split):
    """They are packed with the bits of one device, however they are split."""
    mesh = jax.make_mesh((2,), ("x",), (AxisType.Explicit,))
    weights = np.random.default_rng(3).normal(size=(4, 64, 32)).astype(np.float32)
    layers = lambda w, x: jax.lax.scan(lambda x, w: (jnp.tanh(x @ w) @ w.T, None), x, w)[0]  # noqa: E731
    for function, w, spec in ((lambda w, x: x @ w, weights[0], split), (layers, weights, P(None, *split))):
        _, expected = transform.quantize(function, w, getattr(transform, recipe), np.ones((3, 64), np.float32))
        placed = jax.device_put(w, NamedSharding(mesh, spec))
        _, quantized_params = transform.quantize(function, placed, getattr(transform, recipe), np.ones((3, 64), np.float32))
        jax.tree.map(np.testing.assert_array_equal, quantized_params, expected)
