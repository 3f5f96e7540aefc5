"""Convolutions: every form of them by equality with the formula, on every way to them."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import samples
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from layouts import collectives

import jquant
from jquant import DescriptorError, DescriptorTypeError, reference
from jquant.arguments import convolutions
from jquant.kernels import convolution as kernel

INTEGERS = (np.int8, np.uint8)
PAIRS = list(itertools.product(INTEGERS, INTEGERS))
# The sizes of input and filter, and the options; the first way to multiply for one group, for several, and the shifts.
GEOMETRIES = {
    "1x1": ((2, 5, 4, 3), (6, 5, 1, 1), {}),
    "3x2, all options": (
        (2, 3, 7, 8),
        (4, 3, 3, 2),
        {"strides": (1, 2), "dilations": (2, 1), "padding": ((1, 2), (0, 3))},
    ),
    "one filter, one window": ((1, 3, 2, 2), (1, 3, 2, 2), {}),
    "1D": ((3, 4, 9), (5, 4, 3), {"strides": (2,), "padding": ((2, 0),)}),
    "3D": ((2, 3, 3, 4, 5), (4, 3, 2, 2, 3), {"padding": ((0, 0), (1, 0), (1, 1)), "feature_level": "EXTENDED"}),
    "groups": ((2, 6, 5, 5), (9, 2, 2, 2), {"groups": 3, "padding": ((1, 1), (1, 1)), "strides": (2, 2)}),
    "depthwise": ((2, 5, 6, 5), (5, 1, 3, 3), {"groups": 5, "padding": ((1, 1), (2, 1)), "strides": (2, 1)}),
    "depthwise, 4 filters a channel": ((1, 2, 4, 4), (8, 1, 2, 2), {"groups": 2, "dilations": (2, 3)}),
    "depthwise, 5 filters a channel": ((1, 2, 4, 4), (10, 1, 2, 2), {"groups": 2, "padding": ((0, 1), (1, 0))}),
    "one channel": ((2, 1, 5, 5), (3, 1, 2, 2), {}),
    "an empty batch": ((0, 3, 4, 4), (2, 3, 2, 2), {}),
    "no channels": ((1, 0, 3, 3), (2, 0, 2, 2), {"padding": ((1, 1), (1, 1))}),
}
every_geometry = pytest.mark.parametrize("name", GEOMETRIES)


def formula(function, *operands, **options):
    return function(*operands, **{name: value for name, value in options.items() if name != "feature_level"})


def reordered(array, order, to):
    return array.transpose([order.index(dimension) for dimension in to])


def assert_equal(actual, expected, what=""):
    np.testing.assert_array_equal(actual, expected, what, strict=True)


def zero_points(rng, form, input_dtype, filter_dtype, filters):
    """None, one for the tensor, or one for each filter."""
    if form == 0:
        return None, None
    return samples.integers(rng, input_dtype), samples.integers(rng, filter_dtype, *([filters] if form == 2 else []))


def or_zero(*zero_points):
    return [0 if zero_point is None else zero_point for zero_point in zero_points]


@every_geometry
def test_convolution_integer(name):
    """Every pair of signs, with one form of the zero points after the other, and symmetric weights, in one program."""
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


@every_geometry
def test_quantized_linear_convolution(name):
    """Scales per tensor and per filter, with a bias and without, to both types, ties among them."""
    sizes, filter_sizes, options = GEOMETRIES[name]
    rng = np.random.default_rng(1)
    filters = filter_sizes[0]
    calls = []
    for (input_dtype, filter_dtype), per_filter, y_scale in zip(PAIRS, (0, 1, 0, 1), (64, 100, 1000, 512), strict=True):
        x, w = samples.integers(rng, input_dtype, *sizes), samples.integers(rng, filter_dtype, *filter_sizes)
        zeros = zero_points(rng, 1 + per_filter, input_dtype, filter_dtype, filters)
        w_scale = rng.choice(np.float32([0.25, 0.5, 0.37]), filters) if per_filter else np.float32(0.25)
        bias = rng.integers(-1000, 1000, (1, filters, *(1,) * (len(sizes) - 2)), np.int32)
        y = np.float32(y_scale), samples.integers(rng, filter_dtype)
        calls.append(
            (x, np.float32(0.5), zeros[0], w, w_scale, zeros[1], *y, None if per_filter == len(calls) // 2 else bias)
        )
    function = jquant.quantized_linear_convolution
    outputs = jax.jit(lambda calls: [function(*call, **options) for call in calls])(calls)
    for call, output in zip(calls, outputs, strict=True):
        expected = formula(reference.quantized_linear_convolution, *call, **options, dtype=call[7].dtype)
        assert_equal(output, expected)


def test_ties_are_even_before_the_zero_point():
    """Sums from -300 to 300 in halves, to each type, beside an odd zero point."""
    x = np.arange(-128, 127, dtype=np.int8).reshape(1, 1, 1, -1)
    w = np.ones((1, 1, 1, 1), np.int8)
    for y_scale, zero_point in itertools.product((2, 0.5), (np.uint8(7), np.int8(-3))):
        operands = x, np.float32(1), None, w, np.float32(1), None, np.float32(y_scale), zero_point
        output = jquant.quantized_linear_convolution(*operands)
        limits = np.iinfo(zero_point.dtype)
        expected = np.clip(np.rint(x / y_scale) + zero_point, limits.min, limits.max).astype(zero_point.dtype)
        assert_equal(output, expected)


@pytest.mark.parametrize("channels_last", [False, True])
def test_sums_wrap(channels_last):
    """Modulo 2**32, of more terms than are multiplied at once; so does the bias."""
    count = 140_000
    x, w = np.full((1, count, 1, 1), 255, np.uint8), np.full((2, count, 1, 1), 255, np.uint8)
    options = {}
    if channels_last:
        x, options = np.moveaxis(x, 1, -1), {"dimension_numbers": ("NHWC", "OIHW", "NCHW")}
    product = jquant.convolution_integer(x, w, **options)
    assert product.ravel().tolist() == [513_565_408] * 2  # 255 * 255 * 140,000 - 2 * 2**32
    bias = np.full((1, 2, 1, 1), 2**31 - 1, np.int32)
    output = jquant.quantized_linear_convolution(x, 1, None, w, 1, None, 2.0**25, np.int8(0), bias, **options)
    assert output.ravel().tolist() == [round((513_565_408 - 2**31 - 1) / 2**25)] * 2


def pairs_of(padding, sizes, filter_sizes, strides, dilations):
    """The padding that a name stands for: as many windows as strides, or all that fit."""
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
    pairs = pairs_of(padding, (7, 8), (4, 3), strides, dilations)
    assert_equal(output, reference.convolution_integer(x, w, 77, padding=pairs, **options))


LAYOUTS = [
    ("NHWC", "HWIO", "NHWC"),
    ("NCHW", "HWIO", "NHWC"),
    ("NHWC", "OIHW", "NCHW"),
    ("HWNC", "IHWO", "CNWH"),
    ("CWNH", "OHIW", "NWCH"),
]


@pytest.mark.parametrize("name", ["3x2, all options", "groups", "depthwise"])
def test_layouts(name):
    """The same numbers with their dimensions in other orders, as strings and as numbers."""
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


@pytest.mark.parametrize("layout", [("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC")])
@pytest.mark.parametrize("name", ["3x2, all options", "one channel", "depthwise"])
def test_ways_agree(name, layout, monkeypatch):
    """Shifts, matrix products, and XLA's own convolution (which TPU programs have), whichever is the default here."""
    sizes, filter_sizes, options = GEOMETRIES[name]
    rng = np.random.default_rng(4)
    x, w = samples.integers(rng, np.uint8, *sizes), samples.integers(rng, np.uint8, *filter_sizes)
    zeros = samples.integers(rng, np.uint8), samples.integers(rng, np.uint8, filter_sizes[0])
    expected = reference.convolution_integer(x, w, *zeros, **options)
    x, w = reordered(x, "NCHW", layout[0]), reordered(w, "OIHW", layout[1])
    way = {name: options.get(name) for name in ("strides", "padding", "dilations")}
    geometry = convolutions.geometry(
        "test",
        x,
        w,
        **{**way, "padding": way["padding"] or "VALID"},
        groups=options.get("groups", 1),
        dimension_numbers=layout,
    )

    def output():
        return reordered(jax.jit(lambda x, w: kernel.convolution(x, w, *zeros, geometry))(x, w), layout[2], "NCHW")

    assert_equal(output(), expected)
    monkeypatch.setattr(kernel, "_FEW_FILTERS", 0)
    assert_equal(output(), expected)
    if geometry.groups == 1:
        monkeypatch.setattr(kernel, "_product_with_patches", kernel._convolution_of_xla)
        assert_equal(output(), expected)


