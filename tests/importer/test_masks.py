"""Masks of padded batches, which keep padding out of the ranges of dynamic quantization."""

import jax
import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

import jquant.onnx
from jquant.onnx import ModelError

from .quantized_models import integers, load_model

FLOAT32 = np.float32


def dense(operator: str, rng) -> jquant.onnx.Model:
    """A layer that quantizes tokens of 8 numbers dynamically and multiplies them."""
    weights = {"w": integers(rng, 8, 4), "s": np.asarray(0.02, FLOAT32), "z": np.asarray(3, np.int8)}
    fused = [("DynamicQuantizeMatMul", ["x", "w", "s", "z"], ["y"], {})]
    separate = [
        ("DynamicQuantizeLinear", ["x"], ["q", "qs", "qz"], {}),
        ("MatMulIntegerToFloat", ["q", "w", "qs", "s", "qz", "z"], ["y"], {}),
    ]
    nodes = fused if operator == "DynamicQuantizeMatMul" else separate
    return load_model(nodes, [("x", FLOAT32, ["n", "l", 8])], ("y", FLOAT32, ["n", "l", 4]), weights)


@pytest.mark.parametrize("operator", ["DynamicQuantizeMatMul", "DynamicQuantizeLinear"])
def test_padding_changes_nothing(operator):
    """A padded sentence has the bits of the sentence without padding."""
    rng = np.random.default_rng(0)
    dense_layer = dense(operator, rng)
    masked = jax.jit(lambda params, x, where: dense_layer(params, {"x": x}, where=where)["y"])
    unmasked = jax.jit(lambda params, x: dense_layer(params, {"x": x})["y"])
    for length in (1, 5, 9):
        x = rng.normal(size=(1, 9, 8)).astype(FLOAT32)
        x[:, length:] = 100  # must not influence anything
        y = masked(dense_layer.params, x, np.arange(9)[None] < length)
        np.testing.assert_array_equal(y[:, :length], unmasked(dense_layer.params, x[:, :length]))
    assert np.any(y != unmasked(dense_layer.params, x * 1.5))


def test_mask_of_a_batch():
    """All sentences share one range, that of their tokens without padding."""
    rng = np.random.default_rng(1)
    dense_layer = dense("DynamicQuantizeMatMul", rng)
    x, where = rng.normal(size=(3, 6, 8)).astype(FLOAT32), rng.random((3, 6)) < 0.6
    y = dense_layer(dense_layer.params, {"x": np.where(where[..., None], x, 99)}, where=where)["y"]
    tokens = dense_layer(dense_layer.params, {"x": x[where][None]})["y"]
    np.testing.assert_array_equal(np.asarray(y)[where], tokens[0])


def test_mask_that_fits_nothing():
    dense_layer = dense("DynamicQuantizeLinear", np.random.default_rng(2))
    with pytest.raises(ModelError, match=r"where has shape \(2, 5\); no dynamically quantized activation has these"):
        dense_layer(dense_layer.params, {"x": np.zeros((2, 6, 8), FLOAT32)}, where=np.ones((2, 5), bool))


@pytest.mark.parametrize("dtype", [np.int32, FLOAT32])
def test_mask_that_is_not_boolean(dtype):
    """An attention mask of integers is refused: the model must not guess the meaning of numbers other than 0 and 1."""
    dense_layer = dense("DynamicQuantizeLinear", np.random.default_rng(2))
    mask = np.ones((2, 6), dtype)
    for where in (mask, (mask,), (mask == 1, mask)):
        with pytest.raises(ModelError, match=rf"^where has dtype {mask.dtype}; a mask must be boolean, such as mask != 0$"):
            dense_layer(dense_layer.params, {"x": np.zeros((2, 6, 8), FLOAT32)}, where=where)
