"""Embedding tables that are the matrix of the output layer, too.

Files have one constant for both, which MatMulNBits multiplies by, and whose rows GatherBlockQuantized looks up. The product
wants it in another layout: with the look-up as one of columns of the same matrix, it can be packed when the model is loaded.
"""

import dataclasses
from collections.abc import Collection

from jquant.errors import ModelError
from jquant.onnx.graphs import n_bits
from jquant.onnx.graphs.graph import JQUANT, MICROSOFT, Graph, Node, read_counts, rewritten

COLUMNS = "columns_of_n_bits"  # in jquant's own domain
_GATHER, _RESHAPE = f"{MICROSOFT}.GatherBlockQuantized", "Reshape"
_DEFAULTS = {"bits": 4, "block_size": 128, "gather_axis": 0, "quantize_axis": 1}


def with_columns(graph: Graph, replaced: Collection[str]) -> Graph:
    """`graph`, with a node of jquant's own for each GatherBlockQuantized that reads a matrix of a MatMulNBits.

    A Reshape before it, of the matrix to the two dimensions of a table, goes where nothing else reads its result.

    Args:
      replaced: the operators for which the caller has functions.
    """
    if _GATHER in replaced:
        return graph
    nodes, arrays = list(graph.walk()), graph.arrays()
    tables = {name: (name, array.shape) for name, array in arrays.items()}
    reshapes = {}
    for node in nodes:
        if node.qualified_operator == _RESHAPE and len(node.inputs) == 2 and all(name in arrays for name in node.inputs):
            matrix, shape = node.inputs
            tables[node.outputs[0]] = matrix, tuple(arrays[shape].ravel().tolist())
            reshapes[node.outputs[0]] = shape
    products = (node for node in nodes if node.qualified_operator == n_bits.MATMUL_N_BITS and len(node.inputs) > 2)
    matrices = {node.inputs[1]: node for node in products}
    looked_up = {}
    for node in nodes:
        if node.qualified_operator == _GATHER and len(node.inputs) > 2 and node.inputs[0] in tables:
            matrix, shape = tables[node.inputs[0]]
            product = matrices.get(matrix)
            if product is not None and (sizes := _sizes(node, product, shape)) is not None:
                looked_up[node] = dataclasses.replace(
                    node,
                    domain=JQUANT,
                    operator=COLUMNS,
                    inputs=(node.inputs[1], matrix, *node.inputs[2:]),
                    attributes={"K": sizes.rows, "N": sizes.columns, "bits": sizes.bits, "block_size": sizes.block_size},
                )
    if not looked_up:
        return graph
    reads = read_counts(graph)
    reads.subtract(node.inputs[0] for node in looked_up)
    unread = {name for name in reshapes if not reads[name]}
    reads.subtract(reshapes[name] for name in unread)
    return rewritten(graph, looked_up, unread | {reshapes[name] for name in unread if not reads[reshapes[name]]})


def _sizes(look_up: Node, product: Node, table: tuple[int, ...]) -> n_bits.Sizes | None:
    """The sizes of a product's matrix, if `look_up` reads it as a table of that shape, with the product's parameters."""
    attributes = {name: product.attributes[name] for name in ("K", "N", "bits", "block_size") if name in product.attributes}
    try:
        sizes = n_bits.sizes(**attributes)
    except ModelError:
        return None  # which is reported when the matrix is packed
    expected = {"bits": sizes.bits, "block_size": sizes.block_size, "gather_axis": 0}
    actual = {**_DEFAULTS, **look_up.attributes}
    fits = all(actual[name] == value for name, value in expected.items()) and actual["quantize_axis"] in (1, -1)
    fits = fits and _parameters(look_up) == _parameters(product)
    return sizes if fits and table == (sizes.columns, sizes.rows * sizes.bits // 8) else None


def _parameters(node: Node) -> tuple[str, ...]:
    """The names of the scales and of the zero points, "" for those that are left out: in both operators at these places."""
    return (*node.inputs, "")[2:4]
