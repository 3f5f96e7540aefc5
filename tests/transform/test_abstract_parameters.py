"""Parameters as `jax.ShapeDtypeStruct`: the quantized parameters are the same, as the target for restoring a checkpoint."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
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


PREPARED = [
    {"activations": "DYNAMIC_ROW", "smoothing": "SMOOTHQUANT", "rotation": "HADAMARD"},
    {"weight_type": "INT4", "activations": "FLOAT", "block_size": 16, "smoothing": "AWQ", "weight_rounding": "GPTQ"},
    {"weight_type": "NVFP4", "activations": "FLOAT", "weight_range": "mean_squared_error", "weight_rounding": "GPTQ"},
    {"activations": "STATIC", "rotation": "HADAMARD", "weight_rounding": "GPTQ"},
]


@pytest.mark.gate
@one_in(4, "fields", PREPARED, first=1, gate=2)
def test_prepared_weights(fields, tmp_path):
    """Types need no statistics; quantized parameters restored into them, factors as well, give the same outputs."""
    recipe = transform.Recipe([("*", transform.Scheme(**fields))])
    calibration = transform.calibrate(apply, PARAMS, [X], recipe)
    quantized_apply, quantized_params = transform.quantize(apply, PARAMS, recipe, X, calibration=calibration)
    from_types, target = transform.quantize(apply, jax.eval_shape(lambda: PARAMS), recipe, jax.eval_shape(lambda: X))
    assert types(target) == types(quantized_params)
    for name, factors in {"layers": (3, 32), "head": (32,)}.items():
        assert ("smoothing" in target["sites"][name]) == ("smoothing" in fields)
        if "smoothing" in fields:
            assert (target["sites"][name]["smoothing"].shape, target["sites"][name]["smoothing"].dtype) == (
                factors,
                "float32",
            )
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(quantized_params)]
    np.savez(tmp_path / "saved.npz", **{str(n): leaf.view(np.uint8) for n, leaf in enumerate(map(np.atleast_1d, leaves))})
    with np.load(tmp_path / "saved.npz") as saved:
        restored = [
            saved[str(number)].view(leaf.dtype).reshape(leaf.shape) for number, leaf in enumerate(jax.tree.leaves(target))
        ]
    restored = jax.tree.unflatten(jax.tree.structure(target), restored)
    np.testing.assert_array_equal(jax.jit(from_types)(restored, X), jax.jit(quantized_apply)(quantized_params, X))


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
