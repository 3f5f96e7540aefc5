"""A calibration for inputs of some sizes, and `quantize` for others, at which the uses of a weight come in another order."""

import itertools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.comparison import assert_declined, assert_equal
from support.draw import Draw

from jquant import transform
from jquant.calibration import Range

DRAW = Draw(5)
PARAMS = {name: DRAW.weights(8, 8) for name in ("u", "v", "s")} | {"three": DRAW.weights(3, 8, 8, layers=1)}
SHORT = DRAW.input(4, 8)
LONG = np.concatenate([SHORT, SHORT])  # the same ranges and, but for a factor, the same X^T X
TABLES = [np.full((1, 8), factor, np.float32) for factor in (1, 16, 1 / 16)]
SCHEMES = {
    "static": transform.Scheme(activations="STATIC"),
    "GPTQ": transform.Scheme(activations="DYNAMIC_ROW", weight_rounding="GPTQ"),
    "smoothed": transform.Scheme(smoothing="SMOOTHQUANT"),
    "static, GPTQ": transform.Scheme(activations="STATIC", weight_rounding="GPTQ"),
}


def in_order(x, *parts):
    """The parts, computed in this order for many rows, and in the reverse for few."""
    order = parts if x.shape[0] > 4 else parts[::-1]
    outputs = {part: part() for part in order}
    return sum((outputs[part] for part in parts[1:]), outputs[parts[0]])


FUNCTIONS = {  # of parameters and an input
    "inputs": lambda p, x: in_order(x, lambda: x @ p["v"], lambda: jnp.abs(x) * 30 @ p["v"]),
    "three": lambda p, x: in_order(
        x, lambda: x @ p["v"], lambda: jnp.abs(x) * 30 @ p["v"], lambda: -jnp.abs(x * x) @ p["v"]
    ),
    "constants": lambda p, x: in_order(x, *(lambda table=table: (x * table) @ p["v"] for table in TABLES)),
    "parts of the input": lambda p, x: in_order(x, lambda: x[:, :8] @ p["v"], lambda: (x * 9)[:, ::-1] @ p["v"]),
    "another reader": lambda p, x: in_order(
        x, lambda: x @ p["u"], lambda: x @ p["v"], lambda: jnp.abs(x) * 30 @ p["v"], lambda: (-x * x) @ p["s"]
    ),
    "weights of a stack": lambda p, x: in_order(
        x, *(lambda table=table, w=w: (x * table) @ p["three"][w] for w, table in enumerate(TABLES))
    ),
}


UNCLEAR = {"constants"}  # whose uses differ in constants alone, and which are not in the same order


def recipe(scheme):
    return transform.Recipe([("*", scheme)], smallest=1)


def program(apply, size, scheme, calibration):
    """What is computed for inputs of a size, or None if `quantize` refuses the calibration."""
    try:
        quantized_apply, stored = transform.quantize(apply, PARAMS, recipe(scheme), size, calibration=calibration)
    except transform.TransformError:
        return None
    return np.asarray(quantized_apply(stored, size)), stored


@pytest.mark.parametrize(("name", "scheme"), list(itertools.product(FUNCTIONS, SCHEMES)))
def test_another_order(name, scheme, count):
    """A calibration at another size, of the same numbers, gives what one at this size does; or it is refused."""
    apply, scheme = FUNCTIONS[name], SCHEMES[scheme]
    here, there = (transform.calibrate(apply, PARAMS, [x], recipe(scheme)) for x in (SHORT, LONG))
    wanted = program(apply, SHORT, scheme, here)
    assert wanted is not None
    for calibration in (there, pickle.loads(pickle.dumps(there)), {**there}):
        actual = program(apply, SHORT, scheme, calibration)
        if actual is not None:
            np.testing.assert_allclose(actual[0], wanted[0], rtol=1e-5, atol=1e-5)
            assert_equal(actual[1]["inputs"], wanted[1]["inputs"])
        assert (actual is None) == (name in UNCLEAR)
        count("calibrations for other sizes, refused", int(actual is None))
        count("calibrations for other sizes, used", int(actual is not None))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_same_sizes(name):
    """By hand, without what tells uses apart, entries belong to the sites of their names, as those of `calibrate` do."""
    apply, scheme = FUNCTIONS[name], SCHEMES["static"]
    calibration = transform.calibrate(apply, PARAMS, [LONG], recipe(scheme))
    by_hand = {name: Range(*entry) for name, entry in calibration.items()}
    actual, expected = (program(apply, LONG, scheme, each) for each in (calibration, by_hand))
    np.testing.assert_array_equal(actual[0], expected[0])
    assert repr(calibration) == repr(by_hand)
    tree = jax.tree.map(lambda leaf: leaf, calibration)
    np.testing.assert_array_equal(program(apply, LONG, scheme, tree)[0], expected[0])


def test_uses_that_are_not_clear():
    """The message says what to do."""
    scheme = SCHEMES["static"]
    calibration = transform.calibrate(FUNCTIONS["constants"], PARAMS, [LONG], recipe(scheme))
    message = (
        "calibration was made with inputs of other sizes, for which apply uses v otherwise: what belongs to v, v#2, v#3"
    )
    assert_declined(
        lambda: transform.quantize(FUNCTIONS["constants"], PARAMS, recipe(scheme), SHORT, calibration=calibration), message
    )
