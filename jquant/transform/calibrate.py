"""Finds the range of each site's input over a data set."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jquant import jaxprs
from jquant.arguments.statics import boolean
from jquant.calibration import Range
from jquant.calibration.batches import with_progress
from jquant.calibration.coarse import warnings_about
from jquant.errors import TransformError
from jquant.placement import explain_array_errors_as
from jquant.transform.observations import statistics
from jquant.transform.observations.input_batches import each_inputs
from jquant.transform.observations.observed_entries import with_readers
from jquant.transform.observations.observed_numbers import require_numbers, warn_of_zeros
from jquant.transform.observations.static_inputs import static_inputs
from jquant.transform.observations.statistics import Sums
from jquant.transform.program import same_sites, traced
from jquant.transform.program.parameters import flattened
from jquant.transform.program.plan import Plan, Site
from jquant.transform.recipes.checks import as_transform_errors
from jquant.transform.recipes.recipe import Recipe
from jquant.transform.rewriting import compute, rewrite
from jquant.transform.rewriting.sequential import sequential_sums

_NAME = "transform.calibrate"


@explain_array_errors_as(_NAME, TransformError)
def calibrate(
    apply: Callable[..., Any],
    params: Any,
    batches: Iterable[Any],
    recipe: Recipe,
    *,
    progress: bool = False,
    sequential: bool = False,
) -> dict[str, Any]:
    """Observes the static inputs of all sites over a data set, and returns the range of each.

    The function is computed in float. Each static input is passed to the observer that the scheme of its site names. Sites
    that read the same value share one range. A site whose weights are stacked by a `jax.lax.scan` has a range for each
    layer; a site that a loop runs repeatedly with the same weights has one range for all passes. The function and all
    observers form one program, which is compiled once for each batch shape.

    Where the weights of a site are rounded by GPTQ, or smoothed, the inputs of the site are observed for that, too: X^T X in
    float32 (K * K * 4 bytes for K rows of weights, for each layer), or the magnitudes of their channels. Sites that read the
    same input share these. Experts of a stack share those of all rows.

    Args:
      apply, params, recipe: as for `quantize`.
      batches: an iterable of batches, which is read once. Each batch is a tuple of the inputs of the function, without
        labels; a single input need not be wrapped in a tuple.
      progress: whether to show a progress bar of the batches, and one of the run of `sequential`, which need tqdm.
      sequential: whether the statistics for GPTQ and smoothing are those of the quantized network: each site is quantized as
        soon as its own are known, before the sites after it are reached. All batches, which must have one shape, then go
        through the function at once, after they were read for the ranges of static inputs. Branches and loops with sites
        must then have conditions that do not differ between batches. Weights that a loop reads in all passes are quantized
        in each with the statistics up to it. GPTQ's correction needs it, for which the float network runs beside the
        quantized one.

    Returns:
      A dict of `jquant.calibration.Range`, float32, keyed by the name of the site. For a site whose weights need more, it
      has `InputStatistics`, with the range as well. All arrays of stacked weights begin with a dimension of the layers.
      Where a weight has several uses, the entries also hold how their inputs are computed: the function may then use it in
      another order for the inputs of `quantize`. (`jax.tree.map` makes entries without that, which are taken by name.)

    Raises:
      TransformError: a recipe that needs nothing observed, a function without sites, or no batch; GPTQ with a correction,
        but not `sequential`; statistics that do not
        fit into memory; a pattern of the recipe that matches no site; a batch for which the function has different sites;
        a site, or one of its layers, that no batch reached, for example in a branch that was never taken; a static input
        that no finite number reached, because batches have only NaN and infinities, or no rows. (NaN and infinities among
        other numbers are ignored for ranges. Statistics for GPTQ and smoothing keep them, and `quantize` then raises.)
      TransformTypeError: an argument of the wrong type, or a leaf of `params` or of a batch that is not an array.
      ImportError: `progress` is set, but tqdm is not installed.

    Warns:
      UserWarning: the bins of an observer are too coarse for the range of a site, because a few of its numbers are much
        larger than the others; `percentile`, `mean_squared_error` and `entropy` of `jquant.calibration` say when. Nothing
        but zeros reached some sites, or some of their layers, which the warning names: a range of [0, 0] has the scale 1,
        and weights are prepared for inputs that do not occur. (Experts of a stack have one range, and common statistics: one
        that got no row is no such site.)

    Example:
      >>> import jax.numpy as jnp
      >>> from jquant import transform
      >>> params = {"kernel": jnp.ones((16, 16))}
      >>> batches = [jnp.full((2, 16), 3.0), jnp.full((2, 16), -1.5)]
      >>> for name, (low, high) in transform.calibrate(
      ...     lambda params, x: x @ params["kernel"], params, batches, transform.static_int8
      ... ).items():
      ...     print(name, low, high)
      kernel -1.5 3.0
    """
    function = traced.checked(_NAME, apply, recipe)
    with as_transform_errors():
        progress, sequential = boolean(_NAME, "progress", progress), boolean(_NAME, "sequential", sequential)
        each_batch = each_inputs(_NAME, batches, progress)
    parameters = flattened(_NAME, params, allow_traced=False)
    kept: list[tuple[Any, ...]] = []
    updates: dict[Any, Any] = {}
    first, state = None, {}
    for number, inputs in enumerate(each_batch):
        types = jaxprs.input_types(inputs)
        if types not in updates:
            plan = traced.analyze(function, parameters, inputs, number).plan
            traced.require_sites(function, plan)
            if first is not None:
                plan, differing = same_sites.fitted(first, plan, weights=False)
                if differing:
                    raise TransformError(f"{_NAME}: a batch has different sites from the first: {', '.join(differing)}")
            sites = _observed_sites(plan)
            if first is None:
                statistics.require_memory(_NAME, plan, plan.prepared())
                _require_sequential(plan, sequential)
                first, state = plan, {name: _initial(plan, site, sequential) for name, site in sites.items()}
            if state.keys() != sites.keys():
                names = ", ".join(state.keys() ^ sites.keys())
                raise TransformError(f"{_NAME}: a batch has different sites from the first: {names}")
            updates[types] = jax.jit(_update(plan), donate_argnums=2)
        if sequential:
            kept.append(inputs)
        with as_transform_errors():
            state = updates[types](parameters.leaves, inputs, state)
            if progress:  # of what has been computed, not of what JAX has been asked for
                jax.block_until_ready(state)
    if first is None:
        raise TransformError(f"{_NAME}: batches is empty")
    missed = [name for name, each in state.items() if not np.all(np.asarray(each.reached) > 0)]
    if missed:
        message = (
            f"{_NAME}: no batch reached {', '.join(missed)}: is it in a branch that was never taken? Leave it in float, or"
        )
        is_prepared = any(state[name].sums is not None for name in missed)
        advice = "do not prepare it for its inputs" if is_prepared else "make its input dynamic"
        raise TransformError(f"{message} {advice}")
    observers = {site.name: state[site.name].range for site in first.inputs()}
    require_numbers(_NAME, observers)
    ranges = {site.name: _ranges(site, state[site.name]) for site in first.inputs()}
    if sequential:
        static = static_inputs(_NAME, first, ranges)
        runs = with_progress(_NAME, [kept], "quantizing site by site", "run") if progress else [kept]
        (all_sums,) = (
            jax.block_until_ready(sequential_sums(_NAME, first, parameters.leaves, each, static)) for each in runs
        )
    else:
        all_sums = {name: each.sums for name, each in state.items()}
    sums = {site.name: all_sums[site.name] for site in first.prepared()}
    observed: dict[str, Any] = dict(ranges)
    for name, each in sums.items():
        observed[name] = statistics.finished(each)._replace(range=ranges.get(name))
    warn_of_zeros(_NAME, observers, sums)
    return with_readers(first, observed)


def _observed_sites(plan: Plan) -> dict[str, Site]:
    """The sites of whose inputs something is observed, by name."""
    sites = {site.name: site for site in (*plan.inputs(), *plan.prepared())}
    if not sites:
        message = "the recipe has no static inputs at these sites, and neither smoothing nor GPTQ: it needs no calibration"
        raise TransformError(f"{_NAME}: {message}")
    return sites


def _require_sequential(plan: Plan, sequential: bool) -> None:
    """Asserts that inputs whose errors are wanted have some."""
    corrected = [site.name for site in plan.prepared() if site.storage.preparation.needs_errors]
    if corrected and not sequential:
        message = (
            f"the weights of some sites, such as {corrected[0]}, are corrected for what earlier sites put into their inputs"
        )
        raise TransformError(f"{_NAME}: {message}, which needs sequential=True")


class _State(NamedTuple):
    """What was observed at a site.

    Attributes:
      reached: how often, at most 2.
      range: the state of the observer of a static input; None for others.
      sums: what the weights are prepared with; None if nothing is needed.
    """

    reached: jax.Array
    range: Any
    sums: Sums | None


def _initial(plan: Plan, site: Site, sequential: bool) -> _State:
    """The state before the first batch, for all layers."""
    sizes = plan.sizes(site)
    observer_state = site.scheme.make_observer().init(site.input_type) if site.has_static_input else None
    return _State(
        reached=jnp.zeros(sizes, jnp.int32),
        range=jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*sizes, *jnp.shape(leaf))), observer_state),
        sums=statistics.initial(plan, site) if site in plan.prepared() and not sequential else None,
    )


def _update(plan: Plan) -> Callable[..., Any]:
    """A function that maps the parameters, the inputs and the state to the new state."""

    def update(parameters: list[Any], inputs: tuple[Any, ...], state: Any) -> Any:
        functions = rewrite.Functions(_observed_output)
        return rewrite.run(plan, functions, [*parameters, *jax.tree.leaves(inputs)], state=state)[1]

    return update


def _observed_output(site: Site, operands: Sequence[Any], scope: rewrite.Scope) -> jax.Array:
    """The output of a site in float. Its input is observed, unless a site that reads the same input has observed it."""
    x = operands[site.input_operand]
    if site.has_static_input:
        scope.once(("range", site.input), lambda: _observe_range(site, x, scope))
    if site.needs_statistics:
        scope.once(("sums", site.statistics), lambda: _observe_sums(site, x, scope))
    return rewrite.float_output(site, operands)


def _observe_range(site: Site, x: jax.Array, scope: rewrite.Scope) -> None:
    state: _State = scope.state[site.input]
    x = compute.prepared_input(site, x, None)
    _replace(scope, site.input, range=site.scheme.make_observer().update(state.range, x))


def _observe_sums(site: Site, x: jax.Array, scope: rewrite.Scope) -> None:
    state: _State = scope.state[site.statistics]
    sums = None if state.sums is None else statistics.updated(state.sums, compute.input_rows(site, x))
    _replace(scope, site.statistics, sums=sums)


def _replace(scope: rewrite.Scope, name: str, **fields: Any) -> None:
    state: _State = scope.state[name]
    updated = state._replace(reached=jnp.minimum(state.reached, 1) + 1, **fields)
    scope.state = {**scope.state, name: updated}


def _ranges(site: Site, state: _State) -> Range:
    """The range of each layer, one after the other: a warning needs values, which `jax.vmap` would trace."""
    observer, layers, ranges = site.scheme.make_observer(), state.reached.shape, []
    for index in np.ndindex(layers):
        with warnings_about(f"{_NAME}: {site.name}{list(index) if index else ''}"):
            ranges.append(observer.compute_range(jax.tree.map(lambda leaf, index=index: leaf[index], state.range)))
    return Range(
        min=jnp.array([each.min for each in ranges], jnp.float32).reshape(layers),
        max=jnp.array([each.max for each in ranges], jnp.float32).reshape(layers),
    )
