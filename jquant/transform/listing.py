"""The table of sites: what can be quantized in a function, and what stays float."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jquant.errors import TransformError
from jquant.placement import explain_array_errors_as
from jquant.transform import tables
from jquant.transform.program import traced
from jquant.transform.program.layouts import ACTIVATION_MATMUL, EMBEDDING
from jquant.transform.program.parameters import flattened
from jquant.transform.program.plan import ActivationProduct, Site
from jquant.transform.recipes.preparation import Preparation
from jquant.transform.recipes.recipe import Activations, Recipe, Scheme, dynamic_int8

_NAME = "transform.sites"


class Row(NamedTuple):
    """A product, a convolution or an embedding of a function.

    Attributes:
      name: the path of its weights among the parameters; if the weights are computed from several parameters, that of the
        first. For a product of two activations, its kind and its `jax.named_scope`; without any of these, "-".
      kind: ``"matmul"``, ``"convolution"`` or ``"embedding"``, or ``"activation_matmul"``, for a product of two activations.
      shape: the shapes of its operands, the input first, and the number of layers if a loop stacks the weights.
      reason: why it stays float, or None if it is a site.
      scheme: how the recipe quantizes it, in brief.
    """

    name: str
    kind: str
    shape: str
    reason: str | None
    scheme: str


class Sites(tuple[Row, ...]):
    """The rows of a function, sites first. Prints as a table."""

    def __str__(self) -> str:
        sites = [row for row in self if row.reason is None]
        floats = [row for row in self if row.reason is not None]
        rows = [("site", "kind", "input x weights", "scheme"), *((r.name, r.kind, r.shape, r.scheme) for r in sites)]
        lines = tables.lines(rows, left=4)
        if floats:
            rows = [("float", "kind", "operands", "reason"), *((r.name, r.kind, r.shape, str(r.reason)) for r in floats)]
            lines += ["", *tables.lines(rows, left=4)]
        return "\n".join(lines)


@explain_array_errors_as(_NAME, TransformError)
def sites(apply: Callable[..., Any], params: Any, *inputs: Any, recipe: Recipe = dynamic_int8) -> Sites:
    """Lists the products, convolutions and embeddings of a function: what is quantized, and what stays float.

    A site is one whose weights depend on the parameters alone, directly or through transpositions, casts, slices or other
    arithmetic; or, for a recipe with the pattern ``"activation_matmul"``, a product of two activations. Sites are found
    inside `jax.jit`, `jax.lax.scan`, `cond` and `while_loop`, `jax.checkpoint`, `custom_jvp`, `custom_vjp` and `shard_map`.
    What stays float is listed with the reason.

    Args:
      apply: a pure function of the parameters and of inputs. Bind static arguments with `functools.partial`.
      params: a pytree of arrays, or of `jax.ShapeDtypeStruct`.
      inputs: the inputs of the function: arrays, or `jax.ShapeDtypeStruct`. Nothing is computed.
      recipe: what is to be quantized; by default, everything that can be.

    Returns:
      `Sites`: a tuple of `Row` that prints as a table.

    Raises:
      TransformError: a pattern of the recipe that matches no site, or `params` without an array.
      TransformTypeError: an argument of the wrong type, or a leaf of `params` or of the inputs that is not an array. What
        `apply` raises is not changed, but for a note of what it was called with.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jquant import transform
      >>> def apply(params, x):
      ...     x = x @ params["embed"]
      ...     scores = x @ x.T
      ...     return scores @ (x @ params["out"])
      >>> params = {"embed": jnp.ones((32, 64)), "out": jnp.ones((64, 8))}
      >>> print(transform.sites(apply, params, jnp.ones((10, 32))))
      site   kind    input x weights      scheme
      embed  matmul  [10, 32] x [32, 64]  int8 by channel, DYNAMIC UINT8
      out    matmul  [10, 64] x [64, 8]   int8 by channel, DYNAMIC UINT8
      <BLANKLINE>
      float                kind               operands             reason
      activation_matmul    activation_matmul  [10, 64] x [64, 10]  only the pattern activation_matmul matches it
      activation_matmul#2  activation_matmul  [10, 10] x [10, 8]   only the pattern activation_matmul matches it
    """
    function = traced.checked(_NAME, apply, recipe)
    plan = traced.analyze(function, flattened(_NAME, params, allow_types=True), inputs).plan
    rows = [_row_of_site(site, plan.sizes(site)) for site in plan.sites.values()]
    rows += map(_row_of_product, plan.products.values())
    rows += [Row(name=each.name, kind=each.kind, shape=each.shape, reason=each.reason, scheme="") for each in plan.floats]
    return Sites(rows)


def _row_of_site(site: Site, layers: tuple[int, ...]) -> Row:
    return Row(name=site.name, kind=site.kind, shape=_shape(site, layers), reason=None, scheme=_scheme(site))


def _row_of_product(product: ActivationProduct) -> Row:
    left, right = (list(operand.aval.shape) for operand in product.equation.invars)
    scheme = f"both {_input(product.scheme, Preparation())[0]}"
    return Row(name=product.name, kind=ACTIVATION_MATMUL, shape=f"{left} x {right}", reason=None, scheme=scheme)


def _shape(site: Site, layers: tuple[int, ...]) -> str:
    operands = site.equation.invars
    input_shape, weight_shape = (list(operands[number].aval.shape) for number in (site.input_operand, site.operand))
    text = f"{input_shape} x {weight_shape}"
    return f"{text} x {' x '.join(map(str, layers))} layers" if layers else text


def _scheme(site: Site) -> str:
    title, preparation = site.storage.format.title, site.storage.preparation
    if site.kind == EMBEDDING:
        return ", ".join(_weights(title.replace("channel", "row"), preparation))
    return ", ".join([*_weights(title, preparation), *_input(site.scheme, preparation)])


def scheme_title(scheme: Scheme) -> str:
    """What tables call a scheme, as that of a product."""
    return ", ".join([*_weights(scheme.format.title, scheme.preparation), *_input(scheme, scheme.preparation)])


def _weights(title: str, preparation: Preparation) -> list[str]:
    """How weights are stored, in a format of this title."""
    parts = [title]
    if preparation.searches_range:
        parts.append("searched ranges")
    if preparation.rounding is not None:
        parts.append("GPTQ")
    return parts


def _input(scheme: Scheme, preparation: Preparation) -> list[str]:
    """What the input of a product or a convolution becomes."""
    quantized = f"{scheme.activations} {'INT8' if scheme.is_symmetric else 'UINT8'}"
    parts = ["float input" if scheme.activations == Activations.FLOAT else quantized]
    if preparation.smoothing is not None:
        parts.append(preparation.smoothed)
    if preparation.is_rotated:
        parts.append("rotated")
    return parts
