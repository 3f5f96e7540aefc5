"""What export wrote is loaded and exported again: the bits of the first model, and JAX's integers where it is loaded."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

from onnx import checker, helper, numpy_helper

import jquant.onnx
from jquant.onnx import ModelError, export

from . import test_networks
from .round_trips import outputs, same
from .test_parameters_of_primitives import CALLS, FLOATS, INTEGERS, _elementwise

CASES = {**CALLS, "elementwise": _elementwise}
UNSIGNED = np.uint32([7, 2**31 + 5, 2**32 - 1, 0, 2**31]), np.uint32([2, 3, 0, 5, 2**31 + 1])
EXTREMES = np.float32([np.inf, -1, np.nan, -0.0, 3e38, 0, np.finfo(np.float32).max, -np.inf, -np.nan, 2e-38, -1, 0.0, 7])


def _of_unsigned(a, b):
    return {
        "two": [function(a, b) for function in (lax.div, lax.rem, lax.mul, lax.lt, lax.max, lax.min)],
        "clamped": lax.clamp(np.uint32(3), a, np.uint32(2**31 + 9)),
        "chosen": lax.select(a > b, a, b),
        "sorted": lax.sort(a),
        "order": jnp.argsort(a, descending=True),
        "places": [lax.argmax(a, 0, np.int32), lax.argmin(a, 0, np.int32)],
        "extremes": [lax.reduce_max(a, (0,)), lax.reduce_min(a, (0,))],
        "largest": lax.top_k(a, 3),
        "sums": lax.cumsum(a),
    }


def _orders(x):
    """Of one key, and of two."""
    return [jnp.argsort(x), jnp.argsort(x[:12].reshape(3, 4), axis=0), lax.sort((x, jnp.arange(13)), num_keys=2)]


def _parts(x, i):
    """At places in both directions beyond the array, alone and in pairs."""
    sizes = (2, 1, 3), (1, 3, 4), (2, 2, 2)
    starts = ((i[0, 0, 1], 2, i[0, 0, 2] - 9), (i[0, 0, 3] - 2, 0, 0), (0, i[0, 0, 3], i[0, 0, 2]))
    return [lax.dynamic_slice(x, start, size) for start, size in zip(starts, sizes, strict=True)]


def check_again(function, *arguments, parameters: bool = False) -> None:
    exported = export(function, *arguments)
    flat = jax.tree.leaves(arguments[1:] if parameters else arguments)
    inputs = {value.name: x for value, x in zip(exported.graph.input, flat, strict=True)}
    model = jquant.onnx.load(exported)
    again = export(model, model.params, inputs)
    checker.check_model(again, full_check=True)
    expected, loaded = outputs(exported, inputs), jax.jit(model)(model.params, inputs)
    for name, value in outputs(again, inputs).items():
        assert same(value, expected[name]), name
        if value.dtype.kind in "iub":
            np.testing.assert_array_equal(loaded[name], value, err_msg=name)


@pytest.mark.parametrize("part", range(8))
def test_primitives(part):
    """Each with all values of its parameters."""
    chosen = dict(list(CASES.items())[part::8])
    check_again(lambda x, i: {name: function(x, i) for name, function in chosen.items()}, FLOATS, INTEGERS)


@pytest.mark.suite
def test_unsigned_integers():
    """Also beyond 2**31, which JAX's int32 has not, in place of an engine's int64."""
    check_again(_of_unsigned, *UNSIGNED)


@pytest.mark.suite
def test_orders_of_floats():
    check_again(_orders, EXTREMES)


@pytest.mark.suite
def test_parts_of_arrays():
    check_again(_parts, FLOATS, INTEGERS)


@pytest.mark.usefixtures("as_users_have_it")
@pytest.mark.parametrize(("network", "scheme"), test_networks.IN_THE_SUITE)
def test_networks_again(network, scheme):
    function, params, x = test_networks.quantized(network, scheme)
    check_again(function, params, x, parameters=True)


@pytest.mark.full
@pytest.mark.usefixtures("as_users_have_it")
@pytest.mark.parametrize("scheme", test_networks.SCHEMES)
@pytest.mark.parametrize("network", test_networks.NETWORKS)
def test_all_networks_again(network, scheme):
    function, params, x = test_networks.quantized(network, scheme)
    check_again(function, params, x, parameters=True)


def _sliced(low: int, high: int, length: int):
    """A model of Slice from a place between two numbers, with a length."""
    names = {"low": np.int64([low]), "high": np.int64([high]), "length": np.int64([length])}
    nodes = [
        helper.make_node("Max", ["place", "low"], ["above"]),
        helper.make_node("Min", ["above", "high"], ["start"]),
        helper.make_node("Add", ["start", "length"], ["end"]),
        helper.make_node("Slice", ["x", "start", "end"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", 1, [6]), helper.make_tensor_value_info("place", 7, [1])]
    result = helper.make_tensor_value_info("y", 1, ["n"])
    initializers = [numpy_helper.from_array(array, name) for name, array in names.items()]
    return helper.make_model(
        helper.make_graph(nodes, "slice", inputs, [result], initializers), opset_imports=[helper.make_opsetid("", 18)]
    )


def test_slices_that_may_be_shorter():
    """Their size is that of data: where a part could begin before the array, or end after it."""
    x = np.arange(6, dtype=np.float32)
    model = jquant.onnx.load(_sliced(0, 4, 2))
    for place, first in ((-3, 0), (1, 1), (9, 4)):
        result = jax.jit(model)(model.params, {"x": x, "place": np.int64([place])})["y"]
        np.testing.assert_array_equal(result, x[first : first + 2])
    with pytest.raises(ModelError, match="starts is 'start', which depends on the input 'place'"):
        jquant.onnx.load(_sliced(-1, 4, 2))
    model = jquant.onnx.load(_sliced(0, 5, 2))
    with pytest.raises(ModelError, match="starts may be 5, from where no 2 elements are left of 6"):
        jax.jit(model)(model.params, {"x": x, "place": np.int64([1])})
    fixed = jquant.onnx.load(_sliced(0, 5, 2), constants={"place": np.int64([5])})
    np.testing.assert_array_equal(fixed(fixed.params, {"x": x})["y"], [5])
