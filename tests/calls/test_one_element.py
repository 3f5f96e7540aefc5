"""A scale or zero point of a whole tensor is one element, in an array of any rank."""

import inspect

import jax
import jax.numpy as jnp
import misuse
import numpy as np
import pytest
from support.documents import OPERATORS
from support.sampling import one_in

import jquant


def _calls_with_one_element() -> dict[str, dict[str, misuse.Call]]:
    """By operator and by parameter, a valid call in which the scale or zero point may have one element."""
    calls = {operator: {} for operator in OPERATORS}
    for call in misuse.calls():
        for name, argument in call.arguments.items() if call.name in calls else ():
            is_parameter = name.endswith(("scale", "zero_point")) and isinstance(argument.kind, misuse.Tensor)
            if is_parameter and argument.kind.scalar and argument.kind.shapes((1,)):
                calls[call.name].setdefault(name, call)
    return {operator: parameters for operator, parameters in calls.items() if parameters}


ONE_ELEMENT = _calls_with_one_element()


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_scale_and_zero_point_is_here(operator):
    """All but the scales that have an element for each block."""
    names = inspect.signature(getattr(jquant, operator)).parameters
    block_scales = {
        "mx_dequantize": {"scale"},
        "nvfp4_dequantize": {"scale"},
        "block_scaled_matmul": {"b_scale"},
        "pack_matrix": {"scale"},
    }
    parameters = {name for name in names if name.endswith(("scale", "zero_point"))}
    assert parameters - block_scales.get(operator, set()) <= set(ONE_ELEMENT.get(operator, ()))


@one_in(3, "operator", ONE_ELEMENT)
def test_the_rank_of_one_element_makes_no_difference(operator):
    for name, call in ONE_ELEMENT[operator].items():
        argument = call.arguments[name]
        value = np.dtype(argument.kind.scalar).type(1 if argument.value is None else argument.value)
        expected = jax.tree.leaves(call(**{name: value}))
        for shape in ((1,), (1, 1), (1,) * 5):
            for module in (np, jnp):
                actual = jax.tree.leaves(call(**{name: module.asarray(np.reshape(value, shape))}))
                for actual_leaf, expected_leaf in zip(actual, expected, strict=True):
                    np.testing.assert_array_equal(actual_leaf, expected_leaf, err_msg=name, strict=True)
