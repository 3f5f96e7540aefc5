"""Packs constants that only products and look-ups of columns read, as integer matrices, when a model is loaded."""

import collections
from collections.abc import Collection, Mapping, MutableMapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jquant.arithmetic import subbyte
from jquant.errors import ModelError
from jquant.onnx.graphs import n_bits
from jquant.onnx.graphs.graph import Graph, Node
from jquant.onnx.running import registry
from jquant.operators.pack_matrix import pack_matrix
from jquant.packed.block_matrix import PackedBlockMatrix
from jquant.packed.matrix import PackedMatrix


class IntegerMatrix(NamedTuple):
    """How to pack a matrix of int8 or uint8.

    Attributes:
      zero_point: the name of its zero point; None for 0.
      transposed: whether it is transposed first.
    """

    zero_point: str | None
    transposed: bool

    @property
    def parameters(self) -> tuple[str | None, ...]:
        """The names of the other constants that the matrix is packed with, None for one that is left out."""
        return (self.zero_point,)

    @property
    def absorbed(self) -> tuple[str | None, ...]:
        """The parameters that the node does not read any more. It reads the zero point in case a caller passes a matrix that
        is not packed."""
        return ()

    def pack(self, matrix: np.ndarray, zero_point: np.ndarray | None) -> PackedMatrix | None:
        """The packed matrix; None if it cannot be packed.

        A zero point of 0, which symmetric weights have in files, is left out: then products need no row sums. A batch of
        matrices may have one for each matrix, (batch,), or for each of their columns, (batch, columns).
        """
        if matrix.dtype not in (np.int8, np.uint8) or not 2 <= matrix.ndim <= 8 or not matrix.size:
            return None
        matrix = np.swapaxes(matrix, -1, -2) if self.transposed else matrix
        if zero_point is not None:
            is_per_column = zero_point.shape[-1:] == matrix.shape[-1:] == (zero_point.size,)
            is_per_matrix = matrix.ndim == 3 and zero_point.shape in (matrix.shape[:1], matrix.shape[::2])
            if zero_point.dtype != matrix.dtype or not (zero_point.size == 1 or is_per_column or is_per_matrix):
                return None
            zero_point = zero_point if np.any(zero_point) else None
            if zero_point is not None and zero_point.size > 1 and not is_per_column:
                return jax.vmap(pack_matrix)(matrix, zero_point)
            zero_point = None if zero_point is None else zero_point.reshape(-1 if zero_point.size > 1 else ())
        return pack_matrix(matrix, zero_point)

    def unpack(self, packed: PackedMatrix) -> tuple[np.ndarray, ...]:
        """The matrix as the file has it."""
        matrix = np.asarray(packed.unpack())
        return (np.swapaxes(matrix, -1, -2) if self.transposed else matrix,)


class BlockMatrix(NamedTuple):
    """How to pack a matrix of few bits in blocks, as in onnxruntime's MatMulNBits.

    Attributes:
      scales, zero_points: the names of its scales and zero points; None for zero points in the middle of the range.
      sizes: of the matrix.
    """

    scales: str
    zero_points: str | None
    sizes: n_bits.Sizes

    @property
    def parameters(self) -> tuple[str | None, ...]:
        """The names of the other constants that the matrix is packed with, None for one that is left out."""
        return self.scales, self.zero_points

    @property
    def absorbed(self) -> tuple[str | None, ...]:
        """The parameters that the node does not read any more."""
        return self.parameters

    def pack(self, matrix: np.ndarray, scales: np.ndarray, zero_points: np.ndarray | None) -> PackedBlockMatrix | None:
        """The packed matrix; None if it does not have 4 or 8 bits, or if its zero points are not integers.

        Without zero points, values become signed.
        """
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

    def unpack(self, packed: PackedBlockMatrix) -> tuple[np.ndarray, ...]:
        """The matrix as the file has it, its scales, and its zero points if it has any."""
        _, n, bits, block_size = self.sizes
        values = np.asarray(packed.unpack()).astype(np.int16)
        if np.dtype(packed.dtype) in (jnp.int4, np.int8):
            values += 2 ** (bits - 1)
        scale = np.asarray(packed.scale).T
        rows = np.zeros((n, scale.shape[1] * block_size), np.uint8)
        rows[:, : values.shape[0]] = values.T
        matrix = np.asarray(subbyte.packed(jnp.asarray(rows), bits, 1)).reshape(*scale.shape, -1)
        if packed.zero_point is None:
            return matrix, scale
        zero_point = jnp.asarray(packed.zero_point, jnp.uint8).T
        return matrix, scale, np.asarray(subbyte.packed(zero_point, bits, 1))


