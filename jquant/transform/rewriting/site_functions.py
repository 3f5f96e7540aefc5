"""What a quantized function computes at a site, with one of its two derivatives: none, or the straight-through one."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax

from jquant import jaxprs
from jquant.errors import TransformError, TransformTypeError, shown
from jquant.transform.formats.stored_weights import Stored
from jquant.transform.program.layouts import EMBEDDING
from jquant.transform.program.plan import ActivationProduct, Site
from jquant.transform.rewriting import compute, rewrite
from jquant.transform.rewriting.compute import QuantizedInput

_STRAIGHT_THROUGH = "STRAIGHT_THROUGH"


def with_derivative(name: str, derivative: Any) -> rewrite.Functions:
    """What is computed, for a derivative that a caller names. Errors begin with `name`."""
    if derivative is None:
        return rewrite.Functions(_output, _product_output)
    if isinstance(derivative, str) and derivative.upper() == _STRAIGHT_THROUGH:
        return rewrite.Functions(straight_through_output, straight_through_product)
    error = TransformError if isinstance(derivative, str) else TransformTypeError
    raise error(f"{name}: derivative is {shown(derivative)}; it must be {_STRAIGHT_THROUGH!r}, or None")


def _output(site: Site, operands: Sequence[Any], scope: rewrite.Scope) -> jax.Array:
    """The output of a site, which has a derivative only if its input stays float."""
    stored, x = scope.stored(site), prepared_input(site, operands[site.input_operand], scope.smoothing(site), scope)
    if site.kind == EMBEDDING:
        return _without_derivative(site, compute.embedding_output)(stored, compute.row_numbers(site, operands))
    which = compute.which_matrices(site, operands)
    if compute.is_weight_only(site):
        return compute.weight_only_output(site, stored, x, which)
    static = scope.static(site)
    quantize = _without_derivative(site, compute.quantize_input)
    quantized_input = scope.once(site.input, lambda: quantize(x, static))
    return _without_derivative(site, compute.integer_output)(stored, quantized_input, which)


def prepared_input(site: Site, x: jax.Array, factors: jax.Array | None, scope: rewrite.Scope) -> jax.Array:
    """The input of a site, smoothed with its factors and rotated: once for all sites that read it so."""
    if not site.storage.preparation.changes_input:
        return x
    return scope.once(("prepared", site.input), lambda: compute.prepared_input(site, x, factors))


def _product_output(product: ActivationProduct, operands: Sequence[Any], scope: rewrite.Scope) -> jax.Array:
    """The output of a product of two activations, which has no derivative."""

    def quantized(operand: int) -> QuantizedInput:
        quantize = _without_derivative(product, functools.partial(compute.quantize_operand, operand=operand))
        return scope.once(product.inputs[operand], lambda: quantize(operands[operand]))

    return _without_derivative(product, compute.product_output)(quantized(0), quantized(1))


def _without_derivative(site: Site | ActivationProduct, compute: Callable[..., Any]) -> Callable[..., Any]:
    """A computation at a site, whose derivative raises: it would be silently wrong."""
    function = jax.custom_jvp(functools.partial(compute, site))

    def raise_error(primals: Any, tangents: Any) -> Any:
        message = (
            f"transform.quantize: the quantized function has no derivative through {site.name}: differentiate the one that "
            f"transform.quantization_aware returns, or quantize with derivative={_STRAIGHT_THROUGH!r}"
        )
        raise TransformError(message)

    function.defjvp(raise_error)
    return function


def straight_through_output(site: Site, operands: Sequence[Any], scope: rewrite.Scope) -> jax.Array:
    """The output of a site, with the derivative in its input of the function's own product by the dequantized weights."""
    stored, static, factors = lax.stop_gradient((scope.stored(site), scope.static(site), scope.smoothing(site)))
    x = prepared_input(site, operands[site.input_operand], factors, scope)
    if site.kind == EMBEDDING:
        return compute.embedding_output(site, stored, compute.row_numbers(site, operands))
    which = compute.which_matrices(site, operands)
    if compute.is_weight_only(site):
        return _product(site, stored, which, None, x)

    def quantized() -> tuple[QuantizedInput, jax.Array]:
        return compute.quantize_input(site, lax.stop_gradient(x), static), compute.unsaturated(site, x, static)

    return _product(site, stored, which, *scope.once(site.input, quantized))


def straight_through_product(product: ActivationProduct, operands: Sequence[Any], scope: rewrite.Scope) -> jax.Array:
    """The output of a product of two activations, with the derivative of the float product of the rounded operands."""

    def quantized(operand: int) -> tuple[QuantizedInput, jax.Array]:
        x = operands[operand]
        quantize = functools.partial(compute.quantize_operand, product, lax.stop_gradient(x), operand=operand)
        return scope.once(product.inputs[operand], lambda: (quantize(), x))

    (left, x), (right, y) = quantized(0), quantized(1)
    return _activation_product(product, left, right, x, y)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _activation_product(
    product: ActivationProduct, left: QuantizedInput, right: QuantizedInput, x: jax.Array, y: jax.Array
) -> jax.Array:
    """The output for quantized operands. It is differentiated in the float ones, `x` and `y`."""
    return compute.product_output(product, left, right)


@_activation_product.defjvp
def _activation_product_jvp(product: ActivationProduct, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    left, right, x, y = primals
    rounded = compute.dequantized_input(left, x.dtype), compute.dequantized_input(right, y.dtype)
    tangent = jax.jvp(lambda *operands: jaxprs.bind(product.equation, *operands)[0], rounded, tangents[2:])[1]
    return _activation_product(product, *primals), tangent


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _product(
    site: Site, stored: Stored, which: jax.Array | None, quantized_input: QuantizedInput | None, x: jax.Array
) -> jax.Array:
    """The output for a quantized input, or for the float `x` if there is none. Either way, it is differentiated in `x`."""
    if quantized_input is None:
        return compute.weight_only_output(site, stored, x, which)
    return compute.integer_output(site, stored, quantized_input, which)


@_product.defjvp
def _product_jvp(site: Site, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    # Rematerialized, so that the backward pass keeps the packed weights, and dequantizes those of one site at a time.
    product = jax.checkpoint(functools.partial(compute.product_by_dequantized, site))
    return _product(site, *primals), product(primals[0], tangents[-1], primals[1])
