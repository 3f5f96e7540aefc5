"""Every public operator: how it is called, on which arguments, and the formula that it must equal.

A table for whoever puts all operators through one thing: a transformation, an export, a caller's program, a compiler,
somebody's machine. Another operator is another entry of one of the tables. Only what checks imports it.
"""

from jquant.cases import blocks, clip, convolutions, linear, microscaling, nonlinear, products, quantized, tensorflow
from jquant.cases.case import ROWS as ROWS
from jquant.cases.case import Case as Case
from jquant.cases.case import on_first_floats as on_first_floats

_FAMILIES = (linear, microscaling, quantized, clip, nonlinear, products, blocks, convolutions, tensorflow)

CASES: dict[str, Case] = {name: case for family in _FAMILIES for name, case in family.CASES.items()}
"""One or a few of each operator, for what takes long. Before the first comma of a name is that of the operator."""

VARIANTS: dict[str, Case] = {name: case for family in _FAMILIES for name, case in family.VARIANTS.items()}
"""The same operators in their other data types, modes and granularities."""
