"""Compares a model with onnxruntime: node by node, end to end, and in time."""

import collections
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jquant.onnx import files
from jquant.onnx.graph import Node
from jquant.onnx.loader import load
from jquant.onnx.model import Model
from jquant.onnx.onnxruntime_session import Inputs, intermediate, run, session
from jquant.onnx.values import is_static, to_jax


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


@dataclasses.dataclass(frozen=True)
class Output:
    """The comparison of one output, end to end.

    Attributes:
      cosine: the cosine similarity, computed in float64.
      argmax: the share of positions at which the largest element of the last axis is the same.
      different: how many elements differ.
      deviation: the largest absolute difference.
    """

    name: str
    cosine: float
    argmax: float
    different: int
    deviation: float


@dataclasses.dataclass(frozen=True)
class Times:
    """Compile time, and the median call times of the model and of onnxruntime, which take turns, in seconds."""

    compiling: float
    model: float
    onnxruntime: float


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
    proto, _ = files.read(source)
    model = load(proto, constants=constants)
    expected = intermediate(proto, {**inputs, **_arrays(constants or {})})
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


def _arrays(constants: Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in constants.items()}


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
    if not _is_integer(expected):
        row.deviation = max(row.deviation, _deviation(actual, expected))
        return
    row.integers += expected.size
    if actual.shape != expected.shape:
        row.different += expected.size
    else:
        row.different += int(np.count_nonzero(actual.astype(np.int64) != expected.astype(np.int64)))


def _is_integer(array: np.ndarray) -> bool:
    return array.dtype == np.bool_ or jnp.issubdtype(array.dtype, jnp.integer)


def _deviation(actual: np.ndarray, expected: np.ndarray) -> float:
    """The largest absolute difference; infinite if the shapes differ, or if only one of two elements is NaN."""
    if actual.shape != expected.shape:
        return float("inf")
    if not actual.size:
        return 0.0
    wide = np.complex128 if np.iscomplexobj(expected) else np.float64
    a, b = actual.astype(wide), expected.astype(wide)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        deviations = np.where(same, 0, np.abs(a - b))
    return float("inf") if np.isnan(deviations).any() else float(deviations.max())


def end_to_end(
    model: Model, source: files.Source, inputs: Inputs, *, constants: Mapping[str, ArrayLike] | None = None, rounds: int = 10
) -> tuple[list[Output], Times]:
    """Compares the whole model under `jax.jit` with onnxruntime with all optimizations, and times both.

    Args:
      source: what `model` was loaded from.
      inputs: an array for every input of the model that is not a constant.
      constants: the constants that `model` was loaded with.
      rounds: how many calls to time.

    Raises:
      ImportError: onnxruntime is not installed.
      ModelError: onnxruntime does not accept the model.
    """
    proto, _ = files.read(source)
    reference = session(proto.SerializeToString(), optimized=True)
    feeds = {**inputs, **_arrays(constants or {})}
    arguments = model.params, {name: jnp.asarray(inputs[name]) for name in model.inputs}
    start = time.perf_counter()
    program = jax.jit(model).lower(*arguments).compile()
    compiling = time.perf_counter() - start
    actual, expected = program(*arguments), run(reference, feeds)
    outputs = [_output(name, np.asarray(actual[name]), expected[name]) for name in model.outputs]
    calls = (lambda: jax.block_until_ready(program(*arguments)), lambda: run(reference, feeds))
    model_seconds, onnxruntime_seconds = _medians(calls, rounds)
    return outputs, Times(compiling=compiling, model=model_seconds, onnxruntime=onnxruntime_seconds)


def _medians(calls: Sequence[Callable[[], Any]], rounds: int) -> list[float]:
    """The median time of each call, in seconds. The calls take turns."""
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, times in zip(calls, seconds, strict=True):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    return [statistics.median(times) for times in seconds]


def _output(name: str, actual: np.ndarray, expected: np.ndarray) -> Output:
    deviation = _deviation(actual, expected)
    if actual.shape != expected.shape:
        return Output(name=name, cosine=float("nan"), argmax=0.0, different=expected.size, deviation=deviation)
    a, b = actual.astype(np.float64).reshape(-1), expected.astype(np.float64).reshape(-1)
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    cosine = float(a @ b) / norms if norms else float(np.array_equal(a, b))
    argmax = 1.0
    if expected.size and expected.ndim:
        argmax = float(np.mean(np.argmax(actual, -1) == np.argmax(expected, -1)))
    different = int(np.count_nonzero(a != b))
    return Output(name=name, cosine=cosine, argmax=argmax, different=different, deviation=deviation)
