"""The parameters of every operator: their names, their kinds, their defaults, and the same results by keyword."""

import inspect

import numpy as np
import pytest
from support.documents import OPERATORS

import jquant

from .operands import A, B, X

every_operator = pytest.mark.parametrize("function", [getattr(jquant, name) for name in OPERATORS], ids=OPERATORS)


@every_operator
def test_every_parameter_but_the_first_has_a_name(function):
    first, *others = inspect.signature(function).parameters.values()
    assert first.kind is first.POSITIONAL_ONLY
    assert {parameter.kind for parameter in others} <= {first.POSITIONAL_OR_KEYWORD, first.KEYWORD_ONLY}


@every_operator
def test_an_output_is_called_output(function):
    names = inspect.signature(function).parameters
    assert not {"y_scale", "y_zero_point", "c_scale", "c_zero_point"} & names.keys()
    assert "zero_point" not in names or function in (jquant.quantize_linear, jquant.dequantize_linear, jquant.pack_matrix)


@every_operator
def test_a_zero_point_is_none_by_default_where_its_place_allows_it(function):
    """A parameter can have a default if every positional parameter after it has one."""
    parameters = list(inspect.signature(function).parameters.values())
    positional = [parameter for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY]
    for position, parameter in enumerate(positional):
        rest = positional[position + 1 :]
        if parameter.name.endswith("zero_point") and all(later.default is None for later in rest):
            assert parameter.default is None


def test_keywords_and_positions_are_alike():
    added = jquant.quantized_linear_add(
        *(A,), a_scale=0.5, a_zero_point=None, b=A, b_scale=0.25, b_zero_point=3, output_scale=2.0, output_zero_point=7
    )
    np.testing.assert_array_equal(added, jquant.quantized_linear_add(A, 0.5, None, A, 0.25, 3, 2.0, 7), strict=True)
    np.testing.assert_array_equal(
        jquant.matmul_integer(A, B, b_zero_point=1, a_zero_point=12), jquant.matmul_integer(A, B, 12, 1), strict=True
    )
    np.testing.assert_array_equal(jquant.quantize_linear(X, scale=0.1), jquant.quantize_linear(X, 0.1), strict=True)
    np.testing.assert_array_equal(
        jquant.quantized_linear_softmax(A, 0.1, None, output_zero_point=9, output_scale=0.01, axis=1),
        jquant.quantized_linear_softmax(A, 0.1, None, 0.01, 9, axis=1),
        strict=True,
    )
