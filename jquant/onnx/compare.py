"""Compares a model with onnxruntime: node by node, end to end, and in time."""

import collections
import dataclasses
import importlib
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from jax.typing import ArrayLike

from jquant.errors import ModelError
from jquant.onnx import files
from jquant.onnx.graph import Node
from jquant.onnx.model import Model, load
from jquant.onnx.values import is_static, to_jax

Inputs = Mapping[str, np.ndarray]


@dataclasses.dataclass
class Row:
    """All nodes of one operator.

    Attributes:
      nodes: how many gave results that onnxruntime gives, too.
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
    """One output, end to end.

    Attributes:
      cosine: the cosine similarity of the two, as floats.
      argmax: the share of positions, without the last axis, at which the largest element is the same.
      different: the number of elements that are not equal.
      deviation: the largest absolute difference.
    """

    name: str
    cosine: float
    argmax: float
    different: int
    deviation: float


@dataclasses.dataclass(frozen=True)
class Times:
    """In seconds: compile time, and the median call times of the model and of onnxruntime, which take turns."""

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
    """Compares each node with onnxruntime's, with optimizations off, both given onnxruntime's values.

    Nodes inside subgraphs and functions have no such values: they use what was computed before them.

    Args:
      source: as in `load`.
      inputs: of all inputs of the model except the constants.
      progress: wraps the numbers of the nodes; its second argument is how many there are.

    Returns:
      A `Row` for each operator, by name.

    Raises:
      ImportError: onnxruntime is not installed.
      ModelError: as in `load` and in the model's call; or onnxruntime does not accept the model.
    """
    proto, _ = files.read(source)
    model = load(proto, constants=constants)
    theirs = intermediate(proto, {**inputs, **_arrays(constants or {})})
    rows: dict[str, Row] = collections.defaultdict(lambda: Row(""))
    count = sum(1 for node in proto.graph.node if node.op_type != "Constant")
    ticks: Iterator[Any] = iter(() if progress is None else progress(range(count), count))

    def watch(node: Node, _: list[Any], results: tuple[Any, ...]) -> tuple[Any, ...]:
        known = [theirs.get(name) for name in node.outputs]
        if any(value is not None for value in known):
            next(ticks, None)
            rows[node.kind].nodes += 1
        replaced = list(results)
        for place, (name, value) in enumerate(zip(node.outputs, known, strict=True)):
            if value is not None:
                _add(rows[node.kind], results[place], value)
                replaced[place] = _as(value, results[place], name)
        return tuple(replaced)

    model.watched(inputs, watch)
    next(ticks, None)
    return [dataclasses.replace(row, operator=operator) for operator, row in sorted(rows.items())]


def _arrays(constants: Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in constants.items()}


def _as(theirs: Any, ours: Any, name: str) -> Any:
    """onnxruntime's value, static if ours is; ours if its integers need more than 32 bits."""
    if isinstance(theirs, list):
        return [_as(each, mine, name) for each, mine in zip(theirs, ours, strict=True)]
    if is_static(ours):
        return theirs
    wide = theirs.dtype == np.int64 and ours.dtype == np.int32
    if wide and theirs.size and not np.array_equal(theirs, theirs.astype(np.int32)):
        return ours  # and counted as different
    return to_jax(theirs, repr(name))


def _add(row: Row, ours: Any, theirs: Any) -> None:
    if isinstance(theirs, list):
        for pair in zip(ours, theirs, strict=True):
            _add(row, *pair)
        return
    ours = np.asarray(ours)
    if not _is_integer(theirs):
        row.deviation = max(row.deviation, _deviation(ours, theirs))
        return
    row.integers += theirs.size
    if ours.shape != theirs.shape:
        row.different += theirs.size
    else:
        row.different += int(np.count_nonzero(ours.astype(np.int64) != theirs.astype(np.int64)))


def _is_integer(array: np.ndarray) -> bool:
    return array.dtype == np.bool_ or jnp.issubdtype(array.dtype, jnp.integer)