def program(platform, sizes, filter_sizes, **options):
    """What is lowered for a platform."""
    shapes = jax.ShapeDtypeStruct(sizes, np.uint8), jax.ShapeDtypeStruct(filter_sizes, np.int8)
    function = jax.jit(lambda x, w: jquant.convolution_integer(x, w, 5, -3, **options))
    return function.trace(*shapes).lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
def test_what_multiplies(platform):
    """int8 by int8 to int32 everywhere: in a product of matrices, or for a TPU in a convolution of one group."""
    product, convolution = (
        rf"stablehlo.{operation}.*\(tensor<[\dx]+xi8>, tensor<[\dx]+xi8>\) -> tensor<[\dx]+xi32>"
        for operation in ("dot_general", "convolution")
    )
    cases = ((3, 3), 1), ((1, 1), 1), ((3, 3), 4)
    for window, groups in cases:
        text = program(platform, (2, 16, 8, 8), (32, 16 // groups, *window), groups=groups)
        by_convolution = platform == "tpu" and groups == 1
        assert len(re.findall(convolution, text)) == by_convolution
        # The sums of a product on a CPU are products, too.
        assert len(re.findall(product, text)) == (not by_convolution) + 2 * (platform == "cpu")
    text = program(platform, (2, 16, 8, 8), (32, 1, 3, 3), groups=16)
    assert not re.search("stablehlo.(dot_general|convolution)", text)
    assert text.count("stablehlo.multiply") == 9


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize("layout", [("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC")])
def test_filters_split_over_a_mesh(layout, kind):
    """With what belongs to each filter: nothing moves."""
    rng = np.random.default_rng(5)
    x, w = samples.integers(rng, np.uint8, 2, 3, 6, 5), samples.integers(rng, np.int8, 16, 3, 3, 2)
    x_zero_point, w_zero_point = samples.integers(rng, np.uint8), samples.integers(rng, np.int8, 16)
    w_scale, bias = rng.uniform(0.1, 1, 16).astype(np.float32), rng.integers(-999, 999, (1, 16, 1, 1), np.int32)
    y = np.float32(300), np.int8(3)
    padding = ((1, 1), (0, 1))
    operands = x, np.float32(1), x_zero_point, w, w_scale, w_zero_point, *y, bias
    expected = reference.quantized_linear_convolution(*operands, dtype=np.int8, padding=padding)
    mesh = jax.make_mesh((8,), ("x",), axis_types=(kind,))
    specs = [P()] * 3 + [P(*("x" if d == "O" else None for d in layout[1])), P("x"), P("x"), P(), P(), P(None, "x")]
    placed = [
        jax.device_put(value, NamedSharding(mesh, spec))
        for value, spec in zip(
            (reordered(x, "NCHW", layout[0]), *operands[1:3], reordered(w, "OIHW", layout[1]), *operands[4:]),
            specs,
            strict=True,
        )
    ]
    function = functools.partial(jquant.quantized_linear_convolution, padding=padding, dimension_numbers=layout)
    with jax.set_mesh(mesh):
        compiled = jax.jit(function).lower(*placed).compile()
        output = compiled(*placed)
    assert collectives(compiled.as_text()) == []
    assert output.sharding.is_equivalent_to(NamedSharding(mesh, P(*("x" if d == "C" else None for d in layout[2]))), 4)
    assert_equal(reordered(np.asarray(output), layout[2], "NCHW"), expected)


x, w = jax.ShapeDtypeStruct((2, 6, 5, 5), np.uint8), jax.ShapeDtypeStruct((4, 6, 3, 3), np.int8)
i8, u8, f32 = np.int8, np.uint8, np.float32


INTS = "must be 2 positive Python ints, one for each spatial dimension, not"
PADDINGS = "it must be one of VALID, SAME, SAME_UPPER, SAME_LOWER, 2 pairs of integers that are not negative, or 4 of them"


def of(*sizes, dtype=np.int8):
    return np.zeros(sizes, dtype)


@pytest.mark.parametrize(
    ("operands", "options", "message"),
    [
        ((x, of(4, 6, 3)), {}, "InputTensor has sizes (2, 6, 5, 5), FilterTensor has (4, 6, 3): the dimension counts must"),
        ((of(2, 6), of(4, 6)), {}, "the dimension counts must be the same, and at least 3"),
        ((x, of(4, 5, 3, 3)), {}, "groups is 1: the input has 6 channels (dimension 1), the 4 filters expect 5 x groups; "
         'for channels last pass dimension_numbers=("NHWC", "HWIO", "NHWC")'),
        ((x, of(4, 2, 3, 3)), {"groups": 3}, "groups is 3; it must divide the number of filters, which is 4"),
        ((x, of(0, 6, 3, 3)), {}, "FilterTensor has shape (0, 6, 3, 3); it must have one filter or more"),
        ((x, of(4, 6, 0, 3)), {}, "a window has sizes (0, 3); they must be positive"),
        ((x, of(4, 6, 3, 6)), {}, "no window of (3, 6) elements, with steps of (1, 1), fits into (5, 5) elements with a "
         "padding of ((0, 0), (0, 0))"),
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
        ((x, w), {"padding": "same"}, "padding is 'same'; names are VALID, SAME, SAME_UPPER, SAME_LOWER"),
        ((x, w), {"dimension_numbers": ("NHWC", "OIHW")}, "dimension_numbers is ('NHWC', 'OIHW')"),
        ((x, w, of(2, dtype=u8)), {}, "dimension 0 of InputZeroPointTensor, sizes (2,), must be 1: the sizes are (1)"),
        ((x, w, None, of(3)), {}, "dimension 0 of FilterZeroPointTensor, sizes (3,), must be 1 or 4"),
        ((x, w, None, of(4, 1)), {}, "dimension 0 of FilterZeroPointTensor, sizes (4, 1), must be 1"),
        ((of(1, 1, 1, 1, 1), of(1, 1, 1, 1, 1)), {}, "5 dimensions, sizes (1, 1, 1, 1, 1); DML_FEATURE_LEVEL_6_4 allows 3 "
         "to 4; 5 is allowed from FeatureLevel.EXTENDED on"),
        ((of(1, 1, 1), of(1, 1, 1)), {"feature_level": "2_1"}, "DML_FEATURE_LEVEL_2_1 allows 4; 3 is allowed from "
         "DML_FEATURE_LEVEL_4_0 on"),
    ],
)  # fmt: skip
def test_errors_of_convolution_integer(operands, options, message):
    with pytest.raises(DescriptorError, match=re.escape(message)):
        jax.eval_shape(lambda *operands: jquant.convolution_integer(*operands, **options), *operands)


def test_errors_of_quantized_linear_convolution():
    def call(x_scale=1, w_scale=1, bias=None, zero_point=0, **options):
        return jax.eval_shape(
            lambda x, w: jquant.quantized_linear_convolution(x, x_scale, 0, w, w_scale, 0, 1, zero_point, bias, **options),
            x,
            w,
        )

    assert call(w_scale=of(1, 4, 1, 1, dtype=f32), bias=of(1, 4, 1, 1, dtype=np.int32)).dtype == u8
    assert call(w_scale=of(4, dtype=f32), zero_point=i8(3)).dtype == i8
    for given, message in (
        ({"x_scale": of(4, dtype=f32)}, "dimension 0 of InputScaleTensor, sizes (4,), must be 1"),
        ({"w_scale": of(3, dtype=f32)}, "dimension 0 of FilterScaleTensor, sizes (3,), must be 1 or 4"),
        ({"w_scale": of(4, dtype=f32), "feature_level": "4_0"}, "DML_FEATURE_LEVEL_4_0 allows 3 to 4; 1 is allowed from "
         "DML_FEATURE_LEVEL_5_2 on"),
        ({"bias": of(4, dtype=np.int32)}, "BiasTensor has 1 dimensions, sizes (4,); DML_FEATURE_LEVEL_6_4 allows 3 to 4"),
        ({"bias": of(1, 1, 1, 1, dtype=np.int32)}, "dimension 1 of BiasTensor, sizes (1, 1, 1, 1), must be 4"),
        ({"bias": of(1, 4, 1, dtype=np.int32)}, "the dimension counts must be the same"),
    ):  # fmt: skip
        with pytest.raises(DescriptorError, match=re.escape(message)):
            call(**given)
    with pytest.raises(DescriptorTypeError, match="BiasTensor has data type FLOAT32; DML_FEATURE_LEVEL_6_4 allows INT32"):
        call(bias=of(1, 4, 1, 1, dtype=f32))
