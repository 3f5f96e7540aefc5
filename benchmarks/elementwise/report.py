"""The results of `benchmarks.elementwise` as Markdown and a figure.

    python -m benchmarks.elementwise.report FILE.json [--summary] [--plot FILE.png]

prints the Markdown or, as in docs/operator_costs.md, a table for 2^20 elements. The figure is as narrow as a phone.
"""

import argparse
import json
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure  # without pyplot, it needs no display
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, NullLocator

from benchmarks import environment
from benchmarks.bars import draw_bar, finish_panel
from benchmarks.elementwise import MEMORY, NAIVE, OURS
from benchmarks.measure import TURN_MS

SHOWN = 2**20  # elements, in the figure and in the summary
_HEADER = (
    "",
    "µs",
    "quartiles",
    "naive, µs",
    "quartiles",
    "times naive",
    "engine, µs",
    "quartiles",
    "times the engine",
    "memory alone, µs",
    "temporary bytes an element",
    "traffic",
)
_COLOURS = {NAIVE: "#999999", "onnxruntime": "#0072B2", "TensorFlow": "#E69F00"}
_LABELS = {NAIVE: "the naive formula in jax.numpy"}


def power(count: int) -> str:
    exponent = count.bit_length() - 1
    return f"2^{exponent}" if count == 2**exponent else f"{count:,}"


def microseconds(milliseconds: float) -> str:
    return f"{1e3 * milliseconds:,.{0 if milliseconds >= 0.1 else 1}f}"


def _times(row: dict, contestant: str) -> tuple[str, str]:
    if contestant not in row["times_ms"]:
        return "-", ""
    low, median, high = map(microseconds, row["times_ms"][contestant])
    return median, f"{low} to {high}"


def _ratio(row: dict, contestant: str) -> str:
    if contestant not in row["ratios"]:
        return "-"
    low, median, high = row["ratios"][contestant]
    return f"**{median:.2f}** ({low:.2f} to {high:.2f})"


def cells(row: dict) -> tuple[str, ...]:
    """A row of the full table."""
    engine = row["engine"]
    median, note = _times(row, engine)
    if "reason" in row:
        note = row["reason"]
    elif engine != "onnxruntime":
        note += f", {engine}"
    operator, *variant = row["operator"].partition(",")
    return (
        f"`{operator}`{''.join(variant)}",
        *_times(row, OURS),
        *_times(row, NAIVE),
        _ratio(row, NAIVE),
        median,
        note,
        _ratio(row, engine),
        _times(row, MEMORY)[0],
        f"{row['temporary_bytes'] / row['elements']:.1f}",
        f"{row['traffic']:.2f}",
    )


def introduction(results: dict) -> list[str]:
    return [
        environment.summary(results["environment"], with_revision=True),
        "Data: integers uniform over all of their type, floating point over -1 to 1; a tenth of that saturates in "
        f"`quantize_linear`. {results['rounds']} rounds (a fifth of them above 2^20 elements), in each of which every "
        f"contestant has a turn of {TURN_MS} ms, or two calls, in random order; the first call of a turn does not count. "
        "Times are the median and the quartiles over the rounds. Ratios are those of the two times of a round, their median "
        "and quartiles; below 1 is faster than the other. Every result was checked first: ours by equality with the "
        "reference, the naive formula's within one step, the engine's by equality, or within one where it differs.",
        "Scales, zero points and ranges are arguments of the jitted programs, not constants. The naive formulas are in "
        "`benchmarks/elementwise/naive.py`. The engine is onnxruntime, where it has the operator, or else TensorFlow's "
        "eager operator with oneDNN off, whose kernels compute something else. onnxruntime's scales and zero points are "
        "constants of its model, its threads as many as XLA's, and they do not spin. *Memory alone* reads the same "
        "tensors, writes a result of the same type, and computes next to nothing. *Temporary* is what the program "
        "allocates besides its arguments and its result. *Traffic* is the bytes that its instructions read and write, as "
        "its text has them, over the bytes of its arguments and its result.",
    ]


def table(rows: list[dict]) -> list[str]:
    lines = ["| " + " | ".join(_HEADER) + " |", "|---" + "|--:" * (len(_HEADER) - 1) + "|"]
    return lines + ["| " + " | ".join(cells(row)) + " |" for row in rows]


def allocation(rows: list[dict]) -> list[str]:
    """The section on what allocating the output costs."""
    if not rows:
        return []
    lines = [
        "## What an output of its own costs\n",
        "The same programs, called with an output that JAX allocates, as any call is, and with a donated one, into which "
        "they write: what differs is memory that the system hands out page by page, and clears. In a program around the "
        "operator there is neither.\n",
        "| | | µs | quartiles | page faults of a call |\n|---|---|--:|--:|--:|",
    ]
    for row in rows:
        for output, (low, median, high) in row["times_ms"].items():
            lines.append(
                f"| `{row['operator']}`, {power(row['elements'])} elements, {row['bytes'] / 2**20:.0f} MiB | {output} | "
                f"{microseconds(median)} | {microseconds(low)} to {microseconds(high)} | {row['page_faults'][output]:,} |"
            )
    return [*lines, ""]


