"""Random numbers from keys that are known, which are constants of a model, and keys that nothing reads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

from jquant.errors import ModelError
from jquant.onnx import export

from .same_results import nodes, require_same

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def drawn(key):
    first, *others = jax.random.split(key, 4)
    second = jax.random.fold_in(others[1], 7)
    return {
        "bits": jax.random.bits(first, (4,)),
        "normal": jax.random.normal(others[0], (4,)),
        "integers": jax.random.randint(second, (4,), 0, 99),
        "mask": jax.random.bernoulli(others[2], 0.5, (4,)),
    }


@pytest.mark.parametrize("key", [jax.random.key, jax.random.PRNGKey])
def test_constants(key):
    """Drawn when the model is written: nothing of it is left but elements."""
    numbers = [np.asarray(x) for x in jax.tree.leaves(drawn(key(5)))]
    model = export(lambda x: [x * drawn.astype(jnp.float32)[None] for drawn in jax.tree.leaves(drawn(key(5)))], X)
    assert set(nodes(model)) == {"Mul"}
    require_same(model, lambda x: [x * drawn.astype(np.float32)[None] for drawn in numbers], (X,))


def test_key_among_the_parameters():
    params = {"key": jax.random.key(3), "w": X.T.copy()}

    def function(params, x):
        return x @ params["w"] + jax.random.uniform(params["key"], (3, 3))

    model = export(function, params, X)
    require_same(model, lambda x: function(params, x), (X,))


@pytest.mark.parametrize(("key", "name"), [(jax.random.key(0), "key"), ([jax.random.key(0)], "key.0")])
def test_key_among_the_inputs(key, name):
    """As layers with `key=` are called, also if they do not read it."""
    advice = f"{name} is a random key, which a model cannot take: make it a constant of the function, or a parameter"
    with pytest.raises(ModelError, match=advice):
        export(lambda params, x, key: x * params["w"], {"w": X}, X, key)


def test_keys_that_nothing_reads():
    """As every layer with dropout has them, switched off."""

    def dropped(x, key):
        return x * jax.random.bernoulli(key, 0.9, x.shape) if key is None else x

    def function(x, seed):
        first, second = jax.random.split(jax.random.key(seed))
        jax.jit(jax.random.normal, static_argnums=1)(second, (3,))
        return dropped(jnp.abs(dropped(x, first)), second)

    assert nodes(export(function, X, np.int32(3))) == ["Abs"]
