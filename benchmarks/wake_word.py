"""Measures the wake-word networks beside LiteRT, for which they were made: one step of 30 ms, and a whole recording.

python -m benchmarks.wake_word [--rounds 100] [--networks NAME ...]
"""

import argparse
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks import environment, report
from benchmarks.measure import measure, quartiles
from examples import wake_word as example

HEADER = "| | median, ms | quartiles, ms | times the time of LiteRT |\n|---|--:|--:|--:|"


class Case(NamedTuple):
    """A network on some sound."""

    title: str
    programs: dict[str, Callable[[], Any]]
    engine: Callable[[], Any]


def cases(name: str) -> Iterator[Case]:
    """Of one network. The weights are constants of our programs, as they are of LiteRT's; it has one thread."""
    operations = example.read(path := example.MODELS / f"{name}.tflite")
    network = example.assemble(operations)
    audio, _ = example.spoken([example.RECORDINGS / f"{word}.wav" for word in example.NAMES])
    steps = example.features(audio, network.stem.input)
    start = jax.device_put(example.initial_state(network))
    interpreter = example.litert(path, example.OpResolverType.AUTO)
    (input,), (output,) = interpreter.get_input_details(), interpreter.get_output_details()

    def invoke(step: np.ndarray) -> np.ndarray:
        interpreter.set_tensor(input["index"], step[None])
        interpreter.invoke()
        return interpreter.get_tensor(output["index"])[0]

    listen, stream = (jax.jit(functools.partial(program, network)) for program in (example.listen, example.stream))
    frames = steps.reshape(-1, example.CHANNELS)
    expected = np.concatenate([invoke(step) for step in steps])
    np.testing.assert_array_equal(stream(start, steps)[1], expected)
    np.testing.assert_array_equal(listen(start, frames)[1], expected)
    state = start

    def step() -> np.ndarray:
        nonlocal state
        state, probability = listen(state, steps[0])
        return np.asarray(probability)

    yield Case("one step of 30 ms", {"jquant": step}, lambda: invoke(steps[0]))
    yield Case(
        f"{len(steps)} steps, {0.01 * len(frames):.1f} s",
        {
            "jquant, step by step (scan)": lambda: np.asarray(stream(start, steps)[1]),
            "jquant, all steps at once": lambda: np.asarray(listen(start, frames)[1]),
        },
        lambda: [invoke(step) for step in steps],
    )


def table(case: Case, rounds: int) -> Iterator[str]:
    times = measure({**case.programs, "LiteRT, XNNPACK": case.engine}, rounds)
    found = {name: quartiles(time.further) for name, time in times.items()}
    *_, (_, engine, _) = found.values()
    for name, (low, median, high) in found.items():
        yield f"| {case.title}: {name} | {median:.3f} | {low:.3f} to {high:.3f} | {median / engine:.2f} |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--networks", nargs="+", choices=example.NAMES, default=example.NAMES)
    options = parser.parse_args(arguments)
    results = {"environment": environment.describe(["ai-edge-litert", "pymicro-wakeword"])}
    print(f"{report.machine(results)}; {report.versions(results)}; load {results['environment']['load average']}")
    for name in options.networks:
        print(f"\n## {name}\n\n{HEADER}", flush=True)
        for case in cases(name):
            print("\n".join(table(case, options.rounds)), flush=True)


if __name__ == "__main__":
    main()
