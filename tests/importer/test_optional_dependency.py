"""The package onnx is imported by `jquant.onnx` alone, and named where it is missing."""

import subprocess
import sys

import pytest

pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")


def run_python(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)


def test_jquant_does_not_import_onnx():
    run = run_python("import sys, jquant; print('onnx' in sys.modules); jquant.onnx; print('onnx' in sys.modules)")
    assert run.stdout.split() == ["False", "True"], run.stderr


def test_without_onnx():
    run = run_python("import sys; sys.modules['onnx'] = None\nimport jquant\njquant.onnx")
    assert run.returncode == 1
    expected = "ModuleNotFoundError: jquant.onnx needs the package onnx: install the extra `onnx` of jquant-jax"
    assert run.stderr.strip().splitlines()[-1] == expected
