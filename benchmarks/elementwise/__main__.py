"""Measures the element-wise operators beside naive formulas in `jax.numpy` and beside other engines' kernels.

    python -m benchmarks.elementwise [--rounds 100] [--sizes 2^20 ...] [--operators 'quantize*' ...] [--output PREFIX]

Prints the tables, and writes them, their data and the figure to PREFIX.md, .json and .png: by default, for a run with all
operators and sizes, to benchmarks/results/elementwise-PLATFORM-jax-VERSION.

    JAX_PLATFORMS=cpu python -m benchmarks.elementwise --traffic cpu h200 v5e v6e

measures nothing: it compiles for these chips, none of which has to be present, and prints how many bytes the programs read
and write beyond their arguments and results. The compilers for GPUs and TPUs come with ``jax[cuda13]`` and ``jax[tpu]``.
"""

import argparse
import json
from pathlib import Path

from benchmarks import chips, environment
from benchmarks.elementwise.measure import measure_all
from benchmarks.elementwise.operators import ALL, SIZES, VARIANT_SIZE
from benchmarks.elementwise.traffic import print_traffic
from benchmarks.selection import select

RESULTS = Path(__file__).parent.parent / "results"


def number(text: str) -> int:
    """An integer, or a power such as 2^20."""
    base, _, exponent = text.partition("^")
    return int(base) ** int(exponent or 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.elementwise",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--sizes", type=number, nargs="+", default=[*SIZES], metavar="COUNT", help="such as 1024 or 2^20")
    parser.add_argument("--operators", nargs="+", default=["*"], metavar="NAME", help="names or patterns; all by default")
    parser.add_argument("--output", type=Path, metavar="PREFIX", help="prefix of the three files to write")
    parser.add_argument("--traffic", nargs="+", choices=chips.NAMES, metavar="CHIP", help=", ".join(chips.NAMES))
    arguments = parser.parse_args()
    names = [*select(arguments.operators, ALL)]
    if arguments.traffic:
        print_traffic(names, VARIANT_SIZE, arguments.traffic)
        return
    from benchmarks.elementwise import report  # which needs matplotlib

    results = measure_all(names, arguments.sizes, arguments.rounds)
    prefix = arguments.output
    if prefix is None and (names, arguments.sizes) == ([*ALL], [*SIZES]):
        prefix = RESULTS / f"elementwise-{environment.file_name(results['environment'])}"
    print(report.markdown(results))
    if prefix is not None:
        prefix.parent.mkdir(parents=True, exist_ok=True)
        Path(f"{prefix}.json").write_text(json.dumps(results, indent=1) + "\n")
        Path(f"{prefix}.md").write_text(report.markdown(results))
        report.plot(results, Path(f"{prefix}.png"))


if __name__ == "__main__":
    main()
