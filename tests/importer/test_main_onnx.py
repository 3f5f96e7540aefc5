"""``python -m jquant.onnx``: the table, the comparison with onnxruntime, and the exported program."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

from onnx import parser  # noqa: E402

import jquant.onnx  # noqa: E402
from jquant.onnx import ModelError, compare, stablehlo  # noqa: E402
from jquant.onnx.__main__ import main, random_inputs  # noqa: E402

from . import malformed  # noqa: E402

pytestmark = pytest.mark.gate  # on the newest JAX alone


@pytest.fixture
def products(tmp_path) -> Path:
    """A model of dynamic quantization, whose batch is called n."""
    return saved(tmp_path, malformed.integer_products())


def saved(folder: Path, model) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def text_model(folder: Path, text: str) -> Path:
    return saved(folder, parser.parse_model('<ir_version: 8, opset_import: ["" : 17]>\n' + text))


def table(text: str) -> dict[str, list[str]]:
    """The lines of the comparison, by operator."""
    lines = text.split("node by node")[1].split("end to end")[0].splitlines()[2:]
    return {line.split()[0]: line.split()[1:] for line in lines if line.strip()}


def test_the_table(products, capsys):
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
    """Of what is given to be onnxruntime's, one integer is another: that node and no other one has it."""
    intermediate = compare.intermediate

    def changed(*arguments):
        values = intermediate(*arguments)
        values["product"] = values["product"] + np.eye(1, values["product"].size, dtype=np.int32).reshape(1, 7)
        return values

    monkeypatch.setattr(compare, "intermediate", changed)
    assert main([str(products), "--compare", "--rounds", "1"]) == 1
    rows = table(capsys.readouterr().out)
    assert rows["MatMulInteger"][1:3] == ["7", "1"]
    assert rows["all"][2] == "1"
    assert float(rows["Cast"][3]) == 1  # fed with the changed one, onnxruntime's sum is the old one


def test_each_node_is_fed_with_onnxruntimes_values(products):
    """Were it fed with its own ones, a deviation would go on to everything behind it."""
    rows = {row.operator: row for row in compare.nodes(products, {"x": np.ones((3, 6), np.float32)})}
    assert rows["Slice"] == compare.Row("Slice", nodes=1, integers=0, different=0, deviation=0.0)
    shapes, quantized, product = 2 + 1 + 1 + 2, 3 * 6 + 1, 3 * 7
    assert sum(row.integers for row in rows.values()) == shapes + quantized + product


def test_random_inputs_are_described(tmp_path, capsys):
    """Whoever reads the results has to know what they are of."""
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
    """Nodes are compared as they are written, and the fused model end to end."""
    path, compared = text_model(tmp_path, QDQ), []
    end_to_end = compare.end_to_end

    def noted(model, *arguments, **options):
        compared.append(model)
        return end_to_end(model, *arguments, **options)

    monkeypatch.setattr(compare, "end_to_end", noted)
    note = "nodes are compared as they are in the file, before any are fused; the fused model is compared end to end"
    for qdq in ("fused", "as_written"):
        assert main([str(path), "--compare", "--qdq", qdq, "--size", "n=9", "--rounds", "1"]) == 0
        output = capsys.readouterr().out
        assert set(table(output.replace(f"  {note}\n", ""))) == {"QuantizeLinear", "DequantizeLinear", "Relu", "all"}
        assert (note in output) == (qdq == "fused")
    assert [model.fused for model in compared] == [{"Relu": 1}, {}]


def test_given_inputs(products, tmp_path, capsys):
    np.savez(tmp_path / "inputs.npz", x=np.ones((2, 6), np.float32))
    assert main([str(products), "--inputs", str(tmp_path / "inputs.npz"), "--rounds", "1"]) == 0
    output = capsys.readouterr().out
    assert table(output)["MatMulInteger"][1] == str(2 * 7)
    assert "random inputs" not in output
    np.savez(tmp_path / "inputs.npz", z=np.ones((2, 6), np.float32))
    assert main([str(products), "--inputs", str(tmp_path / "inputs.npz")]) == 2
    assert "inputs.npz holds z; it must hold x" in capsys.readouterr().err


