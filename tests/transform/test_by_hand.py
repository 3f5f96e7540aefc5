"""Quantized functions against compositions by hand, for small functions and any number of rows: equal bits."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from support.compositions import NumPy, Operators, assert_equal_leaves, numpy_calibration
from support.formats import is_in_columns
from support.networks import SCHEMES, Float, recipe
from support.small_functions import NETWORKS, Network, applicable_schemes, draw_operands

from jquant import transform

COUNTS = 1, 7


def cases():
    """A tenth of the functions in everybody's suite, a third in the gate, with one scheme each; all in the full run."""
    for number, (name, network) in enumerate(NETWORKS.items()):
        schemes = applicable_schemes(network)
        for index, scheme in enumerate(schemes):
            in_turn = (index - number) % len(schemes) == 0
            marks = (
                () if in_turn and number % 10 == 0 else pytest.mark.gate if in_turn and number % 4 == 1 else pytest.mark.full
            )
            yield pytest.param(name, scheme, marks=marks, id=f"{name}-{scheme}")


@pytest.mark.parametrize(("name", "scheme"), [*cases()])
def test_equal_bits(name, scheme, count, gate, full):
    """With both compositions: jitted, exported for any number of rows, and eagerly, for 1 row and 7.

    In the gate, each function has one of these three.
    """
    network = NETWORKS[name]
    exact, quantization = scheme.startswith("weights"), recipe(SCHEMES[scheme])
    parameters, x = draw_operands(network, scheme, COUNTS[-1])
    calibration = numpy_calibration(network.function, parameters, x, fraction=0.75, exact=exact)
    apply = lambda params, x: network.function(Float(exact=exact), params, x)  # noqa: E731
    quantized_apply, quantized_params = transform.quantize(apply, parameters, quantization, x, calibration=calibration)
    jitted, options = jax.jit(quantized_apply), {"stored": quantized_params["sites"], "exact": exact}
    in_turn = [*NETWORKS].index(name) % 3 if gate and not full else None
    symbolic = None
    if full or in_turn == 0:
        (rows,) = export.symbolic_shape("rows")
        shape = jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype)
        symbolic = export.export(jitted)(quantized_params, shape)
    for number in COUNTS:
        _, x = draw_operands(network, scheme, number)
        expected = network.function(NumPy(quantization, calibration, **options), parameters, x)
        results = []
        if symbolic is not None:
            results.append(symbolic.call(quantized_params, x))
        if full or in_turn == 1 or (number == COUNTS[-1] and in_turn is None):
            results.append(jitted(quantized_params, x))
        if full or (number == COUNTS[-1] and in_turn == 2):
            results.append(quantized_apply(quantized_params, x))
            operators = Operators(quantization, calibration, **options)
            assert_equal_leaves(network.function(operators, *jax.tree.map(jnp.asarray, (parameters, x))), expected)
        for result in results:
            assert_equal_leaves(result, expected)
        count("results of int8 functions", len(results))


def as_function(network: Network) -> tuple[Callable, Any, Any]:
    """The float function, its parameters and an input."""
    parameters, x = draw_operands(network, "dynamic uint8", COUNTS[-1])
    return lambda params, x: network.function(Float(), params, x), parameters, x


@pytest.mark.parametrize("name", NETWORKS)
def test_all_are_sites(name):
    """No product of any of these functions stays float."""
    sites = transform.sites(*as_function(NETWORKS[name]), recipe=recipe(SCHEMES["dynamic uint8"]))
    assert sites
    assert [row for row in sites if row.reason is not None] == []