def by_size(results: dict) -> dict[int, list[dict]]:
    """The rows of each size."""
    rows: dict[int, list[dict]] = {}
    for row in results["operators"]:
        rows.setdefault(row["elements"], []).append(row)
    return rows


def markdown(results: dict) -> str:
    lines = [f"# elementwise-{environment.file_name(results['environment'])}\n"]
    lines += [f"{paragraph}\n" for paragraph in introduction(results)]
    for count, rows in by_size(results).items():
        lines += [f"## {power(count)} elements\n", *table(rows), ""]
    lines += allocation(results["allocation"])
    return "\n".join(lines).rstrip("\n") + "\n"


def summary(results: dict) -> str:
    """The medians at 2^20 elements: our time, its ratios, and the time of memory alone."""
    header = "", "µs", "naive", "engine", "memory"
    lines = ["| " + " | ".join(header) + " |", "|---" + "|--:" * (len(header) - 1) + "|"]
    for row in by_size(results)[SHOWN]:
        name, ours, *_ = cells(row)
        medians = [row["ratios"].get(other, (0, 0, 0))[1] for other in (NAIVE, row["engine"])]
        naive, engine = (f"{median:.2f}" if median else "-" for median in medians)
        if row["engine"] == "TensorFlow" and medians[1]:
            engine += " (TF)"
        lines.append(f"| {name} | {ours} | {naive} | {engine} | {_times(row, MEMORY)[0]} |")
    return "\n".join(lines) + "\n"


def _panel(panel: Axes, ratios: list[tuple[list[float], str] | None], title: str) -> None:
    """Bars that begin at 1: to the left, faster than the other; to the right, slower."""
    for position in range(1, len(ratios), 2):
        panel.axhspan(position - 0.5, position + 0.5, color="0.965", lw=0)
    for position, ratio in enumerate(ratios):
        if ratio is None:
            panel.annotate("no kernel", (1, position), (4, 0), textcoords="offset points", va="center", color="0.6", size=7)
            continue
        (low, median, high), other = ratio
        draw_bar(panel, position, (low, median, high), f"{median:.2f}", _COLOURS[other])
    finish_panel(panel, title)
    panel.set_xscale("log")
    low, high = panel.get_xlim()
    panel.set_xlim(low / (high / low) ** 0.1, high * (high / low) ** 0.1)  # room for the numbers
    steps = (1,) if high / low > 300 else (1, 2, 5)
    panel.xaxis.set_major_locator(FixedLocator([step * 10.0**power for power in range(-3, 3) for step in steps]))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter("{x:g}")
    panel.set_xlabel("the other's time = 1; left is faster", size=8)


def plot(results: dict, path: Path) -> None:
    """Two panels, one above the other, beside the engine and beside the naive formula, at 2^20 elements or the most."""
    sizes = by_size(results)
    rows = sizes.get(SHOWN) or sizes[max(sizes)]
    figure = Figure(figsize=(4.8, 2 + 0.36 * len(rows)), layout="constrained")
    panels = figure.subplots(2, 1, sharey=True)
    engines = [(row["ratios"][row["engine"]], row["engine"]) if row["engine"] in row["ratios"] else None for row in rows]
    _panel(panels[0], engines, "beside another engine's kernel")
    _panel(panels[1], [(row["ratios"][NAIVE], NAIVE) for row in rows], "beside the naive formula in jax.numpy")
    for panel in panels:
        panel.set_yticks(range(len(rows)), [row["operator"] for row in rows])
    panels[0].set_ylim(len(rows) - 0.4, -0.6)  # the first at the top
    figure.suptitle(
        f"{power(rows[0]['elements'])} elements, jax {results['environment']['versions']['jax']}\n"
        f"{environment.machine(results['environment'])}\n"
        f"medians of the ratios in {results['rounds']} rounds; black: quartiles",
        size=8,
    )
    used = {NAIVE, *(engine[1] for engine in engines if engine)}
    handles = [Patch(color=colour, label=_LABELS.get(other, other)) for other, colour in _COLOURS.items() if other in used]
    figure.legend(handles=handles, loc="outside lower center", frameon=False, fontsize=8)
    figure.savefig(path, dpi=170)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, metavar="FILE.json")
    parser.add_argument("--summary", action="store_true", help="the table of 2^20 elements")
    parser.add_argument("--plot", type=Path, metavar="FILE.png")
    arguments = parser.parse_args()
    results = json.loads(arguments.results.read_text())
    print(summary(results) if arguments.summary else markdown(results), end="")
    if arguments.plot:
        plot(results, arguments.plot)


if __name__ == "__main__":
    main()
