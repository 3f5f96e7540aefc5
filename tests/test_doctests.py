"""The examples in docstrings, README, CONTRIBUTING.md and two pages run, and print what is written there."""

import doctest
import importlib
import os
import pkgutil
import subprocess
import sys

import pytest
from support.documents import run_document
from support.sampling import one_in

import jquant

MODULES = [module.name for module in pkgutil.walk_packages(jquant.__path__, "jquant.") if not module.ispkg]


@one_in(3, "name", MODULES)
def test_docstrings(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_files(name):
    run_document(name)


@pytest.mark.gate
def test_calibration():
    run_document("docs/calibration.md")


@pytest.mark.gate
def test_mesh():
    """In a process of its own, because the page sets the number of devices."""
    program = "from support import documents; documents.run_document('docs/mesh.md')"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    result = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
