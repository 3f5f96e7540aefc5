"""Checkpoints that are broken in some way: each gives an error that names the file, or values that can be explained."""

import collections
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("gguf", reason="gguf is not installed (extra: checkpoints)")
pytest.importorskip("safetensors", reason="safetensors is not installed (extra: recipes)")

BATCH = 50  # files a process


def broken(first: int, record) -> None:
    """Of a process of its own; where it dies, a file has no end."""
    command = [sys.executable, str(Path(__file__).with_name("malformed.py")), str(first), str(BATCH)]
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    started = {line["number"]: line["what"] for line in lines if "what" in line}
    ended = {line["number"]: line["found"] for line in lines if "found" in line}
    assert len(started) == BATCH, run.stderr[-2000:]
    found = [(number, what, ended.get(number, "died")) for number, what in started.items()]
    bad = [each for each in found if each[-1] not in ("error", "same values", "other values")]
    assert not bad, "\n".join(map(str, bad))
    for kind, number in collections.Counter(each[-1] for each in found).items():
        record(f"broken checkpoints: {kind}", number)


@pytest.mark.gate
def test_broken(count):
    """In 10 s and 4 MiB of memory each."""
    broken(0, count)


@pytest.mark.full
@pytest.mark.parametrize("first", range(BATCH, 500, BATCH))
def test_many_broken(first, count):
    broken(first, count)
