"""Every public operator: how it is called, with which arguments, and the formula that it must equal.

A table for whatever all operators are put through: a transformation, an export, a caller's program, a compiler, somebody's
machine. A new operator is a new entry of one of the tables. Only checks import it.
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
    tensorflow,
    weight_only,
)
from jquant.cases.case import ROWS as ROWS
from jquant.cases.case import Case as Case
from jquant.cases.case import on_first_floats as on_first_floats

_FAMILIES = (linear, microscaling, quantized, clip, nonlinear, products, blocks, weight_only, convolutions, tensorflow)

CASES: dict[str, Case] = {name: case for family in _FAMILIES for name, case in family.CASES.items()}
"""One or a few cases per operator, for slow checks. The name of a case begins with that of its operator, before a comma."""

VARIANTS: dict[str, Case] = {name: case for family in _FAMILIES for name, case in family.VARIANTS.items()}
"""The same operators in their other data types, modes and granularities."""