def _deviation(ours: np.ndarray, theirs: np.ndarray) -> float:
    if ours.shape != theirs.shape:
        return float("inf")
    if not ours.size:
        return 0.0
    wide = np.complex128 if np.iscomplexobj(theirs) else np.float64
    a, b = ours.astype(wide), theirs.astype(wide)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        found = np.where(same, 0, np.abs(a - b))
    return float("inf") if np.isnan(found).any() else float(found.max())


def intermediate(proto: onnx.ModelProto, inputs: Inputs) -> dict[str, Any]:
    """All values of the main graph, as onnxruntime computes them with optimizations off."""
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    declared = {value.name for value in model.graph.output}
    outputs = [name for node in model.graph.node for name in node.output if name and name not in declared]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    return run(session(model.SerializeToString(), optimized=False), inputs)


def session(model: bytes, *, optimized: bool) -> Any:
    """An onnxruntime session on two CPU threads that do not spin."""
    runtime = _runtime()
    options = runtime.SessionOptions()
    levels = runtime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    options.intra_op_num_threads = 2
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has exception types of its own
        raise ModelError(f"onnxruntime: {error}") from error


def run(session: Any, inputs: Inputs) -> dict[str, Any]:
    """The outputs by name. Inputs that the session does not have are left out."""
    given = {value.name: np.asarray(inputs[value.name]) for value in session.get_inputs() if value.name in inputs}
    names = [value.name for value in session.get_outputs()]
    try:
        return dict(zip(names, session.run(names, given), strict=True))
    except Exception as error:  # onnxruntime has exception types of its own
        raise ModelError(f"onnxruntime: {error}") from error


def _runtime() -> Any:
    try:
        return importlib.import_module("onnxruntime")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("the comparison needs onnxruntime: pip install onnxruntime", name="onnxruntime") from error


def end_to_end(
    model: Model, source: files.Source, inputs: Inputs, *, constants: Mapping[str, ArrayLike] | None = None, rounds: int = 10
) -> tuple[list[Output], Times]:
    """Compares the whole jitted model with onnxruntime with all optimizations, and times both.

    Raises:
      ImportError: onnxruntime is not installed.
    """
    proto, _ = files.read(source)
    theirs = session(proto.SerializeToString(), optimized=True)
    given = {**inputs, **_arrays(constants or {})}
    arguments = model.params, {name: jnp.asarray(inputs[name]) for name in model.inputs}
    start = time.perf_counter()
    program = jax.jit(model).lower(*arguments).compile()
    compiling = time.perf_counter() - start
    ours, expected = program(*arguments), run(theirs, given)
    outputs = [_output(name, np.asarray(ours[name]), expected[name]) for name in model.outputs]
    calls = (lambda: jax.block_until_ready(program(*arguments)), lambda: run(theirs, given))
    mine, other = _in_turn(calls, rounds)
    return outputs, Times(compiling, mine, other)


def _in_turn(calls: Sequence[Callable[[], Any]], rounds: int) -> list[float]:
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for place, call in enumerate(calls):
            start = time.perf_counter()
            call()
            seconds[place].append(time.perf_counter() - start)
    return [statistics.median(each) for each in seconds]


def _output(name: str, ours: np.ndarray, theirs: np.ndarray) -> Output:
    if ours.shape != theirs.shape:
        return Output(name, float("nan"), 0.0, theirs.size, float("inf"))
    a, b = ours.astype(np.float64).reshape(-1), theirs.astype(np.float64).reshape(-1)
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    cosine = float(a @ b) / norms if norms else float(np.array_equal(a, b))
    argmax = 1.0
    if theirs.size and theirs.ndim:
        argmax = float(np.mean(np.argmax(ours, -1) == np.argmax(theirs, -1)))
    return Output(name, cosine, argmax, int(np.count_nonzero(a != b)), _deviation(ours, theirs))
