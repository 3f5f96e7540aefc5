"""How the weights of a site are laid out: as a matrix in products, and as they are stored."""

from collections.abc import Sequence
from typing import NamedTuple

from jquant.modes import ScaleGranularity
from jquant.transform.jaxprs import Equation
from jquant.transform.recipe import Activations, Scheme

MATMUL, CONVOLUTION, EMBEDDING = "matmul", "convolution", "embedding"  # the kinds of sites


class Layout(NamedTuple):
    """The dimensions of weights, as those of a matrix. For a filter, the kept dimension is that of the output channels."""

    batch: tuple[int, ...]
    contracted: tuple[int, ...]
    kept: tuple[int, ...]


class Storage(NamedTuple):
    """How weights are stored. Equal weights with equal storage are stored once.

    Attributes:
      layout: what shares a scale, if scales are per channel: the contracted dimensions.
      scales: per channel, or one for the whole tensor.
      weight_type: the integer type, which may have fewer values than int8.
      filter: the dimensions of a filter, in the order of the operand; None for a matrix.
    """

    layout: Layout
    scales: ScaleGranularity
    weight_type: str
    filter: tuple[int, ...] | None


def layout_of(kind: str, equation: Equation, operand: int, dimensions: tuple[int, ...]) -> Layout:
    """How the weights are stored; `dimensions` gives the dimension of the weights for each dimension of the operand."""

    def of_weights(operand_dimensions: Sequence[int]) -> tuple[int, ...]:
        return tuple(dimensions[dimension] for dimension in operand_dimensions)

    if kind == EMBEDDING:
        (index,) = equation.params["dimension_numbers"].start_index_map
        return Layout((), of_weights([d for d in range(len(dimensions)) if d != index]), of_weights([index]))
    if kind == CONVOLUTION:
        spec = equation.params["dimension_numbers"].rhs_spec
        return Layout((), of_weights([d for d in range(len(dimensions)) if d != spec[0]]), of_weights([spec[0]]))
    contracted, batch = product_dimensions(equation, operand)
    kept = [d for d in range(len(dimensions)) if d not in contracted and d not in batch]
    return Layout(of_weights(batch), of_weights(contracted), of_weights(kept))


def rows_of(kind: str, equation: Equation, operand: int, scheme: Scheme) -> tuple[int, ...] | None:
    """The dimensions of the input that lie in one row, if rows have their own scales."""
    if kind != MATMUL or scheme.activations != Activations.DYNAMIC_ROW:
        return None
    return tuple(sorted(product_dimensions(equation, 1 - operand)[0]))


def product_dimensions(equation: Equation, operand: int) -> tuple[list[int], list[int]]:
    """The contracted and the batch dimensions of an operand, the contracted ones in the order of the other operand's."""
    contract, batch = equation.params["dimension_numbers"]
    mine, others = contract[operand], contract[1 - operand]
    return [d for _, d in sorted(zip(others, mine, strict=True))], list(batch[operand])
