"""A workload, the contestants that can run it, and a row of the table."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.contestant import Unavailable
from benchmarks.measure import Times, measure
from benchmarks.models.profile import compiled, finish
from jquant.kernels import implementations
from jquant.kernels.native import shared_library
from jquant.modes import Implementation

FLOAT32, WITHOUT, NATIVE = "float32 in JAX", "jquant", "jquant with native"
ONNXRUNTIME, LLAMA_CPP, QWIX = "onnxruntime", "llama.cpp", "Qwix"
CONTESTANTS = FLOAT32, WITHOUT, NATIVE, ONNXRUNTIME, LLAMA_CPP, QWIX
REFERENCES = FLOAT32, ONNXRUNTIME, WITHOUT  # of the ratios: the first that runs the workload
OURS = {WITHOUT: Implementation.XLA, NATIVE: Implementation.NATIVE}
NO_LAYERS = "it runs models of architectures that it has, no layers and no ONNX files"


class Entry(NamedTuple):
    """A contestant, ready to be timed.

    Attributes:
      call: what is timed; it returns when the result is there.
      seconds: what preparing it took: to trace and compile a program, to create a session, to load a model.
      quality: what its results are worth.
    """

    call: Callable[[], Any]
    seconds: float
    quality: str


class Workload(NamedTuple):
    """What is measured.

    Attributes:
      name: what a call computes, or each of its steps.
      judged: what the quality is.
      makers: how each contestant is made ready, or why it cannot be. A maker may raise `Unavailable`, too.
      steps: of a call, such as tokens, whose time is given.
      share: of the rounds.
    """

    name: str
    judged: str
    makers: Mapping[str, Callable[[], Entry] | str]
    steps: int = 1
    share: float = 1

    def entries(self) -> tuple[dict[str, Entry], dict[str, str]]:
        """The contestants, and why others are absent."""
        entries, absent = {}, {}
        for name in CONTESTANTS:
            try:
                entries[name] = made(self.makers[name])
            except Unavailable as reason:
                absent[name] = str(reason)
            except Exception as error:  # other packages have types of their own, and may fail with the installed jax
                if name in (FLOAT32, *OURS):
                    raise
                absent[name] = f"it fails, with {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        return entries, absent


def made(maker: Callable[[], Entry] | str) -> Entry:
    if isinstance(maker, str):
        raise Unavailable(maker)
    return maker()


@contextlib.contextmanager
def by(contestant: str) -> Iterator[None]:
    """Programs that are lowered meanwhile have jquant-native's calls or XLA's operations.

    Raises:
      Unavailable: jquant-native cannot be used.
    """
    obstacle = shared_library.load().obstacle
    if contestant == NATIVE and obstacle is not None:
        raise Unavailable(obstacle)
    usual = implementations.DEFAULTS["cpu"]
    implementations.DEFAULTS["cpu"] = OURS.get(contestant, usual)
    try:
        yield
    finally:
        implementations.DEFAULTS["cpu"] = usual


def jax_entry(
    contestant: str, function: Callable[..., Any], operands: tuple, quality: Callable[[Callable[..., Any]], str]
) -> Entry:
    """A function of JAX; `quality` gets it compiled, for operands of these shapes."""
    with by(contestant):
        program, seconds = compiled(jax.jit(function), operands)
    return Entry(functools.partial(finish, program, operands), seconds, quality(program))


def row(workload: Workload, rounds: int, after_round: Callable[[], object] = lambda: None) -> tuple[str, dict[str, str]]:
    """The line of the table, and why contestants are absent."""
    entries, absent = workload.entries()
    times = measure({name: entry.call for name, entry in entries.items()}, rounds, after_round=after_round)
    reference = times[next(name for name in REFERENCES if name in entries)]
    cells = [cell(entries[name], times[name], reference, workload.steps) if name in entries else "-" for name in CONTESTANTS]
    return f"| **{workload.name}**<br>{workload.judged} | {' | '.join(cells)} |", absent


def cell(entry: Entry, times: Times, reference: Times, steps: int) -> str:
    """The median time of a step, the median of its ratios to the reference, the quality, and what compiling takes."""
    median, ratio = np.median(times.further) / steps, np.median(times.further / reference.further)
    milliseconds = f"{median:.3f}" if median < 1 else f"{median:.3g}" if median < 100 else f"{median:.0f}"
    return f"{milliseconds} ({ratio:.2f})<br>{entry.quality}<br>{entry.seconds:.1f} s"


def header() -> str:
    return f"| | {' | '.join(CONTESTANTS)} |\n|---|{'--:|' * len(CONTESTANTS)}"


def decibels(expected: np.ndarray, actual: np.ndarray) -> float:
    """The signal over the noise."""
    error = np.float64(actual) - expected
    return float(10 * np.log10(np.sum(np.square(expected, dtype=np.float64)) / np.sum(error**2)))


def same_top(expected: np.ndarray, actual: np.ndarray) -> str:
    """On how many rows the largest output is the same one."""
    return f"{np.mean(expected.argmax(-1) == actual.argmax(-1)):.0%}"
