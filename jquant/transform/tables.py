"""Tables as text."""

from collections.abc import Sequence


def lines(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """The lines of a table. Its first `left` columns are aligned on the left, and the others on the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(_aligned(row, widths, left)).rstrip() for row in rows]


def _aligned(row: Sequence[str], widths: Sequence[int], left: int) -> list[str]:
    cells = zip(row, widths, strict=True)
    return [cell.ljust(width) if column < left else cell.rjust(width) for column, (cell, width) in enumerate(cells)]
