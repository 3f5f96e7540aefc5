"""Every public operator with random arguments and its reference formula, for checks of all operators.

Such checks are transformations, exports, surrounding programs, compilers and the self-check of an installation. A new
operator is a new entry in one of the tables. Nothing that computes imports this package.
"""

from jquant.cases import (
    blocks,
    clip,
    convolutions,
    linear,
    microscaling,
    nonlinear,
    products,
    quantized,
    rotations,
    tensorflow,
    weight_only,
)
from jquant.cases.case import ROWS as ROWS
from jquant.cases.case import Case as Case
from jquant.cases.case import on_first_floats as on_first_floats

_FAMILIES = (
    *(linear, microscaling, quantized, clip, nonlinear, products, blocks, weight_only, convolutions, tensorflow),
    rotations,
)

CASES: dict[str, Case] = {name: case for family in _FAMILIES for name, case in family.CASES.items()}
"""One or a few cases per operator, for slow checks. A case is named after its operator, which a comma may follow."""

VARIANTS: dict[str, Case] = {name: case for family in _FAMILIES for name, case in family.VARIANTS.items()}
"""The same operators in their other data types, modes and granularities."""
