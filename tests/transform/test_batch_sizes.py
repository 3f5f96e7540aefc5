"""Functions whose program depends on the size of the batch: the quantized parameters may not fit another size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.comparison import assert_declined, assert_equal
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
    message = "for inputs of these types, apply has different sites from those of the quantized parameters: "
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
    message = "for inputs of these types, apply reads a unquantized, and the quantized parameters do not contain it"
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
    message = "apply has different weights from those that are packed: a"
    assert_declined(lambda: quantized_apply(quantized_params, X[:1]), message)


def test_no_tokens():
    """JAX leaves out a look-up of nothing, and what follows has no elements."""

    def apply(params, tokens):
        return jnp.tanh(params["a"][tokens] @ params["b"] * 2) @ params["a"].T

    quantized_apply, quantized_params = transform.quantize(apply, PARAMS, DYNAMIC, jnp.arange(4))
    for tokens in (jnp.zeros(0, jnp.int32), jnp.zeros((2, 0), jnp.int32)):
        for call in (quantized_apply, jax.jit(quantized_apply)):
            assert_equal(call(quantized_params, tokens), np.zeros((*tokens.shape, 16), np.float32))


def test_skipped_sites():
    """A program that does not reach a site is computed without it."""
    apply = lambda params, x: (jnp.tanh(x @ params["a"]) if x.shape[0] > 1 else x) @ params["b"]  # noqa: E731
    quantized_apply, quantized_params = transform.quantize(apply, PARAMS, DYNAMIC, X)
    plain, plain_params = transform.quantize(lambda params, x: x @ params["b"], {"b": OTHER}, DYNAMIC, X)
    assert_equal(quantized_apply(quantized_params, X[:1]), plain(plain_params, X[:1]))


def test_other_dtypes():
    """The message tells of the types, in place of sizes."""
    apply = lambda params, x: jax.lax.dot(x, params["a"], preferred_element_type=jnp.float32)  # noqa: E731
    quantized_apply, quantized_params = transform.quantize(apply, PARAMS, DYNAMIC, X)
    message = "apply reads a unquantized, and the quantized parameters do not contain it. The inputs are int32; those of"
    assert_declined(lambda: quantized_apply(quantized_params, X.astype(np.int32)), f"{message} quantize were float32")


STATIC = transform.Recipe([("*", transform.Scheme(activations="STATIC"))], smallest=1)
NUMBERED = transform.Recipe(
    [
        ("a#2", transform.Scheme(activations="DYNAMIC_ROW")),
        ("*", transform.Scheme(activations="DYNAMIC_ROW", weights="PER_TENSOR")),
    ],
    smallest=1,
)
PREPARED = transform.Recipe([("*", transform.Scheme(activations="STATIC", weight_rounding="GPTQ"))], smallest=1)
RECIPES = {"static": STATIC, "numbered": NUMBERED, "prepared": PREPARED}


def narrow(params, x, scale=1.0):
    return (scale * x) @ params["a"]


def wide(params, x):
    return jnp.maximum(100 * x @ params["b"], 0) @ params["a"]


def _in_order(first, second):
    def apply(params, x):
        if x.shape[0] > 4:
            return first(params, x), second(params, x)
        other = second(params, x)
        return first(params, x), other

    return apply


def loop(params, x):
    return jax.lax.scan(lambda x, b: (jnp.tanh(x @ b) @ params["a"], None), x, params["b"][None])[0]


ORDERS = {
    "other operations": _in_order(wide, narrow),
    "other constants": _in_order(lambda p, x: narrow(p, x, 100.0), lambda p, x: narrow(p, x, 0.25)),
    "other parts": _in_order(lambda p, x: narrow(p, x[:, 16:]), lambda p, x: narrow(p, 50 * x[:, :16])),
    "in a function": _in_order(lambda p, x: jax.jit(wide)(p, x), lambda p, x: jax.jit(narrow)(p, x)),
    "in a loop": _in_order(loop, narrow),
}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", ORDERS)
def test_other_order_of_uses(name, recipe):
    """Two uses of one weight keep what was made for them, or are refused."""
    apply = ORDERS[name]
    x = DRAW.input(16, 32 if name == "other parts" else 16)
    calibration = None
    if recipe != "numbered":
        calibration = transform.calibrate(apply, PARAMS, [x, x[:8]], RECIPES[recipe])
    quantized_apply, quantized_params = transform.quantize(apply, PARAMS, RECIPES[recipe], x, calibration=calibration)
    expected = [y[:8] for y in quantized_apply(quantized_params, x)]
    np.testing.assert_array_equal(quantized_apply(quantized_params, x[:8])[0], expected[0])
    np.testing.assert_array_equal(quantized_apply(quantized_params, x[:8])[1], expected[1])
    actual = quantized_apply(quantized_params, x[:4]) if name != "other constants" and recipe != "numbered" else None
    if actual is None:
        assert_declined(lambda: quantized_apply(quantized_params, x[:4]), "apply has different sites from those of")
    for each, wanted in zip(actual or (), expected, strict=bool(actual)):
        np.testing.assert_array_equal(each, wanted[:4])
