"""The size of a compiled program: values that several readers share are not computed again for each."""

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
    calibration = None if recipe is transform.dynamic_int8 else transform.calibrate(residual, params, [x], recipe)
    quantized_apply, quantized_params = transform.quantize(residual, params, recipe, x, calibration=calibration)
    return len(jax.jit(quantized_apply).lower(quantized_params, x).compile().as_text().splitlines())


@pytest.mark.gate
@one_in(3, "dtype", [jnp.float32, jnp.bfloat16, jnp.float16], others="full")
@pytest.mark.parametrize("recipe", [transform.static_int8, transform.dynamic_int8], ids=["static", "dynamic"])
def test_residual_network(recipe, dtype):
    """The program grows linearly with the number of layers: no layer computes the layers before it again."""
    with jax.numpy_dtype_promotion("standard"):
        three, six, nine = (compiled_lines(depth, dtype, recipe) for depth in (3, 6, 9))
    assert nine - six <= 1.1 * (six - three)
