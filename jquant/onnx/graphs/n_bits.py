"""The attributes of onnxruntime's MatMulNBits."""

import dataclasses
from typing import Any, NamedTuple

from jquant.errors import ModelError
from jquant.onnx.graphs.graph import JQUANT, MICROSOFT, Graph

MATMUL_N_BITS = f"{MICROSOFT}.MatMulNBits"
OF_INT8_ROWS = "matmul_n_bits_of_int8_rows"  # in jquant's own domain
_INT8 = 4  # the `accuracy_level` that allows to round the operand to int8


class Sizes(NamedTuple):
    """The sizes of a matrix in blocks.

    Attributes:
      rows, columns: of the matrix.
      bits: of an element.
      block_size: how many rows share a scale.
    """

    rows: int
    columns: int
    bits: int
    block_size: int


def sizes(K: Any = None, N: Any = None, bits: Any = 4, block_size: Any = None) -> Sizes:
    """The sizes that the attributes of a MatMulNBits state.

    Raises:
      ModelError: an attribute that is missing, or that no matrix can have.
    """
    for name, value in {"K": K, "N": N, "block_size": block_size}.items():
        if type(value) is not int or value < 1:
            actual = "missing" if value is None else str(value)
            raise ModelError(f"its attribute {name} is {actual}; it must be a positive integer")
    if type(bits) is not int or bits not in (2, 4, 8):
        raise ModelError(f"its attribute bits is {bits}; supported are 2, 4 and 8")
    if block_size * bits % 8:
        raise ModelError(
            f"its attribute block_size is {block_size}; blocks of integers of {bits} bits must fill whole bytes"
        )
    return Sizes(rows=K, columns=N, bits=bits, block_size=block_size)


def with_int8_rows(graph: Graph) -> Graph:
    """`graph`, with a node of jquant's own in the place of each MatMulNBits whose `accuracy_level` allows int8."""
    nodes = []
    for node in graph.nodes:
        bodies = {name: with_int8_rows(body) for name, body in node.subgraphs.items()}
        node = dataclasses.replace(node, attributes={**node.attributes, **bodies})
        if node.qualified_operator == MATMUL_N_BITS and node.attributes.get("accuracy_level", 0) == _INT8:
            node = dataclasses.replace(node, domain=JQUANT, operator=OF_INT8_ROWS)
        nodes.append(node)
    return dataclasses.replace(graph, nodes=tuple(nodes))
