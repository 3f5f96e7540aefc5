"""The results of `benchmarks.run` as text, Markdown and a figure.

    python -m benchmarks.report FILE.json [--plot FILE.png]

prints the Markdown.
"""

import argparse
import json
import textwrap
from collections.abc import Iterator
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure  # without pyplot, it needs no display
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator

from benchmarks import environment
from benchmarks.bars import draw_bar, finish_panel
from benchmarks.measure import TURN_MS

WIDTH = 100
DATA = "values uniform over the whole range of each integer type, and over -1 to 1 in floating point"
_ZERO_POINTS = "jquant, onnxruntime, jax-int32-formula: uint8 x int8, both zero points; other integers: int8 x int8"
_HEADER = ("", "median, ms", "quartiles, ms", "GOPS", "ratio", "first, ms")
# Okabe and Ito's colours, which the colour-blind tell apart; jquant has the one that stands out.
_COLOURS = {
    "jax": "#999999",
    "jquant": "#D55E00",
    "onnxruntime": "#0072B2",
    "qwix": "#009E73",
    "aqt": "#CC79A7",
    "torch": "#E69F00",
}


def gops(shape: dict, milliseconds: float) -> float:
    return shape["operations"] / milliseconds / 1e6


def format_gops(value: float) -> str:
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def cells(results: dict, shape: dict) -> Iterator[tuple[str, ...]]:
    """The rows of a shape's table; a contestant that was not measured has two cells, its name and the reason."""
    medians = {row["contestant"]: row["median_ms"] for row in shape["rows"] if "median_ms" in row}
    baseline = medians.get(results["baseline"])
    for row in shape["rows"]:
        if "reason" in row:
            yield row["contestant"], row["reason"]
            continue
        median = row["median_ms"]
        yield (
            row["contestant"],
            f"{median:.3f}",
            f"{row['lower_quartile_ms']:.3f} to {row['upper_quartile_ms']:.3f}",
            format_gops(gops(shape, median)),
            "-" if baseline is None else f"{median / baseline:.2f}",
            f"{row['first_median_ms']:.3f}",
        )


def introduction(results: dict) -> list[str]:
    return [
        environment.summary(results["environment"], with_revision=True),
        f"Data: {DATA}. {results['rounds']} rounds, in each of which every contestant has a turn of {TURN_MS} ms, or two "
        'calls, in random order: "first" is of the first call of a turn, which finds in the caches what another contestant '
        "left, the rest of the further calls. GOPS counts a multiplication and an addition as two. The ratio is the median "
        f"time over that of {results['baseline']}: below 1 is faster. Every result was checked first, integers and what is "
        "scaled from them by equality.",
    ]


def text(results: dict) -> str:
    """The tables for a terminal, in at most `WIDTH` columns."""
    lines = [line for paragraph in introduction(results) for line in textwrap.wrap(paragraph, WIDTH)]
    for shape in results["shapes"]:
        lines += ["", *textwrap.wrap(f"{shape['name']}  {shape['size']}  {shape['layer']}", WIDTH)]
        for first, *others in (_HEADER, *cells(results, shape)):
            if len(others) == 1:
                lines += textwrap.wrap(others[0], WIDTH, initial_indent=f"  {first:<26}", subsequent_indent=" " * 28)
            else:
                lines.append(
                    f"  {first:<26}"
                    + "".join(f"{other:>{size}}" for other, size in zip(others, (12, 22, 9, 9, 12), strict=True))
                )
    lines += ["", "What is timed:"]
    for contestant, timed in results["contestants"].items():
        lines += textwrap.wrap(f"{contestant}: {timed}", WIDTH, initial_indent="  ", subsequent_indent="    ")
    return "\n".join(lines)


