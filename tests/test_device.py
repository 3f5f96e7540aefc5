"""What ``.ci/device`` runs, which compares and measures products where a GPU or TPU is at hand: here, without one."""

import collections
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.documents import ROOT

import jquant
from benchmarks.device import __main__ as program
from benchmarks.device import cases, parts, simulator
from jquant.modes import Implementation

CASES = cases.CASES


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """Runs the program in `folder`, on the CPU alone."""
    variables = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "benchmarks.device", *arguments]
    return subprocess.run(command, env=os.environ | variables, cwd=folder, capture_output=True, text=True, timeout=1800)


@pytest.mark.gate
def test_says_that_there_is_no_device(tmp_path):
    process = run(tmp_path)
    assert process.returncode == 2
    assert process.stderr.startswith("There is no GPU or TPU here: JAX finds only 'cpu' (JAX_PLATFORMS=cpu). ")
    assert "--rehearse" in process.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_rehearsal(tmp_path, count):
    process = run(tmp_path, "--rehearse", "--minutes", "25")
    assert process.returncode == 0, process.stdout + process.stderr
    (file,) = tmp_path.iterdir()
    assert file.name == f"device-rehearsal-cpu-jax-{jax.__version__}.json"
    report = json.loads(file.read_text())
    assert report["rehearsal"] is True
    assert report["outcome"] == "passed"
    versions = report["device"]["versions"]
    assert (versions["jax"], versions["jquant"], report["device"]["device"]) == (jax.__version__, jquant.__version__, "cpu")
    results = {part["part"]: part["results"] for part in report["parts"]}
    assert list(results) == ["mosaic_tpu", "mosaic_gpu", "xla", "timings", "self-check"]
    declined = {"mosaic_tpu": 1, "mosaic_gpu": 1 if simulator.SIMULATES_THE_KERNELS else len(CASES), "xla": 0}
    for name, number in declined.items():
        outcomes = collections.Counter(result["outcome"] for result in results[name])
        assert outcomes == collections.Counter(equal=len(CASES) - number, declined=number)
        count("products of a rehearsal", outcomes["equal"])
    assert [result["outcome"] for result in results["timings"]] == ["measured"] * 16
    assert all(result["times_xla"] > 0 for result in results["timings"])
    assert results["self-check"][-1]["outcome"] == "equal"
    lines = process.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["device", *results, "passed,"]
    assert lines[-1] == f"passed, in a rehearsal on a CPU: {file.name}"


def test_cases_are_of_every_kind():
    assert len(CASES) == 20
    assert {case.m for case in CASES} >= {1, 8, 33, 256, 1024}
    assert {case.product for case in CASES} == set(cases._MAKERS)
    plain = [case for case in CASES if case.product == cases.INTEGERS]
    assert {(case.zero_points, case.packed) for case in plain} >= {
        *((zero_points, False) for zero_points in ("none", "tensor", "vector", "extreme")),
        *((zero_points, True) for zero_points in ("tensor", "vector")),
    }
    assert {(np.dtype(case.a).name, np.dtype(case.b).name) for case in plain} == {
        (a, b) for a in ("int8", "uint8") for b in ("int8", "uint8")
    }


def result_of(monkeypatch, function) -> dict:
    """What is reported of a product by this function, in place of an operator's."""
    expected = np.zeros((2, 3), np.int32)
    monkeypatch.setattr(parts, "make", lambda case: cases.Product(function, (jnp.ones((2, 3), jnp.int32),), expected))
    result = parts.compared(CASES[0], Implementation.XLA)
    result.pop("seconds")
    return result


def test_a_bit_that_differs_is_reported(monkeypatch):
    result = result_of(monkeypatch, lambda x, implementation: x.at[0, 0].set(0) - x.at[1, 2].set(4))
    assert result == {"outcome": "differs", "elements": 6, "different": 2}


def test_only_what_jquant_declines_is_declined(monkeypatch):
    def decline(x, implementation):
        return jquant.matmul_integer(x.astype(jnp.int8), jnp.ones((3, 3), jnp.int8), implementation="mosaic_gpu")

    reason = "implementation mosaic_gpu is for cuda; this program is for cpu"
    assert result_of(monkeypatch, decline) == {"outcome": "declined", "reason": reason}

    def fail(x, implementation):
        raise NotImplementedError("of a compiler")

    error = "NotImplementedError: of a compiler"
    assert result_of(monkeypatch, fail) == {"outcome": "failed", "error": error}


@pytest.mark.parametrize(
    ("results", "ending", "outcome"),
    [
        (["equal", "declined"], 0, "passed"),
        (["declined", "declined"], 0, "declined"),
        (["equal", "differs"], 0, "differs"),
        (["failed", "equal"], 0, "failed"),
        (["equal"], 3, "failed"),
        ([], 0, "failed"),
    ],
)
def test_outcome_of_a_part(monkeypatch, results, ending, outcome):
    """Of a process that writes these results; a line that it had not finished does not count."""

    def process(command, **options):
        text = "".join(json.dumps({"outcome": result}) + "\n" for result in results) + '{"outc'
        Path(command[command.index("--output") + 1]).write_text(text)
        return subprocess.CompletedProcess(command, ending)

    monkeypatch.setattr(program.subprocess, "run", process)
    part = program.run_part("xla", 9, rehearse=True)
    assert part["outcome"] == outcome
    assert part["counts"] == collections.Counter(results)
    assert (part["error"] is None) == (ending == 0)


def test_a_part_that_takes_too_long_keeps_its_results(monkeypatch):
    def process(command, *, timeout, **options):
        Path(command[command.index("--output") + 1]).write_text('{"outcome": "equal"}\n')
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(program.subprocess, "run", process)
    part = program.run_part("xla", 9, rehearse=True)
    assert (part["outcome"], part["counts"]) == ("failed", {"equal": 1})
    assert part["error"] == "was stopped after 9 s; results until then count"


def test_a_failing_part_does_not_stop_the_others(monkeypatch, tmp_path, capsys):
    description = {"platform": "cpu", "device": "cpu", "versions": {"jax": "1.2.3"}}

    def run_part(part, limit, *, rehearse):
        outcome = "failed" if part == Implementation.MOSAIC_TPU else "passed"
        error = "ended with 1" if outcome == "failed" else None
        return {"part": part, "outcome": outcome, "seconds": 1.0, "counts": {}, "error": error, "results": [description]}

    monkeypatch.setattr(program, "run_part", run_part)
    file = tmp_path / "results.json"
    assert program.run_all(file, 8, rehearse=True) == 1
    report = json.loads(file.read_text())
    assert report["outcome"] == "failed"
    assert [part["outcome"] for part in report["parts"]] == ["failed", *["passed"] * 4]
    assert "mosaic_tpu   failed      1.0 s  ; ended with 1" in capsys.readouterr().out
