"""Random keys among the parameters: nothing that is drawn from them becomes a constant of the quantized function."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.draw import Draw
from support.networks import SCHEMES, recipe

from jquant import transform

DRAW = Draw(0)
W, OTHER = DRAW.weights(16, 16), DRAW.weights(16, 16)
X = DRAW.input(7, 16)
DYNAMIC = recipe(SCHEMES["dynamic uint8"])
both_kinds_of_keys = pytest.mark.parametrize("make_key", [jax.random.key, jax.random.PRNGKey])


@both_kinds_of_keys
def test_mask_of_weights(make_key):
    """Masked weights are not weights of a site, and the mask is drawn in each call."""

    def apply(params, x):
        mask = jax.random.bernoulli(params["key"], 0.5, params["w"].shape)
        return (x @ params["plain"]) @ jnp.where(mask, params["w"], 0), jax.random.normal(params["key"], (3,))

    params = {"key": make_key(0), "plain": W, "w": OTHER}
    rows = {row.name: row for row in transform.sites(apply, params, X)}
    assert rows["plain"].reason is None
    (masked,) = [row for row in rows.values() if row.reason is not None]
    assert masked.reason == "its weights depend on a random key"
    quantized_apply, quantized_params = transform.quantize(apply, params, DYNAMIC, X)
    assert set(quantized_params["float"]) == {"key", "w"}
    for seed in range(2):
        floats = {**quantized_params["float"], "key": make_key(seed)}
        output, noise = quantized_apply({**quantized_params, "float": floats}, X)
        mask = jax.random.bernoulli(make_key(seed), 0.5, OTHER.shape)
        plain, plain_params = transform.quantize(lambda params, x: x @ params["plain"], {"plain": W}, DYNAMIC, X)
        expected = plain(plain_params, X) @ jnp.where(mask, OTHER, 0)
        np.testing.assert_array_equal(output, expected)
        np.testing.assert_array_equal(noise, jax.random.normal(make_key(seed), (3,)))


@both_kinds_of_keys
def test_bytes_of_a_key(make_key):
    """A report counts them."""
    params = {"key": make_key(0), "w": W}
    report = transform.report(lambda params, x: (x @ params["w"], jax.random.bits(params["key"])), params, DYNAMIC, X)
    (site,) = report.sites
    assert report.float_bytes == W.nbytes + 8
    assert report.float_bytes - report.quantized_bytes == site.float_bytes - site.quantized_bytes


@both_kinds_of_keys
def test_weights_drawn_from_a_key(make_key):
    """The key is split, sliced in a loop, and folded in."""

    def apply(params, x):
        def body(x, key):
            noise = jax.random.normal(jax.random.fold_in(key, 3), params["w"].shape)
            return x @ (params["w"] + noise), None

        return lax.scan(body, x, jax.random.split(params["key"], 2))[0]

    (row,) = transform.sites(apply, {"key": make_key(0), "w": W}, X)
    assert row.reason == "its weights depend on a random key"
