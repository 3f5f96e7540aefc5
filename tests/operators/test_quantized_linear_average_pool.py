"""`quantized_linear_average_pool`: windows of every form against the formula, special scales, a mesh, and errors."""

import functools
import itertools

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.collectives import collectives
from support.sampling import one_in

import jquant
from jquant import DescriptorError
from jquant.cases import samples
from jquant.reference import nonlinear as reference

from .pools import FLOAT32, assert_every_sum_of_six, drawn, every_type

FACTOR = FLOAT32(0.1)
# The sizes of the input, the window sizes, strides, dilations and padding.
POOLINGS = [
    ((3, 4, 9, 10), (3, 2), (2, 1), (1, 1), ((1, 1), (0, 1))),
    ((3, 4, 9, 10), (2, 3), (1, 3), (4, 2), ((3, 0), (2, 5))),
    ((2, 3, 8, 8), (8, 8), (1, 1), (1, 1), ((0, 0), (0, 0))),
    ((2, 3, 5, 6, 7), (2, 3, 1), (1, 2, 3), (3, 1, 1), ((1, 2), (2, 1), (0, 0))),
    ((2, 3, 1, 2), (1, 1), (1, 1), (1, 1), ((2, 2), (0, 0))),  # windows of padding alone
]


@one_in(3, ("pooling", "include_padding", "dtype"), itertools.product(POOLINGS, (False, True), (np.int8, np.uint8)))
def test_windows(pooling, include_padding, dtype):
    """Parameters that are traced, constant, and computed by the caller, per tensor and per channel."""
    sizes, windows, strides, dilations, padding = pooling
    rng = np.random.default_rng(0)
    options = {"window_sizes": windows, "strides": strides, "dilations": dilations, "padding": padding}
    output_dtype = np.uint8 if dtype == np.int8 else np.int8

    def pool(*arguments):
        return jquant.quantized_linear_average_pool(*arguments, **options, include_padding=include_padding)

    def times_factor(x, x_scale, x_zero_point, y_scale, y_zero_point):
        return x, x_scale * FACTOR, x_zero_point, y_scale * FACTOR, y_zero_point

    draw = functools.partial(drawn, rng, dtype, output_dtype, sizes)
    constants = draw(per_channel=False)[1:], draw(per_channel=True)[1:]

    @jax.jit
    def program(traced, computed):
        return [
            (pool(*operands), pool(*times_factor(*others)), pool(operands[0], *constant))
            for operands, others, constant in zip(traced, computed, constants, strict=True)
        ]

    for _ in range(3):
        traced, computed = ([draw(per_channel=False), draw(per_channel=True)] for _ in range(2))
        outputs = program(traced, computed)
        for operands, others, constant, results in zip(traced, computed, constants, outputs, strict=True):
            calls = operands, times_factor(*others), (operands[0], *constant)
            for arguments, actual in zip(calls, results, strict=True):
                expected = reference.quantized_linear_average_pool(
                    *arguments, **options, include_padding=include_padding, dtype=output_dtype
                )
                assert actual.dtype == output_dtype
                np.testing.assert_array_equal(actual, expected)


@every_type
def test_every_sum_of_six(dtype):
    assert_every_sum_of_six(jax.jit(functools.partial(jquant.quantized_linear_average_pool, window_sizes=(2, 3))), dtype)


def test_paddings_by_name():
    x = samples.integers(np.random.default_rng(3), np.uint8, 2, 3, 5, 6)
    pool = functools.partial(jquant.quantized_linear_average_pool, x, 0.5, 100, 0.5, 7, window_sizes=(2, 3), strides=(1, 2))
    for name, pairs in (("VALID", ((0, 0), (0, 0))), ("SAME", ((0, 1), (0, 1))), ("SAME_LOWER", ((1, 0), (1, 0)))):
        np.testing.assert_array_equal(pool(padding=name), pool(padding=pairs))