def markdown(results: dict) -> str:
    lines = [f"# {environment.file_name(results['environment'])}", ""]
    for paragraph in introduction(results):
        lines += [paragraph, ""]
    for shape in results["shapes"]:
        lines += [f"## {shape['name']}", "", f"{shape['size']}: {shape['layer']}.", ""]
        lines += ["| " + " | ".join(_HEADER) + " |", "|---|" + "--:|" * (len(_HEADER) - 1)]
        for first, *others in cells(results, shape):
            lines.append(f"| {first} | " + " | ".join([*others, *[""] * (len(_HEADER) - 1 - len(others))]) + " |")
        lines.append("")
    lines += ["## What is timed", ""]
    lines += [f"- `{contestant}`: {timed}" for contestant, timed in results["contestants"].items()]
    return "\n".join(lines) + "\n"


def _family(contestant: str) -> str:
    return contestant.partition("-")[0]


def _panel(panel: Axes, results: dict, shape: dict, contestants: list[str]) -> None:
    """Bars that begin at the baseline's speed: to the right, faster; to the left, slower."""
    rows = {row["contestant"]: row for row in shape["rows"]}
    measured = [name for name in (results["baseline"], *contestants) if "median_ms" in rows.get(name, {})]
    for position, contestant in enumerate(contestants):
        row = rows[contestant]
        if "reason" in row:
            panel.annotate(
                "not measured", (1, position), (4, 0), textcoords="offset points", va="center", color="0.5", size=7
            )
            continue
        unit = rows[measured[0]]["median_ms"]
        low, speed, high = (unit / row[key] for key in ("upper_quartile_ms", "median_ms", "lower_quartile_ms"))
        number = format_gops(gops(shape, row["median_ms"]))
        draw_bar(panel, position, (low, speed, high), number, _COLOURS[_family(contestant)])
    finish_panel(panel, f"{shape['name']}  {shape['size']}")


def plot(results: dict, path: Path) -> None:
    """A panel of bars for each shape, on logarithmic axes."""
    shapes = results["shapes"]
    measured = {row["contestant"] for shape in shapes for row in shape["rows"] if "median_ms" in row}
    contestants = [contestant for contestant in results["contestants"] if contestant in measured]
    columns = min(3, len(shapes))
    lines = -(-len(shapes) // columns)
    figure = Figure(figsize=(2.5 + 4.2 * columns, 1.6 + (0.6 + 0.21 * len(contestants)) * lines), layout="constrained")
    panels = figure.subplots(lines, columns, sharex="row", sharey=True, squeeze=False)
    for panel in panels.flat[len(shapes) :]:
        panel.set_visible(False)
    for panel, shape in zip(panels.flat, shapes, strict=False):
        _panel(panel, results, shape, contestants)
    for panel in panels[:, 0]:
        panel.set_xscale("log")
        low, high = panel.get_xlim()
        panel.set_xlim(low / (high / low) ** 0.12, high * (high / low) ** 0.12)  # room for the numbers at the bars' ends
        panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.xaxis.set_major_formatter("{x:g}")
        panel.xaxis.set_minor_formatter("")
    panels[0, 0].set_yticks(range(len(contestants)), contestants)
    panels[0, 0].set_ylim(len(contestants) - 0.4, -0.6)  # the first at the top
    for panel in panels[-1]:
        panel.set_xlabel(f"speed, {results['baseline']} = 1 (logarithmic)", size=8)
    jax_version = results["environment"]["versions"]["jax"]
    figure.suptitle(
        f"Matrix products (M x K x N), jax {jax_version} on {environment.machine(results['environment'])}\n"
        f"{_ZERO_POINTS}; {DATA}\n"
        f"bars: speed beside {results['baseline']}; numbers: GOPS; medians of {results['rounds']} alternating rounds; "
        "black lines: quartiles",
        size=10,
    )
    families = dict.fromkeys(map(_family, contestants))
    handles = [Patch(color=_COLOURS[family], label=family) for family in families]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9)
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, metavar="FILE.json")
    parser.add_argument("--plot", type=Path, metavar="FILE.png")
    arguments = parser.parse_args()
    results = json.loads(arguments.results.read_text())
    print(markdown(results), end="")
    if arguments.plot:
        plot(results, arguments.plot)


if __name__ == "__main__":
    main()
