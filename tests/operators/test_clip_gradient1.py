"""`clip_gradient1` against its formula and against JAX's derivative of `clip1`."""

import numpy as np
from support.comparison import assert_equal

import jquant
from jquant.reference import clipping as reference

from . import clips
from .clips import clipped, every_type, level


@every_type
def test_every_type(x, bounds):
    gradient = (np.arange(x.size) % 100 + 1).astype(x.dtype)
    low, high, actual = clipped(lambda *a: jquant.clip_gradient1(*a, feature_level=level(x)), x, gradient, bounds=bounds)
    assert_equal(actual, reference.clip_gradient1(x, gradient, low[:, None], high[:, None]))


class TestGradient(clips.Gradient):
    clip, clip_gradient = staticmethod(jquant.clip1), staticmethod(jquant.clip_gradient1)


class TestBounds(clips.TypedBounds):
    @staticmethod
    def function(x, low, high):
        return jquant.clip_gradient1(x, x, low, high)
