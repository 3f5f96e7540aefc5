"""Runs the code blocks of the documentation; the names of all operators."""

import doctest
import inspect
import re
from pathlib import Path

import jquant

ROOT = Path(__file__).parents[2]
OPERATORS = [  # the public functions that are operators
    name
    for name, function in inspect.getmembers(jquant, inspect.isfunction)
    if function.__module__.startswith("jquant.operators.")
]


def run_document(name: str, section: str | None = None) -> None:
    """Runs the Python blocks of a Markdown file of the repository, or of one of its sections, in order."""
    text = (ROOT / name).read_text()
    if section is not None:
        (text,) = (part for part in re.split("^## ", text, flags=re.MULTILINE) if part.partition("\n")[0] == section)
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner()
    globals_: dict = {}
    for number, block in enumerate(blocks):
        test = parser.get_doctest(block, globals_, f"{name} block {number}", name, 0)
        assert test.examples
        assert runner.run(test, clear_globs=False).failed == 0
        globals_ |= test.globs
    assert blocks
