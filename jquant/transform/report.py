"""Measures a quantized function, site by site: noise, clipping and bytes, as a table and as a plot."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jquant.errors import TransformError
from jquant.placement import explain_array_errors_as
from jquant.transform import tables
from jquant.transform.noise import decibels, powers
from jquant.transform.program import traced
from jquant.transform.program.layouts import ACTIVATION_MATMUL, EMBEDDING
from jquant.transform.program.parameters import flattened, require_arrays, size_in_bytes
from jquant.transform.program.plan import ActivationProduct, Site
from jquant.transform.quantize import quantize
from jquant.transform.recipes.checks import require_file
from jquant.transform.recipes.recipe import Recipe
from jquant.transform.rewriting import compute, rewrite

_NAME = "transform.report"


class SiteReport(NamedTuple):
    """The measurements of one site, or of one layer of it.

    Attributes:
      name: the name of the site, with the index of the layer if a loop stacks its weights.
      kind: ``"matmul"``, ``"convolution"`` or ``"embedding"``; ``"activation_matmul"`` for a product of two activations.
      snr: the signal-to-quantization-noise ratio of its output, in dB:
        ``10 * log10(sum(y**2) / sum((y - y_quantized)**2))``, for the input that the float function has there; infinite if
        there is no noise.
      low, high: the smallest and the largest value of its input, smoothed and rotated if the scheme says so; infinity and
        minus infinity for an embedding, and for a product of two activations.
      clipped: the share of its input that lies outside the range of a static input; 0 for other inputs.
      float_bytes, quantized_bytes: the bytes of its weights before and after; 0 if another site already stores the same
        weights.
    """

    name: str
    kind: str
    snr: float
    low: float
    high: float
    clipped: float
    float_bytes: int
    quantized_bytes: int

    @property
    def range(self) -> str:
        """`low` and `high` as text; empty for an embedding."""
        return f"{self.low:.4g} to {self.high:.4g}" if self.low <= self.high else ""


class Report(NamedTuple):
    """The measurements of a function. Prints as a table. Sites inside `jax.shard_map` are left out.

    Attributes:
      sites: the measurements of each site, in the order of the program.
      snr: the ratio over all float outputs of the function, in dB, with the noise of all sites.
      float_bytes, quantized_bytes: the bytes of all parameters before and after.
    """

    sites: tuple[SiteReport, ...]
    snr: float
    float_bytes: int
    quantized_bytes: int

    def __str__(self) -> str:
        header = "site", "kind", "SNR, dB", "input", "clipped", "bytes", "quantized"
        rows: list[tuple[str, ...]] = [header]
        for each in self.sites:
            measurements = f"{each.snr:.2f}", each.range, f"{each.clipped:.2%}"
            rows.append((each.name, each.kind, *measurements, f"{each.float_bytes:,}", f"{each.quantized_bytes:,}"))
        rows.append(("the function", "", f"{self.snr:.2f}", "", "", f"{self.float_bytes:,}", f"{self.quantized_bytes:,}"))
        return "\n".join(tables.lines(rows, left=2))

    def draw(self, path: str | Path) -> None:
        """Plots the noise and the bytes of each site. Needs matplotlib."""
        require_file("transform.Report.draw", path)
        try:
            from matplotlib.figure import Figure  # without pyplot, it draws with Agg and needs no display
        except ImportError as error:
            raise ImportError("transform.Report.draw needs matplotlib: pip install matplotlib") from error
        figure = Figure(figsize=(11, 1.6 + 0.28 * len(self.sites)), layout="constrained")
        noise, size = figure.subplots(1, 2, sharey=True, width_ratios=(1.6, 1))
        names, rows = [each.name for each in self.sites], range(len(self.sites))
        colors = {"matmul": "#3b6ea8", "convolution": "#2a9d8f", "embedding": "#8d7bb5", ACTIVATION_MATMUL: "#b0793b"}
        highest = max((each.snr for each in self.sites if math.isfinite(each.snr)), default=1.0)
        for row, each in zip(rows, self.sites, strict=True):
            length = each.snr if math.isfinite(each.snr) else highest
            noise.barh(row, length, color=colors[each.kind], height=0.7)
            clipped = f", {each.clipped:.2%} clipped" if each.clipped else ""
            noise.text(0, row, f"  {each.snr:.1f} dB{clipped}", color="white", va="center", fontsize=8)
        noise.axvline(self.snr, color="#c0392b", linewidth=1)
        total = f"the function: {self.snr:.1f} dB"
        noise.text(self.snr, -0.75, total, color="#c0392b", ha="center", va="bottom", fontsize=9)
        noise.set(yticks=rows, yticklabels=names, xlabel="signal to quantization noise of the output, dB")
        noise.set(xlim=(0, max(highest, self.snr) * 1.25), ylim=(len(self.sites) - 0.4, -1.5))
        kinds = list(dict.fromkeys(each.kind for each in self.sites))
        bars = [noise.barh(0, 0, color=colors[kind]) for kind in kinds]
        noise.legend(bars, kinds, loc="lower right", fontsize=8)
        size.barh(rows, [each.float_bytes / 1e3 for each in self.sites], color="#c9d3df", height=0.7, label="float")
        size.barh(rows, [each.quantized_bytes / 1e3 for each in self.sites], color="#3b6ea8", height=0.35, label="quantized")
        share = self.quantized_bytes / self.float_bytes
        size.set(xlabel="weights, kB", title=f"all parameters: {share:.0%} of {self.float_bytes / 1e6:.3g} MB")
        size.legend(loc="lower right", fontsize=8)
        figure.savefig(path, dpi=150)


@explain_array_errors_as(_NAME, TransformError)
def report(
    apply: Callable[..., Any], params: Any, recipe: Recipe, *inputs: Any, calibration: Mapping[str, Any] | None = None
) -> Report:
    """Measures what a recipe does to a function: the noise, input range, clipping and bytes of each site.

    The function is computed in float. At each site, the quantized form is computed beside it from the same float input, so
    the noise of a site is its own, not that of the sites before it. Sums are in float32, over all iterations of a loop.

    Args:
      apply, params, recipe, inputs, calibration: as for `quantize`. The inputs are arrays, such as a batch that calibration
        has not seen.

    Returns:
      `Report`, which prints as a table; ``report.draw("report.png")`` plots it.

    Raises:
      TransformError: as in `quantize`.
      TransformTypeError: as in `quantize`, and for a `jax.ShapeDtypeStruct` among the parameters or the inputs.

    Example:
      >>> import jax
      >>> from jquant import transform
      >>> kernel, x = jax.random.normal(jax.random.key(0), (2, 64, 64))
      >>> print(transform.report(lambda params, x: x @ params, kernel, transform.weight_only_int8, x))
      site          kind    SNR, dB            input  clipped   bytes  quantized
      matmul        matmul    44.61  -2.998 to 3.402    0.00%  16,384      4,352
      the function            44.61                            16,384      4,352
    """
    function = traced.checked(_NAME, apply, recipe)
    parameters = flattened(_NAME, params, allow_traced=False)
    require_arrays(f"{_NAME}: inputs", inputs, allow_traced=False)
    plan = traced.analyze(function, parameters, inputs).plan
    quantized_apply, quantized_params = quantize(apply, params, recipe, *inputs, calibration=calibration)
    resources = rewrite.Resources(stored=quantized_params["sites"], static=quantized_params["inputs"])
    measured = [site for site in plan.sites.values() if site.shard_map is None]
    state = {site.name: _initial(plan.sizes(site)) for site in measured}
    state |= {product.name: _initial(()) for product in plan.products.values()}

    @jax.jit
    def measure(leaves: list[Any], resources: Any, state: Any) -> Any:
        return rewrite.run(plan, rewrite.Functions(_measured_output, _measured_product), leaves, resources, state)

    outputs, state = measure([*parameters.leaves, *jax.tree.leaves(inputs)], resources, state)
    rows = [row for site in measured for row in _rows(site, state[site.name], quantized_params["sites"])]
    rows += [_row(product.name, ACTIVATION_MATMUL, state[product.name]) for product in plan.products.values()]
    noisy_outputs = jax.tree.leaves(jax.jit(quantized_apply)(quantized_params, *inputs))
    pairs = [powers(*pair) for pair in zip(outputs, noisy_outputs, strict=True)]
    return Report(
        sites=tuple(rows),
        snr=decibels(*np.sum([pair for pair in pairs if pair is not None], axis=0)),
        float_bytes=size_in_bytes(parameters.leaves),
        quantized_bytes=size_in_bytes(quantized_params),
    )


class _State(NamedTuple):
    """The sums and extremes measured at a site, for each of its layers."""

    signal: jax.Array
    noise: jax.Array
    low: jax.Array
    high: jax.Array
    clipped: jax.Array
    elements: jax.Array


def _initial(sizes: tuple[int, ...]) -> _State:
    zero = jnp.zeros(sizes, jnp.float32)
    low, high = jnp.full(sizes, jnp.inf), jnp.full(sizes, -jnp.inf)
    return _State(signal=zero, noise=zero, low=low, high=high, clipped=zero, elements=zero)


def _measured_output(site: Site, operands: Sequence[Any], scope: rewrite.Scope) -> jax.Array:
    """The output of a site in float. The output of its quantized form is measured beside it."""
    output = rewrite.float_output(site, operands)
    if site.shard_map is not None:
        return output
    state: _State = scope.state[site.name]
    static, factors = scope.static(site), scope.smoothing(site)
    signal, noise = powers(output, compute.output(site, scope.stored(site), operands, factors, static)) or (0.0, 0.0)
    state = state._replace(signal=state.signal + signal, noise=state.noise + noise)
    if site.kind != EMBEDDING:
        x = compute.prepared_input(site, operands[site.input_operand], factors).astype(jnp.float32)
        state = state._replace(
            low=jnp.minimum(state.low, x.min()),
            high=jnp.maximum(state.high, x.max()),
            elements=state.elements + x.size,
        )
        if static is not None:
            low, high = (bound.astype(jnp.float32) for bound in compute.static_range(site, static))
            half = static.scale / 2  # what rounds to the last integer is not clipped
            clipped = jnp.sum((x < low - half) | (x > high + half), dtype=jnp.float32)
            state = state._replace(clipped=state.clipped + clipped)
    scope.state = {**scope.state, site.name: state}
    return output


def _measured_product(product: ActivationProduct, operands: Sequence[Any], scope: rewrite.Scope) -> jax.Array:
    """A product of two activations in float. That of integers is measured beside it."""
    output = rewrite.float_product(product, operands, scope)
    quantized = (compute.quantize_operand(product, x, operand=operand) for operand, x in enumerate(operands))
    signal, noise = powers(output, compute.product_output(product, *quantized)) or (0.0, 0.0)
    state: _State = scope.state[product.name]
    state = state._replace(signal=state.signal + signal, noise=state.noise + noise)
    scope.state = {**scope.state, product.name: state}
    return output


def _rows(site: Site, state: _State, stored: Mapping[str, Any]) -> list[SiteReport]:
    """The measurements of each layer of a site."""
    layers = np.shape(state.signal)
    float_bytes = quantized_bytes = 0  # of one layer
    if site.stored == site.name:
        float_bytes = math.prod(site.weights.shape) * site.weights.dtype.itemsize
        quantized_bytes = size_in_bytes(stored[site.name]) // max(math.prod(layers), 1)
    rows = []
    for index in np.ndindex(layers):
        layer = jax.tree.map(lambda field, index=index: float(np.asarray(field)[index]), state)
        name = f"{site.name}[{','.join(map(str, index))}]" if index else site.name
        rows.append(_row(name, site.kind, layer, float_bytes, quantized_bytes))
    return rows


def _row(name: str, kind: str, state: _State, float_bytes: int = 0, quantized_bytes: int = 0) -> SiteReport:
    return SiteReport(
        name=name,
        kind=kind,
        snr=decibels(float(state.signal), float(state.noise)),
        low=float(state.low),
        high=float(state.high),
        clipped=float(state.clipped / state.elements) if state.elements else 0.0,
        float_bytes=float_bytes,
        quantized_bytes=quantized_bytes,
    )
