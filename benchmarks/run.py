"""Measures matrix products of real models: jquant's beside those of JAX and of other packages.

    python -m benchmarks.run [--rounds 200] [--shapes 'llama-7b.*'] [--contestants 'j*'] [--output PREFIX]

Prints the table, and writes it, its data and the figure to PREFIX.md, .json and .png: by default, for a run with all shapes
and contestants, to benchmarks/results/PLATFORM-jax-VERSION. Exits with 1 if a function of this repository fails or is wrong.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from tqdm import tqdm

from benchmarks import environment, report
from benchmarks.contestant import Contestant, Unavailable, Wrong
from benchmarks.contestants import BASELINE, CONTESTANTS
from benchmarks.measure import measure, quartiles
from benchmarks.problem import Problem
from benchmarks.selection import select
from benchmarks.shapes import PRODUCTS, Product, tagged


def prepare(contestant: Contestant, problem: Problem) -> tuple[Callable[[], Any] | None, dict]:
    """The call if its result is right, or None; and the part of the row that gives the reason."""
    try:
        call = contestant.make(problem)
        call.check()
    except Unavailable as reason:
        return None, {"reason": str(reason), "failed": False}
    except Wrong as reason:
        return None, {"reason": str(reason), "failed": True}
    except Exception as error:  # whatever another package raises with this version of jax is its row of the table
        first_line = str(error).strip().partition("\n")[0]
        reason = f"fails with jax {jax.__version__}: {type(error).__name__}: {first_line}"
        return None, {"reason": reason, "failed": True}
    return call.run, {}


def measure_shape(shape: Product, contestants: Sequence[Contestant], rounds: int, progress: tqdm) -> list[dict]:
    """A row for each contestant."""
    problem, calls, rows = Problem(shape), {}, {}
    for contestant in contestants:
        progress.set_description(f"{shape.name}: preparing {contestant.name}")
        call, rows[contestant.name] = prepare(contestant, problem)
        if call is not None:
            calls[contestant.name] = call
    progress.set_description(shape.name)
    for name, times in measure(calls, rounds, after_round=progress.update).items():
        low, median, high = quartiles(times.further)
        _, first, _ = quartiles(times.first)
        rows[name] = {"median_ms": median, "lower_quartile_ms": low, "upper_quartile_ms": high, "first_median_ms": first}
    return [{"contestant": contestant.name, **rows[contestant.name]} for contestant in contestants]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--shapes", nargs="+", default=["*"], metavar="NAME", help="names, tags or patterns; all by default")
    parser.add_argument("--contestants", nargs="+", default=["*"], metavar="NAME", help="names or patterns; all by default")
    parser.add_argument("--output", type=Path, metavar="PREFIX", help="prefix of the three files to write")
    arguments = parser.parse_args()
    timed = tagged(PRODUCTS, "timed")
    shapes = [*select(arguments.shapes, timed).values()]
    contestants = [*select(arguments.contestants, {contestant.name: contestant for contestant in CONTESTANTS}).values()]

    results = {
        "environment": environment.describe(
            sorted({contestant.package for contestant in contestants if contestant.package})
        ),
        "rounds": arguments.rounds,
        "baseline": BASELINE,
        "contestants": {contestant.name: contestant.timed for contestant in contestants},
        "shapes": [],
    }
    prefix = arguments.output
    if prefix is None and (len(shapes), len(contestants)) == (len(timed), len(CONTESTANTS)):
        prefix = Path(__file__).parent / "results" / environment.file_name(results["environment"])
    if prefix is not None:
        prefix.parent.mkdir(parents=True, exist_ok=True)
    with tqdm(total=len(shapes) * arguments.rounds, unit="round", leave=False, disable=None) as progress:
        for shape in shapes:
            rows = measure_shape(shape, contestants, arguments.rounds, progress)
            results["shapes"].append(
                {"name": shape.name, "size": shape.size, "operations": shape.operations, "layer": shape.layer, "rows": rows}
            )
            if prefix is not None:  # after each shape, so that an interrupted run leaves its results
                Path(f"{prefix}.json").write_text(json.dumps(results, indent=1) + "\n")

    print(report.text(results))
    if prefix is not None:
        Path(f"{prefix}.md").write_text(report.markdown(results))
        report.plot(results, Path(f"{prefix}.png"))
        print(f"\nwritten: {prefix}.md, .json and .png")
    rows = [row for shape in results["shapes"] for row in shape["rows"]]
    return int(any(row["contestant"].startswith("jquant") and row.get("failed") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
