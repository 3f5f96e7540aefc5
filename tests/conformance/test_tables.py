"""The descriptors in the code compared, cell by cell, with the tables of DirectML's documentation."""

import importlib
import re

import pytest

from jquant.modes import FeatureLevel

from .directml_tables import DOCUMENTS, Row, lines, tables, values


def descriptor(operator: str):
    return importlib.import_module(f"jquant.operators.{operator}")._DESCRIPTOR


operators = pytest.mark.parametrize("operator", DOCUMENTS)


@operators
def test_name(operator):
    assert descriptor(operator).operator.document == lines(operator)[0]


@operators
def test_introduction(operator):
    assert lines(operator)[1] == f"Introduced in DML_FEATURE_LEVEL_{min(descriptor(operator).levels)}"


@operators
def test_levels(operator):
    """The levels of DirectML; EXTENDED is transcribed only where another document defines what it adds."""
    directml_levels = descriptor(operator).levels.keys() - {FeatureLevel.EXTENDED}
    assert directml_levels == {FeatureLevel(level) for level in tables(operator)} - {FeatureLevel.EXTENDED}


@pytest.mark.parametrize(("operator", "level"), [(operator, level) for operator in DOCUMENTS for level in tables(operator)])
def test_rows(operator, level):
    rows = descriptor(operator).levels[FeatureLevel(level)]
    actual = [
        Row(
            name=tensor.name,
            kind=tensor.kind,
            ranks=tensor.ranks,
            data_types=frozenset(tensor.data_types.split()),
            sizes=None if tensor.sizes is None else tuple(tensor.sizes.split()),
        )
        for tensor in rows
    ]
    assert actual == tables(operator)[level]


@operators
def test_same_data_type(operator):
    pairs = map(set, descriptor(operator).same_data_type)
    assert merged(pairs) == merged(map(set, values(operator, "Same DataType")))


@operators
def test_same_dimension_count(operator):
    # In a `Descriptor`, tensors without sizes have the output's dimension count.
    latest = max(descriptor(operator).levels.items())[1]
    per_channel = set(descriptor(operator).per_channel)  # these have one element or the output's dimension count
    output_rank = {tensor.name for tensor in latest if tensor.sizes is None or tensor.kind == "Output"} - per_channel
    groups = [set(group) for group in descriptor(operator).same_rank] + ([output_rank] if len(output_rank) > 1 else [])
    assert merged(groups) == merged(map(set, values(operator, "Same DimensionCount")))


def merged(groups):
    """The groups, where those with a common member are merged."""
    disjoint: list[set[str]] = []
    for group in groups:
        others = [other for other in disjoint if not other & group]
        disjoint = [*others, set.union(group, *(other for other in disjoint if other & group))]
    return sorted(map(sorted, disjoint))


@operators
def test_one_element(operator):
    assert set(descriptor(operator).one_element) == {name for names in values(operator, "One element") for name in names}


@operators
def test_per_channel(operator):
    assert set(descriptor(operator).per_channel) == {name for names in values(operator, "Per channel") for name in names}


@operators
def test_counts(operator):
    counts = {f"{count}: 1 or {size}" for count, size in descriptor(operator).counts.items()}
    assert counts == {line for line in lines(operator) if re.match(r"\w+Count: ", line)}


@pytest.mark.parametrize("operator", ["matmul_integer", "matmul_integer_to_float", "quantized_linear_matmul"])
def test_batch(operator):
    # "BatchCount * ChannelCount independent matrix multiplications"; the level EXTENDED has four more sizes
    assert descriptor(operator).batch == ("Batch1", "Batch2", "Batch3", "Batch4", "BatchCount", "ChannelCount")
