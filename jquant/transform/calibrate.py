"""Finds the range of each site's input over a data set."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jquant.arguments.statics import boolean
from jquant.calibration import Range
from jquant.calibration.coarse import warnings_about
from jquant.calibration.observer import Observer
from jquant.errors import TransformError
from jquant.placement import explain_array_errors_as
from jquant.transform import rewrite, traced
from jquant.transform.checks import as_transform_errors
from jquant.transform.input_batches import each_inputs
from jquant.transform.parameters import flattened
from jquant.transform.plan import Plan, Site
from jquant.transform.recipe import Recipe

_NAME = "transform.calibrate"


@explain_array_errors_as(_NAME, TransformError)
def calibrate(
    apply: Callable[..., Any], params: Any, batches: Iterable[Any], recipe: Recipe, *, progress: bool = False
) -> dict[str, Range]:
    """Observes the static inputs of all sites over a data set, and returns the range of each.

    The function is computed in float. Each static input is passed to the observer that the scheme of its site names. Sites
    that read the same value share one range. A site whose weights are stacked by a `jax.lax.scan` has a range for each
    layer; a site that a loop runs repeatedly with the same weights has one range for all passes. The function and all
    observers form one program, which is compiled once for each batch shape.

    Args:
      apply, params, recipe: as for `quantize`.
      batches: an iterable of batches, which is read once. Each batch is a tuple of the inputs of the function, without
        labels; a single input need not be wrapped in a tuple.
      progress: whether to show a progress bar, which needs tqdm.

    Returns:
      A dict of `jquant.calibration.Range`, float32, keyed by the name of the site. Ranges of stacked weights have shape
      (layers,).

    Raises:
      TransformError: a recipe without static inputs, a function without sites, or no batch; a pattern of the recipe that
        matches no site; a batch for which the function has different sites; a site that no batch reached, for example in a
        branch that was never taken.
      TransformTypeError: an argument of the wrong type, or a leaf of `params` or of a batch that is not an array.
      ImportError: `progress` is set, but tqdm is not installed.

    Warns:
      UserWarning: the bins of an observer are too coarse for the range of a site, because a few of its numbers are much
        larger than the others; `percentile`, `mean_squared_error` and `entropy` of `jquant.calibration` say when.

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
        each_batch = each_inputs(_NAME, batches, boolean(_NAME, "progress", progress))
    parameters = flattened(_NAME, params)
    updates: dict[Any, Any] = {}
    state, observers = None, {}
    for inputs in each_batch:
        types = traced.input_types(inputs)
        if types not in updates:
            plan = traced.analyze(function, parameters, inputs).plan
            traced.require_sites(function, plan)
            names = [site.name for site in plan.inputs()]
            if not names:
                raise TransformError(f"{_NAME}: the recipe has no static inputs and needs no ranges")
            if state is None:
                observers = {site.name: site.scheme.make_observer() for site in plan.inputs()}
                state = {site.name: _initial(plan, site) for site in plan.inputs()}
            if set(state) != set(names):
                raise TransformError(
                    f"{_NAME}: a batch has different sites from the first: {', '.join(set(state) ^ set(names))}"
                )
            updates[types] = jax.jit(_update(plan))
        with as_transform_errors():
            state = updates[types](parameters.leaves, inputs, state)
    if state is None:
        raise TransformError(f"{_NAME}: batches is empty")
    missed = [name for name, (count, _) in state.items() if not np.all(np.asarray(count) > 0)]
    if missed:
        message = f"{_NAME}: no batch reached {', '.join(missed)}"
        raise TransformError(
            f"{message}: is it in a branch that was never taken? Leave it in float, or make its input dynamic"
        )
    return {name: _ranges(name, observers[name], observed, count.shape) for name, (count, observed) in state.items()}


def _initial(plan: Plan, site: Site) -> tuple[jax.Array, Any]:
    """The state before the first batch, for all layers: how often the site was reached (at most 2), and the observer's."""
    layer = jnp.int32(0), site.scheme.make_observer().init(site.input_type)
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*plan.sizes(site), *jnp.shape(leaf))), layer)


def _update(plan: Plan) -> Callable[..., Any]:
    """A function that maps the parameters, the inputs and the state to the new state."""

    def update(parameters: list[Any], inputs: tuple[Any, ...], state: Any) -> Any:
        functions = rewrite.Functions(_observed_output)
        return rewrite.run(plan, functions, [*parameters, *jax.tree.leaves(inputs)], state=state)[1]

    return update


def _observed_output(site: Site, operands: Sequence[Any], scope: rewrite.Scope) -> jax.Array:
    """The output of a site in float. Its input is observed, unless a site that reads the same input has observed it."""
    if site.has_static_input:
        scope.once(("observed", site.input), lambda: _observe(site, operands[site.input_operand], scope))
    return rewrite.float_output(site, operands)


def _observe(site: Site, x: jax.Array, scope: rewrite.Scope) -> None:
    count, state = scope.state[site.input]
    updated = jnp.minimum(count, 1) + 1, site.scheme.make_observer().update(state, x)
    scope.state = {**scope.state, site.input: updated}


def _ranges(name: str, observer: Observer, states: Any, layers: tuple[int, ...]) -> Range:
    """The range of each layer, one after the other: a warning needs values, which `jax.vmap` would trace."""
    ranges = []
    for index in np.ndindex(layers):
        with warnings_about(f"{_NAME}: {name}{list(index) if index else ''}"):
            ranges.append(observer.compute_range(jax.tree.map(lambda leaf, index=index: leaf[index], states)))
    return Range(
        min=jnp.array([each.min for each in ranges], jnp.float32).reshape(layers),
        max=jnp.array([each.max for each in ranges], jnp.float32).reshape(layers),
    )
