"""Measures what a program of many operators costs: its size, and the time to trace, lower, compile and run it.

    python -m benchmarks.program_size [--repeat 5] [--baseline PATH] [--blocks 15]

The program is MobileNetV3-Large in integers: 212 operators, whose parameters are arguments of the program. Each measurement
has a process of its own, in which nothing is cached. With --baseline, another checkout of this repository takes turns with
this one, on the same network; the results of both must be equal.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.program_size.network import BLOCKS

TREE = Path(__file__).resolve().parents[2]
WORKER = Path(__file__).with_name("worker.py")


def measure(tree: Path, blocks: int) -> dict:
    """One measurement of the package in a checkout, in a process of its own."""
    command = [sys.executable, str(WORKER), str(blocks)]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    run = json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout)
    if not Path(run["module"]).is_relative_to(tree):
        raise SystemExit(f"{run['module']} is not in {tree}")
    return run


def print_times(runs: dict[str, list[dict]], repeat: int) -> None:
    """A table with a row for each checkout, and for the ratio if there are two."""
    firsts = {tree: measurements[0] for tree, measurements in runs.items()}
    first = next(iter(firsts.values()))
    nodes = sum(first["nodes"].values())
    print(f"jax {first['jax']}, {nodes} nodes; medians and ranges of {repeat} processes that take turns\n")
    names = [*first["seconds"], "together", "time of processors", "run"]
    print("| | lines of StableHLO | temporary MiB | " + " | ".join(f"{name}, s" for name in names) + " |")
    print("|---|--:|--:" + "|--:" * len(names) + "|")
    medians = {}
    for tree, measurements in runs.items():
        seconds = {phase: [run["seconds"][phase] for run in measurements] for phase in first["seconds"]}
        seconds["together"] = [sum(run["seconds"].values()) for run in measurements]
        seconds["time of processors"] = [run["processor_seconds"] for run in measurements]
        seconds["run"] = [run["run_seconds"] for run in measurements]
        medians[tree] = [statistics.median(seconds[name]) for name in names]
        cells = [
            f"{median:.3g} ({min(seconds[name]):.3g} to {max(seconds[name]):.3g})"
            for name, median in zip(names, medians[tree], strict=True)
        ]
        size = f"{firsts[tree]['lines']:,} | {firsts[tree]['temporary_bytes'] / 2**20:.1f}"
        print(f"| {tree} | {size} | " + " | ".join(cells) + " |")
    if len(runs) == 2:
        ours, theirs = firsts.values()
        cells = [f"{a / b:.2f}" for a, b in zip(*medians.values(), strict=True)]
        print(f"| ratio | {ours['lines'] / theirs['lines']:.2f} | | " + " | ".join(cells) + " |")


def print_functions(tree: str, run: dict) -> None:
    """A table of the functions in the program's StableHLO."""
    print(f"\n{tree}: {dict(sorted(run['nodes'].items()))}\n")
    print("| function | how many | lines of StableHLO | lines of each |\n|---|--:|--:|--:|")
    for name, (count, lines) in sorted(run["functions"].items(), key=lambda item: -item[1][1]):
        print(f"| `{name}` | {count} | {lines:,} | {lines / count:.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.program_size",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--baseline", type=Path, metavar="PATH", help="another checkout of this repository")
    parser.add_argument("--blocks", type=int, default=len(BLOCKS), help="how many of the network's blocks, from the first")
    arguments = parser.parse_args()
    trees = {"this tree": TREE}
    if arguments.baseline:
        trees["baseline"] = arguments.baseline.resolve()
    runs: dict[str, list[dict]] = {name: [] for name in trees}
    for _ in range(arguments.repeat):
        for name, tree in trees.items():
            runs[name].append(measure(tree, arguments.blocks))
    if len({run["result"] for measurements in runs.values() for run in measurements}) > 1:
        raise SystemExit("the results differ")
    print_times(runs, arguments.repeat)
    for name, measurements in runs.items():
        print_functions(name, measurements[0])


if __name__ == "__main__":
    main()
