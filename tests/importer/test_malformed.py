"""Malformed models: each gives a result, or an error that names its cause, in bounded time and memory."""

import collections
import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

from . import malformed, valid_models

BATCH = 100  # models per process


def outcomes(first: int, count: int) -> list[dict]:
    """How models end in a process of their own; "died" for a model that ends the process."""
    command = [sys.executable, "-m", "importer.malformed", str(first), str(count)]
    seconds = 60 + malformed.SECONDS * 10
    run = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment(), check=False)
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    ended = {line["number"]: line for line in lines if "outcome" in line}
    started = {line["number"]: line["mutations"] for line in lines if "mutations" in line}
    assert len(started) == count, run.stderr[-2000:]
    return [{"mutations": each, "outcome": "died", **ended.get(number, {})} for number, each in started.items()]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "JAX_PLATFORMS": "cpu"}


def check_outcomes(first: int, count: int, record) -> None:
    results = outcomes(first, count)
    failures = [each for each in results if each["outcome"] not in ("error", "result")]
    assert not failures, "\n".join(map(str, failures))
    for outcome, number in collections.Counter(each["outcome"] for each in results).items():
        record(f"malformed models that give a{'n' if outcome == 'error' else ''} {outcome}", number)


def test_malformed_models(count):
    """Each gives a result, or an error that names the file or the node, in 10 s and 2 GiB of memory."""
    check_outcomes(0, BATCH, count)


@pytest.mark.full
@pytest.mark.parametrize("first", range(BATCH, 2000, BATCH))
def test_many_malformed_models(first, count):
    check_outcomes(first, BATCH, count)


@pytest.mark.parametrize("number", range(4))
def test_models_before_mutation(number, tmp_path):
    """They give results, or else the errors of the mutated ones would prove nothing."""
    bases = [valid_models.quantized_convolutions, valid_models.integer_products, valid_models.control_flow]
    model = [*bases, lambda: valid_models.external_data(tmp_path)][number]()
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    assert malformed.outcome(path) == "result"
