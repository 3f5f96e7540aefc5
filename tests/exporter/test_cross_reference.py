"""The nodes in `docs/cross_reference.md` are those in the tables of converters and writers."""

import importlib.util
import re

import pytest
from support.documents import OPERATORS, ROOT

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

import jquant.onnx  # noqa: E402, F401  # fills the table of converters
from jquant.onnx import exporter as export  # noqa: E402, F401  # fills the table of writers
from jquant.onnx.graphs.graph import DEFAULT_DOMAIN  # noqa: E402
from jquant.onnx.running import recorded_nodes, registry  # noqa: E402
from jquant.onnx.writing import table  # noqa: E402  # fills the table of writers

DOCS = ROOT / "docs"
PAGE = (DOCS / "cross_reference.md").read_text()
specification = importlib.util.spec_from_file_location("generated_pages", DOCS / "generated_pages.py")
generated_pages = importlib.util.module_from_spec(specification)
specification.loader.exec_module(generated_pages)

NODES = {node: operator for operator in OPERATORS for node in registry.counterparts(operator)}


def cells() -> dict[str, str]:
    """The cell of ONNX, by operator."""
    section = PAGE.split("## Names\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    return {name: row[2] for row in rows for name in re.findall(r"`(\w+)`", row[0])}


@pytest.mark.parametrize("operator", OPERATORS)
def test_counterparts(operator):
    """The cell names the counterparts of an operator, and no other node; onnxruntime's in italics."""
    cell = cells()[operator]
    named = {node for node in NODES if re.search(rf"\b{node[1]}\b", cell)}
    assert named == set(registry.counterparts(operator))
    for domain, name in named:
        assert bool(re.search(rf"\*{name}\b", cell)) == (domain != DEFAULT_DOMAIN)


def test_counterparts_are_operators():
    """The table of converters names operators that exist."""
    named = {name for entries in registry._TABLE.values() for entry in entries for name in entry.counterparts}
    assert named <= set(OPERATORS)
    assert len(NODES) > 15


def test_written_nodes():
    """`python docs/generated_pages.py` writes the last column."""
    assert generated_pages.cross_reference(PAGE) == PAGE
    assert "| QuantizeLinear |\n" in PAGE


def test_writers():
    """A writer is of an operator, or of a step, whose name has a module; its node is one of ONNX, or has a converter."""
    for name, entries in table.WRITERS.items():
        assert name in OPERATORS or re.fullmatch(r"\w+\.\w+", name), name
        for entry in entries:
            if entry.node is None:
                assert name in (recorded_nodes.NODE, recorded_nodes.TYPE)
            elif entry.domain == DEFAULT_DOMAIN:
                assert onnx.defs.get_schema(entry.node).since_version >= entry.since
            else:
                assert (entry.domain, entry.node) in registry.operators()
