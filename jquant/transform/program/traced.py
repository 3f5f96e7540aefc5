"""A function with its sites: the first step of every transformation."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from jquant import jaxprs
from jquant.errors import TransformError, TransformTypeError
from jquant.lowering import recording
from jquant.transform.program import weight_graph
from jquant.transform.program.parameters import Parameters, abstract, described, module_advice, require_arrays
from jquant.transform.program.plan import Plan
from jquant.transform.program.reader import read
from jquant.transform.recipes.recipe import Recipe


class Function(NamedTuple):
    """What is transformed: a function of parameters and inputs, and the recipe."""

    name: str  # of the transformation, for messages
    apply: Callable[..., Any]
    recipe: Recipe


class Analysis(NamedTuple):
    """A function traced for inputs of certain types, with its sites, and the tree of its outputs."""

    plan: Plan
    outputs: Any


def checked(name: str, apply: Any, recipe: Any) -> Function:
    """The function to transform, asserting that `apply` is callable and `recipe` a `Recipe`."""
    if not callable(apply):
        raise TransformTypeError(f"{name}: apply is {described(apply)}; it must be a function of params and inputs")
    if not isinstance(recipe, Recipe):
        wanted = f"it must be a Recipe, such as transform.static_int8{module_advice(apply)}"
        raise TransformTypeError(f"{name}: recipe is {described(recipe)}; {wanted}")
    return Function(name, apply, recipe)


def analyze(function: Function, parameters: Parameters, inputs: tuple[Any, ...], batch: int | None = None) -> Analysis:
    """Traces a function for inputs of these types, and finds its sites. `batch` is their number in a data set."""
    program, outputs = trace(function, parameters, inputs, batch)
    return Analysis(read(program, parameters.names, function.recipe), outputs)


def trace(function: Function, parameters: Parameters, inputs: tuple[Any, ...], batch: int | None = None) -> jaxprs.Traced:
    """The program of a function for inputs of these types. What it raises gets a note of what it was called with."""
    params = parameters.structure.unflatten(map(abstract, parameters.leaves))
    try:
        with recording.opened():
            return jaxprs.trace(function.apply, params, *inputs)
    except Exception as error:
        if isinstance(error, TypeError | ValueError | OverflowError):
            require_arrays(f"{function.name}: inputs", inputs, allow_types=True)
        error.add_note(_call(function, inputs, batch))
        raise


def _call(function: Function, inputs: tuple[Any, ...], batch: int | None) -> str:
    """How `apply` was called, and what its inputs are to be."""
    call = f"{function.name} called apply({', '.join(['params', *map(described, inputs)])})"
    if batch is None:
        return f"{call}. These are the inputs alone, without labels; bind static arguments with functools.partial."
    wanted = "A batch has the shapes that apply takes, with the batch dimension, and no labels"
    return f"{call}, for batch {batch}. {wanted}; several inputs are a tuple, not a list."


def require_sites(function: Function, plan: Plan) -> None:
    """Asserts that there is something to quantize."""
    if plan.sites or plan.products:
        return
    reasons = "; ".join(f"{each.name} ({each.kind}): {each.reason}" for each in plan.floats[:5])
    message = f"{function.name}: apply has no site: no product, convolution or embedding with weights to quantize"
    message += module_advice(function.apply)
    raise TransformError(f"{message}. Left in float: {reasons}" if reasons else message)


def weights_by_site(plan: Plan, leaves: list[Any]) -> dict[str, jax.Array]:
    """The weights to be stored, by the name of the site, stacked over its layers."""
    sites = plan.stored()
    weights = weight_graph.values([site.weights for site in sites], leaves)
    return {site.name: value for site, value in zip(sites, weights, strict=True)}