def count_operations(apply, *arguments) -> dict[str, int]:
    """How often a program has each operation; each program inside is counted once."""
    counts: dict[str, int] = {}

    def walk(jaxpr):
        for equation in jaxpr.eqns:
            for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")):
                if hasattr(inner, "eqns"):
                    walk(getattr(inner, "jaxpr", inner))
                elif hasattr(getattr(inner, "jaxpr", None), "eqns"):
                    walk(inner.jaxpr)
            counts[equation.primitive.name] = counts.get(equation.primitive.name, 0) + 1

    walk(jax.make_jaxpr(apply)(*arguments).jaxpr)
    return counts


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if not name.startswith("weights")])
def test_one_quantizer_for_each_input(scheme):
    """An input of three products is rotated and rounded once; a smoothed one, whose factors differ, for each product."""
    network, quantization = NETWORKS["shared_input"], recipe(SCHEMES[scheme])
    apply, parameters, x = as_function(network)
    calibration = numpy_calibration(network.function, parameters, x, fraction=0.75)
    quantized_apply, quantized_params = transform.quantize(apply, parameters, quantization, x, calibration=calibration)
    three = count_operations(quantized_apply, quantized_params, x)
    one_product = lambda params, x: x @ params["q"]  # noqa: E731
    quantized_one, one_params = transform.quantize(one_product, parameters, quantization, x, calibration=calibration)
    one = count_operations(quantized_one, one_params, x)
    times = 3 if SCHEMES[scheme].smoothing is not None else 1
    assert three["round"] == times * one["round"] > 0
    assert three.get("self_adjoint", 0) == (times if SCHEMES[scheme].rotation is not None else 0)
    products = "integer_dot" if is_in_columns(SCHEMES[scheme]) else "block_dot"
    assert three[products] == 3 * one[products] > 0
    assert set(quantized_params["inputs"]) == ({"q"} if scheme.startswith("static") else set())


@pytest.mark.parametrize("weight_type", ["INT8", "MXFP4"])
def test_one_rotation_for_each_float_input(weight_type):
    scheme = transform.Scheme(weight_type=weight_type, activations="FLOAT", rotation="HADAMARD")
    apply, parameters, x = as_function(NETWORKS["shared_input"])
    quantized_apply, quantized_params = transform.quantize(apply, parameters, recipe(scheme), x)
    assert count_operations(quantized_apply, quantized_params, x)["self_adjoint"] == 1


def test_one_input_with_several_schemes():
    """Each scheme has its quantizer."""
    network = NETWORKS["shared_input"]
    apply, parameters, x = as_function(network)
    calibration = numpy_calibration(network.function, parameters, x, fraction=0.75)
    rules = [("q", SCHEMES["static uint8"]), ("k", SCHEMES["static int8"]), ("v", SCHEMES["dynamic row"])]
    quantization = transform.Recipe(rules, smallest=1)
    quantized_apply, quantized_params = transform.quantize(apply, parameters, quantization, x, calibration=calibration)
    assert set(quantized_params["inputs"]) == {"q", "k"}
    expected = network.function(NumPy(quantization, calibration), parameters, x)
    assert_equal_leaves(jax.jit(quantized_apply)(quantized_params, x), expected)


def test_weights_are_stored_once():
    """One table for an embedding and a product; one matrix for two products, but not for one with its transpose."""
    for name, stored in (("tied_embedding", {"table"}), ("one_weight_twice", {"a", "a#3"})):
        apply, parameters, x = as_function(NETWORKS[name])
        _, quantized_params = transform.quantize(apply, parameters, recipe(SCHEMES["dynamic uint8"]), x)
        assert set(quantized_params["sites"]) == stored
        assert not quantized_params["float"]


@pytest.mark.parametrize("name", ["products", "nested_loops", "tied_embedding", "recurrent"])
def test_quantized_weights(name):
    """Each layer has its scale."""
    apply, parameters, x = as_function(NETWORKS[name])
    _, quantized_params = transform.quantize(apply, parameters, recipe(SCHEMES["dynamic uint8"]), x)
    for site, stored in quantized_params["sites"].items():
        axis = -1 if site == "table" else -2
        weights = np.asarray(parameters[site])
        scale = abs(weights).max(axis, keepdims=True) / np.float32(127)
        np.testing.assert_array_equal(stored["scale"], scale.squeeze(axis), strict=True)
        values = np.rint(weights / scale).astype(np.int8)
        values = values.swapaxes(-1, -2) if site == "table" else values
        np.testing.assert_array_equal(stored["values"].unpack(), values, strict=True)
