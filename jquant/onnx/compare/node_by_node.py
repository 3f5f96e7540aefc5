"""Compares each node of a model with onnxruntime's."""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jax.typing import ArrayLike

from jquant.onnx.compare.measures import arrays, deviation_of, is_integer
from jquant.onnx.graphs.graph import Node
from jquant.onnx.graphs.values import is_static, to_jax
from jquant.onnx.loader import load
from jquant.onnx.onnxruntime_session import SATURATION, Inputs, intermediate, saturates
from jquant.onnx.reading import files


@dataclasses.dataclass
class Row:
    """The comparison of all nodes of one operator.

    Attributes:
      nodes: how many nodes were compared.
      integers, different: how many integers were compared, and how many of them differ.
      deviation: the largest absolute difference of floats; infinite if only one of the two is NaN.
    """

    operator: str
    nodes: int = 0
    integers: int = 0
    different: int = 0
    deviation: float = 0.0


def nodes(
    source: files.Source,
    inputs: Inputs,
    *,
    constants: Mapping[str, ArrayLike] | None = None,
    progress: Callable[[Iterable[Any], int], Iterable[Any]] | None = None,
) -> list[Row]:
    """Compares each node with onnxruntime's, with optimizations off. Both get the operands that onnxruntime computes.

    Values inside subgraphs and functions are not compared, because onnxruntime does not show them: nodes there read what
    jquant computed.

    Args:
      source, constants: as in `load`.
      inputs: an array for every input of the model that is not a constant.
      progress: called with the numbers of the nodes and their count; returns an iterable of the same numbers that shows
        the progress.

    Returns:
      A `Row` for each operator, by name.

    Raises:
      ImportError: onnxruntime is not installed.
      ModelError: as `load` and the call of the model do, and if onnxruntime does not accept the model.
    """
    proto = files.read(source).whole()
    model = load(proto, constants=constants, fold=False)
    expected = intermediate(proto, {**inputs, **arrays(constants or {})})
    rows: dict[str, Row] = collections.defaultdict(lambda: Row(""))
    count = sum(1 for node in proto.graph.node if node.op_type != "Constant")
    ticks: Iterator[Any] = iter(() if progress is None else progress(range(count), count))

    def watch(node: Node, _: list[Any], results: tuple[Any, ...]) -> tuple[Any, ...]:
        values = [expected.get(name) for name in node.outputs]
        if all(value is None for value in values):
            return results
        next(ticks, None)
        row = rows[node.qualified_operator]
        row.nodes += 1
        replaced = list(results)
        for index, (name, value) in enumerate(zip(node.outputs, values, strict=True)):
            if value is not None:
                _add(row, results[index], value)
                replaced[index] = _like(results[index], value, name)
        return tuple(replaced)

    model.watched(inputs, watch)
    next(ticks, None)
    return [dataclasses.replace(row, operator=operator) for operator, row in sorted(rows.items())]


def _like(actual: Any, expected: Any, name: str) -> Any:
    """onnxruntime's value, static if `actual` is; `actual` if onnxruntime's integers need more than 32 bits."""
    if isinstance(expected, list):
        return [_like(mine, theirs, name) for mine, theirs in zip(actual, expected, strict=True)]
    if is_static(actual):
        return expected
    is_narrowed = expected.dtype == np.int64 and actual.dtype == np.int32
    if is_narrowed and expected.size and not np.array_equal(expected, expected.astype(np.int32)):
        return actual  # they were counted as different
    return to_jax(expected, repr(name))


def _add(row: Row, actual: Any, expected: Any) -> None:
    """Adds the comparison of one result to the row of its operator."""
    if isinstance(expected, list):
        for mine, theirs in zip(actual, expected, strict=True):
            _add(row, mine, theirs)
        return
    actual = np.asarray(actual)
    if not is_integer(expected):
        row.deviation = max(row.deviation, deviation_of(actual, expected))
        return
    row.integers += expected.size
    if actual.shape != expected.shape:
        row.different += expected.size
    else:
        row.different += int(np.count_nonzero(actual.astype(np.int64) != expected.astype(np.int64)))


def table(rows: Sequence[Row]) -> str:
    """The comparison of nodes as lines of text, which say so if integers differ and onnxruntime's products saturate."""
    title = "largest absolute deviation of floats"
    lines = [f"  {'operator':<28} {'nodes':>6} {'integers':>13} {'different':>10} {title:>37}"]
    for row in rows:
        counts = f"{row.nodes:>6,} {row.integers:>13,} {row.different:>10,}"
        lines.append(f"  {row.operator:<28} {counts} {row.deviation:>37.3g}")
    total = [sum(getattr(row, name) for row in rows) for name in ("nodes", "integers", "different")]
    lines.append(f"  {'all':<28} {total[0]:>6,} {total[1]:>13,} {total[2]:>10,}")
    if total[2] and saturates():
        lines.append(SATURATION)
    return "\n".join(lines)
