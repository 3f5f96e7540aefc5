"""The memory that quantizing a model takes, and where its parameters come from."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import load_in_memory
from support.compositions import assert_equal_leaves
from support.draw import Draw

from jquant import transform

SCRIPT = Path(__file__).parents[1] / "support" / "quantize_in_memory.py"


@pytest.mark.gate
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak of the memory")
@pytest.mark.parametrize(
    ("way", "recipe", "most"),
    [
        ("unstacked", "weight_only_int4", 1.4),
        ("stacked", "weight_only_int4", 1.4),
        ("stacked", "dynamic_int8", 1.4),
        ("unstacked, donated", "weight_only_int4", 1.15),
        ("stacked, donated", "weight_only_int4", 1.15),
        ("loaded", "weight_only_int4", 0.4),
    ],
)
def test_peak(way, recipe, most):
    """Over the bytes of the float model. glibc is told to give back what is let go, so that it is not counted."""
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"}
    command = [sys.executable, str(SCRIPT), way, recipe]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert float(result.stdout) <= most


IN_GATE = {("int8, stacked", 1), ("int4", 1)}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak of the memory")
@pytest.mark.parametrize(
    ("form", "parts"),
    [
        pytest.param(form, parts, marks=pytest.mark.gate if (form, parts) in IN_GATE else pytest.mark.full)
        for form in load_in_memory.FORMS
        for parts in (1, 4)
    ],
)
def test_peak_of_loading(form, parts, tmp_path):
    """It is what is loaded, but for three of its sixteen matrices: far less than the file, or a float copy of a matrix."""
    load_in_memory.write(tmp_path, form)
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000", "JAX_NUM_CPU_DEVICES": str(parts), "PYTHONPATH": path}
    command = [sys.executable, load_in_memory.__file__, str(tmp_path), form, str(parts)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    grown, packed = map(int, result.stdout.split())
    assert 13 / 16 * packed <= grown <= 19 / 16 * packed


def parameters():
    """Weights that two sites read, that a loop stacks, and that stay float."""
    draw = Draw(0)
    table, layers = draw.weights(32, 16), draw.weights(3, 16, 16)
    return jax.tree.map(jnp.array, {"table": table, "layers": {"w": layers, "bias": draw.weights(3, 16)}})


def apply(params, tokens):
    x = params["table"][tokens]
    x, _ = jax.lax.scan(lambda x, p: (jnp.tanh(x @ p["w"] + p["bias"][None, :]), None), x, params["layers"])
    return x @ params["table"].T + params["table"][0, 0]


TOKENS = np.arange(6)
RECIPE = transform.Recipe([("*", transform.Scheme(activations="DYNAMIC"))], smallest=1)


def test_donated_parameters_are_deleted():
    """All but those that stay float, also in part."""
    _, expected = transform.quantize(apply, parameters(), RECIPE, TOKENS)
    params = parameters()
    quantized_apply, quantized_params = transform.quantize(apply, params, RECIPE, TOKENS, donate=True)
    assert jax.tree.map(lambda leaf: leaf.is_deleted(), params) == {
        "table": False,
        "layers": {"w": True, "bias": False},
    }
    assert_equal_leaves(quantized_params, expected)
    assert np.isfinite(quantized_apply(quantized_params, TOKENS)).all()


def test_one_array_with_two_names():
    """It is deleted when both have been packed, or not at all if one stays float."""
    w = jnp.array(Draw(1).weights(16, 16))
    both = lambda params, x: x @ params["a"] @ params["b"]  # noqa: E731
    for rules, is_deleted in (([("*", RECIPE.rules[0][1])], True), ([("b", None), *RECIPE.rules], False)):
        same = w.copy()
        recipe = transform.Recipe(rules, smallest=1)
        quantized_apply, quantized_params = transform.quantize(
            both, {"a": same, "b": same}, recipe, np.ones((2, 16), np.float32), donate=True
        )
        assert same.is_deleted() == is_deleted
        assert np.isfinite(quantized_apply(quantized_params, np.ones((2, 16), np.float32))).all()


def test_loaded_parameters():
    """Each is loaded for the site that packs it, and those that stay float at the end; arrays are taken as they are."""
    params, loaded = parameters(), []
    names = {"table": params["table"], "layers/w": params["layers"]["w"], "layers/bias": params["layers"]["bias"]}

    def load(name):
        loaded.append(name)
        return np.asarray(names[name])

    expected_apply, expected = transform.quantize(apply, params, RECIPE, TOKENS)
    for kept, order in (({}, ["table", "layers/w", "layers/bias", "table"]), ({"table": params["table"]}, [])):
        loaded.clear()
        types = jax.eval_shape(parameters) | kept
        quantized_apply, quantized_params = transform.quantize(apply, types, RECIPE, TOKENS, load=load)
        assert_equal_leaves(quantized_params, expected)
        assert_equal_leaves(quantized_apply(quantized_params, TOKENS), expected_apply(expected, TOKENS))
        assert sorted(loaded) == sorted(order or ["layers/w", "layers/bias"])


@pytest.mark.parametrize(
    ("loaded", "message"),
    [
        (
            np.ones((16, 8), np.float32),
            r"load\('table'\) returned an array of type float32\[16,8\], and params has float32\[32,16\]",
        ),
        (np.ones((32, 16), np.float16), r"load\('table'\) returned an array of type float16\[32,16\]"),
        (None, r"load\('table'\) returned None, which is no array"),
        ("weights", r"load\('table'\) returned 'weights', which is no array"),
    ],
)
def test_what_load_must_return(loaded, message):
    with pytest.raises(transform.TransformError, match=message):
        transform.quantize(apply, jax.eval_shape(parameters), RECIPE, TOKENS, load=lambda name: loaded)


@pytest.mark.parametrize(("option", "wrong"), [("load", "file"), ("donate", "yes"), ("donate", 1), ("progress", None)])
def test_wrong_options(option, wrong):
    with pytest.raises(transform.TransformTypeError, match=f"transform.quantize: {option} is"):
        transform.quantize(apply, parameters(), RECIPE, TOKENS, **{option: wrong})


def test_progress(capsys):
    pytest.importorskip("tqdm", reason="tqdm is not installed (extra: examples)")
    transform.quantize(apply, parameters(), RECIPE, TOKENS, progress=True)
    assert "packing: 100%" in capsys.readouterr().err


def test_donate_inside_jit():
    """Tracers are let go, and not deleted."""
    quantized = jax.jit(lambda params: transform.quantize(apply, params, RECIPE, TOKENS, donate=True)[1])(parameters())
    assert_equal_leaves(quantized, transform.quantize(apply, parameters(), RECIPE, TOKENS)[1])
