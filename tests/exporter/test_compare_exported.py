"""`jquant.onnx.compare.exported`: what it counts, its table, and its errors."""

import dataclasses
import importlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

import jquant  # noqa: E402
import jquant.onnx  # noqa: E402
from jquant.onnx import ModelError, compare  # noqa: E402
from jquant.onnx.compare.measures import decibels_of, ulps_of  # noqa: E402

X = np.random.default_rng(11).normal(size=(5, 16)).astype(np.float32)
PARAMS = {"scale": jnp.float32(0.02), "weights": jnp.asarray(np.random.default_rng(12).normal(size=(16, 4)), jnp.float32)}


def function(params, x):
    integers = jquant.quantize_linear(x, params["scale"], np.int8(3))
    return {"integers": integers, "floats": x @ params["weights"]}


@pytest.fixture(scope="module")
def model():
    return jquant.onnx.export(function, PARAMS, X)


def test_equal(model):
    """Each output with optimizations off and on; integers without a deviation."""
    result = compare.exported(function, PARAMS, [X], model)
    assert result.different == 0
    assert result.nodes is None
    assert [(each.name, each.optimized) for each in result.outputs] == [
        (name, optimized) for name in ("floats", "integers") for optimized in (False, True)
    ]
    floats, integers = result.outputs[0], result.outputs[2]
    assert (integers.dtype, integers.elements, integers.different, integers.is_integer) == (np.int8, 80, 0, True)
    assert (floats.dtype, floats.elements, floats.is_integer, floats.argmax) == (np.float32, 20, False, 1.0)
    assert floats.deviation < 1e-5
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.nodes = ()


def test_differences_are_counted(model):
    """Of a function that is not the exported one."""

    def other(params, x):
        result = function(params, x)
        return {
            "integers": result["integers"].at[0, :3].add(1),
            "floats": result["floats"].at[0].multiply(-1).at[1, 0].set(jnp.nan),
        }

    result = compare.exported(other, PARAMS, [X], model)
    assert result.different == 2 * 3
    floats = result.outputs[0]
    assert floats.different >= 5
    assert floats.deviation == floats.ulps == np.inf
    assert floats.argmax == pytest.approx(3 / 5)
    assert floats.snr == -np.inf


HINT = "floats may differ in their last bits, and integers that follow from them; node_by_node=True compares each node alone"


def test_what_is_printed_where_outputs_differ(model):
    """No units of the last place across a change of sign; the ratio to the noise; and what to do, if nodes were left out."""

    def other(params, x):
        result = function(params, x)
        return result | {"floats": -result["floats"]}

    result = compare.exported(other, PARAMS, [X], model)
    header, floats, _, integers, _, hint = str(result).splitlines()
    assert hint == HINT
    assert "in ulps   SNR, dB  same argmax" in header
    assert floats.split()[6:8] == ["-", "-6.02"]
    assert result.outputs[0].snr == pytest.approx(-20 * np.log10(2))
    assert integers.split() == ["integers", "none", "int8", "80", "0", "100.00%"]
    assert HINT not in str(compare.exported(other, PARAMS, [X], model, node_by_node=True))
    wrong = lambda params, x: function(params, x) | {"integers": function(params, x)["integers"] + np.int8(1)}  # noqa: E731
    assert str(compare.exported(wrong, PARAMS, [X], model)).splitlines()[-1] == HINT
    rounded = jax.jit(jquant.dynamic_quantize_linear)
    equal = compare.exported(rounded, None, [X], jquant.onnx.export(rounded, X))
    assert equal.different == 0
    assert HINT not in str(equal)


def test_table(model):
    lines = str(compare.exported(function, PARAMS, [X], model, node_by_node=True)).splitlines()
    assert lines[0].split()[:5] == ["output", "optimizations", "type", "elements", "different"]
    assert lines[3].split() == ["integers", "none", "int8", "80", "0", "100.00%"]
    assert lines[4].split() == ["integers", "all", "int8", "80", "0", "100.00%"]
    assert lines[5] == "node by node, each given the operands that onnxruntime had"
    assert lines[6].split()[:4] == ["operator", "nodes", "integers", "different"]
    assert lines[-1].split()[0] == "all"
    assert {len(line) for line in lines[:5]} == {len(lines[0])}


def test_nodes(model):
    rows = {row.operator: row for row in compare.exported(function, PARAMS, [X], model, node_by_node=True).nodes}
    assert sum(row.integers for row in rows.values()) >= 80
    assert [row for row in rows.values() if row.different] == []


