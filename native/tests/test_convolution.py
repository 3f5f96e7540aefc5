"""Convolutions: any geometry, all signs, both layouts, groups, and sizes that fill no vector."""

import itertools

import convolution_calls
import draw
import numpy as np
import pytest
from calls import BYTES, DEQUANTIZE, FLOATS, REQUANTIZE, RESCALE, ZERO_POINTS
from convolution_calls import Window, check

THREE = Window(9, 3, padding=1, count=9)
every_layout = pytest.mark.parametrize("layout", convolution_calls.every_layout())


@pytest.mark.parametrize("part", range(4))
def test_any_geometry(part):
    rngs = (np.random.default_rng((part, number)) for number in range(75))
    check(*map(convolution_calls.any_call, rngs))


@every_layout
def test_every_number_of_channels_and_filters(layout):
    """Beyond the last channel of the last pixel, there may be no memory to read."""
    rng = np.random.default_rng(0)
    windows = Window(3, 2, count=2), Window(4, 2, stride=2, count=2)
    check(*(convolution_calls.call(rng, windows, channels, 5, **layout) for channels in range(1, 140, 3)))
    check(*(convolution_calls.call(rng, windows, 3, filters, **layout) for filters in range(1, 140, 3)))


@every_layout
def test_every_number_of_depthwise_channels(layout):
    rng = np.random.default_rng(1)
    windows = THREE, Window(4, 2, stride=2, count=2)
    check(*(convolution_calls.call(rng, windows, 1, 1, groups=groups, **layout) for groups in range(1, 140, 3)))
    check(*(convolution_calls.call(rng, windows, 1, 2, groups=groups, **layout) for groups in (1, 5, 33)))


@every_layout
def test_every_width(layout):
    """Rows that begin and end within a vector, with padding on both sides."""
    rng = np.random.default_rng(2)
    for channels, groups in ((1, 3), (2, 1)):
        windows = ((THREE, Window(width, 3, padding=1, count=width)) for width in range(1, 150, 3))
        check(*(convolution_calls.call(rng, each, channels, 1, groups=groups, **layout) for each in windows))


@every_layout
def test_every_combination_of_roles(layout):
    rng = np.random.default_rng(3)
    scalings = [((), np.int32), *((DEQUANTIZE[:count], dtype) for count in (2, 3) for dtype in FLOATS)]
    scalings += [(REQUANTIZE[:count], dtype) for count in (1, 2) for dtype in BYTES]
    scalings += [(RESCALE[:count], dtype) for count in (3, 4) for dtype in BYTES]
    integers = [roles for count in range(4) for roles in itertools.combinations((*ZERO_POINTS, "integer_bias"), count)]
    calls = []
    for (scaling, dtype), roles in itertools.product(scalings, integers):
        for channels, filters, groups in ((3, 5, 2), (1, 1, 21)):
            call = convolution_calls.call(
                rng, (THREE, THREE), channels, filters, (*roles, *scaling), groups=groups, dtype=dtype, **layout
            )
            calls.append(call)
    check(*calls)


@every_layout
@pytest.mark.parametrize("only", [(-128,), (127,), (-128, 127), draw.EXTREMES])
def test_extreme_values(layout, only):
    """Instructions that saturate would be seen."""
    rng = np.random.default_rng(4)
    for channels, groups in ((1, 20), (70, 1)):
        call = convolution_calls.call(rng, (THREE, THREE), channels, 1, ZERO_POINTS, groups=groups, only=only, **layout)
        check(call)


@every_layout
@pytest.mark.parametrize(
    ("channels", "filters", "groups", "size"),
    [(64, 64, 1, 40), (300, 330, 1, 7), (1, 1, 200, 40), (1, 1, 16, 130), (8, 8, 9, 33)],
)
def test_work_for_several_threads(layout, channels, filters, groups, size):
    rng = np.random.default_rng(5)
    windows = (Window(size, 3, padding=1, count=size),) * 2
    for batch in (1, 3):
        roles = *ZERO_POINTS, "integer_bias", *REQUANTIZE
        options = {"batch": batch, "groups": groups, "dtype": np.uint8}
        check(convolution_calls.call(rng, windows, channels, filters, roles, **options, **layout))


@every_layout
def test_padding_alone(layout):
    """Windows that have no element of the image; and images without pixels."""
    rng = np.random.default_rng(6)
    outside = Window(4, 2, stride=3, padding=9, count=7), Window(3, 2, padding=-5, count=2)
    empty = Window(0, 3, padding=2, count=3), THREE
    for windows in (outside, empty):
        for channels, groups in ((1, 3), (4, 1)):
            check(convolution_calls.call(rng, windows, channels, 1, ZERO_POINTS, groups=groups, **layout))


@every_layout
def test_empty(layout):
    rng = np.random.default_rng(7)
    check(convolution_calls.call(rng, (THREE,), 3, 0, **layout))
    check(convolution_calls.call(rng, (THREE,), 3, 2, batch=0, **layout))
    check(convolution_calls.call(rng, (THREE,), 0, 2, **layout))
    check(convolution_calls.call(rng, (Window(3, 2, count=0),), 3, 2, **layout))


@pytest.mark.parametrize("shape", [(1, 2, 1), (4, 1, 1), (4, 2, 1)])
def test_biases_of_groups(shape):
    """The same for all groups, or for all filters of a group: not one after another for all filters."""
    rng = np.random.default_rng(8)
    call = convolution_calls.call(rng, (THREE, THREE), 1, 2, groups=4)
    bias = draw.array(rng, "integer_bias", shape, np.dtype(np.int32))
    check(call._replace(arrays=(bias,), roles=("integer_bias",)))


@every_layout
@pytest.mark.parametrize("filters", [1, 2])
def test_scales_of_groups(layout, filters):
    """And zero points of the output: what belongs to rows, one for each group."""
    rng = np.random.default_rng(9)
    for role, others, dtype in (("row_scale", DEQUANTIZE[1:], np.float32), ("zero_point", REQUANTIZE[:1], np.uint8)):
        call = convolution_calls.call(rng, (THREE, THREE), 1, filters, others, groups=4, dtype=dtype, **layout)
        array = draw.array(rng, role, (4, 1, 1), np.dtype(dtype))
        check(call._replace(arrays=(array, *call.arrays), roles=(role, *others)))
