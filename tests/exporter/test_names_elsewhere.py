"""The nodes in the table "Names elsewhere" of `docs/operators.md` are those in the tables of converters and writers."""

import re

import pytest
from support.documents import DOCS, NAMES, OPERATORS, generated_pages, table_of_operators

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

import jquant.onnx  # noqa: E402, F401  # fills the table of converters
from jquant.onnx import exporter as export  # noqa: E402, F401  # fills the table of writers
from jquant.onnx.graphs.graph import DEFAULT_DOMAIN  # noqa: E402
from jquant.onnx.running import recorded_nodes, registry  # noqa: E402
from jquant.onnx.writing import table  # noqa: E402  # fills the table of writers

PAGE = (DOCS / "operators.md").read_text()

NODES = {node: operator for operator in OPERATORS for node in registry.counterparts(operator)}


@pytest.mark.parametrize("operator", OPERATORS)
def test_counterparts(operator):
    """The cell names the counterparts of an operator, and no other node; onnxruntime's in italics."""
    _, cell, *_ = table_of_operators(*NAMES)[operator]
    named, read = {node for node in NODES if re.search(rf"\b{node[1]}\b", cell)}, set(registry.counterparts(operator))
    row = f'{operator}: its row in the table "Names elsewhere" of docs/operators.md'
    assert not read - named, f"{row} does not name {read - named}, which jquant/onnx/nodes registers as counterparts"
    assert not named - read, f"{row} names {named - read}, which jquant/onnx/nodes does not register as counterparts"
    for domain, name in named:
        is_other = domain != DEFAULT_DOMAIN
        assert bool(re.search(rf"\*{name}\b", cell)) == is_other, f"{row} has {name} {'not ' * is_other}in italics"


def test_counterparts_are_operators():
    """The table of converters names operators that exist."""
    named = {name for entries in registry._TABLE.values() for entry in entries for name in entry.counterparts}
    assert named <= set(OPERATORS)
    assert len(NODES) > 15


def test_written_nodes():
    """`python docs/generated_pages.py` writes the last column."""
    stale = "the last column of the names in docs/operators.md is stale; `python docs/generated_pages.py` writes it"
    assert generated_pages.with_written_nodes(PAGE) == PAGE, stale
    assert "| QuantizeLinear |\n" in PAGE


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
