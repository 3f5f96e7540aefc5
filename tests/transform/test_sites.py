"""`transform.sites`: the names of sites, and what is needed to list them."""

import jax
import jax.numpy as jnp
import numpy as np
from support.draw import Draw
from support.networks import SCHEMES, recipe

from jquant import transform

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
