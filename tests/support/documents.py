"""Runs the code blocks of the documentation; the names of all operators, and tables of them."""

import doctest
import importlib.util
import inspect
import re
from pathlib import Path

import jquant

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGE = Path(jquant.__file__).parent  # which may be installed elsewhere
_specification = importlib.util.spec_from_file_location("generated_pages", DOCS / "generated_pages.py")
generated_pages = importlib.util.module_from_spec(_specification)
_specification.loader.exec_module(generated_pages)
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


def roundings() -> dict[str, list[str]]:
    """The cells of the table "How they round" of exactness.md, by the operators in the first cell of each row."""
    section = (DOCS / "exactness.md").read_text().split("\n## How they round\n")[1].split("\n## ")[0]
    lines = (line for line in section.splitlines() if line.startswith("| `"))
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    named = [(name, cells) for first, *cells in rows for name in re.findall(r"`(\w+)`", first)]
    twice = sorted({name for name, _ in named if [other for other, _ in named].count(name) > 1})
    assert not twice, f'{", ".join(twice)}: more than one row in the table "How they round" of docs/exactness.md'
    return dict(named)
