"""Measures what a program of many operators costs: its size, and the time to trace, lower, compile and run it.

    python -m benchmarks.program_size [--repeat 5] [--baseline PATH] [--blocks 15] [--contestants NAME ...]

The program is MobileNetV3-Large in integers: 212 operators, whose parameters are arguments of the program. Each measurement
has a process of its own, in which nothing is cached. The contestants take turns: jquant, and without jquant-native if that
is used by default; with --baseline, the jquant of another checkout; and, if it is installed, onnxruntime, with the same
network as an ONNX model whose parameters are constants. The results of all that are jquant must be equal. onnxruntime's are
compared with them operator by operator, on the same operands.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from benchmarks import environment
from benchmarks.program_size.network import BLOCKS
from benchmarks.program_size.timing import PHASES
from benchmarks.selection import select

TREE = Path(__file__).resolve().parents[2]
WORKER = Path(__file__).with_name("worker.py")
FIRST, WITHOUT_NATIVE, BASELINE, ONNXRUNTIME = "this tree", "without jquant-native", "baseline", "onnxruntime"
COLUMNS = *PHASES, "together", "time of processors", "run"


class Contestant(NamedTuple):
    """What is measured in processes of their own.

    Attributes:
      tree: the checkout whose jquant is imported.
      command: the arguments of Python before the number of blocks.
      options: the arguments after it.
      first_options: further ones, of the first process.
    """

    tree: Path
    command: tuple[str, ...]
    options: tuple[str, ...] = ()
    first_options: tuple[str, ...] = ()


def describe() -> dict:
    """The environment, according to another process, since a device can often serve one process alone."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(environment.describe, ["onnxruntime"]).result()


def contestants(description: Mapping, baseline: Path | None) -> dict[str, Contestant]:
    """The contestants that can be measured here, by name; the ratios are of the first to the others."""
    found = {FIRST: Contestant(TREE, (str(WORKER),))}
    if description["products"].startswith("native"):
        found[WITHOUT_NATIVE] = Contestant(TREE, (str(WORKER),), ("--without-native",))
    if baseline is not None:
        found[BASELINE] = Contestant(baseline.resolve(), (str(WORKER),))
    if description["platform"] == "cpu" and find_spec("onnxruntime") and find_spec("onnx"):
        worker = "-m", "benchmarks.program_size.onnx_worker"
        found[ONNXRUNTIME] = Contestant(TREE, worker, first_options=("--compare",))
    return found


def measure(contestant: Contestant, blocks: int, *, first: bool) -> dict:
    """One measurement, in a process of its own."""
    options = contestant.options + contestant.first_options * first
    command = [sys.executable, *contestant.command, str(blocks), *options]
    paths = [str(contestant.tree), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    run = json.loads(subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=True).stdout)
    if "module" in run and not Path(run["module"]).is_relative_to(contestant.tree):
        raise SystemExit(f"{run['module']} is not in {contestant.tree}")
    return run


def seconds(run: Mapping) -> dict[str, float]:
    """The times of one measurement, by column; onnxruntime's preparation is to create a session."""
    phases = run.get("seconds", {})
    together = sum(phases.values()) if phases else run["session_seconds"]
    return {**phases, "together": together, "time of processors": run["processor_seconds"], "run": run["run_seconds"]}


def print_times(runs: Mapping[str, Sequence[Mapping]]) -> None:
    """A table with a row for each contestant, and one for the ratios to each contestant but the first."""
    nodes, repeat = sum(runs[FIRST][0]["nodes"].values()), len(runs[FIRST])
    print(f"{nodes} nodes; medians and ranges of {repeat} processes that take turns.\n")
    print("| | lines of StableHLO | temporary MiB | " + " | ".join(f"{name}, s" for name in COLUMNS) + " |")
    print("|---|--:|--:" + "|--:" * len(COLUMNS) + "|")
    medians = {}
    for contestant, measurements in runs.items():
        times = [seconds(run) for run in measurements]
        columns = {name: [time[name] for time in times] for name in COLUMNS if name in times[0]}
        medians[contestant] = {name: statistics.median(values) for name, values in columns.items()}
        run = measurements[0]
        sizes = [f"{run['lines']:,}", f"{run['temporary_bytes'] / 2**20:.1f}"] if "lines" in run else ["", ""]
        cells = [
            f"{medians[contestant][name]:.3g} ({min(columns[name]):.3g} to {max(columns[name]):.3g})"
            if name in columns
            else ""
            for name in COLUMNS
        ]
        print(f"| {contestant} | " + " | ".join([*sizes, *cells]) + " |")
    ours = medians.pop(FIRST)
    for contestant, theirs in medians.items():
        other = runs[contestant][0]
        lines = f"{runs[FIRST][0]['lines'] / other['lines']:.2f}" if "lines" in other else ""
        ratios = [f"{ours[name] / theirs[name]:.2f}" if name in theirs else "" for name in COLUMNS]
        print(f"| {FIRST} / {contestant} | " + " | ".join([lines, "", *ratios]) + " |")


def print_functions(contestant: str, run: Mapping) -> None:
    """A table of the functions in the program's StableHLO."""
    print(f"\n{contestant}: {dict(sorted(run['nodes'].items()))}\n")
    print("| function | how many | lines of StableHLO | lines of each |\n|---|--:|--:|--:|")
    for name, (count, lines) in sorted(run["functions"].items(), key=lambda item: -item[1][1]):
        print(f"| `{name}` | {count} | {lines:,} | {lines / count:.0f} |")


def print_differences(run: Mapping) -> None:
    """A table of what operators compute otherwise than onnxruntime, and a sentence about the whole network."""
    print(f"\n{FIRST} and {ONNXRUNTIME}, each operator on the same operands\n")
    print("| operator | elements | differ | by at most |\n|---|--:|--:|--:|")
    for name, row in run["operators"].items():
        print(f"| `{name}` | {row['elements']:,} | {row['different']:,} | {row['by']:.3g} |")
    logits = run["logits"]
    print(
        f"\nEnd to end, where a difference grows from layer to layer: {logits['different']} of {logits['elements']} logits."
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.program_size",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--baseline", type=Path, metavar="PATH", help="another checkout of this repository")
    parser.add_argument("--blocks", type=int, default=len(BLOCKS), help="how many of the network's blocks, from the first")
    parser.add_argument("--contestants", nargs="+", default=["*"], metavar="NAME", help="names or patterns; all by default")
    arguments = parser.parse_args()
    description = describe()
    found = contestants(description, arguments.baseline)
    chosen = {FIRST: found[FIRST]} | select(arguments.contestants, found)
    runs: dict[str, list[dict]] = {name: [] for name in chosen}
    for index in range(arguments.repeat):
        for name, contestant in chosen.items():
            runs[name].append(measure(contestant, arguments.blocks, first=not index))
    if len({run["result"] for measurements in runs.values() for run in measurements if "result" in run}) > 1:
        raise SystemExit("the results of jquant differ")
    print(environment.summary(description))
    print_times(runs)
    for name, measurements in runs.items():
        if "functions" in measurements[0]:
            print_functions(name, measurements[0])
    if ONNXRUNTIME in runs:
        print_differences(runs[ONNXRUNTIME][0])


if __name__ == "__main__":
    main()
