"""Loading broken checkpoints: an error that names the file, or the values that the formats' own packages read."""

import collections
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("gguf", reason="gguf is not installed (extra: checkpoints)")
pytest.importorskip("safetensors", reason="safetensors is not installed (extra: recipes)")

BATCH = 50  # files per process


def check_broken(first: int, count) -> None:
    """Loads a batch of files in a process of its own; a file that ends the process has no outcome."""
    command = [sys.executable, str(Path(__file__).with_name("malformed.py")), str(first), str(BATCH)]
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    descriptions = {line["number"]: line["description"] for line in lines if "description" in line}
    outcomes = {line["number"]: line["outcome"] for line in lines if "outcome" in line}
    assert len(descriptions) == BATCH, run.stderr[-2000:]
    results = [(number, description, outcomes.get(number, "died")) for number, description in descriptions.items()]
    bad = [result for result in results if result[-1] not in ("error", "same values", "other values")]
    assert not bad, "\n".join(map(str, bad))
    for outcome, files in collections.Counter(outcome for _, _, outcome in results).items():
        count(f"broken checkpoints: {outcome}", files)


@pytest.mark.gate
def test_broken(count):
    """Within 10 s and 4 MiB of memory each."""
    check_broken(0, count)


@pytest.mark.full
@pytest.mark.parametrize("first", range(BATCH, 1000, BATCH))
def test_many_broken(first, count):
    check_broken(first, count)
