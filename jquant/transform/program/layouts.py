"""How the weights of a site are laid out: as a matrix in products, and as they are stored."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from jquant.jaxprs import Equation
from jquant.transform.formats.stored_weights import WeightFormat
from jquant.transform.program.selections import parts
from jquant.transform.recipes.preparation import Preparation
from jquant.transform.recipes.recipe import Activations, Scheme

MATMUL, CONVOLUTION, EMBEDDING = "matmul", "convolution", "embedding"  # the kinds of sites
RAGGED = "ragged_dot_general"  # the primitive of `jax.lax.ragged_dot`
ACTIVATION_MATMUL = "activation_matmul"  # the kind of products of two activations


class WeightLayout(NamedTuple):
    """The dimensions of weights, grouped as those of a matrix. A filter keeps one dimension, that of the output channels."""

    batch: tuple[int, ...]
    contracted: tuple[int, ...]
    kept: tuple[int, ...]


class Storage(NamedTuple):
    """How weights are stored. Equal weights with equal storage are stored once.

    Attributes:
      layout: the dimensions. Blocks lie along the contracted ones.
      format: the format of the numbers.
      filter: the dimensions of a filter, in the order of the operand; None for a matrix.
      preparation: what is done to the weights before they are stored.
    """

    layout: WeightLayout
    format: WeightFormat
    filter: tuple[int, ...] | None
    preparation: Preparation = Preparation()


def weight_layout(
    kind: str, equation: Equation, operand: int, dimensions: Sequence[int | None], selected: tuple[int, ...]
) -> WeightLayout:
    """The layout of the weights.

    `dimensions` has the dimension of the weights for each dimension of the operand, or None. What is selected from the
    dimensions `selected` of the weights is a matrix of a batch.
    """

    def weight_dimensions(operand_dimensions: Sequence[int]) -> tuple[int, ...]:
        corresponding = (dimensions[dimension] for dimension in operand_dimensions)
        return tuple(dimension for dimension in corresponding if dimension is not None)

    batch: Sequence[int] = ()
    if kind == EMBEDDING:
        taken = parts(equation)
        assert taken is not None
        kept = taken.selected
        contracted = [d for d in range(len(dimensions)) if d not in kept]
    elif kind == CONVOLUTION:
        kept = equation.params["dimension_numbers"].rhs_spec[:1]
        contracted = [d for d in range(len(dimensions)) if d not in kept]
    else:
        contracted, batch = product_dimensions(equation, operand)
        kept = [d for d in range(len(dimensions)) if d not in contracted and d not in batch]
    return WeightLayout(
        batch=(*selected, *weight_dimensions(batch)),
        contracted=weight_dimensions(contracted),
        kept=weight_dimensions(kept),
    )


def preparation_of(kind: str, scheme: Scheme) -> Preparation:
    """What is done to the weights and the input of a site."""
    if kind == EMBEDDING:
        return scheme.preparation.of_table()
    return scheme.preparation if kind == MATMUL else Preparation()


def row_dimensions(kind: str, equation: Equation, input: int, scheme: Scheme) -> tuple[int, ...] | None:
    """The dimensions of an input, the operand of this index, that lie in one row, if each row has its own scale."""
    if kind not in (MATMUL, ACTIVATION_MATMUL) or scheme.activations != Activations.DYNAMIC_ROW:
        return None
    return tuple(sorted(product_dimensions(equation, input)[0]))


def input_quantizer(kind: str, equation: Equation, input: int, scheme: Scheme) -> Hashable:
    """How an input, the operand of this index, is quantized: the same input is quantized once in the same way."""
    preparation = preparation_of(kind, scheme)
    changed = None
    if preparation.changes_input:
        changed = preparation.is_rotated, tuple(map(tuple, product_dimensions(equation, input)))
    rows = row_dimensions(kind, equation, input, scheme)
    return scheme.activations, scheme.activation_type, scheme.observer, rows, changed


def product_dimensions(equation: Equation, operand: int) -> tuple[list[int], list[int]]:
    """The contracted and the batch dimensions of an operand, the contracted ones in the order of the other operand's."""
    if equation.primitive.name == RAGGED:
        contracted, batch = equation.params["ragged_dot_dimension_numbers"].dot_dimension_numbers
    else:
        contracted, batch = equation.params["dimension_numbers"]
    pairs = zip(contracted[1 - operand], contracted[operand], strict=True)
    return [dimension for _, dimension in sorted(pairs)], list(batch[operand])
