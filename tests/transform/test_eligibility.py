"""Products that are not sites: they are listed with the reason, and computed as before."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from support.comparison import assert_declined
from support.draw import Draw
from support.networks import SCHEMES, recipe
from support.sampling import one_in

from jquant import transform

DRAW = Draw(0)
W, OTHER, THIRD = (DRAW.weights(16, 16) for _ in range(3))
X = DRAW.input(7, 16)
DYNAMIC = recipe(SCHEMES["dynamic uint8"])


def composite(params, x):
    return lax.composite(lambda x, w: x @ w, "a.composite")(x, params["w"])


def sharded(params, x):
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.shard_map(lambda x, w: x @ (2 * w), mesh=mesh, in_specs=(P(), P()), out_specs=P())(x, params["w"])


def in_a_condition(params, x):
    return lax.while_loop(lambda x: (abs(x) @ abs(params["w"])).sum() < 100, lambda x: 2 * x, x)


TWO = {"a": W, "b": OTHER}
EXPERTS = np.stack([W, OTHER, THIRD]).reshape(3, 8, 2, 16)
COLUMNS = lax.RaggedDotDimensionNumbers((((1,), (0,)), ((), ())), [1], [])  # groups along what is summed
IMAGE, FILTER = DRAW.input(2, 6, 5, 4), DRAW.weights(3, 3, 4, 8)
SELECTED = "its weights are selected by a value that is known only when it runs"
STAY_FLOAT = {  # function, parameters, inputs, reason
    "reshaped expert": (lambda p, x, i: x @ p["w"][i].reshape(16, -1), {"w": EXPERTS}, (X, np.int32(1)), SELECTED),
    "columns of groups": (
        lambda p, x, sizes: lax.ragged_dot_general(x, p["w"], sizes, COLUMNS),
        {"w": W},
        (X, np.int32([3, 9, 4])),
        "ragged_dot_general has no quantized form here",
    ),
    "where": (lambda p, x, condition: x @ jnp.where(condition, p["a"], p["b"]), TWO, (X, np.bool(True)), SELECTED),
    "select_n by input": (lambda p, x: x @ lax.select(x.sum() > 0, p["a"], p["b"]), TWO, (X,), SELECTED),
    "cond": (
        lambda p, x: x @ lax.cond(x.sum() > 0, lambda: p["a"], lambda: p["b"]),
        TWO,
        (X,),
        "a branch selects its weights",
    ),
    "composite": (composite, {"w": W}, (X,), "it is inside composite, whose body is not transformed"),
    "shard_map": (sharded, {"w": W}, (X,), "it is inside shard_map, where its weights are computed"),
    "condition": (in_a_condition, {"w": W}, (X,), "it is in the condition of a loop"),
    "no window": (
        lambda p, x: lax.conv_transpose(x[:, :1], p["w"], (2, 2), [(0, 0)] * 2, dimension_numbers=("NHWC", "HWIO", "NHWC")),
        {"w": FILTER},
        (IMAGE,),
        "no window fits into its input",
    ),
    "groups of the batch": (
        lambda p, x: lax.conv_general_dilated(
            x, p["w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), batch_group_count=2
        ),
        {"w": FILTER},
        (IMAGE,),
        "its batch is divided into groups",
    ),
    "vector": (
        lambda p, x: jnp.einsum("bd,d->b", x, p["w"]),
        {"w": W.reshape(256)},
        (DRAW.input(7, 256),),
        "its weights are a vector",
    ),
    "one-hot": (
        lambda p, i: jax.nn.one_hot(i, 16) @ p["w"],
        {"w": W},
        (np.int32([3, 0, 15]),),
        "its input consists of zeros and ones, which select rows of the weights",
    ),
    "small": (lambda p, x: x @ p["w"], {"w": W[:, :15]}, (X,), "its weights have 240 elements, fewer than 256"),
    "outer product": (lambda p, x: x[:, :, None] @ p["w"], {"w": W.reshape(1, 256)}, (X,), "it sums over no dimension"),
    "integers": (
        lambda p, x: x @ p["w"],
        {"w": np.ones((16, 16), np.int8)},
        (np.ones((7, 16), np.int8),),
        "its weights are int8",
    ),
    "no parameters": (lambda p, x: x @ x.T, {"w": W}, (X,), "only the pattern activation_matmul matches it"),
    "a constant": (lambda p, x: x @ W, {"w": W}, (X,), "its weights are not a parameter, but a constant of the function"),
}


@pytest.mark.parametrize("name", STAY_FLOAT)
def test_the_reason_is_listed(name):
    """`quantize` gives it, too, for a function that has no site."""
    apply, params, inputs, reason = STAY_FLOAT[name]
    sites = transform.sites(apply, params, *inputs)
    assert [row.reason for row in sites] == [reason]
    assert reason in str(sites)
    assert_declined(lambda: transform.quantize(apply, params, transform.dynamic_int8, *inputs), reason)


@one_in(5, "name", STAY_FLOAT)
def test_the_bits_are_unchanged(name):
    """In a function that has a site as well."""
    apply, params, inputs, reason = STAY_FLOAT[name]

    def both(params, x, *inputs):
        return x @ params["site"], apply(params, *inputs)

    params = {**params, "site": THIRD}
    assert [row.reason for row in transform.sites(both, params, X, *inputs)] == [None, reason]
    quantized_apply, quantized_params = transform.quantize(both, params, transform.dynamic_int8, X, *inputs)
    _, output = jax.jit(quantized_apply)(quantized_params, X, *inputs)
    np.testing.assert_array_equal(output, jax.jit(apply)(params, *inputs), strict=True)


def test_float_copy_of_quantized_weights():
    """``(x @ w) * norm(w)``: both forms of the weights are kept."""

    def apply(params, x):
        return (x @ params["w"]) * jnp.max(jnp.abs(params["w"]))

    quantized_apply, quantized_params = transform.quantize(apply, {"w": W}, DYNAMIC, X)
    assert (set(quantized_params["sites"]), set(quantized_params["float"])) == ({"w"}, {"w"})
    plain, plain_params = transform.quantize(lambda params, x: x @ params["w"], {"w": W}, DYNAMIC, X)
    assert not plain_params["float"]
    expected = np.asarray(plain(plain_params, X)) * abs(W).max()
    np.testing.assert_array_equal(quantized_apply(quantized_params, X), expected, strict=True)
