"""Comparisons of results and of errors, beside `cases.assert_equal`."""

import re

import numpy as np
import pytest
import samples
from cases import assert_equal

from jquant import DescriptorError


def assert_same_bits(actual, expected, what=""):
    """`assert_equal`, but for subnormal results, which are outside of the promise; all NaN are alike."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    if expected.dtype == np.float32:
        subnormal = samples.is_subnormal(expected)
        assert subnormal.mean() < 0.3
        actual, expected = actual[~subnormal], expected[~subnormal]
    assert_equal(actual, expected, what)


def assert_refused(call, message, error=DescriptorError):
    """Calling raises an error with this text in its message."""
    with pytest.raises(error, match=re.escape(message)):
        call()
