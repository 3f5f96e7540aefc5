"""The examples in the docstrings and in the README run, and print what stands there."""

import doctest
import importlib
import pkgutil
import re
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


def test_readme():
    text = (Path(__file__).parent.parent / "README.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner()
    globals_: dict = {}
    for number, block in enumerate(blocks):
        test = parser.get_doctest(block, globals_, f"README block {number}", "README.md", 0)
        assert test.examples
        assert runner.run(test, clear_globs=False).failed == 0
        globals_ |= test.globs
    assert blocks
