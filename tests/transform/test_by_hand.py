"""`jquant.transform.quantize` against compositions by hand of small functions: equal bits, for any number of rows."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from support.networks import SCHEMES, Float, NumPy, Operators, ranges_of, recipe
from support.small_functions import NETWORKS, Network, drawn, schemes_of

from jquant import transform

COUNTS = 1, 7


def cases():
    """A fifth of the functions in everybody's suite, over half in the gate, with a scheme in turn; all in the full run."""
    for number, (name, each) in enumerate(NETWORKS.items()):
        schemes = schemes_of(each)
        for place, scheme in enumerate(schemes):
            in_turn = (place - number) % len(schemes) == 0
            marks = () if in_turn and number % 5 == 0 else pytest.mark.gate if in_turn and number % 2 else pytest.mark.full
            yield pytest.param(name, scheme, marks=marks, id=f"{name}-{scheme}")


def assert_equal(actual, expected):
    actual, expected = (jax.tree.leaves(tree) for tree in (actual, expected))
    assert len(actual) == len(expected)
    for given, wanted in zip(actual, expected, strict=True):
        given, wanted = np.asarray(given), np.asarray(wanted)
        assert given.dtype == wanted.dtype
        if wanted.dtype == jnp.bfloat16:
            given, wanted = given.astype(np.float32), wanted.astype(np.float32)
        np.testing.assert_array_equal(given, wanted, strict=True)


@pytest.mark.parametrize(("name", "scheme"), [*cases()])
def test_equal_bits(name, scheme, count, gate, full):
    """Of both compositions: eagerly and jitted, 1 row and 7, and any number. In the gate, a third of that for each."""
    network = NETWORKS[name]
    exact, how = scheme.startswith("weights"), recipe(SCHEMES[scheme])
    parameters, x = drawn(network, scheme, COUNTS[-1])
    ranges = ranges_of(network.function, parameters, x, part=0.75, exact=exact)
    apply = lambda params, x: network.function(Float(exact=exact), params, x)  # noqa: E731
    quantized_apply, quantized_params = transform.quantize(apply, parameters, how, x, calibration=ranges)
    jitted = jax.jit(quantized_apply)
    in_turn = [*NETWORKS].index(name) % 3 if gate and not full else None
    symbolic = None
    if full or in_turn == 0:
        (rows,) = export.symbolic_shape("rows")
        shape = jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype)
        symbolic = export.export(jitted)(quantized_params, shape)
    for number in COUNTS:
        _, x = drawn(network, scheme, number)
        expected = network.function(NumPy(how, ranges, exact=exact), parameters, x)
        results = []
        if symbolic is not None:
            results.append(symbolic.call(quantized_params, x))
        if full or in_turn == 1 or (number == COUNTS[-1] and in_turn is None):
            results.append(jitted(quantized_params, x))
        if full or (number == COUNTS[-1] and in_turn == 2):
            results.append(quantized_apply(quantized_params, x))
            operators = Operators(how, ranges, exact=exact)
            assert_equal(network.function(operators, *jax.tree.map(jnp.asarray, (parameters, x))), expected)
        for result in results:
            assert_equal(result, expected)
        count("results of int8 functions", len(results))


def names_of(network: Network, scheme: str = "dynamic uint8") -> tuple[transform.Sites, Any]:
    parameters, x = drawn(network, scheme, COUNTS[-1])
    apply = lambda params, x: network.function(Float(), params, x)  # noqa: E731
    return transform.sites(apply, parameters, x, recipe=recipe(SCHEMES[scheme])), (apply, parameters, x)


@pytest.mark.parametrize("name", NETWORKS)
def test_all_are_sites(name):
    """No product of any of these functions stays float."""
    found, _ = names_of(NETWORKS[name])
    assert found
    assert [row for row in found if row.reason is not None] == []


def operations(apply, *arguments) -> dict[str, int]:
    """How often a program has each operation that quantizes: of all programs inside, once each."""
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
    """Three products with one input round it once."""
    network = NETWORKS["shared_input"]
    parameters, x = drawn(network, scheme, COUNTS[-1])
    ranges = ranges_of(network.function, parameters, x, part=0.75)
    apply = lambda params, x: network.function(Float(), params, x)  # noqa: E731
    quantized_apply, quantized_params = transform.quantize(apply, parameters, recipe(SCHEMES[scheme]), x, calibration=ranges)
    shared = operations(quantized_apply, quantized_params, x)
    one = lambda params, x: x @ params["q"]  # noqa: E731
    quantized_one, quantized_one_params = transform.quantize(one, parameters, recipe(SCHEMES[scheme]), x, calibration=ranges)
    alone = operations(quantized_one, quantized_one_params, x)
    assert shared["round"] == alone["round"]
    assert shared["integer_dot"] == 3 * alone["integer_dot"]
    assert set(quantized_params["inputs"]) == ({"q"} if scheme.startswith("static") else set())


def test_an_input_in_several_schemes():
    """Each has a quantizer of its own."""
    network = NETWORKS["shared_input"]
    parameters, x = drawn(network, "static uint8", COUNTS[-1])
    ranges = ranges_of(network.function, parameters, x, part=0.75)
    how = transform.Recipe(
        [("q", SCHEMES["static uint8"]), ("k", SCHEMES["static int8"]), ("v", SCHEMES["dynamic row"])], smallest=1
    )
    apply = lambda params, x: network.function(Float(), params, x)  # noqa: E731
    quantized_apply, quantized_params = transform.quantize(apply, parameters, how, x, calibration=ranges)
    assert set(quantized_params["inputs"]) == {"q", "k"}
    assert_equal(jax.jit(quantized_apply)(quantized_params, x), network.function(NumPy(how, ranges), parameters, x))


def test_weights_are_stored_once():
    """A table for look-ups and products; a matrix for two products alike. Not for one by its transpose."""
    for name, stored in (("tied_embedding", {"table"}), ("one_weight_twice", {"a", "a#3"})):
        _, (apply, parameters, x) = names_of(NETWORKS[name])
        _, quantized_params = transform.quantize(apply, parameters, recipe(SCHEMES["dynamic uint8"]), x)
        assert set(quantized_params["sites"]) == stored
        assert not quantized_params["float"]


@pytest.mark.parametrize("name", ["products", "nested_loops", "tied_embedding", "recurrent"])
def test_integers_of_weights(name):
    """Each layer has its scale."""
    network = NETWORKS[name]
    _, (apply, parameters, x) = names_of(network)
    _, quantized_params = transform.quantize(apply, parameters, recipe(SCHEMES["dynamic uint8"]), x)
    for weights, stored in quantized_params["sites"].items():
        axis = -1 if weights == "table" else -2
        given = np.asarray(parameters[weights])
        scale = abs(given).max(axis, keepdims=True) / np.float32(127)
        np.testing.assert_array_equal(stored["scale"], scale.squeeze(axis), strict=True)
        values = np.rint(given / scale).astype(np.int8)
        values = values.swapaxes(-1, -2) if weights == "table" else values
        np.testing.assert_array_equal(stored["values"].unpack(), values, strict=True)
