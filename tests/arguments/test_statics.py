"""One trace, whatever the spelling of the static arguments and the values of the others."""

import contextlib
import importlib
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jquant
from jquant import FeatureLevel, QuantizeMode, RoundMode

sizes = itertools.count(1000)


@pytest.fixture
def x():
    """An input of sizes that no test had before."""
    size = next(sizes)
    return jnp.linspace(-1, 1, 3 * size).reshape(3, size)


@contextlib.contextmanager
def adds_traces(count, operator):
    """Expects the calls inside to trace the operator's compiled core `count` times."""
    core = getattr(importlib.import_module(f"jquant.operators.{operator}"), f"_{operator}")
    before = core._cache_size()
    yield
    assert core._cache_size() - before == count


def test_spellings_share_a_trace(x):
    with adds_traces(1, "quantize"):
        results = [
            jquant.quantize(x, -1, 1, dtype, mode=mode, round_mode=round_mode, narrow_range=narrow_range)
            for dtype in (jnp.int8, np.int8, "int8", "INT8", "qint8", np.dtype("int8"), "i1")
            for mode in ("SCALED", QuantizeMode.SCALED)
            for round_mode in ("HALF_TO_EVEN", RoundMode.HALF_TO_EVEN)
            for narrow_range in (True, np.True_)
        ]
    chex.assert_trees_all_equal(*results)


def test_each_mode_has_its_trace(x):
    """The counter of traces counts."""
    for mode in QuantizeMode:
        with adds_traces(1, "quantize"):
            jquant.quantize(x, -1, 1, "qint8", mode=mode)


def test_spellings_of_an_output_share_a_trace(x):
    with adds_traces(1, "quantize_linear"):
        for dtype in ("INT8", jnp.int8, "qint8", np.dtype("int8"), None):
            jquant.quantize_linear(x, 0.5, np.int8(1), output_dtype=dtype)


def test_feature_levels_share_a_trace(x):
    with adds_traces(1, "clip"):
        for level in ("3_0", FeatureLevel.LEVEL_6_2, "DML_FEATURE_LEVEL_5_0", 0x6400, "EXTENDED"):
            jquant.clip(x, -0.5, 0.5, feature_level=level)


def test_quantize_is_not_retraced_for_values(x):
    with adds_traces(1, "quantize"):
        for low, high, least in ((-1, 1, 0), (0.0, 2.5, 0.01), (np.float32(-3), np.float32(7), np.float32(1))):
            jquant.quantize(x, low, high, "quint8", ensure_minimum_range=least)


def test_quantize_linear_is_not_retraced_for_values(x):
    with adds_traces(1, "quantize_linear"):
        for scale, zero_point in ((1, 0), (0.5, 128), (np.float32(3), np.uint8(255))):
            jquant.quantize_linear(x, scale, zero_point)


def test_dequantize_linear_is_not_retraced_for_values(x):
    with adds_traces(1, "dequantize_linear"):
        for scale, zero_point in ((1, 0), (0.5, -128), (np.float32(3), np.int8(127))):
            jquant.dequantize_linear(x.astype(jnp.int8), scale, zero_point)


def test_matmul_integer_is_not_retraced_for_values(x):
    a, b = x.astype(jnp.int8), x.T.astype(jnp.uint8)
    with adds_traces(1, "matmul_integer"):
        for a_zero_point, b_zero_point in ((0, 0), (-128, 255), (np.int8(1), np.uint8(1))):
            jquant.matmul_integer(a, b, a_zero_point, b_zero_point)


def test_clip_is_not_retraced_for_values(x):
    with adds_traces(1, "clip"):
        for low, high, scale, bias in ((0, 1, 1, 0), (-0.5, np.inf, 2.5, 1), (np.float32(2), 3, np.float32(1), -1)):
            jquant.clip(x, low, high, scale_bias=jquant.ScaleBias(scale, bias))


def test_quantized_linear_add_is_not_retraced_for_values(x):
    x = x.astype(jnp.int8)
    with adds_traces(1, "quantized_linear_add"):
        for scale, zero_point in ((1, 0), (0.5, -128), (np.float32(3), np.int8(127))):
            jquant.quantized_linear_add(x, scale, zero_point, x, scale, zero_point, scale, zero_point)


def test_quantize_and_dequantize_is_not_retraced_for_values_or_spellings(x):
    with adds_traces(1, "quantize_and_dequantize"):
        for low, high, num_bits, round_mode in (
            (-1, 1, 8, "HALF_UP"),
            (0.0, np.float32(2.5), np.int64(8), RoundMode.HALF_UP),
        ):
            jquant.quantize_and_dequantize(x, low, high, num_bits=num_bits, round_mode=round_mode)


def test_fake_quantize_is_not_retraced_for_values_or_spellings(x):
    with adds_traces(1, "fake_quantize"):
        for low, high, num_bits, narrow_range in ((-1, 1, 8, True), (0.0, np.float32(2.5), np.int64(8), np.True_)):
            jquant.fake_quantize(x, low, high, num_bits=num_bits, narrow_range=narrow_range)


def test_a_callers_function_is_not_retraced_for_values():
    @jax.jit
    @chex.assert_max_traces(n=1)
    def function(x, low, high):
        return jquant.quantize(x, low, high, "qint8", mode="SCALED")

    for low, high in ((-1.0, 1.0), (0.0, 2.0), (2.0, 1.0)):
        function(jnp.ones(2), low, high)


def test_dequantize_is_not_retraced_for_values_or_spellings(x):
    integers = x.astype(np.int8)
    with adds_traces(1, "dequantize"):
        for mode, dtype, low in (("SCALED", "float32", -1.0), (jquant.QuantizeMode.SCALED, np.float32, -2)):
            jquant.dequantize(integers, low, 3, mode=mode, dtype=dtype)
    with adds_traces(1, "requantize"):
        for dtype, low in (("quint8", -1), ("UINT8", -2.0), (np.uint8, np.float32(-3))):
            jquant.requantize(x.astype(np.int32), low, 3, low, 1, dtype=dtype)
