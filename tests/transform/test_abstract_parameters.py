"""Parameters as `jax.ShapeDtypeStruct`: the quantized parameters are the same, as the target for restoring a checkpoint."""

import jax
import jax.numpy as jnp
import numpy as np
from support.sampling import one_in

from jquant import transform

RNG = np.random.default_rng(0)
PARAMS = {
    "layers": RNG.standard_normal((3, 32, 32), np.float32) / 6,
    "bias": np.ones((1, 32), np.float32),
    "head": RNG.standard_normal((32, 10), np.float32) / 6,
}
X = RNG.standard_normal((4, 32), np.float32)


def apply(params, x):
    x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w + params["bias"]), None), x, params["layers"])
    return x @ params["head"]


def types(tree):
    return jax.tree.structure(tree), [(leaf.shape, np.dtype(leaf.dtype)) for leaf in jax.tree.leaves(tree)]


@one_in(3, "recipe", [transform.static_int8, transform.dynamic_int8, transform.weight_only_int8])
def test_abstract_parameters(recipe):
    """The types are those of the quantized parameters, and the function is the same."""
    is_static = recipe is transform.static_int8
    calibration = transform.calibrate(apply, PARAMS, [X], recipe) if is_static else None
    quantized_apply, quantized_params = transform.quantize(apply, PARAMS, recipe, X, calibration=calibration)
    from_types, target = transform.quantize(apply, jax.eval_shape(lambda: PARAMS), recipe, jax.eval_shape(lambda: X))
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(target))
    assert types(target) == types(quantized_params)
    for x in (X, X[:1]):
        np.testing.assert_array_equal(
            jax.jit(from_types)(quantized_params, x), jax.jit(quantized_apply)(quantized_params, x)
        )
