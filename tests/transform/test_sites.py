"""`transform.sites`: the names of sites, and what is needed to list them."""

import jax
import jax.numpy as jnp
import numpy as np
from support.draw import Draw
from support.networks import SCHEMES, recipe

from jquant import transform
from jquant.transform import Scheme

DRAW = Draw(0)
PARAMS = {"a": DRAW.weights(16, 16), "b": DRAW.weights(16, 16)}
X = DRAW.input(7, 16)
DYNAMIC = recipe(SCHEMES["dynamic uint8"])


def two_products(params, x):
    return jax.nn.relu(x @ params["a"]) @ params["b"]


def test_types_are_enough():
    """Of parameters and inputs to list the sites, and of inputs to quantize."""
    param_types, x_type = jax.eval_shape(lambda: (PARAMS, X))
    assert transform.sites(two_products, param_types, x_type) == transform.sites(two_products, PARAMS, X)
    from_type, params = transform.quantize(two_products, PARAMS, DYNAMIC, x_type)
    expected, _ = transform.quantize(two_products, PARAMS, DYNAMIC, X)
    np.testing.assert_array_equal(from_type(params, X), expected(params, X))


def test_sites_with_the_same_weights():
    """Their names differ by a number."""
    apply = lambda params, x: (x @ params["a"]) @ params["a"] @ params["b"].T @ params["a"].T  # noqa: E731
    assert [row.name for row in transform.sites(apply, PARAMS, X)] == ["a", "a#2", "b", "a#3"]


def test_parameter_without_a_path():
    """A site is then named by its kind."""
    (row,) = transform.sites(lambda params, x: x @ params, jnp.ones((32, 32)), jnp.ones((2, 32)))
    assert row.name == "matmul"


def test_schemes_in_brief():
    """What is done to weights and to inputs, where it is done."""
    rules = [
        ("a", Scheme(weight_type="INT4", block_size=4, weight_rounding=("GPTQ", 0.02), activations="FLOAT")),
        ("b", Scheme(activations="DYNAMIC_ROW", smoothing="SMOOTHQUANT", rotation="HADAMARD")),
        ("c", Scheme(activations="STATIC", weight_range="mean_squared_error", rotation="HADAMARD")),
        ("d", Scheme(weight_range="mean_squared_error", weight_rounding="GPTQ", smoothing="AWQ", rotation="HADAMARD")),
        ("*", Scheme(weight_range="mean_squared_error", weight_rounding="GPTQ", smoothing="AWQ", rotation="HADAMARD")),
    ]

    def apply(params, tokens):
        x = params["table"][tokens]
        for name in "abcd":
            x = x @ params[name]
        return jax.lax.conv(x[None], params["filter"], (1,), "SAME")

    params = {name: DRAW.weights(16, 16) for name in (*"abcd", "table")} | {"filter": DRAW.weights(8, 7, 3)}
    listed = transform.sites(apply, params, np.arange(7), recipe=transform.Recipe(rules, smallest=1))
    assert {row.name: row.scheme for row in listed} == {
        "table": "int8 by row, searched ranges",
        "a": "int4 in blocks of 4, GPTQ, float input",
        "b": "int8 by channel, DYNAMIC_ROW INT8, smoothed by SMOOTHQUANT, rotated",
        "c": "int8 by channel, searched ranges, STATIC UINT8, rotated",
        "d": "int8 by channel, searched ranges, GPTQ, DYNAMIC UINT8, smoothed by AWQ, rotated",
        "filter": "int8 by channel, DYNAMIC UINT8",
    }
