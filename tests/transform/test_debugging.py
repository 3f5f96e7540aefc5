"""The debugging modes of JAX: `jquant.transform` gives the same bits under each."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jquant import transform

PARAMS = {"w": np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)}
X = np.linspace(-2, 3, 16, dtype=np.float32).reshape(2, 8)
SCHEMES = {
    "static": {"activations": "STATIC"},
    "dynamic": {},
    "smoothed and rotated": {"activations": "DYNAMIC_ROW", "smoothing": "SMOOTHQUANT", "rotation": "HADAMARD"},
}
MODES = {
    "disable_jit": jax.disable_jit,
    "debug_nans": lambda: jax.debug_nans(True),
    "check_tracer_leaks": jax.checking_leaks,
}


def apply(params, x):
    return jnp.tanh(x @ params["w"])


@pytest.mark.gate
@pytest.mark.parametrize("mode", ["disable_jit", "debug_nans", pytest.param("check_tracer_leaks", marks=pytest.mark.full)])
@pytest.mark.parametrize("fields", SCHEMES)
def test_debugging(mode, fields):
    """The same calibration, quantized parameters, outputs and derivatives."""
    recipe = transform.Recipe([("*", transform.Scheme(**SCHEMES[fields]))], smallest=1)

    def results():
        calibration = transform.calibrate(apply, PARAMS, [X], recipe) if fields != "dynamic" else None
        quantized_apply, quantized_params = transform.quantize(apply, PARAMS, recipe, X, calibration=calibration)
        aware = transform.quantization_aware(apply, recipe, calibration)
        gradient = jax.grad(lambda params: aware(params, X).sum())(PARAMS)
        return calibration, quantized_params, quantized_apply(quantized_params, X), aware(PARAMS, X), gradient

    expected = results()
    with MODES[mode]():
        actual = results()
    jax.tree.map(np.testing.assert_array_equal, actual, expected)