def test_defaults():
    """Zero points of 0, the input's dtype, strides of 1, no padding; parameters of one element have any rank."""
    x = np.arange(12, dtype=np.int8).reshape(1, 1, 3, 4)
    actual = jquant.quantized_linear_average_pool(x, 1.0, None, 1.0, window_sizes=[2, 2])
    np.testing.assert_array_equal(actual, np.int8([[[[2, 4, 4], [6, 8, 8]]]]))  # 2.5, 3.5, 4.5, to even
    assert actual.dtype == np.int8
    one = np.ones((1, 1, 1, 1, 1), FLOAT32)
    same = jquant.quantized_linear_average_pool(x, one, np.int8([0]), one[0, 0], np.int8(0), window_sizes=[2, 2])
    np.testing.assert_array_equal(same, actual)
    other = jquant.quantized_linear_average_pool(x, 1.0, None, 1.0, 3, window_sizes=[2, 2], output_dtype="UINT8")
    np.testing.assert_array_equal(other, np.uint8([[[[5, 7, 7], [9, 11, 11]]]]))
    assert other.dtype == np.uint8


@pytest.mark.parametrize("x_scale", [0.0, np.inf, np.nan, -1.0])
@pytest.mark.parametrize("y_scale", [0.0, np.inf, np.nan, -0.5])
def test_scales_that_the_document_leaves_undefined(x_scale, y_scale):
    x = np.array([[[[5, 5, 9, 1]]]], np.int8)
    options = {"window_sizes": (1, 2), "strides": (1, 2)}
    actual = jquant.quantized_linear_average_pool(x, x_scale, 5, y_scale, 3, **options)
    options |= {"dilations": (1, 1), "padding": ((0, 0), (0, 0)), "include_padding": False}
    operands = x, FLOAT32(x_scale), 5, FLOAT32(y_scale), 3
    np.testing.assert_array_equal(actual, reference.quantized_linear_average_pool(*operands, **options, dtype=np.int8))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_channels_on_a_mesh(kind):
    sizes, windows, strides, dilations, padding = (2, 16, 9, 10), (3, 2), (2, 1), (1, 1), ((1, 1), (0, 1))
    options = {"window_sizes": windows, "strides": strides, "dilations": dilations, "padding": padding}
    x, *parameters = drawn(np.random.default_rng(5), np.int8, np.int8, sizes, per_channel=False)
    mesh = jax.make_mesh((8,), ("x",), axis_types=(kind,))
    split = jax.device_put(x, NamedSharding(mesh, P(None, "x")))
    with jax.set_mesh(mesh):
        pool = jax.jit(functools.partial(jquant.quantized_linear_average_pool, **options))
        program = pool.lower(split, *parameters).compile()
        actual = program(split, *parameters)
    expected = reference.quantized_linear_average_pool(x, *parameters, **options, include_padding=False, dtype=np.int8)
    np.testing.assert_array_equal(actual, expected)
    assert collectives(program.as_text()) == []


def test_what_it_does_not_take():
    x = np.zeros((2, 3, 4, 5), np.uint8)
    pool = functools.partial(jquant.quantized_linear_average_pool, window_sizes=(2, 2))
    by_channel = "must have 1 element, or 1 per channel in shape (1, 3, 1, 1)"
    refused = [((3, 1, 1, 1), by_channel), ((3,), by_channel), ((1, 3, 1), by_channel), ((1, 3, 1, 2), by_channel)]
    for (sizes, message), position in itertools.product(refused, (1, 3)):
        arguments = [x, FLOAT32(1), None, FLOAT32(1), None]
        arguments[position] = np.ones(sizes, FLOAT32)
        with pytest.raises(DescriptorError) as raised:
            pool(*arguments)
        assert message in str(raised.value)
    for options, message in (
        (
            {"window_sizes": (5, 2)},
            "input of (4, 5) elements with padding ((0, 0), (0, 0)) is too small for a window of shape (5, 2) with",
        ),
        ({"window_sizes": (2, 2), "dilations": (1, 5)}, "is too small for a window of shape (2, 2) with dilations (1, 5)"),
        (
            {"window_sizes": (2, 2, 2)},
            "window_sizes must be 2 positive Python ints, one for each spatial dimension, not ",
        ),
        ({"padding": ((0, -1), (0, 0))}, "2 pairs of nonnegative integers"),
        (
            {"feature_level": "6_1"},
            "the operator is available from DML_FEATURE_LEVEL_6_2 on",
        ),
    ):
        with pytest.raises(DescriptorError) as raised:
            pool(x, 1.0, None, 1.0, **options)
        assert message in str(raised.value)
