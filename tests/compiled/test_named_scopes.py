"""Operators have named scopes, by which a profile shows them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jquant

FLOAT32 = np.float32
NAMED_CALLS = {
    "dequantize_linear": lambda x, real: jquant.dequantize_linear(x, 0.5),
    "quantize_linear": lambda x, real: jquant.quantize_linear(real, 0.5),
    "dynamic_quantize_linear": lambda x, real: jquant.dynamic_quantize_linear(real),
    "quantized_linear_add": lambda x, real: jquant.quantized_linear_add(x, 0.5, None, x, 0.5, None, 0.5),
    "matmul_integer": lambda x, real: jquant.matmul_integer(x, x),
    "clip": lambda x, real: jquant.clip(real, 0, 1),
    "quantize": lambda x, real: jquant.quantize(real, 0, 1, "qint8"),
    "dequantize": lambda x, real: jquant.dequantize(x, 0, 1),
}


@pytest.mark.parametrize("name", NAMED_CALLS)
def test_named_scope(name):
    program = jax.jit(NAMED_CALLS[name]).lower(jnp.ones((2, 2), jnp.int8), jnp.ones((2, 2), FLOAT32)).compile()
    assert f"/{name}/" in program.as_text()
