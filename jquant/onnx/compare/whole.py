"""Compares a model with onnxruntime end to end, and in time."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jquant.onnx.compare.measures import arrays, deviation_of, same_argmax
from jquant.onnx.model import Model
from jquant.onnx.onnxruntime_session import Inputs, run, session
from jquant.onnx.reading import files


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
    proto = files.read(source).whole()
    reference = session(proto.SerializeToString(), optimized=True)
    feeds = {**inputs, **arrays(constants or {})}
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
    deviation = deviation_of(actual, expected)
    if actual.shape != expected.shape:
        return Output(name=name, cosine=float("nan"), argmax=0.0, different=expected.size, deviation=deviation)
    a, b = actual.astype(np.float64).reshape(-1), expected.astype(np.float64).reshape(-1)
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    cosine = float(a @ b) / norms if norms else float(np.array_equal(a, b))
    different = int(np.count_nonzero(a != b))
    return Output(name=name, cosine=cosine, argmax=same_argmax(actual, expected), different=different, deviation=deviation)
