"""A differentiable function that rounds as the quantized one does, for training."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jquant.arithmetic.straight_through import straight_through
from jquant.calibration import Range
from jquant.errors import TransformError
from jquant.placement import explain_array_errors_as
from jquant.transform import compute, jaxprs, rewrite, traced
from jquant.transform.layouts import EMBEDDING
from jquant.transform.parameters import flattened
from jquant.transform.plan import ActivationProduct, Site
from jquant.transform.recipe import Recipe
from jquant.transform.static_inputs import static_inputs

_NAME = "transform.quantization_aware"


@explain_array_errors_as(_NAME, TransformError)
def quantization_aware(
    apply: Callable[..., Any], recipe: Recipe, calibration: Mapping[str, Range] | None = None
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
        traced.require_arrays(_NAME, inputs)
        analysis = traced.analyze(function, parameters, inputs)
        plan = analysis.plan
        traced.require_sites(function, plan)
        weights = traced.weights_by_site(plan, parameters.leaves)
        stored = {site.name: _rounded_weights(site, len(site.levels), weights[site.name]) for site in plan.stored()}
        resources = rewrite.Resources(stored=stored, static=static_inputs(_NAME, plan, calibration))
        leaves = [*parameters.leaves, *jax.tree.leaves(inputs)]
        outputs, _ = rewrite.run(plan, rewrite.Functions(_rounded_output, _rounded_product), leaves, resources)
        return jax.tree.unflatten(jax.tree.structure(analysis.outputs), outputs)

    return aware


def _rounded_weights(site: Site, num_levels: int, weights: jax.Array) -> jax.Array:
    """The weights, quantized and dequantized."""

    def rounded(weights: jax.Array) -> jax.Array:
        stored = jax.lax.stop_gradient(compute.pack_layer(site.storage, jax.lax.stop_gradient(weights)))
        return straight_through(compute.unpack_layer(site.storage, stored, weights.shape, weights.dtype), weights)

    for _ in range(num_levels):
        rounded = jax.vmap(rounded)
    return rounded(weights)


def _rounded_output(site: Site, operands: Sequence[Any], scope: rewrite.Scope) -> jax.Array:
    """The output of a site in float, for rounded operands."""
    rounded = list(operands)
    weights = compute.as_operand(site, scope.stored(site), compute.which_matrices(site, operands))
    rounded[site.operand] = weights.astype(site.equation.invars[site.operand].aval.dtype)
    if site.kind != EMBEDDING and not compute.is_weight_only(site):
        rounded[site.input_operand] = scope.once(site.input, lambda: _rounded_input(site, operands, scope))
    return jaxprs.bind(site.equation, *rounded)[0]


def _rounded_product(product: ActivationProduct, operands: Sequence[Any], scope: rewrite.Scope) -> jax.Array:
    """A product of two activations in float, for rounded operands."""

    def rounded(operand: int) -> jax.Array:
        x = operands[operand]
        quantized = compute.quantize_operand(product, jax.lax.stop_gradient(x), operand=operand)
        return straight_through(compute.dequantized_input(jax.lax.stop_gradient(quantized), x.dtype), x)

    both = (scope.once(name, functools.partial(rounded, operand)) for operand, name in enumerate(product.inputs))
    return jaxprs.bind(product.equation, *both)[0]


def _rounded_input(site: Site, operands: Sequence[Any], scope: rewrite.Scope) -> jax.Array:
    x = operands[site.input_operand]
    static = scope.static(site)
    quantized = compute.quantize_input(site, jax.lax.stop_gradient(x), static)
    rounded = compute.dequantized_input(jax.lax.stop_gradient(quantized), x.dtype)
    return straight_through(rounded, compute.unsaturated(site, x, static))
