"""``python -m jquant.onnx``: the summary of a model, and the comparison with onnxruntime."""

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

import jquant.onnx
from jquant.onnx import ModelError, compare, onnxruntime_session
from jquant.onnx.__main__ import main, random_inputs
from jquant.onnx.compare import node_by_node

from . import valid_models
from .text_models import saved, text_model

pytestmark = pytest.mark.gate  # on the newest JAX alone


@pytest.fixture
def products(tmp_path) -> Path:
    """A model of dynamic quantization, whose batch size is named n."""
    return saved(tmp_path, valid_models.integer_products())


def table(text: str) -> dict[str, list[str]]:
    """The columns of the comparison node by node, by operator."""
    lines = text.split("node by node")[1].split("end to end")[0].splitlines()[2:]
    return {line.split()[0]: line.split()[1:] for line in lines if line.strip()}


def test_summary(products, capsys):
    assert main([str(products)]) == 0
    output = capsys.readouterr().out
    assert output.rstrip() == str(jquant.onnx.load(products))
    assert "MatMulInteger" in output
    assert "end to end" not in output


def test_comparison_of_random_inputs(products, capsys):
    assert main([str(products), "--compare", "--size", "n=4", "--rounds", "1"]) == 0
    output = capsys.readouterr().out
    rows = table(output)
    assert rows["DynamicQuantizeLinear"][:3] == ["1", str(4 * 6 + 1), "0"]
    assert rows["MatMulInteger"][:3] == ["1", str(4 * 7), "0"]
    assert rows["Cast"] == ["1", "0", "0", "0"]
    assert rows["all"][0] == "11"
    assert "y: cosine 1.000000000, argmax 100.00%, 0 elements differ, by at most 0" in output
    for part in ("a call: ", "onnxruntime", "compiling: "):
        assert part in output


def test_integers_that_differ(products, capsys, monkeypatch):
    """One integer of onnxruntime's is changed: the comparison reports that node alone."""
    intermediate = node_by_node.intermediate

    def changed(*arguments):
        values = intermediate(*arguments)
        values["product"] = values["product"] + np.eye(1, values["product"].size, dtype=np.int32).reshape(1, 7)
        return values

    monkeypatch.setattr(node_by_node, "intermediate", changed)
    assert main([str(products), "--compare", "--rounds", "1"]) == 1
    rows = table(capsys.readouterr().out)
    assert rows["MatMulInteger"][1:3] == ["7", "1"]
    assert rows["all"][2] == "1"
    assert float(rows["Cast"][3]) == 1  # jquant's Cast reads the changed integer, onnxruntime's the original one


@pytest.mark.parametrize("saturated", [False, True])
def test_the_note_on_processors_that_saturate(saturated, monkeypatch):
    """Where onnxruntime adds two products in 16 bits, the table says so, if an integer differs."""
    sums = {"sum": np.array([[32767 if saturated else 64770]], np.int32)}
    monkeypatch.setattr(onnxruntime_session, "run", lambda *_: sums)
    saturates = onnxruntime_session.saturates.__wrapped__
    assert saturates() is saturated
    monkeypatch.setattr(node_by_node, "saturates", saturates)
    rows = [compare.Row("MatMulInteger", nodes=1, integers=7, different=1)]
    assert (compare.table(rows).splitlines()[-1] == onnxruntime_session.SATURATION) == saturated
    assert onnxruntime_session.SATURATION not in compare.table([compare.Row("MatMulInteger", nodes=1, integers=7)])


def test_each_node_is_fed_with_onnxruntimes_values(products):
    """Fed with jquant's values instead, a deviation would spread to all later nodes."""
    rows = {row.operator: row for row in compare.nodes(products, {"x": np.ones((3, 6), np.float32)})}
    assert rows["Slice"] == compare.Row("Slice", nodes=1, integers=0, different=0, deviation=0.0)
    shapes, quantized, product = 2 + 1 + 1 + 2, 3 * 6 + 1, 3 * 7
    assert sum(row.integers for row in rows.values()) == shapes + quantized + product


