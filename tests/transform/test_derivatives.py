"""A quantized function has no derivative through integers: it would be silently wrong, so it raises."""

import functools

import jax
import numpy as np
from jax import lax
from support.comparison import assert_declined
from support.draw import Draw
from support.networks import SCHEMES, recipe
from support.sampling import one_in

from jquant import transform
from jquant.calibration import Range

DRAW = Draw(0)
W, OTHER = DRAW.weights(16, 16), DRAW.weights(16, 16)
PARAMS = {"a": W, "b": OTHER}
X = DRAW.input(7, 16)
RANGE = Range(np.float32(-2), np.float32(2))
DYNAMIC = recipe(SCHEMES["dynamic uint8"])
every_integer_scheme = one_in(3, "scheme", [name for name in SCHEMES if not name.startswith("weights")], others="full")


def two_products(params, x):
    return jax.nn.relu(x @ params["a"]) @ params["b"]


@every_integer_scheme
def test_in_the_input(scheme):
    quantized_apply, quantized_params = transform.quantize(
        two_products, PARAMS, recipe(SCHEMES[scheme]), X, calibration={"a": RANGE, "b": RANGE}
    )
    for derivative in (jax.grad, jax.jacfwd, lambda f: jax.jit(jax.grad(f)), lambda f: lambda x: jax.linearize(f, x)):
        call = functools.partial(derivative(lambda x: quantized_apply(quantized_params, x).sum()), X)
        assert_declined(call, "the quantized function has no derivative through a: differentiate the one that")


@every_integer_scheme
def test_in_a_float_parameter(scheme):
    """One that stays float, before a site in a loop."""

    def apply(params, x):
        body = lambda x, w: (jax.nn.relu(x @ w), None)  # noqa: E731
        return lax.scan(body, x + params["bias"], params["layers"])[0]

    params = {"bias": np.ones((1, 16), np.float32), "layers": np.stack([W, OTHER])}
    calibration = {"layers": Range(*(np.full(2, bound, np.float32) for bound in (-2, 2)))}
    quantized_apply, quantized_params = transform.quantize(
        apply, params, recipe(SCHEMES[scheme]), X, calibration=calibration
    )
    assert set(quantized_params["float"]) == {"bias"}

    def loss(bias):
        return quantized_apply({**quantized_params, "float": {"bias": bias}}, X).sum()

    assert_declined(lambda: jax.grad(loss)(params["bias"]), "no derivative through layers")


@every_integer_scheme
def test_in_the_quantized_parameters(scheme):
    """Which hold scales, in float."""
    quantized_apply, quantized_params = transform.quantize(
        two_products, PARAMS, recipe(SCHEMES[scheme]), X, calibration={"a": RANGE, "b": RANGE}
    )
    gradient = jax.grad(lambda params: quantized_apply(params, X).sum(), allow_int=True)
    assert_declined(lambda: gradient(quantized_params), "the quantized function has no derivative through a")


def test_after_all_sites():
    """A parameter that is read after all rounding has its derivative."""
    apply = lambda params, x: x @ params["w"] + params["bias"]  # noqa: E731
    params = {"w": W, "bias": np.ones((1, 16), np.float32)}
    quantized_apply, quantized_params = transform.quantize(apply, params, DYNAMIC, X)

    def loss(bias):
        return quantized_apply({**quantized_params, "float": {"bias": bias}}, X).sum()

    np.testing.assert_array_equal(jax.grad(loss)(params["bias"]), np.full((1, 16), 7, np.float32), strict=True)


def test_weight_only():
    """If only the weights are quantized, the function has its derivative in the input."""
    draw = Draw(0, exact=True)
    w, x = draw.weights(16, 16), draw.input(7, 16)
    apply = lambda params, x: x @ params["w"]  # noqa: E731
    quantized_apply, quantized_params = transform.quantize(apply, {"w": w}, recipe(SCHEMES["weights alone"]), x)
    gradient = jax.grad(lambda x: quantized_apply(quantized_params, x).sum())(x)
    np.testing.assert_array_equal(gradient, np.broadcast_to(w.sum(1), (7, 16)), strict=True)


@jax.custom_jvp
def doubled(x):
    return x * 2


doubled.defjvp(lambda primals, tangents: (doubled(*primals), 2 * tangents[0]))


def test_rules_outside_of_sites_are_kept():
    """A custom derivative stays what it was, and so does that of relu, 0 at 0."""
    apply = lambda params, x: jax.nn.relu(doubled(x @ params["w"] + params["bias"]))  # noqa: E731
    params = {"w": W, "bias": np.zeros((1, 16), np.float32)}
    quantized_apply, quantized_params = transform.quantize(apply, params, DYNAMIC, X)

    def loss(bias):
        return quantized_apply({**quantized_params, "float": {"bias": bias}}, np.zeros((1, 16), np.float32)).sum()

    np.testing.assert_array_equal(jax.grad(loss)(params["bias"]), np.zeros((1, 16), np.float32))
