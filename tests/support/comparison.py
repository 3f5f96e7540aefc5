"""Equality bit for bit, and errors with their messages."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jquant import DescriptorError, DescriptorTypeError
from jquant.cases import samples
from jquant.transform import TransformError


def assert_equal(actual, expected, what: str = "", *, subnormals: bool = True) -> None:
    """Asserts that two trees have the same structure, and their arrays the same dtypes, shapes, values and signs of zeros.

    All NaN are equal. `subnormals=False` ignores elements whose expected value is subnormal, for which nothing is promised.
    """

    def compare(actual, expected):
        actual, expected = np.asarray(actual), np.asarray(expected)
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape), what
        if jnp.issubdtype(expected.dtype, jnp.floating) and not np.issubdtype(expected.dtype, np.floating):
            # NumPy compares NaN of ml_dtypes' types as different.
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
    """`assert_equal` without subnormal results, of which there must be few."""
    assert samples.is_subnormal(np.asarray(expected, np.float32)).mean() < 0.3
    assert_equal(actual, expected, what, subnormals=False)


def refusals(calls, calls_of_wrong_types):
    """Parametrizes a test over refused calls, their messages, and which of the two errors they raise."""
    errors = (calls, DescriptorError), (calls_of_wrong_types, DescriptorTypeError)
    return pytest.mark.parametrize(
        ("call", "message", "error"), [(*call, error) for refused, error in errors for call in refused]
    )


def assert_refused(call, message, error=DescriptorError):
    """Asserts that calling raises an error with this text in its message."""
    with pytest.raises(error, match=re.escape(message)):
        call()


def assert_declined(call, message, error=TransformError):
    """`assert_refused` for the errors of `jquant.transform`."""
    assert_refused(call, message, error)
