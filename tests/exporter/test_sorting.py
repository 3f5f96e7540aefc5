"""Sorting and the largest elements, exported."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

from .running import FLOATS, INTEGERS, assert_exported, in_type, numbers, sample

ROWS = np.array([[3, np.nan, 1, np.inf, np.nan, 2, -0.0, 0.0, -np.inf, 3.3e38], [np.nan] * 5 + [1, 1, 2, 1, 0]], np.float32)


@pytest.mark.parametrize("dtype", sample(FLOATS + INTEGERS, "float32", "uint16"))
def test_sorting(dtype):
    """Equal elements keep their order, and what is not a number comes last, after infinity."""
    x = ROWS if dtype in FLOATS else numbers(dtype, 4, 9) % 5

    def function(x):
        return {
            "sorted": jnp.sort(x, axis=1),
            "places": jnp.argsort(x, axis=1),
            "first dimension": jnp.argsort(x, axis=0),
            "descending": jnp.argsort(x, axis=1, descending=True),
            "unstable": jnp.sort(x, axis=1, stable=False),
        }

    assert_exported(in_type(dtype)(function), x)


@pytest.mark.parametrize("keys", [1, 2, 3])
def test_several_keys(keys):
    operands = [numbers("int8", 4, 30, seed=seed) % 3 for seed in range(3)]

    def function(a, b, c):
        return lax.sort((a.astype(jnp.int32), b.astype(jnp.float32) / 2, c), num_keys=keys, dimension=1)

    assert_exported(function, *operands)


@pytest.mark.parametrize("dtype", sample(FLOATS + INTEGERS, "bfloat16", "int8"))
def test_largest(dtype):
    """Of equal elements, the first come first."""
    x = numbers(dtype, 3, 8) if dtype in FLOATS else numbers(dtype, 3, 8) % 3
    assert_exported(in_type(dtype)(lambda x: [lax.top_k(x, 3), lax.top_k(x, 2, axis=0), lax.top_k(x, 8)]), x)


def test_nodes():
    x = numbers("float32", 3, 8)
    assert assert_exported(lambda x: lax.top_k(x, 3)[0], x) == ["TopK"]
    assert assert_exported(lambda x: jnp.sort(x), numbers("int32", 3, 8)) == ["TopK"]


@pytest.mark.full
@pytest.mark.parametrize("seed", range(10))
def test_random_rows(seed):
    x = np.random.default_rng(seed).choice(np.append(ROWS, np.arange(20, dtype=np.float32)), (50, 100)).astype(np.float32)
    assert_exported(lambda x: [jnp.argsort(x, axis=axis) for axis in (0, 1)], x)
