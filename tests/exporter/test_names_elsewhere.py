"""The nodes that docstrings and `docs/operators.md` name are those in the tables of converters and writers."""

import re

import pytest
from support.documents import DOCS, OPERATORS, generated_pages

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

import jquant.onnx  # noqa: E402, F401  # fills the table of converters
from jquant.onnx import exporter as export  # noqa: E402, F401  # fills the table of writers
from jquant.onnx.graphs.graph import DEFAULT_DOMAIN, MICROSOFT  # noqa: E402
from jquant.onnx.running import recorded_nodes, registry  # noqa: E402
from jquant.onnx.writing import table  # noqa: E402  # fills the table of writers

NODES = {node: operator for operator in OPERATORS for node in registry.counterparts(operator)}


@pytest.mark.parametrize("operator", OPERATORS)
def test_counterparts(operator):
    """The references of a docstring name the counterparts of the operator, and no other node, with the domain of each."""
    domains = {"ONNX": DEFAULT_DOMAIN, "onnxruntime": MICROSOFT}
    named = {(domains[each], name) for each, name in generated_pages.elsewhere(operator) if each in domains}
    read = set(registry.counterparts(operator))
    row = f"{operator}: its docstring's references"
    assert not read - named, f"{row} do not name {read - named}, which jquant/onnx/nodes registers as counterparts"
    assert not named - read, f"{row} name {named - read}, which jquant/onnx/nodes does not register as counterparts"


def test_counterparts_are_operators():
    """The table of converters names operators that exist."""
    named = {name for entries in registry._TABLE.values() for entry in entries for name in entry.counterparts}
    assert named <= set(OPERATORS)
    assert len(NODES) > 15


def test_written_nodes():
    """`python docs/generated_pages.py` writes the list."""
    page = (DOCS / "operators.md").read_text()
    stale = "the list in docs/operators.md of what is written as a node is stale; `python docs/generated_pages.py` writes it"
    assert generated_pages.with_list(page, "written", generated_pages.written_operators()) == page, stale


def test_writers():
    """A writer is of an operator, or of a step, whose name has a module; its node is one of ONNX, or has a converter."""
    for name, entries in table.WRITERS.items():
        assert name in OPERATORS or re.fullmatch(r"\w+\.\w+", name), name
        for entry in entries:
            if entry.node is None:
                assert name in (recorded_nodes.NODE, recorded_nodes.TYPE, recorded_nodes.FOLDED)
            elif entry.domain == DEFAULT_DOMAIN:
                assert onnx.defs.get_schema(entry.node).since_version >= entry.since
            else:
                assert (entry.domain, entry.node) in registry.operators()
