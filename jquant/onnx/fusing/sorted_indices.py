"""Indices in the order of floats, as `jquant.onnx.export` writes them: TopK of the floats in float64, with NaN as infinity.

JAX has no float64 outside of its 64-bit mode, and sorts NaN to the end itself.
"""

import dataclasses
from collections.abc import Collection, Mapping

import numpy as np
import onnx

from jquant.onnx.graphs.graph import JQUANT, Graph, Node, read_counts, rewritten

INDICES = "indices_in_order"  # in jquant's own domain
_TOP_K = "TopK"


def with_indices(graph: Graph, replaced: Collection[str]) -> Graph:
    """`graph`, with a node of jquant's own for each TopK whose result is the indices in the order of floats.

    Args:
      replaced: the operators for which the caller has functions.
    """
    if _TOP_K in replaced:
        return graph
    arrays, reads = graph.arrays(), read_counts(graph)
    producers = {name: node for node in graph.walk() for name in node.outputs}
    replacements, unread = {}, set()
    for node in graph.walk():
        found = (
            _wide_key(node, arrays, producers) if node.qualified_operator == _TOP_K and not reads[node.outputs[0]] else []
        )
        if found and node.attributes.get("largest", 1) == 0 and node.attributes.get("sorted", 1):
            key, count = producers[found[-1]].inputs[0], node.inputs[1]
            attributes = {"axis": node.attributes.get("axis", -1)}
            names = {"inputs": (key, count), "outputs": node.outputs[1:], "attributes": attributes}
            replacements[node] = dataclasses.replace(node, domain=JQUANT, operator=INDICES, **names)
            reads[node.inputs[0]] -= 1
            for name in found:  # from the last one to the first
                if reads[name]:
                    break
                unread.add(name)
                reads.subtract(producers[name].inputs)
    if not replacements:
        return graph
    unread |= {name for name, array in arrays.items() if array.dtype == np.float64 and not reads[name]}
    return rewritten(graph, replacements, unread)


def _wide_key(node: Node, arrays: Mapping[str, np.ndarray], producers: Mapping[str, Node]) -> list[str]:
    """The values between the floats and the operand of a TopK, the last one first; none if they are others."""
    chosen = producers.get(node.inputs[0])
    if chosen is None or chosen.qualified_operator != "Where":
        return []
    is_nan, largest, below = chosen.inputs
    least, test = producers.get(below), producers.get(is_nan)
    if least is None or test is None or (least.qualified_operator, test.qualified_operator) != ("Min", "IsNaN"):
        return []
    wide, bound = (*least.inputs, "", "")[:2]
    cast = producers.get(wide)
    if cast is None or cast.qualified_operator != "Cast" or cast.attributes.get("to") != onnx.TensorProto.DOUBLE:
        return []
    narrow = producers.get(test.inputs[0])
    tested = narrow.inputs[0] if narrow is not None and narrow.qualified_operator == "Cast" else test.inputs[0]
    infinite, finite = arrays.get(largest), arrays.get(bound)
    if infinite is None or finite is None or not infinite.size or not finite.size or tested != cast.inputs[0]:
        return []
    fits = np.all(np.isposinf(infinite)) and np.all((finite > np.finfo(np.float32).max) & np.isfinite(finite))
    return [chosen.outputs[0], below, wide] if fits else []
