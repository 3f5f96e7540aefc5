"""Packs constants that are only used as integer matrices in products, once, when a model is loaded."""

import collections
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jquant.arithmetic import subbyte
from jquant.errors import ModelError
from jquant.onnx import n_bits, registry
from jquant.onnx.graph import Graph, Node
from jquant.operators.pack_matrix import pack_matrix
from jquant.packed.block_matrix import PackedBlockMatrix
from jquant.packed.matrix import PackedMatrix


class Integers(NamedTuple):
    """A matrix of int8 or uint8: the name of its zero point, and whether it is transposed first."""

    zero_point: str | None
    transposed: bool

    @property
    def beside(self) -> tuple[str | None, ...]:
        return (self.zero_point,)

    @property
    def inside(self) -> tuple[str | None, ...]:
        return ()  # a matrix that is not packed may take the place of the packed one: its zero point is that of the node

    def pack(self, matrix: np.ndarray, zero_point: np.ndarray | None) -> PackedMatrix | None:
        """The packed matrix. A zero point of 0, which symmetric weights have in the file, is left out: it saves row sums."""
        if matrix.dtype not in (np.int8, np.uint8) or not 2 <= matrix.ndim <= 8 or not matrix.size:
            return None
        matrix = np.swapaxes(matrix, -1, -2) if self.transposed else matrix
        if zero_point is not None:
            is_of_columns = zero_point.shape[-1:] == matrix.shape[-1:] == (zero_point.size,)
            if zero_point.dtype != matrix.dtype or not (zero_point.size == 1 or is_of_columns):
                return None
            zero_point = zero_point.reshape(-1 if zero_point.size > 1 else ()) if np.any(zero_point) else None
        return pack_matrix(matrix, zero_point)


class Blocks(NamedTuple):
    """A matrix of few bits in blocks, as in onnxruntime's MatMulNBits, with the names of its scales and zero points."""

    scales: str
    zero_points: str | None
    sizes: n_bits.Sizes

    @property
    def beside(self) -> tuple[str | None, ...]:
        return self.scales, self.zero_points

    @property
    def inside(self) -> tuple[str | None, ...]:
        return self.beside

    def pack(self, matrix: np.ndarray, scales: np.ndarray, zero_points: np.ndarray | None) -> PackedBlockMatrix | None:
        """The packed matrix, for 4 and 8 bits and integer zero points. Without any (the middle), values become signed."""
        k, n, bits, block_size = self.sizes
        blocks = -(-k // block_size)
        is_packed = matrix.dtype == np.uint8 and matrix.size == n * blocks * (block_size * bits // 8) > 0
        if bits not in (4, 8) or not is_packed or scales.size != n * blocks:
            return None
        values = subbyte.unpacked(matrix.reshape(n, -1), bits)[:, :k].T
        scale = np.ascontiguousarray(scales.reshape(n, blocks).T)
        if zero_points is None:
            signed = jnp.int4 if bits == 4 else np.int8
            shifted = (values.astype(np.int16) - 2 ** (bits - 1)).astype(np.int8)
            return pack_matrix(shifted.astype(signed), scale=scale, block_size=block_size)
        if zero_points.dtype != np.uint8 or zero_points.size != n * -(-blocks * bits // 8):
            return None
        unsigned = jnp.uint4 if bits == 4 else np.uint8
        zero_point = subbyte.unpacked(zero_points.reshape(n, -1), bits)[:, :blocks].T
        return pack_matrix(values.astype(unsigned), zero_point.astype(unsigned), scale=scale, block_size=block_size)


class Packed(NamedTuple):
    """
    Attributes:
      matrices: the packed matrices, by the names of the constants that they are made from.
      within: the scales and zero points that nothing reads any more, because packed matrices hold them.
    """

    matrices: Mapping[str, PackedMatrix | PackedBlockMatrix]
    within: frozenset[str]


def packed(graph: Graph, static: Collection[str], replaced: Collection[str]) -> Packed:
    """Packs the constants that all their readers would pack in the same way.

    What is packed with them, their zero points and scales, must be constant, too.

    Args:
      static: the values that must stay NumPy arrays.
      replaced: the operators for which the caller has functions, which take the operands as they are in the file.
    """
    constants = {name: array for each in graph.scopes() for name, array in {**each.initializers, **each.constants}.items()}
    nodes = [(node, [_packing(node, i, replaced) for i in range(len(node.inputs))]) for node in graph.walk()]
    roles: dict[str, set[Any]] = {}
    for node, packings in nodes:
        for name, packing in zip(node.inputs, packings, strict=True):
            roles.setdefault(name, set()).add(packing)
    outputs = {value.name for each in graph.scopes() for value in each.outputs}
    found = {}
    for name, packings in roles.items():
        if name not in constants or name in static or name in outputs or len(packings) != 1 or None in packings:
            continue
        (packing,) = packings
        if any(each and each not in constants for each in packing.beside):
            continue
        matrix = packing.pack(constants[name], *(constants[each] if each else None for each in packing.beside))
        if matrix is not None:
            found[name] = matrix
    reads = collections.Counter(name for node, _ in nodes for name in node.inputs)
    for node, packings in nodes:
        for name, packing in zip(node.inputs, packings, strict=True):
            if packing is not None and name in found:
                reads.subtract(each for each in packing.inside if each)
    within = {name for name in constants if name in reads and not reads[name]}
    return Packed(found, frozenset(within - found.keys() - outputs - set(static)))


def _packing(node: Node, position: int, replaced: Collection[str]) -> Integers | Blocks | None:
    """How a node would pack the operand; None to leave it as it is."""
    entry = registry.find(node)
    operand = entry.operand(position) if entry and node.kind not in replaced else ""
    if entry is None or not operand:
        return None

    def given(name: str) -> str | None:
        place = entry.position(name)
        return (node.inputs[place] or None) if place < len(node.inputs) else None

    if operand in entry.packs:
        is_transposed = entry.transposed_by and node.attributes.get(entry.transposed_by, 0)
        return Integers(given(entry.packs[operand]), bool(is_transposed))
    if operand == "B" and entry.packs_blocks and not given("g_idx") and not node.attributes.get("weight_prepacked", 0):
        scales = given("scales")
        given_sizes = {name: node.attributes[name] for name in ("K", "N", "bits", "block_size") if name in node.attributes}
        try:
            return Blocks(scales, given("zero_points"), n_bits.sizes(**given_sizes)) if scales else None
        except ModelError as error:
            raise ModelError(f"{node.title}: {error}") from error
    return None
