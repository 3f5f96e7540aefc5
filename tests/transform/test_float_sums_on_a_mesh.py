"""A quantized transformer over a mesh: how XLA splits the float code between its sites, and how to keep the bits.

Integer sums are exact, however they are split. Float sums are not, and XLA may order those of a part differently.
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
DEPTH, WIDTH, HEADS, VOCABULARY = 64, 2048, 8, 64  # 2048 rows of weights have 8 blocks of column sums, one per device
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
def operands():
    """The parameters and an input."""
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


def replicated(x):
    return lax.with_sharding_constraint(x, NamedSharding(mesh(), P()))


def quantized(apply, operands, activations):
    params, x = operands
    recipe = transform.Recipe([("*", transform.Scheme(activations=activations))])
    calibration = transform.calibrate(apply, params, [x], recipe) if activations == "STATIC" else None
    return transform.quantize(apply, params, recipe, x, calibration=calibration)


def placed(quantized_params, split):
    """The parameters on a mesh: weights split, everything else replicated."""
    columns, rows = SPLITS[split]

    def on(*spec):
        return NamedSharding(mesh(), P(*spec))

    shardings = jax.tree.map(lambda _: on(), quantized_params)
    for names, matrix_spec, scale_spec in ((columns, (None, "d"), ("d",)), (rows, ("d",), ())):
        for name in names:
            site = shardings["sites"][name]
            site["values"] = quantized_params["sites"][name]["values"].sharding_for(on(*matrix_spec))
            if "scale" in site:  # else the matrix holds its scales
                site["scale"] = on(*scale_spec)
    return jax.device_put(quantized_params, shardings)


def compiled(quantized_apply, quantized_params, x):
    return jax.jit(quantized_apply).lower(quantized_params, x).compile()


def float_sums(program):
    """The collectives that sum floats over devices."""
    return [each for each in collectives(program.as_text()) if each.kind == "all-reduce" and "f32" in each.types]


CASES = [*itertools.product(SPLITS, ["DYNAMIC_ROW", "STATIC", "DYNAMIC"])]  # the products of FLOAT are float sums


@pytest.mark.gate
@one_in(2, ("split", "activations"), CASES, others="full")
def test_the_bits_of_one_device(operands, split, activations):
    """If the input and the output of every product are replicated, each device computes all float code in between."""
    _, x = operands
    quantized_apply, quantized_params = quantized(network(lambda x: x), operands, activations)
    expected = jax.jit(quantized_apply)(quantized_params, x)
    with_constraints, same_params = quantized(network(replicated), operands, activations)
    jax.tree.map(np.testing.assert_array_equal, same_params, quantized_params)
    split_params, x = placed(same_params, split), replicated(x)
    program = compiled(with_constraints, split_params, x)
    assert float_sums(program) == []
    np.testing.assert_array_equal(program(split_params, x), expected, strict=True)


@one_in(3, "activations", ["DYNAMIC_ROW", "FLOAT"])
def test_without_constraints_float_sums_are_split(operands, activations):
    """For example, the mean of squares of `norm`."""
    quantized_apply, quantized_params = quantized(network(lambda x: x), operands, activations)
    assert float_sums(compiled(quantized_apply, placed(quantized_params, "columns"), replicated(operands[1])))


@pytest.mark.gate
@one_in(5, "activations", ["STATIC", "DYNAMIC_ROW", "DYNAMIC"])
def test_each_integer_site(operands, activations):
    """Its bits are those of one device for equal inputs, split by columns or by rows, without constraints."""

    def sites(params, inputs):
        return {name: x @ params[name] for name, x in inputs.items()}

    params, _ = operands
    rng = np.random.default_rng(1)
    inputs = {name: jnp.asarray(rng.normal(size=(24, len(weights))), jnp.float32) for name, weights in params.items()}
    quantized_sites, quantized_params = quantized(sites, (params, inputs), activations)
    expected = jax.jit(quantized_sites)(quantized_params, inputs)
    outputs = jax.jit(quantized_sites)(placed(quantized_params, "columns, then rows"), replicated(inputs))
    jax.tree.map(np.testing.assert_array_equal, outputs, expected)