BY_RATE = """net (int64 sr, float[n, m] x) => (float[a, b] y)
  <int64 rate = {16000}, float[3, 2] w = {1, 2, 3, 4, 5, 6}, float[5, 2] v = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}> {
    fits = Equal (sr, rate)
    y = If (fits) <
      then_branch = one () => (float[a, b] t) { t = MatMul (x, w) },
      else_branch = two () => (float[a, b] e) { e = MatMul (x, v) }>
}"""


def test_random_numbers_that_onnxruntime_does_not_take(tmp_path, capsys):
    """Which they are, and what passes others; it is enough to fix one."""
    path = text_model(tmp_path, BY_RATE)
    compared = [str(path), "--compare", "--size", "n=2", "m=3"]
    assert main(compared) == 2
    message = "sr drawn at random; --constants NAME=VALUE fixes one, and --inputs FILE.npz passes all inputs"
    assert message in capsys.readouterr().err
    assert main([*compared, "--constants", "sr=16000", "--rounds", "1"]) == 0


def test_sizes_that_onnxruntime_does_not_take(tmp_path, capsys):
    """Those by default are named, and what gives others; but not where the caller gave the inputs."""
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
def test_arguments_that_say_nothing(products, arguments):
    with pytest.raises(SystemExit):
        main([str(products), *arguments])


