"""Parts of known sizes that begin at computed indices: Slice, whose ends are its starts and known lengths.

The starts must be held to a range, as `jquant.onnx.export` writes them: a part that could reach beyond its tensor would be
shorter, and its size is then that of data.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import numpy as np

from jquant.onnx.graphs.graph import DEFAULT_DOMAIN, JQUANT, Graph, Node, rewritten

PART = "part"  # in jquant's own domain
_SLICE = "Slice"
_SINCE = 10  # the version in which the bounds became operands
_INTEGERS = 6, 7  # the numbers of int32 and int64 in Cast
_LIMITS = np.iinfo(np.int64)


class _Range(NamedTuple):
    """Between which numbers each element is."""

    low: np.ndarray
    high: np.ndarray


_ANY = _Range(np.array(_LIMITS.min), np.array(_LIMITS.max))
_BOUNDS: dict[str, Callable] = {"Max": np.maximum, "Min": np.minimum}


def with_parts(graph: Graph, replaced: Collection[str]) -> Graph:
    """`graph`, with a node of jquant's own for each Slice whose ends are its starts and known lengths.

    Args:
      replaced: the operators for which the caller has functions.
    """
    if _SLICE in replaced:
        return graph
    arrays = graph.arrays()
    producers = {name: node for node in graph.walk() for name in node.outputs}
    parts = {node: _part(node, arrays, producers) for node in graph.walk() if node.qualified_operator == _SLICE}
    replacements = {node: part for node, part in parts.items() if part is not None}
    return rewritten(graph, replacements) if replacements else graph


def _part(node: Node, arrays: Mapping[str, np.ndarray], producers: Mapping[str, Node]) -> Node | None:
    """The node in place of a Slice; None if its length is not known, or if it could begin outside of a known range."""
    data, starts, ends, axes, steps = (*node.inputs, "", "")[:5] if node.version >= _SINCE else [""] * 5
    end = producers.get(ends)
    if starts in arrays or end is None or end.qualified_operator != "Add" or starts not in end.inputs:
        return None
    (other,) = (name for name in end.inputs if name != starts) if len(set(end.inputs)) == 2 else (starts,)
    lengths = arrays.get(other)
    has_axes = not axes or axes in arrays
    has_steps = not steps or (steps in arrays and bool(np.all(arrays[steps] == 1)))
    if lengths is None or not has_axes or not has_steps:
        return None
    low, high = (np.broadcast_to(bound, lengths.shape) for bound in _range(starts, arrays, producers))
    if lengths.ndim != 1 or lengths.min(initial=0) < 0 or low.min(initial=0) < 0 or high.max(initial=0) == _LIMITS.max:
        return None
    attributes = {
        "lengths": lengths.tolist(),
        "axes": arrays[axes].tolist() if axes else list(range(lengths.size)),
        "last": high.tolist(),
    }
    return dataclasses.replace(node, domain=JQUANT, operator=PART, inputs=(data, starts), attributes=attributes)


def _range(name: str, arrays: Mapping[str, np.ndarray], producers: Mapping[str, Node]) -> _Range:
    """What Max and Min of known numbers say about a value."""
    if name in arrays:
        array = arrays[name]
        return _Range(array, array) if array.dtype.kind in "iu" else _ANY
    node = producers.get(name)
    if node is None or node.domain != DEFAULT_DOMAIN:
        return _ANY
    if node.operator == "Cast" and node.attributes.get("to") in _INTEGERS:
        return _range(node.inputs[0], arrays, producers)
    if node.operator not in _BOUNDS:
        return _ANY
    ranges = [_range(each, arrays, producers) for each in node.inputs]
    return _Range(*(functools.reduce(_BOUNDS[node.operator], bounds) for bounds in zip(*ranges, strict=True)))
