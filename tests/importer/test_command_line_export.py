"""``python -m jquant.onnx --export``: the exported program, and the sizes that it leaves open."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

import jquant.onnx  # noqa: E402
from jquant.onnx import stablehlo  # noqa: E402
from jquant.onnx.__main__ import main  # noqa: E402

from . import valid_models  # noqa: E402
from .text_models import saved, text_model  # noqa: E402

pytestmark = pytest.mark.gate  # on the newest JAX alone


@pytest.fixture
def products(tmp_path) -> Path:
    """A model of dynamic quantization, whose batch size is named n."""
    return saved(tmp_path, valid_models.integer_products())


PROGRAM = """
import pathlib, sys
import jax, numpy as np
program = jax.export.deserialize(pathlib.Path(sys.argv[1]).read_bytes())
for rows in (1, 3):
    x = np.arange(rows * 6, dtype=np.float32).reshape(rows, 6) / 7
    np.save(f"{sys.argv[1]}.{rows}.npy", program.call({"x": x})["y"])
print(program.platforms, [name for name in sys.modules if name.startswith(("jquant", "onnx"))])
"""


def test_the_exported_program_runs_in_another_process(products, tmp_path, capsys):
    """In a process without jquant and onnx, with batches of two sizes."""
    program = tmp_path / "program"
    assert main([str(products), "--export", str(program), "--platforms", "cpu,cuda,tpu"]) == 0
    assert "for cpu,cuda,tpu" in capsys.readouterr().out
    environment = {**os.environ, "PYTHONPATH": "", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", PROGRAM, str(program)]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert run.stdout.split("\n")[0] == "('cpu', 'cuda', 'tpu') []", run.stderr[-2000:]
    model = jquant.onnx.load(products)
    for rows in (1, 3):
        x = np.arange(rows * 6, dtype=np.float32).reshape(rows, 6) / 7
        np.testing.assert_array_equal(np.load(f"{program}.{rows}.npy"), model(model.params, {"x": x})["y"])


BRANCH_BY_SIZE = """net (float[rows, ?] x) => (float[a, b] y) <int64[1] zero = {0}, int64[1] one = {1}> {
  shape = Shape (x)
  n = Gather (shape, zero)
  is_one = Equal (n, one)
  y = If (is_one) <then_branch = t () => (float[a, b] t) { t = Add (x, x) },
                   else_branch = e () => (float[a, b] e) { e = Neg (x) }>
}"""


def test_a_graph_whose_branch_depends_on_a_size(tmp_path, capsys):
    path, program = text_model(tmp_path, BRANCH_BY_SIZE), tmp_path / "program"
    assert main([str(path), "--export", str(program), "--platforms", "cpu"]) == 2
    error = capsys.readouterr().err
    assert "node 'is_one' (Equal, version 17)" in error
    undecided = "JAX could not decide whether rows >= 2; --constraint 'rows >= 2' (or its opposite) says so"
    assert f"the sizes rows, x[1] cannot all be left open: {undecided}; or fix some with --size NAME=NUMBER" in error
    assert not program.exists()
    assert main([str(path), "--export", str(program), "--platforms", "cpu", "--size", "rows=1"]) == 0
    x = np.ones((1, 4), np.float32)
    np.testing.assert_array_equal(jax.export.deserialize(program.read_bytes()).call({"x": x})["y"], x + x)


REPEATED = """net (int64 count, float[n, ?] x) => (float[k] y) <int64[1] zero = {0}, int64[1] minus = {-1}> {
  flat = Reshape (x, minus)
  counts = Unsqueeze (count, zero)
  y = Tile (flat, counts)
}"""


def test_repeated_options(tmp_path, capsys):
    """All of them count; the same name twice is an error."""
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


def test_unknown_platforms(products, capsys):
    with pytest.raises(SystemExit):
        main([str(products), "--platforms", "cpu,gpu"])
    assert "'gpu' is not a platform; choose from cpu, cuda, rocm, tpu (cuda and rocm are GPUs)" in capsys.readouterr().err


TABLE = """net (float[n, length] x) => (float[n, m] y) <float[4] table = {1, 2, 3, 4}, int64[1] zero = {0}> {
  shape = Shape <start = 1> (x)
  rows = Slice (table, zero, shape)
  y = Add (x, rows)
}"""


def test_constraints(tmp_path, capsys):
    """A table limits the length: a constraint that the length does not exceed the table decides the shape."""
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
def test_invalid_constraints(tmp_path, capsys, constraint, message):
    path = text_model(tmp_path, TABLE)
    assert main([str(path), "--export", str(tmp_path / "program"), "--constraint", constraint]) == 2
    assert message in capsys.readouterr().err


def test_names_of_sizes_that_jax_rejects(tmp_path):
    path = text_model(tmp_path, "net (float[n, 3] x) => (float[n, 3] y) { y = Relu (x) }")
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "2 past.length + 1"
    loaded = jquant.onnx.load(model)
    assert len(stablehlo.exported(loaded, {}, ["cpu"])) > 0
    program = jax.export.deserialize(bytearray(stablehlo.exported(loaded, {}, ["cpu"], ["2 past.length + 1 <= 4"])))
    with pytest.raises(ValueError, match="refining shapes"):
        program.call({"x": np.ones((5, 3), np.float32)})
