"""What an quantized function costs before it runs, and what its compiled program computes again."""

import jax
import jax.numpy as jnp
import pytest
from support.sampling import one_in

from jquant import transform


def residual(params, x):
    for kernel in params:
        x = jax.nn.relu(x @ kernel) + x * 0.5
    return x


def compiled_lines(depth: int, dtype, recipe: transform.Recipe) -> int:
    params = list(jax.random.normal(jax.random.key(0), (depth, 64, 64)).astype(dtype) / 8)
    x = jax.random.normal(jax.random.key(1), (8, 64)).astype(dtype)
    ranges = None if recipe is transform.dynamic_int8 else transform.calibrate(residual, params, [x], recipe)
    function, quantized_params = transform.quantize(residual, params, recipe, x, calibration=ranges)
    return len(jax.jit(function).lower(quantized_params, x).compile().as_text().splitlines())


@pytest.mark.gate
@one_in(3, "dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("recipe", [transform.static_int8, transform.dynamic_int8], ids=["static", "dynamic"])
def test_residual_network(recipe, dtype):
    """Each layer adds as much to the compiled program: none computes what the layers before it have computed."""
    with jax.numpy_dtype_promotion("standard"):
        few, more, most = (compiled_lines(depth, dtype, recipe) for depth in (3, 6, 9))
    assert most - more <= 1.1 * (more - few)