def test_random_inputs_are_described(tmp_path, capsys):
    """The output states the ranges of the inputs, on which the results depend."""
    inputs = "float[n, 4] x, uint8[n, 4] levels, int64[n, 4] tokens, bool[n, 4] mask, float16[n, 4] z"
    path = text_model(tmp_path, f"net ({inputs}) => (float[n, 4] y) {{ y = Relu (x) }}")
    assert main([str(path), "--compare", "--size", "n=500", "--rounds", "1"]) == 0
    described = capsys.readouterr().out.split(
        "random inputs, which make this a smoke test; to judge a model, pass real ones with --inputs FILE.npz"
    )[1]
    described = described.split("node by node")[0].splitlines()[1:6]
    x = random_inputs(jquant.onnx.load(path), {"n": 500})["x"]
    assert described[:4] == [
        f"  x  float32[500, 4] from {x.min():.6g} to {x.max():.6g}",
        "  levels  uint8[500, 4] from 0 to 255",
        "  tokens  int64[500, 4] from 0 to 1",
        "  mask  bool[500, 4]",
    ]
    assert described[4].startswith("  z  float16[500, 4] from -")


QDQ = """net (float[n, 4] x) => (float[n, 4] y) <float s = {0.05}, uint8 z = {128}, float t = {0.1}> {
  q = QuantizeLinear (x, s, z)
  d = DequantizeLinear (q, s, z)
  r = Relu (d)
  p = QuantizeLinear (r, t, z)
  y = DequantizeLinear (p, t, z)
}"""


def test_fused_models(tmp_path, capsys, monkeypatch):
    """Nodes are compared as written, and the fused model end to end."""
    path, compared = text_model(tmp_path, QDQ), []
    end_to_end = compare.end_to_end

    def recorded(model, *arguments, **options):
        compared.append(model)
        return end_to_end(model, *arguments, **options)

    monkeypatch.setattr(compare, "end_to_end", recorded)
    note = "nodes are compared as they are in the file, before any are fused; the fused model is compared end to end"
    for qdq in ("fused", "as_written"):
        assert main([str(path), "--compare", "--qdq", qdq, "--size", "n=9", "--rounds", "1"]) == 0
        output = capsys.readouterr().out
        assert set(table(output.replace(f"  {note}\n", ""))) == {"QuantizeLinear", "DequantizeLinear", "Relu", "all"}
        assert (note in output) == (qdq == "fused")
    assert [model.fused for model in compared] == [{"Relu": 1}, {}]


def test_inputs_from_a_file(products, tmp_path, capsys):
    np.savez(tmp_path / "inputs.npz", x=np.ones((2, 6), np.float32))
    assert main([str(products), "--inputs", str(tmp_path / "inputs.npz"), "--rounds", "1"]) == 0
    output = capsys.readouterr().out
    assert table(output)["MatMulInteger"][1] == str(2 * 7)
    assert "random inputs" not in output
    np.savez(tmp_path / "inputs.npz", z=np.ones((2, 6), np.float32))
    assert main([str(products), "--inputs", str(tmp_path / "inputs.npz")]) == 2
    assert "inputs.npz holds z; it must hold x" in capsys.readouterr().err


BRANCH_BY_RATE = """net (int64 sr, float[n, m] x) => (float[a, b] y)
  <int64 rate = {16000}, float[3, 2] w = {1, 2, 3, 4, 5, 6}, float[5, 2] v = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}> {
    fits = Equal (sr, rate)
    y = If (fits) <
      then_branch = one () => (float[a, b] t) { t = MatMul (x, w) },
      else_branch = two () => (float[a, b] e) { e = MatMul (x, v) }>
}"""


