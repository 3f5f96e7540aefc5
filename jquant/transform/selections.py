"""Weights that an index selects from a stack of matrices, such as those of experts: ``w[expert]``.

The numbers of the selected matrices are followed from the equation that selects to the product: they are what the same
equations make of an array that has the number of each matrix in the place of the matrix.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.transform import jaxprs
from jquant.transform.jaxprs import Equation
from jquant.transform.weight_graph import Node, is_float


class Selection(NamedTuple):
    """What is known about a value that is selected from a stack.

    Attributes:
      stack: the value that it is selected from.
      dimensions: for each dimension of the value, the corresponding one of the stack; None for a dimension of the index.
      selected: the dimensions of the stack that the index selects from.
      fills: whether an index beyond the stack selects NaN.
      equations: the paths of the equations that select, and that move dimensions since.
    """

    stack: Node
    dimensions: tuple[int | None, ...]
    selected: tuple[int, ...]
    fills: bool
    equations: tuple[Any, ...]


class Selected(NamedTuple):
    """A selected value in a program: its elements, and the number of the matrix that they belong to.

    Attributes:
      value: the elements.
      numbers: int32, with 1 for each dimension of the stack; -1 beyond the stack.
    """

    value: Any
    numbers: Any


def unselected(value: Any) -> Any:
    """The elements alone."""
    return value.value if isinstance(value, Selected) else value


def selection(equation: Equation, path: Any, stack: Node) -> Selection | None:
    """What an equation selects from a stack by an index; None if it does something else, or selects no matrices."""
    if len(stack.shape) < 3 or not stack.leaves or not is_float(stack):
        return None
    name = equation.primitive.name
    if name not in ("gather", "dynamic_slice"):
        return None
    sizes = equation.params["slice_sizes"]
    selected = tuple(d for d, (size, whole) in enumerate(zip(sizes, stack.shape, strict=True)) if size != whole)
    if len(stack.shape) - len(selected) < 2 or any(sizes[d] != 1 for d in selected):
        return None
    if name == "dynamic_slice":
        dimensions = [None if d in selected else d for d in range(len(stack.shape))]
        return Selection(stack, tuple(dimensions), selected, False, (path,))
    numbers, fill_value = equation.params["dimension_numbers"], equation.params["fill_value"]
    fills = equation.params["mode"] == lax.GatherScatterMode.FILL_OR_DROP
    if numbers.operand_batching_dims or (fills and fill_value is not None and not np.isnan(fill_value)):
        return None
    if not set(numbers.collapsed_slice_dims) <= set(selected):
        return None
    kept = iter(d for d in range(len(stack.shape)) if d not in numbers.collapsed_slice_dims)
    dimensions: list[int | None] = [None] * len(equation.outvars[0].aval.shape)
    for output in numbers.offset_dims:
        dimension = next(kept)
        dimensions[output] = None if dimension in selected else dimension
    return Selection(stack, tuple(dimensions), selected, fills, (path,))


def moved(equation: Equation, path: Any, before: Selection) -> Selection | None:
    """The selection after an equation that moves its dimensions or casts it; None after any other."""
    match equation.primitive.name:
        case "transpose":
            dimensions = tuple(before.dimensions[d] for d in equation.params["permutation"])
        case "squeeze":
            removed = equation.params["dimensions"]
            if any(before.dimensions[d] is not None for d in removed):
                return None
            dimensions = tuple(d for number, d in enumerate(before.dimensions) if number not in removed)
        case "convert_element_type" if jnp.issubdtype(equation.params["new_dtype"], np.floating):
            dimensions = before.dimensions
        case _:
            return None
    return before._replace(dimensions=dimensions, equations=(*before.equations, path))


def numbers_after(equation: Equation, operands: Sequence[Any]) -> jax.Array:
    """The numbers of the matrices in the output of an equation that selects, or moves what is selected."""
    first, *others = operands
    name = equation.primitive.name
    if isinstance(first, Selected):
        return first.numbers if name == "convert_element_type" else jaxprs.bind(equation, first.numbers)[0]
    sizes = equation.params["slice_sizes"]
    shape = [whole if size != whole else 1 for size, whole in zip(sizes, first.shape, strict=True)]
    numbers = jnp.arange(np.prod(shape), dtype=jnp.int32).reshape(shape)
    numbers = jaxprs.vary(numbers, jaxprs.varying_axes(jax.typeof(first)))
    changed: dict[str, Any] = {"slice_sizes": (1,) * len(shape)}
    if name == "gather" and equation.params["mode"] == lax.GatherScatterMode.FILL_OR_DROP:
        changed["fill_value"] = -1
    return jaxprs.bind(equation.replace(params={**equation.params, **changed}), numbers, *others)[0]
