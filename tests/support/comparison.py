"""Equality, as the tests mean it, and errors with their messages."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jquant import DescriptorError, DescriptorTypeError
from jquant.cases import samples
from jquant.transform import TransformError


def assert_equal(actual, expected, what: str = "", *, subnormals: bool = True) -> None:
    """Trees of the same structure, arrays of the same dtype, shape and values, zeros of the same sign.

    All NaN are alike. Where subnormal results are outside of the promise, they can be left out.
    """

    def compare(actual, expected):
        actual, expected = np.asarray(actual), np.asarray(expected)
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape), what
        if jnp.issubdtype(expected.dtype, jnp.floating) and not np.issubdtype(expected.dtype, np.floating):
            # NumPy does not know that the NaN of a type of JAX's are equal.
            actual, expected = actual.astype(np.float32), expected.astype(np.float32)
        if not subnormals and expected.dtype == np.float32:
            normal = ~samples.is_subnormal(expected)
            actual, expected = actual[normal], expected[normal]
        np.testing.assert_array_equal(actual, expected, what)
        if np.issubdtype(expected.dtype, np.floating):
            signs = (np.signbit(x)[~np.isnan(expected)] for x in (actual, expected))
            np.testing.assert_array_equal(*signs, f"signs: {what}")

    jax.tree.map(compare, actual, expected)


def assert_same_bits(actual, expected, what=""):
    """`assert_equal`, but for subnormal results, which are outside of the promise."""
    assert samples.is_subnormal(np.asarray(expected, np.float32)).mean() < 0.3
    assert_equal(actual, expected, what, subnormals=False)


def refusals(calls, calls_of_wrong_types):
    """Parameters of a test: each call that is refused, the message, and which of the two errors it is."""
    errors = (calls, DescriptorError), (calls_of_wrong_types, DescriptorTypeError)
    return pytest.mark.parametrize(
        ("call", "message", "error"), [(*call, error) for refused, error in errors for call in refused]
    )


def assert_refused(call, message, error=DescriptorError):
    """Calling raises an error with this text in its message."""
    with pytest.raises(error, match=re.escape(message)):
        call()


def assert_declined(call, message, error=TransformError):
    """`assert_refused` by `jquant.transform`."""
    assert_refused(call, message, error)
