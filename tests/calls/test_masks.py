"""`dynamic_quantize_linear(where=)`: elements that are masked do not count for the range."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jquant
from jquant import DescriptorError


def test_what_is_masked_does_not_count():
    x = np.float32([[-1, 2, 0.5], [np.nan, np.inf, -np.inf]])
    for mask in ([[True], [False]], [[True] * 3, [False] * 3]):
        output, scale, zero_point = jquant.dynamic_quantize_linear(x, where=np.array(mask))
        first_row = jquant.dynamic_quantize_linear(x[:1])
        assert (scale, zero_point) == (first_row.scale, first_row.zero_point)
        np.testing.assert_array_equal(output, jquant.quantize_linear(x, scale, zero_point), strict=True)
    nothing = jquant.dynamic_quantize_linear(x, where=np.zeros((2, 3), np.bool))
    assert (nothing.scale, nothing.zero_point) == (1, 0)
    quantize = functools.partial(jquant.dynamic_quantize_linear, x[:1])
    for scalar, same in ((True, None), (np.array(True), None), (jnp.array([[True]]), None), (False, np.zeros((1, 3), bool))):
        assert_equal = functools.partial(np.testing.assert_array_equal, strict=True)
        jax.tree.map(assert_equal, quantize(where=scalar), quantize(where=same))


def test_the_derivative_of_a_masked_range():
    x, mask = jnp.array([-1.0, 2.0, 9.0]), jnp.array([True, True, False])
    gradient = jax.grad(lambda x: jquant.dynamic_quantize_linear(x, where=mask).scale * 255)(x)
    np.testing.assert_array_equal(gradient, [-1, 1, 0])


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (np.ones((2, 3), np.uint8), "where has data type UINT8; it must be BOOL"),
        (np.ones(3, np.bool), "where has shape (3,), input has (2, 3): the dimension counts must be the same"),
        (np.ones((2, 2), np.bool), "where has shape (2, 2), input has (2, 3)"),
        (np.ones((3, 2, 3), np.bool), "where has shape (3, 2, 3), input has (2, 3)"),
        ([True], "where must be an array of booleans, True or False, not list"),
        (1, "where must be an array of booleans, True or False, not int"),
    ],
    ids=repr,
)
def test_masks_that_do_not_fit(mask, text):
    with pytest.raises(DescriptorError) as raised:
        jquant.dynamic_quantize_linear(np.ones((2, 3), np.float32), where=mask)
    assert str(raised.value).startswith(f"dynamic_quantize_linear: {text}")
