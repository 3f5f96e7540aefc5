"""`quantized_linear_sigmoid`: against its formula in float64, small results, and scales that are not positive or finite."""

import functools
import importlib

import jax
import numpy as np
import pytest

import jquant
from jquant.cases import samples
from jquant.reference import nonlinear
from jquant.reference import nonlinear as reference

from .elementwise import FACTOR, parameter_sets

FLOAT32 = np.float32


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("factor", [None, FACTOR], ids=["traced", "computed"])
def test_every_integer(dtype, factor):
    """All 256 inputs with 4,096 sets of scales and zero points, traced or computed by the caller."""
    sets = parameter_sets(np.random.default_rng(0), dtype, 4096)
    x = np.arange(256, dtype=np.uint8).view(dtype)

    @functools.partial(jax.vmap, in_axes=(None, 0, 0, 0, 0))
    def caller(x, x_scale, x_zero_point, y_scale, y_zero_point):
        if factor is not None:
            x_scale, y_scale = x_scale * factor, y_scale * factor
        return jquant.quantized_linear_sigmoid(x, x_scale, x_zero_point, y_scale, y_zero_point)

    x_scale, x_zero_point, y_scale, y_zero_point = (part[:, None] for part in sets)
    if factor is not None:
        x_scale, y_scale = x_scale * factor, y_scale * factor
    expected = reference.quantized_linear_sigmoid(x[None], x_scale, x_zero_point, y_scale, y_zero_point)
    np.testing.assert_array_equal(jax.jit(caller)(x, *sets), expected)
    assert len(np.unique(expected)) == 256


@pytest.mark.gate
def test_what_tpus_compute(as_on_a_tpu):
    """TPUs compute each element; other platforms look it up in a table."""
    x = np.arange(256, dtype=np.uint8).view(np.int8)
    sigmoid = as_on_a_tpu(jax.vmap(jquant.quantized_linear_sigmoid, in_axes=(None, 0, 0, 0, 0)))
    sets = parameter_sets(np.random.default_rng(2), np.int8, 512)
    expected = reference.quantized_linear_sigmoid(x[None], *(part[:, None] for part in sets))
    np.testing.assert_array_equal(sigmoid(x, *sets), expected)


def test_before_it_is_quantized():
    """The float32 sigmoid, whose errors the integers could hide."""
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.normal(size=300_000) * 10, rng.uniform(-88, 20, 200_000)]).astype(FLOAT32)
    module = importlib.import_module("jquant.operators.quantized_linear_sigmoid")
    expected = nonlinear.normal(1 / (1 + np.exp(-x.astype(np.float64))))
    np.testing.assert_array_equal(jax.jit(module._sigmoid)(x), expected)


def test_constants():
    """Scales and zero points that XLA folds into the program."""
    rng = np.random.default_rng(1)
    sets = list(zip(*parameter_sets(rng, np.int8, 3), strict=True))
    sets[0] = sets[0][0], None, sets[0][2], None
    x = samples.integers(rng, np.int8, 3, 5, 7)
    actual = jax.jit(lambda x: [jquant.quantized_linear_sigmoid(x, *parameters) for parameters in sets])(x)
    sets[0] = sets[0][0], 0, sets[0][2], 0
    for result, parameters in zip(actual, sets, strict=True):
        np.testing.assert_array_equal(result, reference.quantized_linear_sigmoid(x, *parameters))


def test_far_below():
    """Results down to the smallest normal number, with output scales as small."""
    x = np.arange(-128, 128, dtype=np.int8)
    for y_scale in FLOAT32([1e-30, 2e-37, 1.2e-38]):
        actual = jquant.quantized_linear_sigmoid(x, 1.0, 5, y_scale, -128)
        expected = reference.quantized_linear_sigmoid(x, FLOAT32(1), np.int8(5), y_scale, np.int8(-128))
        np.testing.assert_array_equal(actual, expected)
        assert len(np.unique(expected)) > 4


@pytest.mark.parametrize(
    ("x_scale", "y_scale", "expected"),
    [
        (0.0, 1 / 128, [67, 67, 67]),
        (-1.0, 1 / 128, [127, 67, 3]),  # mirrored
        (np.inf, 1 / 128, [3, 0, 127]),  # 0 * inf is NaN
        (np.nan, 1 / 128, [0, 0, 0]),
        (3e38, 1 / 128, [3, 67, 127]),
        (1.0, 0.0, [127, 127, 127]),
        (1.0, np.inf, [3, 3, 3]),
        (1.0, -1 / 128, [2, -61, -125]),
        (100.0, 0.0, [0, 127, 127]),  # 0/0
    ],
)
def test_scales_that_are_not_positive_or_not_finite(x_scale, y_scale, expected):
    x = np.array([-100, 5, 110], np.int8)
    x[0] = 0 if abs(x_scale) == 1 else x[0]
    actual = jquant.quantized_linear_sigmoid(x, x_scale, 5, y_scale, 3)
    np.testing.assert_array_equal(actual, reference.quantized_linear_sigmoid(x, FLOAT32(x_scale), 5, FLOAT32(y_scale), 3))
    np.testing.assert_array_equal(actual, np.array(expected, np.int8))


def test_no_elements():
    assert jquant.quantized_linear_sigmoid(np.zeros((0, 3), np.uint8), 1.0, None, 1.0).shape == (0, 3)
