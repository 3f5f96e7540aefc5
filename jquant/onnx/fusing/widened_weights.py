"""Products of floats with integer weights that the file widens: the integers stay, and the product widens them itself.

The file converts them to floats by Cast, and Sub and Mul of constants, or by DequantizeLinear, before MatMul or Gemm.
"""

import collections
import dataclasses
from collections.abc import Collection, Mapping

import jax.numpy as jnp
import numpy as np
import onnx

from jquant.onnx.fusing import quantization
from jquant.onnx.graphs.graph import DEFAULT_DOMAIN, JQUANT, Graph, Node, read_counts, rewritten

WEIGHT_ONLY = "matmul_of_widened_weights"  # in jquant's own domain
_PRODUCTS = frozenset({"MatMul", "Gemm"})
_INTEGERS = frozenset(map(np.dtype, (np.int8, np.uint8, jnp.int4, jnp.uint4)))
_SCALE, _ZERO_POINT = "/scale", "/zero_point"
_FLOATS = frozenset(map(np.dtype, (np.float32, np.float16, jnp.bfloat16)))


@dataclasses.dataclass(frozen=True, eq=False)
class _Weights:
    """A matrix of integers on its way to a product.

    Attributes:
      name: the constant that holds the integers.
      integers: in the order that they have here.
      computed: the values between the constant and the product, which nodes compute.
      scale, zero_point: of two dimensions, each of which is 1, that of the integers, or the number of blocks. None for 1
        and for 0.
      dtype: of the floats; None while they are integers.
      axis, block_size: along which the scales are of blocks; None if they are not.
      key: what the floats depend on: the names of constants, and what was done with them.
    """

    name: str
    integers: np.ndarray
    key: tuple[object, ...]
    computed: tuple[str, ...] = ()
    scale: np.ndarray | None = None
    zero_point: np.ndarray | None = None
    dtype: np.dtype | None = None
    axis: int | None = None
    block_size: int | None = None

    @property
    def rows_of_block(self) -> int:
        """How many rows of a column share a scale."""
        rows = self.integers.shape[0]
        return rows if self.block_size is None else min(self.block_size, rows)

    @property
    def is_by_block(self) -> bool:
        """Whether the scales and the zero points are those of all rows of a column, or of blocks of these."""
        by_block = (self._blocks, self.integers.shape[1])
        arrays = (array for array in (self.scale, self.zero_point) if array is not None)
        sizes = (pair for array in arrays for pair in zip(array.shape, by_block, strict=True))
        return self.axis in (None, 0) and all(size in (1, whole) for size, whole in sizes)

    @property
    def _blocks(self) -> int:
        return -(-self.integers.shape[0] // self.rows_of_block)

    def parts(self) -> dict[str, np.ndarray]:
        """The operands of a product: integers, scales, and zero points unless these are 0, by how their names end."""
        scale = np.ones((1, 1), self.dtype) if self.scale is None else self.scale
        parts = {"": np.ascontiguousarray(self.integers), _SCALE: self._by_block(scale)}
        if self.zero_point is not None and np.any(self.zero_point.astype(np.int16)):
            parts[_ZERO_POINT] = self._by_block(self.zero_point)
        return parts

    def _by_block(self, array: np.ndarray) -> np.ndarray:
        """An array with an element for each block of each column."""
        return np.ascontiguousarray(np.broadcast_to(array, (self._blocks, self.integers.shape[1])))

    def transposed(self) -> "_Weights":
        """The weights with their dimensions exchanged."""
        return dataclasses.replace(
            self,
            integers=self.integers.T,
            scale=None if self.scale is None else self.scale.T,
            zero_point=None if self.zero_point is None else self.zero_point.T,
            axis=None if self.axis is None else 1 - self.axis,
            key=(*self.key, "transposed"),
        )


def with_integer_weights(graph: Graph, replaced: Collection[str]) -> tuple[Graph, dict[str, int]]:
    """`graph`, with a node of jquant's own for each product by widened weights, and the numbers of these, by operator.

    The weights must be constants, and so must their scales, one for all, for each column or for each block of rows, and
    their zero points. Nothing else may read the floats; what else reads the integers gets those of the file.

    Args:
      replaced: the operators for which the caller has functions.
    """
    finder = _Finder(graph)
    products = [node for node in graph.walk() if node.qualified_operator in _PRODUCTS - set(replaced)]
    found = {node: weights for node in products if (weights := finder.weights_of(node)) is not None}
    while others := finder.with_other_readers(found):
        found = {node: weights for node, weights in found.items() if node not in others}
    if not found:
        return graph, {}
    computed = {name for weights in found.values() for name in weights.computed}
    unread = computed | _sources(graph, computed)
    names = {*graph.arrays(), *(value.name for scope in graph.scopes() for value in scope.inputs)}
    names |= {name for node in graph.walk() for name in node.outputs}
    replacements, arrays = _replacements(found, names - unread)
    result = rewritten(graph, replacements, unread)
    counts = collections.Counter(f"{node.operator} of integer weights" for node in found)
    return dataclasses.replace(result, initializers={**result.initializers, **arrays}), dict(counts)


def _sources(graph: Graph, computed: Collection[str]) -> set[str]:
    """The constants from which these values are computed, and that nothing else reads."""
    reads, sources = read_counts(graph), collections.Counter[str]()
    for node in graph.walk():
        if not set(node.outputs).isdisjoint(computed):
            sources.update(node.inputs)
    return {name for name, count in sources.items() if name and reads[name] == count}


def _replacements(
    found: Mapping[Node, "_Weights"], taken: Collection[str]
) -> tuple[dict[Node, Node], dict[str, np.ndarray]]:
    """The nodes that replace products, and the arrays that they read: once for all that read the same floats."""
    nodes: dict[Node, Node] = {}
    arrays: dict[str, np.ndarray] = {}
    names: dict[object, tuple[str, str, str]] = {}
    for node, weights in found.items():
        oriented = _oriented(node, weights)
        if oriented.key not in names:
            parts, name = oriented.parts(), _unused(weights.name, {*taken, *arrays})
            own = {end: _unused(name + end, {*taken, *arrays}) for end in parts}
            arrays |= {own[end]: part for end, part in parts.items()}
            names[oriented.key] = own[""], own[_SCALE], own.get(_ZERO_POINT, "")
        attributes = {key: value for key, value in node.attributes.items() if key != "transB"}
        nodes[node] = dataclasses.replace(
            node,
            domain=JQUANT,
            operator=WEIGHT_ONLY,
            inputs=(node.inputs[0], *names[oriented.key], *node.inputs[2:]),
            attributes={**attributes, "block_size": oriented.rows_of_block},
        )
    return nodes, arrays


def _unused(name: str, taken: Collection[str]) -> str:
    """The name, or another one that begins with it."""
    while name in taken:
        name += "/matrix"
    return name


class _Finder:
    """Finds the widened weights of a graph."""

    def __init__(self, graph: Graph):
        self._arrays = graph.arrays()
        self._producers = {name: node for node in graph.walk() for name in node.outputs if name}
        self._readers: dict[str, list[Node]] = collections.defaultdict(list)
        for node in graph.walk():
            for name in filter(None, node.inputs):
                self._readers[name].append(node)
        self._results = {value.name for scope in graph.scopes() for value in scope.outputs}

    def weights_of(self, node: Node) -> _Weights | None:
        """The weights that a product could widen itself; None if it could not."""
        if len(node.inputs) < 2 or node.inputs.count(node.inputs[1]) != 1:
            return None
        weights = self._widened(node.inputs[1])
        is_product = weights is not None and weights.dtype is not None and _oriented(node, weights).is_by_block
        return weights if is_product else None

    def with_other_readers(self, found: Mapping[Node, _Weights]) -> list[Node]:
        """The products whose weights something else reads as floats, or on the way there."""
        on_the_way = {name for weights in found.values() for name in weights.computed}

        def is_own(node: Node, name: str) -> bool:
            return node.inputs[1] == name if node in found else not on_the_way.isdisjoint(node.outputs)

        def is_shared(name: str) -> bool:
            return name in self._results or not all(is_own(node, name) for node in self._readers[name])

        shared = {name for name in on_the_way if is_shared(name)}
        return [node for node, weights in found.items() if not shared.isdisjoint(weights.computed)]

    def _widened(self, name: str) -> _Weights | None:
        """Integers, or the floats that nodes make of them."""
        array, node = self._arrays.get(name), self._producers.get(name)
        if array is not None:
            is_matrix = array.ndim == 2 and array.size and array.dtype in _INTEGERS
            return _Weights(name, array, key=(name,)) if is_matrix else None
        if node is None:
            return None
        if quantization.is_dequantize(node):
            result = self._dequantized(node)
        elif node.domain == DEFAULT_DOMAIN:
            result = self._by_operator(node)
        else:
            result = None
        return result and dataclasses.replace(result, computed=(*result.computed, name))

    def _by_operator(self, node: Node) -> _Weights | None:
        if node.operator == "Transpose" and list(node.attributes.get("perm", (1, 0))) == [1, 0]:
            weights = self._widened(node.inputs[0])
            return weights and weights.transposed()
        if node.operator == "Cast":
            weights, dtype = self._widened(node.inputs[0]), onnx.helper.tensor_dtype_to_np_dtype(node.attributes["to"])
            if weights is None or weights.dtype is not None or dtype not in _FLOATS:
                return None
            return dataclasses.replace(weights, dtype=dtype, key=(*weights.key, dtype))
        if node.operator == "Sub":
            return self._shifted(*node.inputs)
        if node.operator == "Mul":
            first, second = node.inputs
            return self._scaled(first, second) if second in self._arrays else self._scaled(second, first)
        return None

    def _shifted(self, name: str, constant: str) -> _Weights | None:
        """Floats less a zero point, if this is an integer that the type of the weights holds."""
        weights, by_column = self._floats(name, constant)
        if weights is None or by_column is None or weights.scale is not None or weights.zero_point is not None:
            return None
        limits, values = jnp.iinfo(weights.integers.dtype), by_column.astype(np.float32)
        if not np.all((values == np.rint(values)) & (values >= limits.min) & (values <= limits.max)):
            return None
        zero_point = values.astype(np.int16).astype(weights.integers.dtype)
        return dataclasses.replace(weights, zero_point=zero_point, key=(*weights.key, "Sub", constant))

    def _scaled(self, name: str, constant: str) -> _Weights | None:
        weights, scale = self._floats(name, constant)
        if weights is None or scale is None or weights.scale is not None:
            return None
        return dataclasses.replace(weights, scale=scale, key=(*weights.key, "Mul", constant))

    def _floats(self, name: str, constant: str) -> tuple[_Weights | None, np.ndarray | None]:
        """Floats, and a constant of two dimensions that broadcasts to them."""
        array = self._arrays.get(constant)
        weights = None if array is None else self._widened(name)
        if weights is None or array is None or array.ndim > 2 or array.dtype != weights.dtype:
            return None, None
        array = array.reshape((1,) * (2 - array.ndim) + array.shape)
        sizes = zip(array.shape, weights.integers.shape, strict=True)
        return weights, array if all(size in (1, whole) for size, whole in sizes) else None

    def _dequantized(self, node: Node) -> _Weights | None:
        x, scale, zero_point = (*node.inputs, "")[:3]
        weights = self._widened(x)
        if weights is None or weights.dtype is not None or scale not in self._arrays:
            return None
        if self._arrays[scale].dtype not in _FLOATS or (zero_point and zero_point not in self._arrays):
            return None
        scales, points = self._arrays[scale], self._arrays[zero_point] if zero_point else None
        axis, block_size = node.attributes.get("axis", 1), node.attributes.get("block_size", 0)
        if axis not in range(-2, 2) or (points is not None and points.dtype != weights.integers.dtype):
            return None
        if block_size:
            shape = list(weights.integers.shape)
            shape[axis] = -(-shape[axis] // block_size)
            if list(scales.shape) != shape:
                return None
        else:
            scales, points = (None if x is None else _along(x, axis % 2) for x in (scales, points))
        return dataclasses.replace(
            weights,
            scale=scales,
            zero_point=points,
            dtype=self._arrays[scale].dtype,
            axis=axis % 2 if block_size else None,
            block_size=block_size or None,
            key=(*weights.key, scale, zero_point, axis, block_size),
        )


def _along(x: np.ndarray, axis: int) -> np.ndarray:
    """A number, or one for each element along an axis, in two dimensions."""
    return x.reshape(1, 1) if x.size == 1 else x.reshape(-1, 1) if axis == 0 else x.reshape(1, -1)


def _oriented(node: Node, weights: _Weights) -> _Weights:
    """The weights as the product multiplies by them."""
    return weights.transposed() if node.attributes.get("transB", 0) else weights
