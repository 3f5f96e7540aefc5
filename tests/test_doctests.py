"""The examples in the docstrings and in the README run, and print what stands there."""

import doctest
import importlib
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import jquant

MODULES = [module.name for module in pkgutil.walk_packages(jquant.__path__, "jquant.") if not module.ispkg]
FUNCTIONS = [name for name in dir(jquant) if callable(getattr(jquant, name)) and name[0].islower()]


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_has_an_example(name):
    assert any(test.examples for test in doctest.DocTestFinder(recurse=False).find(getattr(jquant, name)))


def run_document(name: str) -> None:
    """Runs the code blocks of a Markdown file of the repository, one after the other."""
    text = (Path(__file__).parent.parent / name).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner()
    globals_: dict = {}
    for number, block in enumerate(blocks):
        test = parser.get_doctest(block, globals_, f"{name} block {number}", name, 0)
        assert test.examples
        assert runner.run(test, clear_globs=False).failed == 0
        globals_ |= test.globs
    assert blocks


def test_readme():
    run_document("README.md")


def test_operators():
    """Every operator has its section."""
    run_document("docs/operators.md")
    text = (Path(__file__).parent.parent / "docs/operators.md").read_text()
    headings = ", ".join(re.findall("^### (.*)$", text, re.MULTILINE)).split(", ")
    assert sorted(headings) == sorted(FUNCTIONS)


def test_calibration():
    run_document("docs/calibration.md")


def test_scaling():
    """In a process of its own, which has several devices."""
    program = "import test_doctests; test_doctests.run_document('docs/scaling.md')"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    result = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
