"""Inputs, parameters and initializers that a model cannot take, and their messages."""

import functools
import importlib
import re

import numpy as np
import pytest

from . import small_models

pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

import jquant.onnx
from jquant.onnx import ModelError


@functools.cache
def encoder() -> jquant.onnx.Model:
    return jquant.onnx.load(small_models.encoder())


def changed(**changes) -> dict:
    """The inputs of the encoder with changes; None removes an input."""
    inputs = small_models.inputs() | changes
    return {name: value for name, value in inputs.items() if value is not None}


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (changed(noise=None), "inputs lacks 'noise'; the model takes 'tokens', 'noise'"),
        (changed(mask=np.ones(3)), "inputs has 'mask'; the model takes 'tokens', 'noise'"),
        (
            changed(tokens=np.ones((8, 5), np.float32)),
            "the input 'tokens' has dtype float32; the model takes int64[batch, length]",
        ),
        (
            changed(noise=np.ones((8, 5, 32), np.float16)),
            "the input 'noise' has dtype float16; the model takes float32[batch, length, 32]",
        ),
        (
            changed(noise=np.ones((8, 5, 31), np.float32)),
            "the input 'noise' has shape (8, 5, 31); the model takes float32[batch, length, 32]",
        ),
        (
            changed(tokens=np.ones(8, np.int64)),
            "the input 'tokens' has shape (8,); the model takes int64[batch, length]",
        ),
        (changed(tokens=np.full((8, 5), 2**31)), "the input 'tokens' holds 2147483648, which int32 cannot hold"),
        (
            changed(noise=small_models.inputs(length=4)["noise"]),
            "'length' must be one size, but is 5 in 'tokens', 4 in 'noise'",
        ),
        (changed(tokens=np.ones((2, 5), np.int64)), "'batch' must be one size, but is 2 in 'tokens', 8 in 'noise'"),
        (changed(tokens=[[1, 2]]), "the input 'tokens' is a list; the model takes an array, int64[batch, length]"),
        ([1, 2], "inputs is a list; it must be a mapping with the names 'tokens', 'noise'"),
        (np.ones((8, 5)), "inputs is an array; it must be a mapping with the names 'tokens', 'noise'"),
    ],
)
def test_invalid_inputs(inputs, message):
    model = encoder()
    with pytest.raises(ModelError, match=f"^{re.escape(message)}$"):
        model(model.params, inputs)


def test_missing_parameters():
    params = {name: value for name, value in encoder().params.items() if name != "wk"}
    with pytest.raises(ModelError, match=r"^params lacks 'wk'$"):
        encoder()(params, small_models.inputs())
    with pytest.raises(ModelError, match=r"^params lacks .* more; params and inputs may be swapped$"):
        encoder()(small_models.inputs(), encoder().params)
    names = list(encoder().params)
    first = ", ".join(map(repr, names[:5]))
    with pytest.raises(ModelError, match=rf"^params lacks {first} and {len(names) - 5} more$"):
        encoder()({}, small_models.inputs())
    with pytest.raises(ModelError, match=rf"^params lacks {first}$"):
        encoder()({name: encoder().params[name] for name in names[5:]}, small_models.inputs())


def test_initializer_out_of_range():
    model = small_models.qdq()
    text = "agraph (float[n] x) => (int64[n] y) <int64 large = {3000000000}> { i = Cast <to = 7> (x) y = Add (i, large) }"
    model.graph.CopyFrom(importlib.import_module("onnx.parser").parse_graph(text))
    with pytest.raises(ModelError, match="the initializer 'large' holds 3000000000, which int32 cannot hold"):
        jquant.onnx.load(model)


def test_parameter_of_another_shape():
    params = encoder().params | {"table": np.zeros((50, 16), np.uint8)}
    with pytest.raises(ModelError, match=r"^node 'x' \(Add, version 18\): .*float32\[8, 5, 16\], float32\[8, 5, 32\]\)$"):
        encoder()(params, small_models.inputs())
