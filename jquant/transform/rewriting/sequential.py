"""Statistics of inputs in a network whose earlier sites are quantized already.

Where a site is corrected for the errors of its inputs, the float network runs beside the quantized one: both are places of
one mapped axis.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from jquant import jaxprs
from jquant.errors import TransformError
from jquant.transform.formats.stored_weights import SMOOTHING, WEIGHTS
from jquant.transform.observations import statistics
from jquant.transform.observations.statistics import Sums
from jquant.transform.program import traced
from jquant.transform.program.layouts import EMBEDDING
from jquant.transform.program.plan import ActivationProduct, Plan, Site
from jquant.transform.rewriting import compute, rewrite, site_functions
from jquant.transform.weights import layers
from jquant.transform.weights.prepared_weights import without_factors

_BATCHES = "batches"  # the name of the axis along which the batches are stacked
_NETWORKS = "networks"  # that of the float network, at 0, and the quantized one


def sequential_sums(
    name: str, plan: Plan, leaves: Sequence[Any], batches: Sequence[tuple[Any, ...]], static: Mapping[str, Any]
) -> dict[str, Sums]:
    """The sums of all batches, by the name of the site. Each site is quantized when the sums of its own input are known.

    Args:
      name: of the function, for messages.
      plan: the sites.
      leaves: the parameters.
      batches: the inputs of each batch, all of one shape: they are stacked, and mapped in one program.
      static: the scales and zero points of static inputs.
    """
    if len({jaxprs.input_types(inputs) for inputs in batches}) > 1:
        raise TransformError(f"{name}: sequential=True needs batches of one shape, which go through the function at once")
    stacked = jax.tree.map(lambda *arrays: jnp.stack(arrays), *batches)
    weights = {site: {WEIGHTS: value} for site, value in traced.weights_by_site(plan, list(leaves)).items()}
    initial = {site.name: statistics.initial(plan, site) for site in plan.prepared()}
    has_both = any(site.storage.preparation.needs_errors for site in plan.prepared())

    def run(inputs: tuple[Any, ...], leaves: Sequence[Any], weights: Any, static: Any, state: Any) -> Any:
        resources = rewrite.Resources(weights, static)
        site = functools.partial(_quantized_output, has_both=has_both)
        functions = site_functions.with_derivative(name, None)._replace(site=site)
        functions = _of_both(functions) if has_both else functions
        sums = rewrite.run(plan, functions, [*leaves, *jax.tree.leaves(inputs)], resources, state)[1]
        return _refuse_differing(name)(sums)

    if has_both:
        run = jax.vmap(run, in_axes=None, out_axes=None, axis_name=_NETWORKS, axis_size=2)
    mapped = jax.vmap(run, in_axes=(0, None, None, None, None), out_axes=None, axis_name=_BATCHES)
    return jax.jit(mapped)(stacked, list(leaves), weights, static, initial)


def _of_both(functions: rewrite.Functions) -> rewrite.Functions:
    """The functions, which give the outputs of the float network at its place of the axis."""

    def chosen(exact: Any, quantized: Any) -> Any:
        return jnp.where(lax.axis_index(_NETWORKS) == 0, exact, quantized)

    def site(site: Site, operands: Sequence[Any], scope: rewrite.Scope) -> Any:
        return chosen(rewrite.float_output(site, operands), functions.site(site, operands, scope))

    def product(product: ActivationProduct, operands: Sequence[Any], scope: rewrite.Scope) -> Any:
        return chosen(rewrite.float_output(product, operands), functions.product(product, operands, scope))

    return rewrite.Functions(site, product)


def _refuse_differing(name: str) -> Callable[[Any], Any]:
    """The identity of sums that all batches have in common; others raise."""

    def refuse(count: int, is_mapped: Any, sums: Any) -> Any:
        # Mapped, a condition that differs between batches selects between what both branches leave of the sums.
        reason = "a branch or a loop with sites, whose condition differs between batches"
        raise TransformError(f"{name}: sequential=True is not for {reason}: calibrate without it")

    common = custom_vmap(lambda sums: sums)
    common.def_vmap(refuse)
    return common


def _quantized_output(site: Site, operands: Sequence[Any], scope: rewrite.Scope, has_both: bool) -> jax.Array:
    """The output of a site, which is quantized with the sums so far, and those of its input in all batches."""
    if site.shard_map is not None:
        return rewrite.float_output(site, operands)
    x, weights = operands[site.input_operand], scope.stored(site)[WEIGHTS]
    if site.kind == EMBEDDING:  # before the input of a product is known for which its table may be prepared
        storage = site.storage._replace(preparation=site.storage.preparation.of_table())
        return compute.embedding_output(
            site, layers.pack_layer(storage, weights, None).stored, compute.row_numbers(site, operands)
        )
    observed = None
    if site.needs_statistics:
        sums = scope.once(("sums", site.statistics), lambda: _observe(site, x, scope, has_both))
        observed = statistics.needed(site, statistics.finished(sums))
    stored = layers.pack_layer(site.storage, weights, observed).stored
    return compute.output(site, without_factors(stored), operands, stored.get(SMOOTHING), scope.static(site))


def _observe(site: Site, x: jax.Array, scope: rewrite.Scope, has_both: bool) -> Sums:
    before: Sums = scope.state[site.statistics]
    zero = jax.tree.map(jnp.zeros_like, before)
    rows, exact = compute.input_rows(site, x), None
    if has_both:
        exact, rows = lax.all_gather(rows, _NETWORKS)
    own = statistics.updated(zero, rows, exact)
    sums = Sums(
        rows=before.rows + lax.psum(own.rows, _BATCHES),
        products=None if own.products is None else before.products + lax.psum(own.products, _BATCHES),
        largest=jnp.maximum(before.largest, lax.pmax(own.largest, _BATCHES)),
        magnitudes=before.magnitudes + lax.psum(own.magnitudes, _BATCHES),
        errors=None if own.errors is None else before.errors + lax.psum(own.errors, _BATCHES),
    )
    scope.state = {**scope.state, site.statistics: sums}
    return sums
