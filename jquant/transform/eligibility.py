"""Whether an equation with known weights is a site, or why it stays float."""

import math

from jquant.transform import weight_graph
from jquant.transform.jaxprs import Equation
from jquant.transform.layouts import CONVOLUTION, EMBEDDING, weight_layout
from jquant.transform.values import Value
from jquant.transform.weight_graph import Node


def is_table(node: Node) -> bool:
    """Whether a value can be the table of an embedding."""
    return bool(node.leaves) and len(node.shape) == 2 and weight_graph.is_float(node)


def is_embedding(equation: Equation) -> bool:
    """Whether a gather takes whole rows or columns of a table."""
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    shape = equation.invars[0].aval.shape
    if (
        len(numbers.start_index_map) != 1
        or numbers.operand_batching_dims
        or numbers.collapsed_slice_dims != numbers.start_index_map
    ):
        return False
    (index,) = numbers.start_index_map
    return all(size == (1 if dimension == index else shape[dimension]) for dimension, size in enumerate(sizes))


def why_not(kind: str, equation: Equation, operand: int, other: Value, weights: Node, smallest: int) -> str | None:
    """Why an equation with known weights is not a site; None if it is eligible."""
    shape = weights.shape
    if not all(isinstance(size, int) for size in shape):
        return "the shape of its weights depends on the inputs"
    if str(weights.dtype) not in ("float32", "float16", "bfloat16"):
        return f"its weights are {weights.dtype}"
    if math.prod(shape) < smallest:
        return f"its weights have {math.prod(shape)} elements, fewer than {smallest}"
    if kind == EMBEDDING:
        return None
    input_dtype = equation.invars[1 - operand].aval.dtype
    if str(input_dtype) not in ("float32", "float16", "bfloat16"):
        return f"its input is {input_dtype}"
    if kind == CONVOLUTION:
        return _why_not_convolution(equation)
    if other.is_flag:
        return "its input consists of zeros and ones, which select rows of the weights"
    sizes = equation.invars[operand].aval.shape
    layout = weight_layout(kind, equation, operand, tuple(range(len(sizes))))
    if math.prod(sizes[d] for d in layout.kept) == 1:
        return "its weights are a vector"
    if math.prod(sizes[d] for d in layout.contracted) == 1:
        return "it sums over no dimension"
    return None


def _why_not_convolution(equation: Equation) -> str | None:
    parameters = equation.params
    if any(dilation != 1 for dilation in parameters["lhs_dilation"]):
        return "it is a transposed convolution, whose input is dilated"
    if parameters["batch_group_count"] != 1:
        return "its batch is divided into groups"
    if len(parameters["window_strides"]) not in (1, 2, 3):
        return "it does not have one, two or three spatial dimensions"
    if any(number < 0 for pair in parameters["padding"] for number in pair):
        return "its padding is negative"
    return None
