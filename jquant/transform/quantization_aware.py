"""A differentiable function that rounds as the quantized one does, for training."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jquant import jaxprs
from jquant.arithmetic.straight_through import straight_through
from jquant.errors import TransformError
from jquant.placement import explain_array_errors_as
from jquant.transform.formats.stored_weights import SMOOTHING, WEIGHTS, Stored
from jquant.transform.observations import statistics
from jquant.transform.observations.static_inputs import static_inputs
from jquant.transform.observations.statistics import InputStatistics
from jquant.transform.program import traced
from jquant.transform.program.layouts import EMBEDDING
from jquant.transform.program.parameters import flattened, require_arrays
from jquant.transform.program.plan import ActivationProduct, Site
from jquant.transform.recipes.recipe import Recipe
from jquant.transform.rewriting import compute, rewrite, site_functions
from jquant.transform.weights import layers, prepared_weights
from jquant.transform.weights.prepared_weights import without_factors

_NAME = "transform.quantization_aware"


@explain_array_errors_as(_NAME, TransformError)
def quantization_aware(
    apply: Callable[..., Any], recipe: Recipe, calibration: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Converts a function to one that rounds as its quantized function does, and can be trained.

    At each site, the weights and the input are quantized as in `quantize`, dequantized again, and passed to the function's
    own product. So the outputs differ from those of the quantized function only by the rounding of float sums. Everywhere
    else, the function is unchanged.

    The derivative is the straight-through one: that of the function at the rounded values. Rounding has derivative 1, except
    outside the range of a static input, where it has 0. Scales have no derivative. A `jax.custom_vjp` or `jax.custom_jvp`
    around a site loses its rule: what it computes is differentiated instead.

    Args:
      apply, recipe, calibration: as for `quantize`.

    Returns:
      A function of the parameters and inputs, like `apply`. After training, pass `apply` and the parameters to `quantize`.

    Raises:
      TransformError, TransformTypeError: as in `quantize`. Errors about the calibration, parameters and inputs are raised
        when the returned function is called.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jquant import transform
      >>> def apply(params, x):
      ...     return x @ params["kernel"]
      >>> kernel = jnp.linspace(-1, 1, 256).reshape(16, 16)
      >>> aware = transform.quantization_aware(apply, transform.weight_only_int8)
      >>> jax.grad(lambda params: aware(params, jnp.ones((1, 16))).sum())({"kernel": kernel})["kernel"][0, 0]
      Array(1., dtype=float32)
    """
    function = traced.checked(_NAME, apply, recipe)

    def aware(params: Any, *inputs: Any) -> Any:
        parameters = flattened(_NAME, params)
        require_arrays(f"{_NAME}: inputs", inputs)
        analysis = traced.analyze(function, parameters, inputs)
        plan = analysis.plan
        traced.require_sites(function, plan)
        weights = traced.weights_by_site(plan, parameters.leaves)
        static, observed = static_inputs(_NAME, plan, calibration), statistics.of_sites(_NAME, plan, calibration)
        stored = {site.name: _rounded(site, weights[site.name], observed.get(site.name)) for site in plan.stored()}
        resources = rewrite.Resources(stored=stored, static=static)
        leaves = [*parameters.leaves, *jax.tree.leaves(inputs)]
        outputs, _ = rewrite.run(plan, rewrite.Functions(_rounded_output, _rounded_product), leaves, resources)
        return jax.tree.unflatten(jax.tree.structure(analysis.outputs), outputs)

    return aware


def _rounded(site: Site, weights: jax.Array, statistics: InputStatistics | None) -> Stored:
    """The weights, quantized and dequantized, as `WEIGHTS`, and the factors of their smoothing."""
    storage, num_levels = site.storage, len(site.levels)
    constants = lax.stop_gradient((weights, statistics))
    if statistics is None:  # all layers at once
        pack: Any = lambda weights: layers.pack_layer(storage, weights, None)[:2]  # noqa: E731
        for _ in range(num_levels):
            pack = jax.vmap(pack)
        stored, succeeded = pack(constants[0])
    else:  # by the program that `quantize` packs with: another might give factors that differ in their last bits
        stored, outcome = layers.packed_weights(storage, num_levels, *constants)
        succeeded = outcome.succeeded
    stored = lax.stop_gradient(stored)
    factors = {name: array for name, array in stored.items() if name == SMOOTHING}

    def rounded(stored: Stored, factors: Stored, succeeded: jax.Array, weights: jax.Array) -> jax.Array:
        dequantized = layers.unpack_layer(storage, stored, weights.shape, weights.dtype)
        dequantized = jnp.where(succeeded, dequantized, jnp.nan)  # of GPTQ, where `quantize` would raise an error
        if storage.preparation.changes_input:
            matrix = layers.as_matrix(storage, weights)
            changed = prepared_weights.prepared(storage.preparation, matrix, factors.get(SMOOTHING))
            weights = layers.from_matrix(storage, changed.astype(weights.dtype), weights.shape)
        return straight_through(dequantized, weights)

    for _ in range(num_levels):
        rounded = jax.vmap(rounded)
    return {WEIGHTS: rounded(without_factors(stored), factors, succeeded, weights), **factors}


def _rounded_output(site: Site, operands: Sequence[Any], scope: rewrite.Scope) -> jax.Array:
    """The output of a site in float, for rounded operands."""
    rounded = list(operands)
    weights = compute.as_operand(site, scope.stored(site)[WEIGHTS], compute.which_matrices(site, operands))
    rounded[site.operand] = weights.astype(site.equation.invars[site.operand].aval.dtype)
    x = site_functions.prepared_input(site, operands[site.input_operand], scope.smoothing(site), scope)
    if site.kind != EMBEDDING and not compute.is_weight_only(site):
        x = scope.once(site.input, lambda: _rounded_input(site, x, scope))
    rounded[site.input_operand] = x
    return jaxprs.bind(site.equation, *rounded)[0]


def _rounded_product(product: ActivationProduct, operands: Sequence[Any], scope: rewrite.Scope) -> jax.Array:
    """A product of two activations in float, for rounded operands."""

    def rounded(operand: int) -> jax.Array:
        x = operands[operand]
        quantized = compute.quantize_operand(product, lax.stop_gradient(x), operand=operand)
        return straight_through(compute.dequantized_input(lax.stop_gradient(quantized), x.dtype), x)

    both = (scope.once(name, functools.partial(rounded, operand)) for operand, name in enumerate(product.inputs))
    return jaxprs.bind(product.equation, *both)[0]


def _rounded_input(site: Site, x: jax.Array, scope: rewrite.Scope) -> jax.Array:
    static = scope.static(site)
    quantized = compute.quantize_input(site, lax.stop_gradient(x), static)
    rounded = compute.dequantized_input(lax.stop_gradient(quantized), x.dtype)
    return straight_through(rounded, compute.unsaturated(site, x, static))
