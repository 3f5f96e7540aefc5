"""Sites of quantized networks in programs for a CPU: what XLA compiles beside the calls of jquant-native."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.native import requires_native

import jquant
from jquant import transform

pytestmark = requires_native

LAYERS = 4


def perceptron(params, x):
    for weights in params:
        x = jnp.tanh(x @ weights)
    return x


def drawn():
    rng = np.random.default_rng(0)
    return [rng.normal(size=(16, 16)).astype(np.float32) / 4 for _ in range(LAYERS)], np.float32(rng.normal(size=(3, 16)))


@pytest.mark.parametrize("activations", ["DYNAMIC", "DYNAMIC_ROW"])
def test_dynamic_sites_are_two_calls(activations):
    """The range and the product; of XLA there is what the float function has between its products."""
    params, x = drawn()
    recipe = transform.Recipe([("*", transform.Scheme(activations=activations))])
    quantized, of_quantized = transform.quantize(perceptron, params, recipe, x)
    text = jax.jit(quantized).lower(of_quantized, x).compile().as_text()
    assert text.count('"jquant_dynamic_quantize.1"') == text.count('"jquant_product.2"') == LAYERS
    assert text.count(" fusion(") <= LAYERS
    floats = jax.jit(perceptron).lower(params, x).compile().as_text()
    assert text.count(" fusion(") <= floats.count(" fusion(")


def test_a_convolution_with_its_scales_is_one_call():
    rng = np.random.default_rng(1)
    x, w = rng.integers(0, 256, (2, 3, 12, 12), np.uint8), rng.integers(-128, 128, (8, 3, 3, 3), np.int8)
    x_scale, y_scale = np.full((2, 1, 1, 1, 1), 0.5, np.float32)
    w_scale = rng.uniform(0.1, 1, (1, 8, 1, 1)).astype(np.float32)
    x_zero_point, y_zero_point = np.full((2, 1, 1, 1, 1), 3, np.uint8)
    operands = x, x_scale, x_zero_point, w, w_scale, None, y_scale, y_zero_point
    for function, arguments in (
        (jquant.quantized_linear_convolution, operands),
        (jquant.convolution_integer_to_float, operands[:6]),
    ):
        text = jax.jit(function).lower(*arguments).compile().as_text()
        assert text.count("custom_call_target=") == text.count('"jquant_convolution.2"') == 1
        assert "fusion(" not in text
