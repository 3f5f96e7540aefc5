"""Functions whose program depends on the size of the batch: the quantized parameters may not fit another size."""

import jax
import jax.numpy as jnp
import numpy as np
from support.comparison import assert_declined
from support.draw import Draw
from support.networks import SCHEMES, recipe

from jquant import transform

DRAW = Draw(0)
W, OTHER = DRAW.weights(16, 16), DRAW.weights(16, 16)
PARAMS = {"a": W, "b": OTHER}
X = DRAW.input(7, 16)
DYNAMIC = recipe(SCHEMES["dynamic uint8"])


def test_other_weights():
    apply = lambda params, x: x @ params["a"] if x.shape[0] > 1 else x @ params["b"]  # noqa: E731
    quantized_apply, quantized_params = transform.quantize(apply, PARAMS, DYNAMIC, X)
    quantized_apply(quantized_params, X[:2])
    message = "for inputs of these shapes, apply has different sites from those of the quantized parameters: "
    assert_declined(lambda: quantized_apply(quantized_params, X[:1]), message)
    assert_declined(
        lambda: jax.jit(quantized_apply)(quantized_params, X[:1]), "Does it branch in Python on a size of its input?"
    )


def test_other_scales():
    """The same weights, contracted over the other dimension."""
    apply = lambda params, x: x @ (params["a"] if x.shape[0] > 1 else params["a"].T)  # noqa: E731
    quantized_apply, quantized_params = transform.quantize(apply, PARAMS, DYNAMIC, X)
    assert_declined(lambda: quantized_apply(quantized_params, X[:1]), "Does it branch in Python on a size of its input?")


def test_no_site():
    apply = lambda params, x: x @ params["a"] if x.shape[0] > 1 else x + params["a"][:1]  # noqa: E731
    quantized_apply, quantized_params = transform.quantize(apply, PARAMS, DYNAMIC, X)
    message = "different sites from those of the quantized parameters: a"
    assert_declined(lambda: quantized_apply(quantized_params, X[:1]), message)


def test_another_float_parameter():
    """A parameter that the example did not read is not among the quantized parameters."""
    apply = lambda params, x: x @ params["a"] + (0 if x.shape[0] > 1 else params["b"][:1])  # noqa: E731
    quantized_apply, quantized_params = transform.quantize(apply, PARAMS, DYNAMIC, X)
    message = "apply reads b unquantized, and the quantized parameters do not contain it"
    assert_declined(lambda: quantized_apply(quantized_params, X[:1]), message)


def test_float_parameter_broadcast_to_the_batch():
    """It is kept as it is, for batches of any size."""
    apply = lambda params, x: x @ params["w"] + jnp.broadcast_to(params["bias"], (x.shape[0], 16))  # noqa: E731
    params = {"w": W, "bias": OTHER[0]}
    quantized_apply, quantized_params = transform.quantize(apply, params, DYNAMIC, X)
    np.testing.assert_array_equal(quantized_params["float"]["bias"], params["bias"], strict=True)
    plain, plain_params = transform.quantize(lambda params, x: x @ params["w"], {"w": W}, DYNAMIC, X)
    for rows in (1, 3, 7):
        expected = plain(plain_params, X[:rows]) + OTHER[:1]
        np.testing.assert_array_equal(quantized_apply(quantized_params, X[:rows]), expected)


def test_weights_broadcast_to_the_batch():
    """They are stored for the size of the example."""
    apply = lambda params, x: jnp.einsum("bd,bdn->bn", x, jnp.broadcast_to(params["a"], (len(x), 16, 16)))  # noqa: E731
    quantized_apply, quantized_params = transform.quantize(apply, PARAMS, DYNAMIC, X)
    quantized_apply(quantized_params, X)
    message = "different sites from those of the quantized parameters: a"
    assert_declined(lambda: quantized_apply(quantized_params, X[:1]), message)
