"""A quantized language model over a mesh: what becomes of the float code between its sites, and how to keep the bits.

Integer sums are exact, however they are split. Float sums are not, and XLA may also order those of a part differently.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from support.collectives import collectives
from support.sampling import one_in

from jquant import transform

P = PartitionSpec
DEPTH, WIDTH, HEADS, VOCABULARY = 64, 2048, 8, 64  # 2048 rows of weights: 8 blocks of column sums, which can be split
SPLITS = {  # the sites whose weights are split, by columns and by rows
    "columns": (("qkv", "out", "down"), ()),
    "all columns": (("qkv", "out", "up", "down", "head"), ()),
    "columns, then rows": (("qkv", "out", "up", "head"), ("down",)),
}


def norm(x):
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def network(around):
    """A layer of a transformer; `around` is applied to the input and the output of each product with weights."""

    def product(x, weights):
        return around(around(x) @ weights)

    def apply(params, x):
        batch, length, depth = x.shape
        heads = product(norm(x), params["qkv"]).reshape(batch, length, 3, HEADS, depth // HEADS)
        q, k, v = jnp.moveaxis(heads, 2, 0)
        weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k), axis=-1)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape)
        x = x + product(mixed, params["out"])
        x = x + product(jax.nn.gelu(product(norm(x), params["up"])), params["down"])
        return product(norm(x), params["head"])

    return apply


@pytest.fixture(scope="module")
def given():
    rng = np.random.default_rng(0)
    sizes = {
        "qkv": (DEPTH, 3 * DEPTH),
        "out": (DEPTH, DEPTH),
        "up": (DEPTH, WIDTH),
        "down": (WIDTH, DEPTH),
        "head": (DEPTH, VOCABULARY),
    }
    params = {name: rng.normal(size=size).astype(np.float32) / np.sqrt(size[0]) for name, size in sizes.items()}
    return jax.tree.map(jnp.asarray, params), jnp.asarray(rng.normal(size=(2, 16, DEPTH)), jnp.float32)


def mesh():
    return jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))


def whole(x):
    return lax.with_sharding_constraint(x, NamedSharding(mesh(), P()))


def quantized(apply, given, activations):
    params, x = given
    recipe = transform.Recipe([("*", transform.Scheme(activations=activations))])
    ranges = transform.calibrate(apply, params, [x], recipe) if activations == "STATIC" else None
    return transform.quantize(apply, params, recipe, x, calibration=ranges)


def placed(quantized_params, split):
    """The parameters on a mesh: the weights split, and all else whole."""
    columns, rows = SPLITS[split]

    def on(*spec):
        return NamedSharding(mesh(), P(*spec))

    shardings = jax.tree.map(lambda _: on(), quantized_params)
    for names, of_matrix, of_scale in ((columns, (None, "d"), ("d",)), (rows, ("d",), ())):
        for name in names:
            values = quantized_params["sites"][name]["values"].sharding_for(on(*of_matrix))
            shardings["sites"][name] = {"values": values, "scale": on(*of_scale)}
    return jax.device_put(quantized_params, shardings)


def compiled(quantized_apply, quantized_params, x):
    return jax.jit(quantized_apply).lower(quantized_params, x).compile()


def float_sums(program):
    """What its devices add in floats."""
    return [found for found in collectives(program.as_text()) if found.kind == "all-reduce" and "f32" in found.types]


CASES = [  # not FLOAT with rows that are split, whose products are float sums over devices
    (split, activations)
    for split, activations in itertools.product(SPLITS, ["DYNAMIC_ROW", "FLOAT", "STATIC", "DYNAMIC"])
    if (split, activations) != ("columns, then rows", "FLOAT")
]


@one_in(7, ("split", "activations"), CASES, first=1)
def test_the_bits_of_one_device(given, split, activations):
    """With every product's input and output whole on each device, so is the float code between the products."""
    _, x = given
    quantized_apply, quantized_params = quantized(network(lambda x: x), given, activations)
    expected = jax.jit(quantized_apply)(quantized_params, x)
    with_constraints, same_params = quantized(network(whole), given, activations)
    jax.tree.map(np.testing.assert_array_equal, same_params, quantized_params)
    operands = placed(same_params, split), whole(x)
    program = compiled(with_constraints, *operands)
    assert float_sums(program) == []
    np.testing.assert_array_equal(program(*operands), expected, strict=True)


@one_in(2, "activations", ["DYNAMIC_ROW", "FLOAT"])
def test_without_constraints_float_sums_are_split(given, activations):
    """What the test above prevents: the mean of squares of `norm`, for one."""
    quantized_apply, quantized_params = quantized(network(lambda x: x), given, activations)
    assert float_sums(compiled(quantized_apply, placed(quantized_params, "columns"), whole(given[1])))


@one_in(3, "activations", ["STATIC", "DYNAMIC_ROW", "DYNAMIC"])
def test_each_integer_site(given, activations):
    """Given equal inputs, its bits are those of one device, by columns and by rows, without any constraint."""

    def sites(params, inputs):
        return {name: x @ params[name] for name, x in inputs.items()}

    params, _ = given
    rng = np.random.default_rng(1)
    inputs = {name: jnp.asarray(rng.normal(size=(24, len(weights))), jnp.float32) for name, weights in params.items()}
    quantized_sites, quantized_params = quantized(sites, (params, inputs), activations)
    expected = jax.jit(quantized_sites)(quantized_params, inputs)
    split = jax.jit(quantized_sites)(placed(quantized_params, "columns, then rows"), whole(inputs))
    jax.tree.map(np.testing.assert_array_equal, split, expected)
