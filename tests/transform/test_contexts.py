"""Quantized functions that are called under other settings of JAX than those they were made under."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.draw import Draw
from support.networks import SCHEMES, recipe

from jquant import transform

DRAW = Draw(0)
PARAMS = {"a": DRAW.weights(16, 16), "b": DRAW.weights(16, 16)}
X = DRAW.input(4, 16)
DYNAMIC = recipe(SCHEMES["dynamic uint8"])


def one_site(params, x):
    """A site, and a product that stays float."""
    y = x @ params["a"]
    return y @ y.T


def is_highest(quantized_apply, quantized_params):
    """Whether the product that stays float, of 4 x 4 elements, has the highest precision."""
    equations = jax.make_jaxpr(quantized_apply)(quantized_params, X).eqns
    products = [equation for equation in equations if equation.primitive.name == "dot_general"]
    (product,) = (each for each in products if each.outvars[0].aval.shape == (4, 4))
    return "HIGHEST" in str(product.params["precision"])


@pytest.mark.parametrize("outer", ["highest", None])
@pytest.mark.parametrize("inner", ["highest", None])
def test_precision(outer, inner):
    """A product that stays float has the precision of the call, whatever that of `quantize` was."""
    with jax.default_matmul_precision(outer) if outer else contextlib.nullcontext():
        quantized_apply, quantized_params = transform.quantize(one_site, PARAMS, DYNAMIC, X)
    for _ in range(2):
        with jax.default_matmul_precision(inner) if inner else contextlib.nullcontext():
            assert is_highest(quantized_apply, quantized_params) == (inner is not None)


def test_x64():
    """Constants that a function makes have the widths of the call."""

    def apply(params, x):
        return x @ params["a"], jnp.arange(4) * x.shape[0]

    quantized_apply, quantized_params = transform.quantize(apply, PARAMS, DYNAMIC, X)
    assert quantized_apply(quantized_params, X)[1].dtype == np.int32
    with jax.enable_x64(True):
        y, numbers = quantized_apply(quantized_params, X)
        assert (y.dtype, numbers.dtype) == (np.float32, np.int64)
    assert quantized_apply(quantized_params, X)[1].dtype == np.int32


def test_traced_once_in_each_context():
    """A program is traced once for eager calls, and inside of `jit`, `grad` and `vmap`; after `jax.clear_caches`, again."""
    traces = []

    def apply(params, x):
        traces.append(x.shape)
        return x @ params["a"]

    quantized_apply, quantized_params = transform.quantize(apply, PARAMS, DYNAMIC, X)
    quantized_apply(quantized_params, X)
    jax.jit(quantized_apply)(quantized_params, X)
    jax.vmap(quantized_apply, (None, 0))(quantized_params, X[None])
    assert len(traces) == 1
    with jax.default_matmul_precision("highest"):
        quantized_apply(quantized_params, X)
        jax.jit(quantized_apply)(quantized_params, X)
    assert len(traces) == 2
    quantized_apply(quantized_params, X)
    assert len(traces) == 2


@pytest.mark.parametrize("before", [False, True])
def test_mesh(before):
    """A program that asks for the mesh of its context gets that of the call."""
    mesh = jax.make_mesh((2,), ("data",))

    def apply(params, x):
        axes = jax.sharding.get_abstract_mesh().axis_names
        return x @ params["a"] + len(axes)

    with jax.set_mesh(mesh) if before else contextlib.nullcontext():
        quantized_apply, quantized_params = transform.quantize(apply, PARAMS, DYNAMIC, X)
    plain_apply, plain_params = transform.quantize(lambda params, x: x @ params["a"], PARAMS, DYNAMIC, X)
    expected = np.asarray(plain_apply(plain_params, X))
    np.testing.assert_array_equal(quantized_apply(quantized_params, X), expected)
    with jax.set_mesh(mesh):
        np.testing.assert_array_equal(quantized_apply(quantized_params, X), expected + np.float32(1))
    np.testing.assert_array_equal(quantized_apply(quantized_params, X), expected)