def test_files_models_and_compiled_functions(model, tmp_path):
    """A model from a path; a compiled function without parameters; a model of a file, whose inputs are a dictionary."""
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    assert compare.exported(function, PARAMS, [X], path).different == 0
    compiled = jax.jit(lambda a, b: (jquant.dynamic_quantize_linear(a)[0], b + 1))
    tokens = np.array([1, 2, 3])
    result = compare.exported(compiled, None, [X, tokens], jquant.onnx.export(compiled, X, tokens))
    assert [each.elements for each in result.outputs] == [80, 80, 3, 3]
    assert result.different == 0
    loaded = jquant.onnx.load(model)
    again = jquant.onnx.export(loaded, loaded.params, {"x": X})
    result = compare.exported(loaded, loaded.params, [{"x": X}], again)
    assert [each.name for each in result.outputs][::2] == ["floats", "integers"]
    assert result.different == 0


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([X[:3]], r"the argument x is float32\[3, 16\]; the model takes x, float32\[5, 16\]"),
        ([X.astype(np.float16)], r"the argument x is float16\[5, 16\]"),
        ([X, X], "the arguments hold 2 inputs; the model has 1, x"),
        (X, "inputs is a ndarray; it must be a list of the arguments after the parameters"),
        ({"x": X}, "inputs is a dict"),
    ],
)
def test_inputs_that_do_not_fit(model, inputs, message):
    with pytest.raises(ModelError, match=message):
        compare.exported(function, PARAMS, inputs, model)


def test_a_function_of_another_result(model):
    with pytest.raises(ModelError, match="the function returns 1 arrays; the model has 2 outputs"):
        compare.exported(lambda params, x: x, PARAMS, [X], model)


def test_without_onnxruntime(model, monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ModuleNotFoundError, match="pip install onnxruntime"):
        compare.exported(function, PARAMS, [X], model)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_ulps(dtype):
    one = np.array([1, -1, 0, 5], dtype)
    up = np.nextafter(one, dtype(10))
    assert ulps_of(one, one) == 0
    assert ulps_of(up, one) == 1
    assert ulps_of(np.array([-0.0], dtype), np.array([0.0], dtype)) == 0
    tiny = np.nextafter(dtype(0), dtype(1))
    assert np.isnan(ulps_of(np.array([tiny]), np.array([-tiny])))
    assert np.isnan(ulps_of(np.array([3, 1], dtype), np.array([3, 2.1], dtype)))
    assert ulps_of(np.array([3, 1], dtype), np.array([3, 2], dtype)) == 2 ** np.finfo(dtype).nmant
    assert ulps_of(np.array([np.nan], dtype), np.array([np.nan], dtype)) == 0
    assert ulps_of(np.array([np.nan], dtype), np.array([1], dtype)) == np.inf
    assert ulps_of(np.array([np.nan, -1], dtype), np.array([1, 1], dtype)) == np.inf
    assert ulps_of(np.array([np.inf, -np.inf], dtype), np.array([np.inf, -np.inf], dtype)) == 0


def test_decibels():
    """20 for a tenth of noise; elements that are infinite or NaN in both are passed over."""
    signal = np.array([10, -10, np.inf, np.nan], np.float32)
    assert decibels_of(signal + np.array([1, -1, 0, 0], np.float32), signal) == pytest.approx(20)
    assert decibels_of(signal, signal) == np.inf
    assert decibels_of(-signal, signal) == -np.inf
    assert decibels_of(signal[:2], np.zeros(2, np.float32)) == -np.inf
    assert decibels_of(signal[:1], signal[:2]) == -np.inf
    assert decibels_of(np.zeros(0, np.float32), np.zeros(0, np.float32)) == np.inf


def test_progress(model, capsys, monkeypatch):
    """A bar of the five steps, and one of the nodes; none where nobody asks."""
    pytest.importorskip("tqdm", reason="tqdm is not installed (extra: examples)")
    result = compare.exported(function, PARAMS, [X], model, node_by_node=True)
    assert capsys.readouterr().err == ""
    shown = compare.exported(function, PARAMS, [X], model, node_by_node=True, progress=True)
    assert str(shown) == str(result)
    bars = capsys.readouterr().err
    assert "comparing: 100%" in bars
    assert "5/5" in bars
    assert f"{len(model.graph.node)}/{len(model.graph.node)}" in bars
    with pytest.raises(ModelError, match="progress is 'yes'; it must be True or False"):
        compare.exported(function, PARAMS, [X], model, progress="yes")
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(ImportError, match=r"compare.exported: progress=True needs tqdm: pip install tqdm"):
        compare.exported(function, PARAMS, [X], model, progress=True)
