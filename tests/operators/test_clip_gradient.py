"""`clip_gradient` against its formula and against JAX's derivative of `clip`."""

import itertools

import jax
import numpy as np
import pytest
from support.comparison import assert_equal

import jquant
from jquant import DescriptorError, DescriptorTypeError
from jquant.reference import clipping as reference

from . import clips
from .clips import BOUNDS, FLOAT_BOUNDS, FLOATS, INTEGERS, floats, integers, level


@pytest.mark.parametrize("x", [*map(integers, INTEGERS), *map(floats, FLOATS)], ids=lambda x: str(x.dtype))
def test_every_type(x):
    """Bounds are float32, and are cast like those of `clip`."""
    gradient = (np.arange(x.size) % 100 + 1).astype(x.dtype)
    low, high = np.float32(list(itertools.product(FLOAT_BOUNDS + BOUNDS, repeat=2))).T

    function = jax.vmap(lambda low, high: jquant.clip_gradient(x, gradient, low, high, feature_level=level(x)))
    actual = jax.jit(function)(low, high)
    expected = [reference.clip_gradient(x, gradient, *bounds) for bounds in zip(low, high, strict=True)]
    assert_equal(actual, np.stack(expected))


class TestGradient(clips.Gradient):
    clip, clip_gradient = staticmethod(jquant.clip), staticmethod(jquant.clip_gradient)


@pytest.mark.parametrize("name", ["min", "max"])
def test_bounds_are_floats(name):
    x = np.ones(3, np.int8)
    for dtype in (np.float16, np.int8, np.int32):
        with pytest.raises(DescriptorTypeError, match=f"clip_gradient: {name} has data type .*; it must be FLOAT32"):
            jquant.clip_gradient(x, x, **{"min": 0, "max": 1, name: np.zeros((), dtype)})
    with pytest.raises(DescriptorError, match=f"clip_gradient: {name} has shape .*, but must have 1 element"):
        jquant.clip_gradient(x, x, **{"min": 0, "max": 1, name: np.zeros(2, np.float32)})
    assert jquant.clip_gradient(x, x, **{"min": 0, "max": 1, name: np.zeros(1, np.float32)}).shape == (3,)
    with pytest.raises(DescriptorError, match=rf"clip_gradient: {name} is 1e\+39, outside the range of FLOAT32"):
        jquant.clip_gradient(x, x, **{"min": 0, "max": 1, name: 1e39})
