"""Parameters: their names, leaves that are not arrays, and the quantized parameters of another function."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jquant import transform
from jquant.transform.program.parameters import flattened


class Box(NamedTuple):
    """As Flax puts around each array."""

    value: Any


class Attention(NamedTuple):
    query: Any
    value: Any


ARRAY = np.ones(2, np.float32)
NAMES = [
    ({"layers": [{"kernel": ARRAY}, {"kernel": ARRAY}]}, ["layers/0/kernel", "layers/1/kernel"]),
    ({"kernel": Box(ARRAY), "bias": Box(ARRAY)}, ["bias", "kernel"]),
    ({"value": Box(ARRAY)}, ["value"]),
    ({"attention": Attention(ARRAY, ARRAY)}, ["attention/query", "attention/value"]),
    ({"attention": Attention({"kernel": ARRAY}, ARRAY)}, ["attention/query/kernel", "attention/value"]),
    ({"attention": {"query": {"value": ARRAY}}}, ["attention/query/value"]),
    ({"a": Box(ARRAY), "a/b": ARRAY, "c": Box({"d": ARRAY})}, ["a", "a/b", "c/value/d"]),
    ({"a": {"b": ARRAY}, "a/b": ARRAY}, ["['a']['b']", "['a/b']"]),
    (ARRAY, [""]),
    (Box(ARRAY), [""]),
]


@pytest.mark.parametrize(("params", "names"), NAMES)
def test_names(params, names):
    assert flattened("transform.sites", params).names == names


@pytest.mark.parametrize(
    ("leaf", "advice"),
    [
        (0.5, r"params holds 0.5 at 'layer/rate', which is not an array: pass jax.numpy.asarray\(0.5\), or close over it"),
        (jax.nn.relu, "keep only the arrays in params, and close over the rest. With Equinox: params, rest = "),
        ("batch", "params holds 'batch' at 'layer/rate', which is not an array: keep only the arrays in params"),
    ],
)
def test_a_leaf_is_not_an_array(leaf, advice):
    with pytest.raises(transform.TransformTypeError, match=f"^transform.sites: .*{advice}"):
        transform.sites(lambda params, x: x @ params["kernel"], {"kernel": ARRAY, "layer": {"rate": leaf}}, ARRAY)


def test_none_is_no_leaf():
    params, x = {"kernel": jnp.ones((32, 32))}, jnp.ones((2, 32))
    apply = lambda params, x: x @ params["kernel"]  # noqa: E731
    quantized_apply, quantized_params = transform.quantize(apply, params, transform.dynamic_int8, x)
    with_none, with_none_params = transform.quantize(apply, {**params, "bias": None}, transform.dynamic_int8, x)
    np.testing.assert_array_equal(with_none(with_none_params, x), quantized_apply(quantized_params, x))


def test_no_parameters():
    with pytest.raises(transform.TransformError, match=r"params is \{\}, which holds no arrays"):
        transform.sites(lambda params, x: x, {}, ARRAY)


QUANTIZED_APPLY, QUANTIZED_PARAMS = transform.quantize(
    lambda params, x: x @ params["kernel"], {"kernel": jnp.ones((32, 32))}, transform.dynamic_int8, jnp.ones((2, 32))
)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            {"kernel": ARRAY},
            r"^quantized_<lambda>: params is \{'kernel': float32\[[0-9,]*\]\}; it must be the quantized parameters, which ",
        ),
        (
            QUANTIZED_PARAMS | {"sites": {}},
            "^quantized_<lambda>: the sites of the quantized parameters do not belong to this function: kernel$",
        ),
        (
            QUANTIZED_PARAMS | {"inputs": {"a": ARRAY}},
            "^quantized_<lambda>: the inputs of the quantized parameters do not belong to this function: a$",
        ),
    ],
)
def test_parameters_of_another_function(params, message):
    """Float parameters, and those of another recipe; for an input shape that was traced before, and for a new one."""
    for x in (jnp.ones((2, 32)), jnp.ones((3, 32))):
        with pytest.raises(transform.TransformError, match=message):
            QUANTIZED_APPLY(params, x)


def test_arrays_of_numpy():
    """NumPy's float64 becomes float32, and a random key need not be used."""
    params = {"kernel": np.ones((32, 32)), "key": jax.random.key(0)}
    quantized_apply, quantized_params = transform.quantize(
        lambda params, x: x @ params["kernel"], params, transform.weight_only_int8, np.ones((2, 32), np.float32)
    )
    np.testing.assert_array_equal(
        quantized_apply(quantized_params, np.ones((2, 32), np.float32)), np.full((2, 32), 32, np.float32)
    )


def test_batches_in_a_dict():
    """Its keys would be the batches."""
    with pytest.raises(transform.TransformTypeError, match=r"^transform.calibrate: batches is .*an iterable of batches"):
        transform.calibrate(lambda params, x: x @ params, jnp.ones((32, 32)), {"x": ARRAY}, transform.static_int8)
