"""Every public operator once: how it is called, on which arguments, and the formula that it must equal.

A table for whoever puts all operators through one thing: an export, a transformation, another platform. Another
operator is another entry of one of these tables.
"""

from cases import convolutions, linear, nonlinear, products, tensorflow
from cases.case import ROWS as ROWS
from cases.case import Case as Case
from cases.case import assert_equal as assert_equal

CASES: dict[str, Case] = {
    **linear.CASES,
    **nonlinear.CASES,
    **products.CASES,
    **convolutions.CASES,
    **tensorflow.CASES,
}
