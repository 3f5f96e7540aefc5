"""Measures the wake-word networks beside LiteRT, for which they were made: one step of 30 ms, and a whole recording.

python -m benchmarks.wake_word [--rounds 100] [--networks NAME ...]
"""

import argparse
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks import environment, report
from benchmarks.measure import measure, quartiles
from examples import wake_word as example

HEADER = "| | median, ms | quartiles, ms | times the time of LiteRT |\n|---|--:|--:|--:|"


class Case(NamedTuple):
    """A network on some sound.

    Attributes:
      title: how much, and how.
      program: ours, jitted.
      operands: what it is called with, on the device.
      engine: LiteRT's call, which returns when the result is there.
    """

    title: str
    program: Callable[..., Any]
    operands: tuple
    engine: Callable[[], Any]


def cases(name: str) -> Iterator[Case]:
    """Of one network. Its weights are constants of our programs, as they are of LiteRT's, which has one thread."""
    operations = example.read(path := example.MODELS / f"{name}.tflite")
    network = example.assemble(operations)
    audio, _ = example.spoken([example.RECORDINGS / f"{word}.wav" for word in example.NAMES])
    steps = example.features(audio, network.stem.input)
    interpreter = example.litert(path, example.OpResolverType.AUTO)
    (input,), (output,) = interpreter.get_input_details(), interpreter.get_output_details()

    def invoke(steps: np.ndarray) -> np.ndarray:
        probabilities = []
        for step in steps:
            interpreter.set_tensor(input["index"], step[None])
            interpreter.invoke()
            probabilities.append(interpreter.get_tensor(output["index"])[0, 0])
        return np.array(probabilities)

    listen, stream = (jax.jit(functools.partial(program, network)) for program in (example.listen, example.stream))
    start, frames = jax.device_put((example.initial_state(network), steps.reshape(-1, example.CHANNELS)))
    expected, seconds = invoke(steps), 0.01 * len(frames)
    for title, program, sound, count in (
        ("one step of 30 ms", listen, frames[: example.STRIDE], 1),
        (f"{seconds:.1f} s, step by step", stream, jax.device_put(steps), len(steps)),
        (f"{seconds:.1f} s at once", listen, frames, len(steps)),
    ):
        np.testing.assert_array_equal(program(start, sound)[1], expected[:count])
        yield Case(title, program, (start, sound), functools.partial(invoke, steps[:count]))


def rows(case: Case, rounds: int) -> Iterator[str]:
    """Of the table: ours, and LiteRT's in the same rounds."""
    calls = {"jquant": lambda: jax.block_until_ready(case.program(*case.operands)), "LiteRT, XNNPACK": case.engine}
    times = {name: quartiles(found.further) for name, found in measure(calls, rounds).items()}
    for name, (low, median, high) in times.items():
        ratio = median / times["LiteRT, XNNPACK"][1]
        yield f"| {case.title}: {name} | {median:.3f} | {low:.3f} to {high:.3f} | {ratio:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--networks", nargs="+", choices=example.NAMES, default=example.NAMES)
    arguments = parser.parse_args()
    results = {"environment": environment.describe(["ai-edge-litert", "pymicro-wakeword"])}
    print(f"{report.machine(results)}; {report.versions(results)}; load {results['environment']['load average']}")
    for name in arguments.networks:
        print(f"\n## {name}\n\n{HEADER}", flush=True)
        for case in cases(name):
            print("\n".join(rows(case, arguments.rounds)), flush=True)


if __name__ == "__main__":
    main()