class WeightOnlyMatrix(NamedTuple):
    """How to pack integers in the order of a product with floats, (K, N), as `fusing.widened_weights` leaves them.

    Attributes:
      scales, zero_points: the names of its scales and zero points, of shape (G, N); None for zero points of 0.
      block_size: how many rows share a scale.
    """

    scales: str
    zero_points: str | None
    block_size: int

    @property
    def parameters(self) -> tuple[str | None, ...]:
        """The names of the other constants that the matrix is packed with, None for one that is left out."""
        return self.scales, self.zero_points

    @property
    def absorbed(self) -> tuple[str | None, ...]:
        """The parameters that the node does not read any more."""
        return self.parameters

    def pack(self, matrix: np.ndarray, scales: np.ndarray, zero_points: np.ndarray | None) -> PackedBlockMatrix:
        return pack_matrix(matrix, zero_points, scale=scales, block_size=self.block_size)


class Packed(NamedTuple):
    """The packed matrices of a graph.

    Attributes:
      matrices: the packed matrices, by the names of the constants that they are made from.
      absorbed: the names of scales and zero points that nothing reads any more, because packed matrices hold them.
    """

    matrices: Mapping[str, PackedMatrix | PackedBlockMatrix]
    absorbed: frozenset[str]


def packed(
    graph: Graph, constants: MutableMapping[str, np.ndarray], static: Collection[str], replaced: Collection[str]
) -> Packed:
    """Packs the constants that all their readers would pack in the same way.

    Their zero points and scales must be constant, too.

    Args:
      constants: by name. A matrix is removed as it is packed, so that of all matrices memory holds one twice.
      static: the names of values that must stay NumPy arrays.
      replaced: the operators for which the caller has functions, which take the operands as the file has them.
    """
    nodes = [(node, [packing_of(node, i, replaced) for i in range(len(node.inputs))]) for node in graph.walk()]
    roles: dict[str, set[Any]] = {}
    for node, packings in nodes:
        for name, packing in zip(node.inputs, packings, strict=True):
            roles.setdefault(name, set()).add(packing)
    outputs = {value.name for scope in graph.scopes() for value in scope.outputs}
    matrices = {}
    for name, packings in roles.items():
        if name not in constants or name in static or name in outputs or len(packings) != 1 or None in packings:
            continue
        (packing,) = packings
        if any(parameter and parameter not in constants for parameter in packing.parameters):
            continue
        parameters = (constants[parameter] if parameter else None for parameter in packing.parameters)
        matrix = packing.pack(constants[name], *parameters)
        if matrix is not None:
            matrices[name] = matrix
            del constants[name]
    reads = collections.Counter(name for node, _ in nodes for name in node.inputs)
    for node, packings in nodes:
        for name, packing in zip(node.inputs, packings, strict=True):
            if packing is not None and name in matrices:
                reads.subtract(filter(None, packing.absorbed))
    absorbed = {name for name in constants if name in reads and not reads[name]}
    return Packed(matrices=matrices, absorbed=frozenset(absorbed - matrices.keys() - outputs - set(static)))


def packing_of(
    node: Node, position: int, replaced: Collection[str] = ()
) -> IntegerMatrix | BlockMatrix | WeightOnlyMatrix | None:
    """How a node would pack the operand at a position; None if it would not."""
    entry = registry.find(node)
    operand = entry.operand(position) if entry and node.qualified_operator not in replaced else ""
    if entry is None or not operand:
        return None

    def value(name: str) -> str | None:
        index = entry.position(name) if name in entry.operands else len(node.inputs)
        return (node.inputs[index] or None) if index < len(node.inputs) else None

    if operand in entry.packs:
        transposed = entry.transposed_by and node.attributes.get(entry.transposed_by, 0)
        return IntegerMatrix(zero_point=value(entry.packs[operand]), transposed=bool(transposed))
    if operand == "B" and entry.packs_widened:
        scales = value("scales")
        assert scales is not None
        return WeightOnlyMatrix(scales, value("zero_points"), node.attributes["block_size"])
    if operand == "B" and entry.packs_blocks and not value("g_idx") and not node.attributes.get("weight_prepacked", 0):
        scales = value("scales")
        if scales is None:
            return None
        attributes = {name: node.attributes[name] for name in ("K", "N", "bits", "block_size") if name in node.attributes}
        try:
            sizes = n_bits.sizes(**attributes)
        except ModelError as error:
            raise ModelError(f"{node.title}: {error}") from error
        return BlockMatrix(scales=scales, zero_points=value("zero_points"), sizes=sizes)
    return None
