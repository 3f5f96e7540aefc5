"""Limits the size of results, so that a malformed model cannot use up all memory."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import onnx

from jquant.errors import ModelError
from jquant.onnx.running.registry import Converter

LARGEST = 2**31  # bytes of a result that is more than `_GROWTH` times as large as all that the model is given
# Bytes of all that NumPy computes while a program is traced, and of what stands for few bytes of a file.
LARGEST_KNOWN = 2**28
_GROWTH = 100
_MOST_NODES = 2**17  # of functions that are expanded, where they are more than `_GROWTH` times those in the file


class Budget:
    """What a model may take, from what it is given: a limit for each node would let them grow from node to node.

    Args:
      given: the bytes of its parameters and inputs.
    """

    def __init__(self, given: int = 0):
        self.largest = max(LARGEST, _GROWTH * given)
        self.known = LARGEST_KNOWN + given

    def take(self, results: Any) -> None:
        """Counts what NumPy has computed, without views."""
        self.known -= sum(x.nbytes for x in jax.tree.leaves(results) if isinstance(x, np.ndarray) and x.flags.owndata)


def budget(values: Any) -> Budget:
    """The budget of a model with these parameters and inputs."""
    return Budget(sum(map(bytes_of, jax.tree.leaves(values))))


def check_known(entry: Converter, operands: Sequence[Any], keywords: Mapping[str, Any], limit: int) -> None:
    """Checks the size of results before NumPy computes them.

    Raises:
      ModelError: results that would be larger than `limit`.
    """
    if keywords.get("xp") is not np or any(getattr(operand, "dtype", None) == np.dtype(object) for operand in operands):
        return
    arrays = [operand for operand in operands if isinstance(operand, np.ndarray)]
    if not entry.expands and math.prod(max(1, array.size) for array in arrays) * 16 <= limit:
        return
    traced = [i for i, operand in enumerate(operands) if isinstance(operand, np.ndarray) and not _stays_numpy(entry, i)]

    def results(*tracers: jax.Array) -> Any:
        arguments = list(operands)
        for position, tracer in zip(traced, tracers, strict=True):
            arguments[position] = tracer
        return entry.call(arguments, {**keywords, "xp": jnp})

    shapes = jax.eval_shape(results, *(jax.ShapeDtypeStruct(operands[i].shape, np.int32) for i in traced))
    check(shapes, limit)


def _stays_numpy(entry: Converter, position: int) -> bool:
    return entry.operand(position) in entry.static | entry.prefers_static


def check(results: Any, limit: int) -> None:
    """Checks the size of results while JAX traces a program, before they are computed.

    Raises:
      ModelError: a result that is larger than `limit`.
    """
    for result in jax.tree.leaves(results):
        if bytes_of(result) > limit:
            raise ModelError(f"a result would be {result.dtype}{list(result.shape)}, which is {bytes_of(result):,} bytes")


def check_shape(shape: Sequence[Any], dtype: Any, operand: Any) -> None:
    """Checks a result of `operand` before tables for it are made. Symbolic sizes have no limit.

    Raises:
      ModelError: a result larger than `LARGEST` and than `_GROWTH` times the operand.
    """
    if all(isinstance(size, int | np.integer) for size in shape):
        check(jax.ShapeDtypeStruct(tuple(shape), dtype), max(LARGEST, _GROWTH * bytes_of(operand)))
        most = max(LARGEST_KNOWN, _GROWTH * bytes_of(operand))
        if max(shape, default=0) * 8 > most:  # a table has an element of 8 bytes for each place along an axis
            raise ModelError(f"a result would be {dtype}{list(shape)}, whose tables are too large")


def check_expanded(model: onnx.ModelProto) -> None:
    """Checks what the functions of a model come to, before they are expanded.

    Raises:
      ModelError: functions that call themselves, or with far more nodes, or bytes, than the file.
    """
    functions = {(each.domain, each.name, each.overload): each for each in model.functions}
    sizes: dict[Any, _Size | None] = {}

    def size_of(nodes: Iterable[onnx.NodeProto]) -> _Size:
        count = volume = 0
        for node in nodes:
            key = node.domain, node.op_type, node.overload
            inner = called(key) if key in functions else _Size(1, node.ByteSize())
            bodies = [size_of(graph.node) for each in node.attribute for graph in (each.g, *each.graphs)]
            count += inner.nodes + sum(body.nodes for body in bodies)
            volume += inner.bytes + sum(body.bytes for body in bodies)
        return _Size(count, volume)

    def called(key: Any) -> _Size:
        if key not in sizes:
            sizes[key] = None
            sizes[key] = size_of(functions[key].node)
        size = sizes[key]
        if size is None:
            raise ModelError(f"the function {key[1]!r} of the domain {key[0]!r} calls itself")
        return size

    total = size_of(model.graph.node)
    in_file = len(model.graph.node) + sum(len(each.node) for each in model.functions)
    if total.nodes > max(_MOST_NODES, _GROWTH * in_file) or total.bytes > max(LARGEST_KNOWN, _GROWTH * model.ByteSize()):
        raise ModelError(
            f"its functions would be {total.nodes:,} nodes of {total.bytes:,} bytes, in place of {in_file:,} nodes"
        )


class _Size(NamedTuple):
    nodes: int
    bytes: int


def check_sparse(dense: int, sparse: int) -> None:
    """Checks the bytes of the dense tensors of all sparse ones, before they are made.

    Raises:
      ModelError: more than `LARGEST_KNOWN`, and than `_GROWTH` times what the file has.
    """
    if dense > max(LARGEST_KNOWN, _GROWTH * sparse):
        raise ModelError(f"its sparse tensors would be {dense:,} bytes, of which the file has {sparse:,}")


def bytes_of(value: Any) -> int:
    """The bytes of an array; 0 for anything else, and if a size is symbolic."""
    if not hasattr(value, "dtype") or any(map(jax.export.is_symbolic_dim, value.shape)):
        return 0
    return math.prod(value.shape) * np.dtype(value.dtype).itemsize