def test_without_onnxruntime(products, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main([str(products), "--compare"]) == 2
    assert "the comparison needs onnxruntime: pip install onnxruntime" in capsys.readouterr().err


def test_what_is_no_model_or_not_there(tmp_path, capsys):
    (tmp_path / "model.onnx").write_bytes(b"no model")
    assert main([str(tmp_path / "model.onnx")]) == 2
    assert "model.onnx is not an ONNX model" in capsys.readouterr().err
    assert main([str(tmp_path / "nobody.onnx")]) == 2
    assert "nobody.onnx" in capsys.readouterr().err


ELSEWHERE = """
import pathlib, sys
import jax, numpy as np
program = jax.export.deserialize(pathlib.Path(sys.argv[1]).read_bytes())
for rows in (1, 3):
    x = np.arange(rows * 6, dtype=np.float32).reshape(rows, 6) / 7
    np.save(f"{sys.argv[1]}.{rows}.npy", program.call({"x": x})["y"])
print(program.platforms, [name for name in sys.modules if name.startswith(("jquant", "onnx"))])
"""


def test_the_exported_program_runs_elsewhere(products, tmp_path, capsys):
    """In a process that has neither jquant nor onnx, with batches of more than one size."""
    program = tmp_path / "program"
    assert main([str(products), "--export", str(program), "--platforms", "cpu,cuda,tpu"]) == 0
    assert "for cpu,cuda,tpu" in capsys.readouterr().out
    environment = {**os.environ, "PYTHONPATH": "", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", ELSEWHERE, str(program)]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert run.stdout.split("\n")[0] == "('cpu', 'cuda', 'tpu') []", run.stderr[-2000:]
    model = jquant.onnx.load(products)
    for rows in (1, 3):
        x = np.arange(rows * 6, dtype=np.float32).reshape(rows, 6) / 7
        np.testing.assert_array_equal(np.load(f"{program}.{rows}.npy"), model(model.params, {"x": x})["y"])


DECIDED = """net (float[rows, ?] x) => (float[a, b] y) <int64[1] zero = {0}, int64[1] one = {1}> {
  shape = Shape (x)
  n = Gather (shape, zero)
  is_one = Equal (n, one)
  y = If (is_one) <then_branch = t () => (float[a, b] t) { t = Add (x, x) },
                   else_branch = e () => (float[a, b] e) { e = Neg (x) }>
}"""


def test_a_graph_that_needs_its_sizes(tmp_path, capsys):
    path, program = text_model(tmp_path, DECIDED), tmp_path / "program"
    assert main([str(path), "--export", str(program), "--platforms", "cpu"]) == 2
    error = capsys.readouterr().err
    assert "node 'is_one' (Equal, version 17)" in error
    undecided = "JAX could not decide whether rows >= 2; --constraint 'rows >= 2' (or its opposite) says so"
    assert f"the sizes rows, x[1] cannot all be left open: {undecided}; or fix some with --size NAME=NUMBER" in error
    assert not program.exists()
    assert main([str(path), "--export", str(program), "--platforms", "cpu", "--size", "rows=1"]) == 0
    x = np.ones((1, 4), np.float32)
    np.testing.assert_array_equal(jax.export.deserialize(program.read_bytes()).call({"x": x})["y"], x + x)


def test_options_that_are_given_several_times(tmp_path, capsys):
    """Each counts, and a name that is given twice is a mistake."""
    text = REPEATED.replace("(int64 count, ", "(int64 count, int64 unused, ")
    path, program = text_model(tmp_path, text), tmp_path / "program"
    constants = ["--constants", "count=3", "--constants", "unused=1"]
    arguments = [str(path), *constants, "--export", str(program), "--platforms", "cpu"]
    assert main([*arguments, "--size", "n=2", "--size", "x[1]=5"]) == 0
    (shape,) = jax.export.deserialize(program.read_bytes()).in_avals
    assert shape.shape == (2, 5)
    capsys.readouterr()
    assert main([*arguments, "--size", "n=2", "n=3"]) == 2
    assert capsys.readouterr().err == "--size gives n 2 times\n"


def test_platforms_that_there_are_not(products, capsys):
    with pytest.raises(SystemExit):
        main([str(products), "--platforms", "cpu,gpu"])
    assert "'gpu' is not a platform; choose from cpu, cuda, rocm, tpu (cuda and rocm are GPUs)" in capsys.readouterr().err


TABLE = """net (float[n, length] x) => (float[n, m] y) <float[4] table = {1, 2, 3, 4}, int64[1] zero = {0}> {
  shape = Shape <start = 1> (x)
  rows = Slice (table, zero, shape)
  y = Add (x, rows)
}"""


def test_constraints(tmp_path, capsys):
    """A table has rows up to a length: that no longer one comes decides what the shape is."""
    path, program = text_model(tmp_path, TABLE), tmp_path / "program"
    arguments = [str(path), "--export", str(program), "--platforms", "cpu"]
    assert main(arguments) == 2
    advice = "n, length cannot all be left open: JAX could not decide whether length <= 4; --constraint 'length <= 4'"
    assert advice in capsys.readouterr().err
    assert main([*arguments, "--constraint", "length <= 4", "n <= 9"]) == 0
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(jax.export.deserialize(program.read_bytes()).call({"x": x})["y"], [[2, 3, 4]] * 2)
    with pytest.raises(ValueError, match="refining shapes"):
        jax.export.deserialize(program.read_bytes()).call({"x": np.ones((2, 5), np.float32)})


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        ("width <= 4", "the constraint 'width <= 4' is about width; the sizes left open are n, length"),
        ("length < 4", "constraints 'length < 4': "),
    ],
)
def test_constraints_that_are_none(tmp_path, capsys, constraint, message):
    path = text_model(tmp_path, TABLE)
    assert main([str(path), "--export", str(tmp_path / "program"), "--constraint", constraint]) == 2
    assert message in capsys.readouterr().err


def test_names_of_sizes_that_jax_does_not_take(tmp_path):
    path = text_model(tmp_path, "net (float[n, 3] x) => (float[n, 3] y) { y = Relu (x) }")
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "2 past.length + 1"
    loaded = jquant.onnx.load(model)
    assert len(stablehlo.exported(loaded, {}, ["cpu"])) > 0
    program = jax.export.deserialize(bytearray(stablehlo.exported(loaded, {}, ["cpu"], ["2 past.length + 1 <= 4"])))
    with pytest.raises(ValueError, match="refining shapes"):
        program.call({"x": np.ones((5, 3), np.float32)})


def test_inputs_of_no_tensor_type(tmp_path):
    path = text_model(tmp_path, "net (seq(float[n]) x) => (int64 y) { y = SequenceLength (x) }")
    with pytest.raises(ModelError, match="the input 'x' is of no tensor type"):
        random_inputs(jquant.onnx.load(path), {})
