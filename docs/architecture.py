"""Draws architecture.png: how the code of a product is chosen while a program is lowered, by `jquant.kernels.integer_dot`.

The defaults are those of `jquant.kernels.implementations`.
"""

from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from jquant.kernels import implementations

INK, BLUE, GREEN, RED, PALE = "#22303c", "#1f5fa8", "#1b7a4b", "#a8322a", "#eef1f5"
LEFT, RIGHT, WIDE, NARROW, HIGH, STEP = 2.7, 7.75, 5.0, 3.9, 0.8, 1.15  # centres and sizes of boxes, and their distance

DEFAULTS = ", ".join(f"{chosen} on {platform}" for platform, chosen in implementations.DEFAULTS.items())
QUESTIONS = [  # from top to bottom; the answer that leads to the right, and what is there, with its colour
    ("a product is traced:\none equation, integer_dot, of types alone", "", "", INK),
    ("the program is lowered,\nonce for each of its platforms", "", "", INK),
    (f"implementation=, or else the platform's default:\n{DEFAULTS}\n(native if it is installed)", "", "", INK),
    ("is it XLA's,\nor native in a program for jax.export?", "yes", "XLA's product", BLUE),
    (
        "does XLA partition the program?",
        "yes",
        "on explicit axes: the kernel, on each shard\notherwise: XLA's product",
        BLUE,
    ),
    ("does the kernel take the chip and the shape?", "no", "by default: XLA's product\nnamed: NotImplementedError", RED),
    ("the kernel:\nnative, mosaic_tpu or mosaic_gpu", "", "", GREEN),
]

figure = Figure(figsize=(8.2, 7.4), layout="constrained")
axes = figure.subplots()


def box(x: float, y: float, width: float, text: str, colour: str) -> None:
    corner, style = (x - width / 2, y - HIGH / 2), "round,pad=0,rounding_size=0.12"
    axes.add_patch(FancyBboxPatch(corner, width, HIGH, boxstyle=style, linewidth=1.4, edgecolor=colour, facecolor=PALE))
    axes.text(x, y, text, ha="center", va="center", fontsize=8.5, color=colour)


def arrow(start: tuple[float, float], end: tuple[float, float], label: str = "") -> None:
    axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": INK, "linewidth": 1.2})
    right, up = (0, 0.14) if start[1] == end[1] else (0.28, 0)
    middle = (start[0] + end[0]) / 2 + right, (start[1] + end[1]) / 2 + up
    axes.text(*middle, label, ha="center", va="center", fontsize=8, color=INK)


bottom = -len(QUESTIONS) * STEP
for row, (text, answer, consequence, colour) in enumerate(QUESTIONS):
    y = -row * STEP
    box(LEFT, y, WIDE, text, INK if answer else colour)
    arrow((LEFT, y - HIGH / 2), (LEFT, y - STEP + HIGH / 2), {"yes": "no", "no": "yes", "": ""}[answer])
    if answer:
        box(RIGHT, y, NARROW, consequence, colour)
        arrow((LEFT + WIDE / 2, y), (RIGHT - NARROW / 2, y), answer)
arrow((RIGHT, -(len(QUESTIONS) - 2) * STEP - HIGH / 2), (RIGHT, bottom + HIGH / 2))
middle = (LEFT - WIDE / 2 + RIGHT + NARROW / 2) / 2
box(
    middle,
    bottom,
    2 * middle - 0.4,
    "sums in int32, corrected for zero points, then the epilogue: the same bits by every path",
    GREEN,
)
axes.set(xlim=(0, 9.9), ylim=(bottom - 0.5, 0.5))
axes.axis("off")
figure.savefig(Path(__file__).with_suffix(".png"), dpi=110)
