"""Flax's layers with `dot_general=jquant.dot_general`: the operator's bits, and derivatives that train."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jquant

flax = pytest.importorskip("flax", reason="flax is not installed (extra: recipes)")
from flax import linen, nnx  # noqa: E402

pytestmark = pytest.mark.usefixtures("as_users_have_it")  # Flax's layers add arrays of different ranks
PER_TENSOR = functools.partial(jquant.dot_general, lhs_scales="PER_TENSOR")
LAST_BY_FIRST = (((2,), (0,)), ((), ()))
X = jax.random.normal(jax.random.key(0), (2, 5, 12))


@pytest.mark.parametrize("dot_general", [jquant.dot_general, PER_TENSOR], ids=["channel", "tensor"])
@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
def test_dense(dot_general, dtype):
    """Each layer is the operator and a bias, in its own dtype."""
    layer = nnx.Linear(12, 7, dot_general=dot_general, dtype=dtype, precision="highest", rngs=nnx.Rngs(0))
    of_linen = linen.Dense(7, dot_general=dot_general, dtype=dtype, precision="highest")
    kernel, bias = layer.kernel[...], jnp.arange(7.0)
    layer.bias[...] = bias
    operands = [x if dtype is None else x.astype(dtype) for x in (X, kernel, bias)]
    expected = dot_general(*operands[:2], LAST_BY_FIRST) + operands[2]
    np.testing.assert_array_equal(layer(X), expected)
    np.testing.assert_array_equal(of_linen.apply({"params": {"kernel": kernel, "bias": bias}}, X), expected)


def test_preferred_element_type():
    layer = nnx.Linear(
        12, 7, dtype=jnp.bfloat16, preferred_element_type=jnp.float32, dot_general=jquant.dot_general, rngs=nnx.Rngs(0)
    )
    assert layer(X).dtype == np.float32


def test_general_layers():
    """Several contracted dimensions, and batch dimensions with weights of their own."""
    given = {"dot_general": jquant.dot_general}
    layer = nnx.LinearGeneral((5, 12), (3, 4), axis=(1, 2), **given, rngs=nnx.Rngs(0))
    expected = jquant.dot_general(X, layer.kernel[...], (((1, 2), (0, 1)), ((), ())))
    np.testing.assert_array_equal(layer(X), expected)
    for batch_dims, numbers in (((), LAST_BY_FIRST), ((0,), (((2,), (1,)), ((0,), (0,))))):
        of_linen = linen.DenseGeneral((3, 4), axis=-1, batch_dims=batch_dims, use_bias=False, **given)
        parameters = of_linen.init(jax.random.key(0), X)
        expected = jquant.dot_general(X, parameters["params"]["kernel"], numbers)
        np.testing.assert_array_equal(of_linen.apply(parameters, X), expected)


def test_attention():
    """All of its products: those with weights, and those of activations."""
    attend = functools.partial(linen.dot_product_attention, einsum_dot_general=jquant.dot_general)
    given = {"qkv_dot_general": jquant.dot_general, "out_dot_general": jquant.dot_general}
    of_linen = linen.MultiHeadDotProductAttention(num_heads=3, attention_fn=attend, **given)
    parameters = of_linen.init(jax.random.key(0), X)
    of_floats = linen.MultiHeadDotProductAttention(num_heads=3)
    result, of_floats = (jax.jit(layer.apply)(parameters, X) for layer in (of_linen, of_floats))
    assert 0 < np.abs(result - of_floats).max() < 0.05 * np.abs(of_floats).max()
    program = jax.jit(of_linen.apply).lower(parameters, X).as_text()
    products = [line for line in program.splitlines() if "stablehlo.dot_general" in line]
    assert products
    assert all("xi8>" in line for line in products)

    layer = nnx.MultiHeadAttention(num_heads=3, in_features=12, decode=False, **given, rngs=nnx.Rngs(0))
    plain = nnx.MultiHeadAttention(num_heads=3, in_features=12, decode=False, rngs=nnx.Rngs(0))
    result, of_floats = layer(X), plain(X)
    assert 0 < np.abs(result - of_floats).max() < 0.05 * np.abs(of_floats).max()


def test_training():
    """What a layer learns is there when it infers, and weights go where those of floats go."""
    weights = jax.random.normal(jax.random.key(1), (12, 3))
    y = X @ weights

    def trained(dot_general) -> nnx.Linear:
        layer = nnx.Linear(12, 3, dot_general=dot_general, rngs=nnx.Rngs(0))

        @nnx.jit
        def step(layer):
            gradients = nnx.grad(lambda layer: jnp.mean((layer(X) - y) ** 2))(layer)
            nnx.update(layer, jax.tree.map(lambda x, g: x - 0.5 * g, nnx.state(layer, nnx.Param), gradients))

        for _ in range(200):
            step(layer)
        return layer

    layer = trained(jquant.dot_general)
    assert np.mean((layer(X) - y) ** 2) < 1e-3 * np.mean(y**2)
    np.testing.assert_allclose(layer.kernel[...], trained(jax.lax.dot_general).kernel[...], atol=0.05)
    graph, state = nnx.split(layer)
    np.testing.assert_array_equal(jax.jit(lambda state, x: nnx.merge(graph, state)(x))(state, X), layer(X))
