"""Panels of horizontal bars that begin at 1: to one side faster than what is compared with, to the other slower."""

from matplotlib.axes import Axes


def draw_bar(panel: Axes, position: int, ratio: tuple[float, float, float], number: str, colour: str) -> None:
    """A bar from 1 to the median of a ratio, a line between its quartiles, and a number at the end."""
    low, median, high = ratio
    panel.barh(position, median - 1, 0.75, left=1, color=colour)
    panel.plot([low, high], [position, position], color="0.15", lw=0.9)
    to_the_right = median >= 1
    panel.annotate(
        number,
        (max(high, 1) if to_the_right else min(low, 1), position),
        (4 if to_the_right else -4, 0),
        textcoords="offset points",
        va="center",
        ha="left" if to_the_right else "right",
        size=7,
    )


def finish_panel(panel: Axes, title: str) -> None:
    """Gives a panel of bars a line at 1 and a title, and takes its frame away."""
    panel.axvline(1, color="0.4", lw=0.8)
    panel.set_title(title, size=9, loc="left")
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.tick_params(axis="y", length=0, labelsize=8)
    panel.tick_params(axis="x", labelsize=8, labelbottom=True)
