"""Constants of a function, which may depend on a size of its input, and may enter weights or not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.comparison import assert_declined, assert_equal
from support.draw import Draw
from support.networks import SCHEMES, recipe

from jquant import transform

DRAW = Draw(0)
PARAMS = {"w": DRAW.weights(16, 16), "pos": DRAW.weights(32, 16), "stack": DRAW.weights(3, 16, 16, layers=1)}
X = DRAW.input(8, 16)
DYNAMIC = recipe(SCHEMES["dynamic uint8"])
TABLE = np.float32([[1, 2, 4, 8] * 4])
SINUSOIDS = np.sin(np.arange(64, dtype=np.float32)[:, None] / np.arange(1, 17, dtype=np.float32))


def by_size(x, of_many, of_few):
    return of_many if x.shape[0] > 4 else of_few


def in_a_loop(params, x):
    """The constant is stacked, and sliced in each pass."""
    numbers = np.full((3, 1, 1), x.shape[0], np.float32)
    return jax.lax.scan(lambda x, layer: (x @ (layer[0] * layer[1]), None), x, (params["stack"], numbers))[0]


def in_a_function(params, x):
    return x @ jax.jit(lambda w: w / jnp.float32(x.shape[0]))(params["w"])


DEPENDENT = {
    "a scalar": lambda params, x: x @ (params["w"] * x.shape[0]),
    "a scalar of JAX": lambda params, x: x @ (params["w"] * jnp.float32(x.shape[0])),
    "a table of NumPy": lambda params, x: x @ (params["w"] * np.full((16, 1), x.shape[0], np.float32)),
    "a table of JAX": lambda params, x: x @ (params["w"] * jnp.asarray(TABLE * x.shape[0])),
    "an array of all": lambda params, x: x @ (params["w"] * jnp.full((16, 16), x.shape[0], jnp.float32)),
    "a mask": lambda params, x: x @ jnp.where(jnp.arange(16)[:, None] < x.shape[0], params["w"], 0),
    "an index": lambda params, x: x @ params["w"][:, np.arange(16) % x.shape[0]],
    "a shift": lambda params, x: x @ jnp.roll(params["w"], x.shape[0], axis=0),
    "a table of equal sums": lambda params, x: x @ (params["w"] + by_size(x, TABLE, TABLE[:, ::-1])),
    "a product": lambda params, x: x @ (params["w"] @ np.diag(np.full(16, x.shape[0], np.float32))),
    "a table to look up in": lambda params, x: (params["pos"] * x.shape[0])[x[:, 0].astype(jnp.int32)],
    "zeros of another sign": lambda params, x: x @ (params["w"] * by_size(x, np.float32(0), np.float32(-0.0))),
    "in a loop": in_a_loop,
    "in a function": in_a_function,
}


@pytest.mark.parametrize("name", DEPENDENT)
def test_dependent_weights(name):
    """Weights that depend on a size of the input are right for that size alone."""
    quantized_apply, quantized_params = transform.quantize(DEPENDENT[name], PARAMS, DYNAMIC, X)
    quantized_apply(quantized_params, X)
    assert_declined(
        lambda: quantized_apply(quantized_params, X[:3]), "Do they depend on a size of its input, or on JAX's settings?"
    )


INDEPENDENT = {
    "a table": lambda params, x: x @ (params["w"] * TABLE),
    "a table of JAX": lambda params, x: x @ (params["w"] * jnp.asarray(TABLE)),
    "a copy of a table": lambda params, x: x @ (params["w"] * TABLE.copy()),
    "numbers": lambda params, x: x @ (params["w"] * jnp.arange(16, dtype=jnp.float32)[:, None]),
    "sinusoids": lambda params, x: (x + SINUSOIDS[: x.shape[0]]) @ params["w"],
    "sinusoids of JAX": lambda params, x: (x + jnp.sin(jnp.arange(x.shape[0], dtype=jnp.float32))[:, None]) @ params["w"],
    "positions": lambda params, x: (x + params["pos"][: x.shape[0]]) @ params["w"],
    "looked up positions": lambda params, x: (x + params["pos"][jnp.arange(x.shape[0])]) @ params["w"],
    "a mask": lambda params, x: jnp.tril(x @ params["w"] @ x.T) @ x,
    "a factor": lambda params, x: (x / x.shape[0]) @ params["w"],
    "a factor of a bias": lambda params, x: x @ params["w"] + params["w"][:1] * x.shape[0],
    "spread over positions": lambda params, x: (
        (params["w"][0, 0] ** jnp.abs(jnp.arange(x.shape[0])[:, None] - jnp.arange(x.shape[0])[None]).astype(jnp.float32))
        @ x
        @ params["stack"][0]
    ),
}


@pytest.mark.parametrize("name", INDEPENDENT)
def test_independent_weights(name):
    """Other sizes enter no weight: the quantized function is the one that is made for them."""
    apply = INDEPENDENT[name]
    quantized_apply, quantized_params = transform.quantize(apply, PARAMS, DYNAMIC, X)
    for rows in (3, 1):
        new_apply, new_params = transform.quantize(apply, PARAMS, DYNAMIC, X[:rows])
        assert_equal(quantized_params, new_params)
        assert_equal(quantized_apply(quantized_params, X[:rows]), new_apply(new_params, X[:rows]))


def test_constants_of_a_caller():
    """Inside of `jit`, a function may close over values that are not known: they are equal to themselves."""

    @jax.jit
    def both(scale, other, x):
        quantized = transform.quantize(lambda params, x: x @ (params["w"] * scale), PARAMS, DYNAMIC, x)
        scales = iter([scale, other])
        changing = transform.quantize(lambda params, x: x @ (params["w"] * next(scales)), PARAMS, DYNAMIC, x)
        assert_declined(lambda: changing[0](changing[1], x[:3]), "different weights from those that are packed: w")
        return quantized[0](quantized[1], x[:3])

    scale = np.float32(3)
    expected_apply, expected_params = transform.quantize(lambda params, x: x @ (params["w"] * scale), PARAMS, DYNAMIC, X[:3])
    np.testing.assert_array_equal(both(scale, scale, X), expected_apply(expected_params, X[:3]))


MADE = {  # weights that meet what the function makes, in NumPy and in JAX
    "numbers": lambda of: lambda params, x: x @ (params["w"] * of.arange(16, dtype=np.float32)),
    "identity": lambda of: lambda params, x: x @ (params["w"] + of.eye(16, dtype=np.float32)),
    "triangle": lambda of: lambda params, x: x @ (params["w"] * of.tri(16, dtype=np.float32)),
    "mask": lambda of: lambda params, x: x @ jnp.where(of.arange(16) > 3, params["w"], 0),
    "in a loop": lambda of: (
        lambda params, x: jax.lax.scan(
            lambda x, w: (x @ (w * (of.arange(16, dtype=np.float32) / 16)), None), x, params["stack"]
        )[0]
    ),
    "sliced": lambda of: (
        lambda params, x: jax.lax.scan(
            lambda x, layer: (x @ (layer[0] * layer[1]), None), x, (params["stack"], of.arange(3, dtype=np.float32))
        )[0]
    ),
}


@pytest.mark.parametrize("name", MADE)
def test_made_constants(name):
    """A site may have weights that meet a constant that the function makes: as if NumPy had made it."""
    with jax.numpy_rank_promotion("allow"):
        quantized_apply, quantized_params = transform.quantize(MADE[name](jnp), PARAMS, DYNAMIC, X)
        expected_apply, expected_params = transform.quantize(MADE[name](np), PARAMS, DYNAMIC, X)
        assert quantized_params["sites"].keys() == expected_params["sites"].keys() == quantized_params["sites"].keys()
        assert_equal(quantized_params["sites"], expected_params["sites"])
        assert_equal(quantized_apply(quantized_params, X), expected_apply(expected_params, X))


def test_random_numbers_are_not_made():
    """What a device draws differs in each run."""
    apply = lambda params, x: x @ (params["w"] * jax.lax.rng_uniform(jnp.float32(0), jnp.float32(1), (16, 16)))  # noqa: E731
    assert_declined(lambda: transform.quantize(apply, PARAMS, DYNAMIC, X), "Left in float: -")
