"""The dimension numbers of a product, as a caller writes them."""

from collections.abc import Sequence

from jquant.arguments.descriptor import require
from jquant.arguments.statics import are_integers, is_sequence
from jquant.errors import DescriptorTypeError, shown
from jquant.formulas.dot_dimensions import DotDimensions

DimensionNumbers = tuple[tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]]


def dot_dimensions(operator: str, numbers: DimensionNumbers, lhs: tuple[int, ...], rhs: tuple[int, ...]) -> DotDimensions:
    """The `numbers` of a product of operands of the shapes `lhs` and `rhs`, checked."""
    given = f"{operator}: dimension_numbers is {shown(numbers)}"
    are_pairs = _is_pair(numbers) and all(map(_is_pair, numbers))
    if not are_pairs or not all(are_integers(dimensions) for pair in numbers for dimensions in pair):
        raise DescriptorTypeError(
            f"{given}; it must be ((lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch)), each a list of dimensions"
        )
    found = DotDimensions._make(tuple(map(int, one)) for pair in numbers for one in pair)
    for name, shape, dimensions in (
        ("lhs", lhs, (*found.lhs_contracting, *found.lhs_batch)),
        ("rhs", rhs, (*found.rhs_contracting, *found.rhs_batch)),
    ):
        are_there = all(0 <= dimension < len(shape) for dimension in dimensions)
        require(are_there, f"{given}; of {name}, of shape {shape}, it names a dimension outside of 0 to {len(shape) - 1}")
        require(len({*dimensions}) == len(dimensions), f"{given}; it names a dimension of {name} twice")
    for what, of_lhs, of_rhs in (
        ("contracting", found.lhs_contracting, found.rhs_contracting),
        ("batch", found.lhs_batch, found.rhs_batch),
    ):
        require(len(of_lhs) == len(of_rhs), f"{given}; lhs has {len(of_lhs)} {what} dimensions, rhs {len(of_rhs)}")
        sizes, others = tuple(lhs[one] for one in of_lhs), tuple(rhs[one] for one in of_rhs)
        require(sizes == others, f"{given}; the {what} dimensions of lhs have sizes {sizes}, those of rhs {others}")
    return found


def _is_pair(value: object) -> bool:
    return is_sequence(value) and len(value) == 2
