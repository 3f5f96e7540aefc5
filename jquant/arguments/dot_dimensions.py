"""The dimension numbers of a product, as a caller writes them."""

from collections.abc import Sequence

from jquant.arguments.assertions import once_for_each_signature, require
from jquant.arguments.naming import message
from jquant.arguments.statics import are_integers, is_sequence
from jquant.errors import DescriptorTypeError, shown
from jquant.formulas.dot_dimensions import DotDimensions

DimensionNumbers = tuple[tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]]


def dot_dimensions(operator: str, numbers: DimensionNumbers, lhs: tuple[int, ...], rhs: tuple[int, ...]) -> DotDimensions:
    """The `numbers` of a product of operands of the shapes `lhs` and `rhs`, checked."""
    are_pairs = _is_pair(numbers) and all(map(_is_pair, numbers))
    if not are_pairs or not all(are_integers(dimensions) for pair in numbers for dimensions in pair):
        wanted = "((lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch)), each a list of dimensions"
        raise DescriptorTypeError(message(operator, "dimension_numbers", f"is {shown(numbers)}; it must be {wanted}"))
    dimensions = DotDimensions._make(tuple(map(int, part)) for pair in numbers for part in pair)
    _require_match(operator, dimensions, lhs, rhs)
    return dimensions


@once_for_each_signature
def _require_match(operator: str, numbers: DotDimensions, lhs: tuple[int, ...], rhs: tuple[int, ...]) -> None:
    """Asserts that the numbers name dimensions that the operands have, and that those have equal sizes."""
    violation = _violation(numbers, lhs, rhs)
    written = (numbers.lhs_contracting, numbers.rhs_contracting), (numbers.lhs_batch, numbers.rhs_batch)
    require(violation is None, message(operator, "dimension_numbers", f"is {shown(written)}; {violation}"))


def _violation(numbers: DotDimensions, lhs: tuple[int, ...], rhs: tuple[int, ...]) -> str | None:
    """What is wrong, if anything is."""
    for name, shape, dimensions in (
        ("lhs", lhs, (*numbers.lhs_contracting, *numbers.lhs_batch)),
        ("rhs", rhs, (*numbers.rhs_contracting, *numbers.rhs_batch)),
    ):
        if not all(0 <= dimension < len(shape) for dimension in dimensions):
            return f"it names a dimension of {name} outside 0 to {len(shape) - 1}: {name} has shape {shape}"
        if len({*dimensions}) != len(dimensions):
            return f"it names a dimension of {name} twice"
    for what, one, other in (
        ("contracting", numbers.lhs_contracting, numbers.rhs_contracting),
        ("batch", numbers.lhs_batch, numbers.rhs_batch),
    ):
        if len(one) != len(other):
            return f"lhs has {len(one)} {what} dimensions, but rhs has {len(other)}"
        sizes, others = tuple(lhs[dimension] for dimension in one), tuple(rhs[dimension] for dimension in other)
        if sizes != others:
            return f"the {what} dimensions of lhs have sizes {sizes}, but those of rhs have {others}"
    return None


def _is_pair(value: object) -> bool:
    return is_sequence(value) and len(value) == 2
