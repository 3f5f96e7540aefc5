"""Wrong arguments of `jquant.transform`, and the debugging modes of JAX: an error that names the argument, or the result."""

import contextlib
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.sampling import one_in

from jquant import transform
from jquant.calibration import Range

PARAMS = {"w": np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)}
X = np.linspace(-2, 3, 16, dtype=np.float32).reshape(2, 8)
STATIC, DYNAMIC = (
    transform.Recipe([("*", transform.Scheme(activations=activations))], smallest=1) for activations in ("STATIC", "DYNAMIC")
)
RANGES = {"w": Range(np.float32(-2), np.float32(3))}
ARGUMENTS = {"apply": lambda p, x: jnp.tanh(x @ p["w"]), "params": PARAMS, "recipe": STATIC, "x": X, "calibration": RANGES}
CALLS = {
    "sites": lambda apply, params, recipe, x, calibration: transform.sites(apply, params, x, recipe=recipe),
    "calibrate": lambda apply, params, recipe, x, calibration: transform.calibrate(apply, params, [x], recipe),
    "quantize": lambda apply, params, recipe, x, calibration: transform.quantize(
        apply, params, recipe, x, calibration=calibration
    ),
    "quantization_aware": lambda apply, params, recipe, x, calibration: transform.quantization_aware(
        apply, recipe, calibration
    )(params, x),
    "report": lambda apply, params, recipe, x, calibration: transform.report(
        apply, params, recipe, x, calibration=calibration
    ),
}
WRONG = {
    "None": None,
    "a number": 3,
    "a string": "static",
    "a list": ["*"],
    "an object": object(),
    "a set": {1},
    "bytes": b"\0",
    "NaN": float("nan"),
    "strings": np.array(["a"]),
    "objects": np.array([object()]),
    "a class": transform.Scheme,
}
RANGE_OF_WRONG = {
    "NaN": Range(np.float32(np.nan), np.float32(1)),
    "infinite": Range(np.float32(-1), np.float32(np.inf)),
    "too many": Range(np.zeros(3, np.float32), np.ones(3, np.float32)),
    "none": None,
    "a string": "from -1 to 1",
    "a number": 1.0,
}
# What is a callable, and a tree of arrays, after all: what is wrong with it is the function's to say.
RIGHT = {("apply", "a class"), ("params", "a number"), ("params", "NaN")}


@one_in(2, ("function", "argument"), list(itertools.product(CALLS, ["apply", "params", "recipe", "calibration"])))
def test_wrong_argument(function, argument):
    for name, wrong in WRONG.items():
        uses = argument != "calibration" or function not in ("sites", "calibrate")
        if (argument, name) in RIGHT or not uses:
            continue
        with pytest.raises(transform.TransformError) as caught:
            CALLS[function](**{**ARGUMENTS, argument: wrong})
        assert argument in str(caught.value), f"{name}: {caught.value}"


@pytest.mark.parametrize("function", CALLS)
@pytest.mark.parametrize(("argument", "given"), [("recipe", X), ("apply", {"w": X})])
def test_a_message_shows_the_types_of_arrays(function, argument, given):
    """Not their elements."""
    with pytest.raises(transform.TransformError, match=rf"{argument} is ({{'w': )?float32\[2,8\]"):
        CALLS[function](**{**ARGUMENTS, argument: given})


@pytest.mark.parametrize("function", ["quantize", "quantization_aware", "report"])
@pytest.mark.parametrize("wrong", RANGE_OF_WRONG)
def test_wrong_range(function, wrong):
    with pytest.raises(transform.TransformError, match="calibration"):
        CALLS[function](**{**ARGUMENTS, "calibration": {"w": RANGE_OF_WRONG[wrong]}})


@pytest.mark.parametrize("field", ["weights", "weight_type", "activations", "activation_type", "observer"])
def test_wrong_field_of_a_scheme(field):
    for name, wrong in WRONG.items():
        with pytest.raises(transform.TransformError) as caught:
            transform.Scheme(**{field: wrong})
        assert field in str(caught.value), f"{name}: {caught.value}"


def test_wrong_rules():
    for wrong in (*WRONG.values(), [("*",)], [("*", "int8")], [(1, transform.Scheme())], [("*", transform.Scheme(), 1)]):
        if isinstance(wrong, set):
            continue
        with pytest.raises(transform.TransformError, match="rules"):
            transform.Recipe(wrong)
    for wrong in (-1, 1.5, "8", None, float("nan")):
        with pytest.raises(transform.TransformError, match="smallest"):
            transform.Recipe([("*", transform.Scheme())], smallest=wrong)


@pytest.mark.gate
@pytest.mark.parametrize("mode", ["disable_jit", "debug_nans", pytest.param("check_tracer_leaks", marks=pytest.mark.full)])
@pytest.mark.parametrize("recipe", [STATIC, DYNAMIC], ids=["static", "dynamic"])
def test_debugging(mode, recipe):
    """The same integers and floats, the same calibration and the same derivatives."""

    def results():
        calibration = transform.calibrate(ARGUMENTS["apply"], PARAMS, [X], recipe) if recipe is STATIC else None
        apply, params = transform.quantize(ARGUMENTS["apply"], PARAMS, recipe, X, calibration=calibration)
        aware = transform.quantization_aware(ARGUMENTS["apply"], recipe, calibration)
        gradient = jax.grad(lambda params: aware(params, X).sum())(PARAMS)
        return calibration, params, apply(params, X), aware(PARAMS, X), gradient

    expected = results()
    context = {
        "disable_jit": jax.disable_jit,
        "debug_nans": lambda: jax.debug_nans(True),
        "check_tracer_leaks": jax.checking_leaks,
    }[mode]
    with contextlib.ExitStack() as stack:
        stack.enter_context(context())
        actual = results()
    jax.tree.map(np.testing.assert_array_equal, actual, expected)
