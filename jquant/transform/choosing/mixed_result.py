"""What a search for mixed precision found, as a table and as a plot."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jquant.transform import tables
from jquant.transform.listing import scheme_title
from jquant.transform.recipes.checks import require_file
from jquant.transform.recipes.recipe import Recipe, Scheme


class Assignment(NamedTuple):
    """Schemes for all sites of a function, measured.

    Attributes:
      quantized_bytes: the bytes of all parameters as they are stored.
      predicted_snr: the signal-to-noise ratio of the function, in dB, if the noise of the sites adds.
      snr: the measured one.
    """

    quantized_bytes: int
    predicted_snr: float
    snr: float


class SiteChoice(NamedTuple):
    """What was measured at a site, and what was chosen for it.

    Attributes:
      name, kind: as in a `Row` of `sites`.
      snr: for each candidate, the signal-to-noise ratio of the function, in dB, if this site alone is quantized; infinite
        for None, and None for a scheme that the site cannot take.
      choice: the scheme, or None for float.
      float_bytes, quantized_bytes: the bytes of what the site stores, before and after; 0 for what another site of the table
        already stores, or what stays float for something else as well.
    """

    name: str
    kind: str
    snr: tuple[float | None, ...]
    choice: Scheme | None
    float_bytes: int
    quantized_bytes: int


class MixedPrecision(NamedTuple):
    """What `mixed_precision` found. Prints as a table.

    Attributes:
      recipe: a rule for each site.
      calibration: the ranges that `quantize` needs for this recipe; None if it has no static inputs.
      candidates: the schemes, and None for float.
      sites: the measurements and the choice of each site, in the order of the program.
      snr: the ratio over all float outputs of the function, in dB, as `report` measures it.
      predicted_snr: what it would be if the noise of the sites added.
      float_bytes, quantized_bytes: the bytes of all parameters before and after.
      uniform: for each candidate, what it gives at all sites that can take it, with the others in float.
      path: what was measured of the best assignments from the smallest to the largest: no other assignment is predicted to
        have less noise in as few bytes.
      max_bytes, min_decibels: the limits of the search, or None.
    """

    recipe: Recipe
    calibration: Mapping[str, Any] | None
    candidates: tuple[Scheme | None, ...]
    sites: tuple[SiteChoice, ...]
    snr: float
    predicted_snr: float
    float_bytes: int
    quantized_bytes: int
    uniform: tuple[Assignment, ...]
    path: tuple[Assignment, ...]
    max_bytes: int | None
    min_decibels: float | None

    def __str__(self) -> str:
        schemes = [("", "scheme", "at all sites, dB", "bytes")]
        for number, (scheme, uniform) in enumerate(zip(self.candidates, self.uniform, strict=True)):
            schemes.append((_letter(number), _title(scheme), f"{uniform.snr:.2f}", f"{uniform.quantized_bytes:,}"))
        numbers = [number for number, scheme in enumerate(self.candidates) if scheme is not None]
        rows = [("site", "kind", "choice", *(f"{_letter(number)}, dB" for number in numbers), "bytes", "quantized")]
        for site in self.sites:
            noise = ("-" if site.snr[number] is None else f"{site.snr[number]:.2f}" for number in numbers)
            rows.append(
                (site.name, site.kind, self._choice(site), *noise, f"{site.float_bytes:,}", f"{site.quantized_bytes:,}")
            )
        sizes = f"{self.quantized_bytes:,} of {self.float_bytes:,} bytes"
        total = f"the function: {self.snr:.2f} dB (predicted: {self.predicted_snr:.2f}) in {sizes}"
        return "\n".join([*tables.lines(schemes, left=2), "", *tables.lines(rows, left=3), "", total])

    def _choice(self, site: SiteChoice) -> str:
        return _letter(self.candidates.index(site.choice)) if site.choice is not None else "float"

    def draw(self, path: str | Path) -> None:
        """Plots the noise of the function against its bytes, and that of each site. Needs matplotlib."""
        require_file("transform.MixedPrecision.draw", path)
        try:
            from matplotlib.figure import Figure  # without pyplot, it draws with Agg and needs no display
        except ImportError as error:
            raise ImportError("transform.MixedPrecision.draw needs matplotlib: pip install matplotlib") from error
        height = max(5.0, 2.2 + 0.24 * len(self.sites))
        figure = Figure(figsize=(13, height), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1.3, 1))
        self._draw_function(left)
        self._draw_sites(right)
        figure.savefig(path, dpi=150)

    def _draw_function(self, axes: Any) -> None:
        """The noise of the function against its bytes."""
        path = [each for each in self.path if math.isfinite(each.snr)]
        sizes = [each.quantized_bytes / 1e3 for each in path]
        axes.plot(
            sizes, [each.predicted_snr for each in path], "--", color="#9aa5b1", label="predicted: the noise of sites adds"
        )
        axes.plot(sizes, [each.snr for each in path], "-", marker=".", color="#3b6ea8", label="measured, best assignments")
        for number, (scheme, each) in enumerate(zip(self.candidates, self.uniform, strict=True)):
            if math.isfinite(each.snr):
                place, label = (each.quantized_bytes / 1e3, each.snr), f"{_letter(number)} at all sites: {_title(scheme)}"
                axes.plot(*place, "s", color=_color(number), markersize=8, label=label)
                axes.annotate(_letter(number), place, xytext=(7, -12), textcoords="offset points", color=_color(number))
        if self.max_bytes is not None:
            axes.axvline(self.max_bytes / 1e3, color="#c0392b", linewidth=1, linestyle=":", label="max_bytes")
        if self.min_decibels is not None:
            axes.axhline(self.min_decibels, color="#c0392b", linewidth=1, linestyle=":", label="min_decibels")
        if math.isfinite(self.snr):
            label = f"the choice: {self.snr:.1f} dB in {self.quantized_bytes / 1e3:,.4g} kB"
            axes.plot(self.quantized_bytes / 1e3, self.snr, "*", color="#c0392b", markersize=15, label=label)
        axes.set(xlabel=f"parameters, kB (in float: {self.float_bytes / 1e3:,.4g})")
        axes.set(ylabel="signal to quantization noise of the function, dB", title="The function")
        axes.grid(color="#e5e9ee")
        axes.legend(loc="lower right", fontsize=8)

    def _draw_sites(self, axes: Any) -> None:
        """The noise of each site under each candidate. A ring marks the choice."""
        for number, scheme in enumerate(self.candidates):
            points = [(site.snr[number], row) for row, site in enumerate(self.sites) if _is_finite(site.snr[number])]
            if scheme is not None and points:
                axes.plot(*zip(*points, strict=True), "o", color=_color(number), markersize=5, label=_letter(number))
        rings = [
            (site.snr[self.candidates.index(site.choice)], row)
            for row, site in enumerate(self.sites)
            if site.choice is not None and _is_finite(site.snr[self.candidates.index(site.choice)])
        ]
        if rings:
            style = {"markerfacecolor": "none", "markeredgecolor": "#c0392b", "markersize": 11}
            axes.plot(*zip(*rings, strict=True), "o", **style, label="chosen")
        names = [site.name if site.choice is not None else f"{site.name} (float)" for site in self.sites]
        axes.set_yticks(range(len(names)), names, fontsize=8)
        axes.set(xlabel="the same, if this site alone is quantized, dB", ylim=(len(names) - 0.5, -0.5), title="Its sites")
        axes.grid(color="#e5e9ee")
        axes.legend(fontsize=8)


_COLORS = "#d98e04", "#2a9d8f", "#8d7bb5", "#b0793b", "#4c9be8", "#d1495b", "#5c946e", "#52489c"


def _color(number: int) -> str:
    return _COLORS[number % len(_COLORS)]


def _letter(number: int) -> str:
    """What tables call a candidate: A, B, and so on; after Z, its number."""
    return chr(ord("A") + number) if number < 26 else f"#{number}"


def _title(scheme: Scheme | None) -> str:
    return "float" if scheme is None else scheme_title(scheme)


def _is_finite(ratio: float | None) -> bool:
    return ratio is not None and math.isfinite(ratio)