def test_random_numbers_that_onnxruntime_rejects(tmp_path, capsys):
    """The message names the input and the options that replace it; fixing one input is enough."""
    path = text_model(tmp_path, BRANCH_BY_RATE)
    compared = [str(path), "--compare", "--size", "n=2", "m=3"]
    assert main(compared) == 2
    message = "sr drawn at random; --constants NAME=VALUE fixes one, and --inputs FILE.npz passes all inputs"
    assert message in capsys.readouterr().err
    assert main([*compared, "--constants", "sr=16000", "--rounds", "1"]) == 0


def test_sizes_that_onnxruntime_rejects(tmp_path, capsys):
    """The message names the default sizes and the option that changes them, unless the caller passed the inputs."""
    text = "net (float[n, ?] x) => (float[n, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}> { y = MatMul (x, w) }"
    path = text_model(tmp_path, text)
    assert main([str(path), "--compare", "--size", "n=2"]) == 2
    assert "the sizes x[1] have a default; --size NAME=NUMBER gives them another" in capsys.readouterr().err
    np.savez(tmp_path / "inputs.npz", x=np.ones((2, 4), np.float32))
    assert main([str(path), "--inputs", str(tmp_path / "inputs.npz")]) == 2
    assert "--size" not in capsys.readouterr().err


REPEATED = """net (int64 count, float[n, ?] x) => (float[k] y) <int64[1] zero = {0}, int64[1] minus = {-1}> {
  flat = Reshape (x, minus)
  counts = Unsqueeze (count, zero)
  y = Tile (flat, counts)
}"""


def test_constants_and_sizes(tmp_path, capsys):
    path = text_model(tmp_path, REPEATED)
    assert main([str(path)]) == 2
    assert "fix it with constants={'count': ...}" in capsys.readouterr().err
    arguments = [str(path), "--constants", "count=3", "--compare", "--rounds", "1", "--size"]
    assert main([*arguments, "n=2", "x[1]=5"]) == 0
    assert "y: cosine 1" in capsys.readouterr().out
    assert main([*arguments, "m=2"]) == 2
    assert "--size m: the dimensions without a fixed size are n, x[1]" in capsys.readouterr().err
    model = jquant.onnx.load(path, constants={"count": np.int64(3)})
    assert random_inputs(model, {"n": 2, "x[1]": 5})["x"].shape == (2, 5)
    assert random_inputs(model, {})["x"].shape == (1, 1)


def test_sizes_of_images(tmp_path):
    model = jquant.onnx.load(text_model(tmp_path, "net (float[n, 3, ?, w] x) => (float[n, 3, h, w] y) { y = Relu (x) }"))
    assert random_inputs(model, {"w": 7})["x"].shape == (1, 3, 64, 7)


@pytest.mark.parametrize("arguments", [["--size", "n"], ["--size", "n=-1"], ["--constants", "n=x"], ["--platforms", "gpu"]])
def test_malformed_arguments(products, arguments):
    with pytest.raises(SystemExit):
        main([str(products), *arguments])


def test_without_onnxruntime(products, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main([str(products), "--compare"]) == 2
    assert "the comparison needs onnxruntime: pip install onnxruntime" in capsys.readouterr().err


def test_files_that_are_no_model_or_missing(tmp_path, capsys):
    (tmp_path / "model.onnx").write_bytes(b"no model")
    assert main([str(tmp_path / "model.onnx")]) == 2
    assert "model.onnx is not an ONNX model" in capsys.readouterr().err
    assert main([str(tmp_path / "nobody.onnx")]) == 2
    assert "nobody.onnx" in capsys.readouterr().err


def test_inputs_that_are_no_tensors(tmp_path):
    path = text_model(tmp_path, "net (seq(float[n]) x) => (int64 y) { y = SequenceLength (x) }")
    with pytest.raises(ModelError, match="the input 'x' is of no tensor type"):
        random_inputs(jquant.onnx.load(path), {})
