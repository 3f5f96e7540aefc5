"""Flax's layers with `dot_general=jquant.dot_general`: the operator's bits, and gradients that train."""

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
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 12)).astype(np.float32))


@pytest.mark.parametrize("dot_general", [jquant.dot_general, PER_TENSOR], ids=["channel", "tensor"])
@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
def test_dense(dot_general, dtype):
    """A layer is the operator and a bias, in the layer's dtype."""
    layer = nnx.Linear(12, 7, dot_general=dot_general, dtype=dtype, precision="highest", rngs=nnx.Rngs(0))
    linen_layer = linen.Dense(7, dot_general=dot_general, dtype=dtype, precision="highest")
    kernel, bias = layer.kernel[...], jnp.arange(7.0)
    layer.bias[...] = bias
    operands = [x if dtype is None else x.astype(dtype) for x in (X, kernel, bias)]
    expected = dot_general(*operands[:2], LAST_BY_FIRST) + operands[2]
    np.testing.assert_array_equal(layer(X), expected)
    np.testing.assert_array_equal(linen_layer.apply({"params": {"kernel": kernel, "bias": bias}}, X), expected)


def test_preferred_element_type():
    layer = nnx.Linear(
        12, 7, dtype=jnp.bfloat16, preferred_element_type=jnp.float32, dot_general=jquant.dot_general, rngs=nnx.Rngs(0)
    )
    assert layer(X).dtype == np.float32


def test_general_layers():
    """Several contracting dimensions, and batch dimensions with weights of their own."""
    layer = nnx.LinearGeneral((5, 12), (3, 4), axis=(1, 2), dot_general=jquant.dot_general, rngs=nnx.Rngs(0))
    expected = jquant.dot_general(X, layer.kernel[...], (((1, 2), (0, 1)), ((), ())))
    np.testing.assert_array_equal(layer(X), expected)
    for batch_dims, numbers in (((), LAST_BY_FIRST), ((0,), (((2,), (1,)), ((0,), (0,))))):
        options = {"batch_dims": batch_dims, "use_bias": False, "dot_general": jquant.dot_general}
        linen_layer = linen.DenseGeneral((3, 4), axis=-1, **options)
        parameters = linen_layer.init(jax.random.key(0), X)
        expected = jquant.dot_general(X, parameters["params"]["kernel"], numbers)
        np.testing.assert_array_equal(linen_layer.apply(parameters, X), expected)


@pytest.mark.usefixtures("xla_by_default")
def test_attention():
    """All of its products, with weights and of activations, are quantized."""
    attend = functools.partial(linen.dot_product_attention, einsum_dot_general=jquant.dot_general)
    projections = {"qkv_dot_general": jquant.dot_general, "out_dot_general": jquant.dot_general}
    quantized_layer = linen.MultiHeadDotProductAttention(num_heads=3, attention_fn=attend, **projections)
    float_layer = linen.MultiHeadDotProductAttention(num_heads=3)
    parameters = quantized_layer.init(jax.random.key(0), X)
    quantized, floats = (jax.jit(layer.apply)(parameters, X) for layer in (quantized_layer, float_layer))
    assert 0 < np.abs(quantized - floats).max() < 0.05 * np.abs(floats).max()
    program = jax.jit(quantized_layer.apply).lower(parameters, X).as_text()
    products = [line for line in program.splitlines() if "stablehlo.dot_general" in line]
    assert products
    assert all("xi8>" in line for line in products)

    quantized_layer = nnx.MultiHeadAttention(num_heads=3, in_features=12, decode=False, **projections, rngs=nnx.Rngs(0))
    float_layer = nnx.MultiHeadAttention(num_heads=3, in_features=12, decode=False, rngs=nnx.Rngs(0))
    quantized, floats = quantized_layer(X), float_layer(X)
    assert 0 < np.abs(quantized - floats).max() < 0.05 * np.abs(floats).max()


def test_training():
    """Training converges, to the weights of a float layer, and inference gives the results of training."""
    weights = np.random.default_rng(1).normal(size=(12, 3)).astype(np.float32)
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
