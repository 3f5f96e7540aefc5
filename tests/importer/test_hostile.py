"""Small files that ask for all memory are refused, with little memory taken."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

import jquant.onnx
from jquant.onnx import ModelError

from . import hostile
from .test_malformed import environment


@pytest.mark.gate
def test_refused(count):
    """With at most 0.5 GB above what the imports take."""
    command = [sys.executable, "-m", "importer.hostile"]
    run = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=300, check=False)
    ends = [json.loads(line) for line in run.stdout.splitlines()]
    assert [each["model"] for each in ends] == [*hostile.MODELS], run.stderr[-2000:]
    assert all(each["outcome"] == "refused" and each["MiB"] < 500 for each in ends), ends
    count("hostile files that are refused", len(ends))


@pytest.mark.parametrize("name", ["functions of functions", "sparse initializers"])
def test_when_loaded(name):
    with pytest.raises(ModelError, match=r"^the model: its (functions|sparse tensors) would be "):
        jquant.onnx.load(hostile.MODELS[name]())


def test_functions_in_proportion():
    """Some functions in functions are as usual."""
    assert jquant.onnx.load(hostile.functions_of_functions(levels=4, calls=4)).inputs
