"""Whether an equation is a site, or why it stays float."""

import dataclasses
import math
from collections.abc import Sequence

from jquant.jaxprs import Equation
from jquant.transform.program.layouts import CONVOLUTION, EMBEDDING, WeightLayout, product_dimensions
from jquant.transform.program.selections import parts
from jquant.transform.program.values import Known, is_weight
from jquant.transform.program.weight_graph import WeightNode, is_float
from jquant.transform.recipes.recipe import Activations, Scheme

_FLOATS = "float32", "float16", "bfloat16"


def looks_up(equation: Equation, inputs: Sequence[Known]) -> bool:
    """Whether an equation takes whole rows or columns of a table, or of a stack of them, that is among the parameters.

    It may take several that lie next to one another.
    """
    taken, table = parts(equation), inputs[0].node if inputs else None
    if taken is None or table is None or not is_weight(inputs[0]) or not is_float(table):
        return False
    is_long = [equation.params["slice_sizes"][dimension] != 1 for dimension in taken.selected]
    return len(table.shape) - len(taken.selected) == 1 and sum(is_long) <= 1


def why_not(
    kind: str, equation: Equation, operand: int, other: Known, weights: WeightNode, layout: WeightLayout, smallest: int
) -> str | None:
    """Why an equation with known weights is not a site; None if it is eligible."""
    reason = why_not_weights(weights, smallest)
    if reason is not None or kind == EMBEDDING:
        return reason
    shape = weights.shape
    input_dtype = equation.invars[1 - operand].aval.dtype
    if str(input_dtype) not in _FLOATS:
        return f"its input is {input_dtype}"
    if kind == CONVOLUTION:
        return _why_not_convolution(equation)
    if other.is_flag:
        return "its input consists of zeros and ones, which select rows of the weights"
    if math.prod(shape[d] for d in layout.kept) == 1:
        return "its weights are a vector"
    if len(layout.contracted) < len(product_dimensions(equation, operand)[0]):
        return "it sums over the matrices that an index selects"
    if math.prod(shape[d] for d in layout.contracted) == 1:
        return "it sums over no dimension"
    return None


def why_not_weights(weights: WeightNode, smallest: int) -> str | None:
    """Why known weights are not quantized, whatever reads them; None if they may be."""
    shape = weights.shape
    if not all(isinstance(size, int) for size in shape):
        return "the shape of its weights depends on the inputs"
    if str(weights.dtype) not in _FLOATS:
        return f"its weights are {weights.dtype}"
    if math.prod(shape) == 0:
        return "its weights have no elements"
    if math.prod(shape) < smallest:
        return f"its weights have {math.prod(shape)} elements, fewer than {smallest}"
    return None


def is_plainly_ragged(equation: Equation) -> bool:
    """Whether a `ragged_dot_general` is a `jax.lax.ragged_dot`: each group of rows is multiplied by a matrix of its own."""
    numbers = equation.params["ragged_dot_dimension_numbers"]
    contracted, batch = numbers.dot_dimension_numbers
    is_plain = not any(map(len, batch)) and tuple(map(len, contracted)) == (1, 1)
    rows_are_ragged = len(numbers.lhs_ragged_dimensions) == 1 and len(numbers.rhs_group_dimensions) == 1
    rows_are_ragged = rows_are_ragged and numbers.lhs_ragged_dimensions[0] not in contracted[0]
    return is_plain and rows_are_ragged and equation.params["group_offset"] is None and equation.invars[0].aval.ndim == 2


def why_not_activations(equation: Equation, inputs: Sequence[Known]) -> str | None:
    """Why a product of two values that are not weights is not quantized; None if it is eligible."""
    for operand, value in zip(equation.invars, inputs, strict=True):
        if str(operand.aval.dtype) not in _FLOATS:
            return f"an operand is {operand.aval.dtype}"
        if value.is_flag:
            return "an operand consists of zeros and ones, which select rows of the other one"
    sizes = equation.invars[0].aval.shape
    if math.prod(sizes[d] for d in product_dimensions(equation, 0)[0]) == 1:
        return "it sums over no dimension"
    return None


def why_not_scheme(scheme: Scheme) -> str | None:
    """Why a scheme is none for a product of two activations; None if it is one."""
    if scheme.activations not in (Activations.DYNAMIC, Activations.DYNAMIC_ROW):
        return f"activations is {scheme.activations}; both operands are activations: pass DYNAMIC or DYNAMIC_ROW"
    changed = dataclasses.replace(scheme, activations=Activations.DYNAMIC, activation_type="UINT8")
    if changed != Scheme():
        return f"{changed} is for weights, of which it has none: leave that out"
    return None


def _why_not_convolution(equation: Equation) -> str | None:
    parameters = equation.params
    if parameters["batch_group_count"] != 1:
        return "its batch is divided into groups"
    if len(parameters["window_strides"]) not in (1, 2, 3):
        return "it does not have one, two or three spatial dimensions"
    sizes = equation.outvars[0].aval.shape
    if any(isinstance(sizes[d], int) and sizes[d] == 0 for d in parameters["dimension_numbers"].out_spec[2:]):
        return "no window fits into its input"
    return None
