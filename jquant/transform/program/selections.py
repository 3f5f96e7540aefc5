"""What an index selects from parameters: matrices of a stack, such as those of experts, ``w[expert]``, or rows of a table.

The numbers of the selected matrices or rows are what the same equation makes of an array that has the number of each in its
place. Those of matrices are followed to the product.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant import jaxprs
from jquant.jaxprs import Equation, Path
from jquant.transform.program.weight_graph import WeightNode, is_float


class Parts(NamedTuple):
    """Parts of an array that an equation takes at an index.

    Attributes:
      selected: the dimensions of the array that the index selects from.
      dimensions: for each dimension of the output, the corresponding one of the array; None for a dimension of the index.
    """

    selected: tuple[int, ...]
    dimensions: tuple[int | None, ...]


class Selection(NamedTuple):
    """What is known about a value that is selected from a stack.

    Attributes:
      stack: the value that it is selected from.
      dimensions: for each dimension of the value, the corresponding one of the stack; None for a dimension of the index.
      selected: the dimensions of the stack that the index selects from.
      fills: whether an index beyond the stack selects NaN.
      equations: the paths of the equations that select, and that move dimensions since.
    """

    stack: WeightNode
    dimensions: tuple[int | None, ...]
    selected: tuple[int, ...]
    fills: bool
    equations: tuple[Path, ...]


class Selected(NamedTuple):
    """A selected value in a program: its elements, and the number of the matrix that they belong to.

    Attributes:
      value: the elements.
      numbers: as `numbers_after` returns them.
    """

    value: Any
    numbers: Any


def unselected(value: Any) -> Any:
    """The elements alone."""
    return value.value if isinstance(value, Selected) else value


def parts(equation: Equation) -> Parts | None:
    """The parts of its first operand that an equation takes at an index; None if it is no such equation."""
    if equation.primitive.name not in ("gather", "dynamic_slice"):
        return None
    shape, sizes = equation.invars[0].aval.shape, equation.params["slice_sizes"]
    numbers = equation.params.get("dimension_numbers")  # of a gather
    removed = () if numbers is None else (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    selected = tuple(d for d, size in enumerate(sizes) if size != shape[d] or d in removed)
    selected = selected or tuple(d for d, size in enumerate(sizes) if size == 1)[:1]  # the only row
    sources = [None if d in selected else d for d in range(len(shape)) if d not in removed]
    if numbers is None:
        return Parts(selected, tuple(sources))
    dimensions: list[int | None] = [None] * len(equation.outvars[0].aval.shape)
    for output, source in zip(numbers.offset_dims, sources, strict=True):
        dimensions[output] = source
    return Parts(selected, tuple(dimensions))


def fills(equation: Equation) -> bool:
    """Whether an equation that takes parts takes a fill value beyond its first operand."""
    return equation.params.get("mode") == lax.GatherScatterMode.FILL_OR_DROP


def selection(equation: Equation, path: Path, stack: WeightNode) -> Selection | None:
    """What an equation selects from a stack by an index; None if it does something else, or selects no matrices."""
    taken = parts(equation)
    if taken is None or not stack.leaves or not is_float(stack) or len(stack.shape) - len(taken.selected) < 2:
        return None
    if not taken.selected or any(equation.params["slice_sizes"][d] != 1 for d in taken.selected):
        return None
    fill_value = equation.params["fill_value"] if fills(equation) else None
    if fill_value is not None and not np.isnan(fill_value):
        return None
    return Selection(stack, taken.dimensions, taken.selected, fills(equation), (path,))


def moved(equation: Equation, path: Path, before: Selection) -> Selection | None:
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
    """The numbers of the matrices or rows in the output of an equation that selects, or moves what is selected.

    They are int32, of the shape of the output, but with 1 for each dimension that is not of the index; -1 where the index is
    beyond the first operand, and the equation fills what it selects there.
    """
    first, *others = operands
    if isinstance(first, Selected):
        is_cast = equation.primitive.name == "convert_element_type"
        return first.numbers if is_cast else jaxprs.bind(equation, first.numbers)[0]
    taken = parts(equation)
    assert taken is not None
    sizes = equation.params["slice_sizes"]
    shape, sizes = ([each[d] if d in taken.selected else 1 for d in range(first.ndim)] for each in (first.shape, sizes))
    numbers = jnp.arange(np.prod(shape), dtype=jnp.int32).reshape(shape)
    numbers = jaxprs.vary(numbers, jaxprs.varying_axes(jax.typeof(first)))
    changed: dict[str, Any] = {"slice_sizes": tuple(sizes)}
    if fills(equation):
        changed["fill_value"] = -1
    return jaxprs.bind(equation.replace(params={**equation.params, **changed}), numbers, *others)[0]
