"""`convolution_integer`: every geometry and layout against the formula, and errors."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.comparison import assert_equal
from support.geometries import GEOMETRIES, formula, one_geometry_in_two, reordered

import jquant
from jquant import DescriptorError
from jquant.cases import samples
from jquant.reference import convolutions as reference

from .convolutions import PAIRS, WRAPPED_SUM, long_sums, of, or_zero, w, x, zero_points


@one_geometry_in_two(0)
def test_geometries(name):
    """Every pair of types, with the forms of the zero points in turn, and symmetric weights, in one program."""
    sizes, filter_sizes, options = GEOMETRIES[name]
    rng = np.random.default_rng(0)
    calls = []
    for form, (input_dtype, filter_dtype) in enumerate(PAIRS, start=list(GEOMETRIES).index(name)):
        x, w = samples.integers(rng, input_dtype, *sizes), samples.integers(rng, filter_dtype, *filter_sizes)
        calls.append((x, w, *zero_points(rng, form % 3, input_dtype, filter_dtype, filter_sizes[0])))
    calls.append((x, w, samples.integers(rng, input_dtype), None))
    outputs = jax.jit(lambda calls: [jquant.convolution_integer(*call, **options) for call in calls])(calls)
    for (x, w, *zeros), output in zip(calls, outputs, strict=True):
        expected = formula(reference.convolution_integer, x, w, *or_zero(*zeros), **options)
        assert_equal(output, expected, f"{x.dtype}, {w.dtype}, {zeros}")


@pytest.mark.parametrize("channels_last", [False, True])
def test_sums_wrap(channels_last):
    """Modulo 2**32, with more terms than one product sums."""
    x, w, layout = long_sums(channels_last)
    assert jquant.convolution_integer(x, w, **layout).ravel().tolist() == [WRAPPED_SUM] * 2


def padding_pairs(padding, sizes, filter_sizes, strides, dilations):
    """The pairs that a padding's name stands for: as many windows as strides, or no padding."""
    pairs = []
    for size, window, stride, dilation in zip(sizes, filter_sizes, strides, dilations, strict=True):
        total = max(0, (-(-size // stride) - 1) * stride + (window - 1) * dilation + 1 - size) if padding != "VALID" else 0
        less, more = total // 2, total - total // 2
        pairs.append((more, less) if padding == "SAME_LOWER" else (less, more))
    return tuple(pairs)


@pytest.mark.parametrize("padding", ["VALID", "SAME", "SAME_LOWER"])
def test_names_of_padding(padding):
    rng = np.random.default_rng(2)
    x, w = samples.integers(rng, np.uint8, 1, 2, 7, 8), samples.integers(rng, np.int8, 3, 2, 4, 3)
    strides, dilations = (3, 2), (1, 3)
    options = {"strides": strides, "dilations": dilations}
    output = jquant.convolution_integer(x, w, 77, padding=padding, **options)
    pairs = padding_pairs(padding, (7, 8), (4, 3), strides, dilations)
    assert_equal(output, reference.convolution_integer(x, w, 77, padding=pairs, **options))


LAYOUTS = [
    ("NHWC", "HWIO", "NHWC"),
    ("NCHW", "HWIO", "NHWC"),
    ("NHWC", "OIHW", "NCHW"),
    ("HWNC", "IHWO", "CNWH"),
    ("CWNH", "OHIW", "NWCH"),
]


@pytest.mark.suite
@pytest.mark.parametrize("name", ["3x2, all options", "groups", "depthwise"])
def test_layouts(name):
    """The same arrays with dimensions in other orders, as strings and as `lax.ConvDimensionNumbers`."""
    sizes, filter_sizes, options = GEOMETRIES[name]
    rng = np.random.default_rng(3)
    x, w = samples.integers(rng, np.uint8, *sizes), samples.integers(rng, np.int8, *filter_sizes)
    zeros = samples.integers(rng, np.uint8), samples.integers(rng, np.int8, filter_sizes[0])
    expected = reference.convolution_integer(x, w, *zeros, **options)

    def in_layout(x, w, lhs, rhs, out, *, as_numbers):
        x, w = reordered(x, "NCHW", lhs), reordered(w, "OIHW", rhs)
        layout = lax.conv_dimension_numbers(x.shape, w.shape, (lhs, rhs, out)) if as_numbers else (lhs, rhs, out)
        return jquant.convolution_integer(x, w, *zeros, dimension_numbers=layout, **options)

    @jax.jit
    def in_all_layouts(x, w):
        return [in_layout(x, w, *layout, as_numbers=index == 1) for index, layout in enumerate(LAYOUTS)]

    for (*_, out), output in zip(LAYOUTS, in_all_layouts(x, w), strict=True):
        assert_equal(reordered(output, out, "NCHW"), expected)


INTS = "must be 2 positive Python ints, one for each spatial dimension, not"
PADDINGS = (
    "it must be one of VALID, SAME, SAME_UPPER, SAME_LOWER, 2 pairs of nonnegative integers, or 4 nonnegative integers"
)


@pytest.mark.parametrize(
    ("operands", "options", "message"),
    [
        ((x, of(4, 6, 3)), {}, "input has shape (2, 6, 5, 5), filter has (4, 6, 3): the dimension counts must"),
        ((of(2, 6), of(4, 6)), {}, "the dimension counts must be the same, and at least 3"),
        ((x, of(4, 5, 3, 3)), {}, "groups is 1: the input has 6 channels (dimension 1), but the 4 filters expect 5 x groups"
         '; for channels-last data, pass dimension_numbers=("NHWC", "HWIO", "NHWC")'),
        ((x, of(4, 2, 3, 3)), {"groups": 3}, "groups is 3; it must divide the number of filters, which is 4"),
        ((x, of(0, 6, 3, 3)), {}, "filter has shape (0, 6, 3, 3); it must have at least one filter"),
        ((x, of(4, 6, 0, 3)), {}, "filter gives windows of shape (0, 3); its sizes must be positive"),
        ((x, of(4, 6, 3, 6)), {}, "input of (5, 5) elements with padding ((0, 0), (0, 0)) is too small for a window of "
         "shape (3, 6) with dilations (1, 1); these follow from input, padding, filter and dilations"),
        ((x, w), {"groups": 0}, "groups is 0; it must be a positive integer"),
        ((x, w), {"groups": 2.0}, "groups is the float 2.0; it must be a positive integer"),
        ((x, w), {"strides": jnp.array([1, 1])}, f"strides {INTS} a jax.Array"),
        ((x, w), {"strides": "11"}, f"strides {INTS} the str '11'"),
        ((x, w), {"padding": (0.0, 0.0, 1.0, 1.0)}, f"padding is (0.0, 0.0, 1.0, 1.0); {PADDINGS}"),
        ((x, w), {"strides": (1,)}, f"strides {INTS} (1,)"),
        ((x, w), {"strides": 2}, f"strides {INTS} the int 2"),
        ((x, w), {"padding": 1}, f"padding is 1; {PADDINGS}"),
        ((x, w), {"padding": (1, 1)}, f"padding is (1, 1); {PADDINGS}"),
        ((x, w), {"dilations": (1, 0)}, f"dilations {INTS} (1, 0)"),
        ((x, w), {"padding": ((1, 1),)}, f"padding is ((1, 1),); {PADDINGS}"),
        ((x, w), {"padding": "same"}, "padding is 'same'; the names are VALID, SAME, SAME_UPPER, SAME_LOWER"),
        ((x, w), {"dimension_numbers": ("NHWC", "OIHW")}, "dimension_numbers is ('NHWC', 'OIHW')"),
        ((x, w, of(2, dtype=np.uint8)), {}, "input_zero_point has shape (2,); dimension 0 must be 1: its shape must "
         "be (1)"),
        ((x, w, None, of(3)), {}, "filter_zero_point has shape (3,); dimension 0 must be 1 or 4"),
        ((x, w, None, of(4, 1)), {}, "filter_zero_point has shape (4, 1); dimension 0 must be 1"),
        ((of(1, 1, 1, 1, 1), of(1, 1, 1, 1, 1)), {}, "rank 5 (shape (1, 1, 1, 1, 1)); DML_FEATURE_LEVEL_6_4 allows 3 "
         "to 4; 5 is allowed from FeatureLevel.EXTENDED on"),
        ((of(1, 1, 1), of(1, 1, 1)), {"feature_level": "2_1"}, "DML_FEATURE_LEVEL_2_1 allows 4; 3 is allowed from "
         "DML_FEATURE_LEVEL_4_0 on"),
    ],
)  # fmt: skip
def test_errors(operands, options, message):
    with pytest.raises(DescriptorError, match=re.escape(message)):
        jax.eval_shape(lambda *operands: jquant.convolution_integer(*operands, **options), *operands)
