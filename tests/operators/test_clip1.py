"""`clip1`: bounds of the dtype of the input, scale and bias, and errors."""

import numpy as np
import pytest
from support.comparison import assert_equal

import jquant
from jquant import DescriptorTypeError
from jquant.reference import clipping as reference

from . import clips
from .clips import FLOATS, clipped, every_type, floats, level


@every_type
def test_every_type(x, bounds):
    low, high, actual = clipped(lambda *a: jquant.clip1(*a, feature_level=level(x)), x, bounds=bounds)
    zero = np.zeros((), x.dtype)  # -0 + 0 is 0; the specification leaves open which zero is the larger
    assert_equal(np.asarray(actual) + zero, reference.clip1(x, low[:, None], high[:, None]) + zero)


@pytest.mark.parametrize("dtype", FLOATS)
def test_scale_bias(dtype):
    x, bounds = floats(dtype), np.array([-1, 6], dtype)
    actual = jquant.clip1(x, *bounds, scale_bias=(1.1, -0.3), feature_level=level(x))
    assert_equal(actual, reference.clip1(x, *bounds, (1.1, -0.3)))
    with pytest.raises(DescriptorTypeError, match=r"clip1: scale_bias\.scale has data type FLOAT16; it must be FLOAT32"):
        jquant.clip1(x, *bounds, scale_bias=(np.float16(1), 0.0), feature_level=level(x))
    with pytest.raises(
        DescriptorTypeError, match="clip1: scale_bias is defined only for float types; input has data type I"
    ):
        jquant.clip1(np.ones(3, np.int8), 0, 1, scale_bias=(1.0, 0.0))


class TestBounds(clips.TypedBounds):
    function = staticmethod(jquant.clip1)
