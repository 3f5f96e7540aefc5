"""`quantized_linear_convolution`: every geometry against the formula, ties, a mesh, and errors."""

import functools
import itertools
import re

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.collectives import collectives
from support.comparison import assert_equal
from support.geometries import GEOMETRIES, formula, one_geometry_in_two, reordered

import jquant
from jquant import DescriptorError, DescriptorTypeError
from jquant.cases import samples
from jquant.reference import convolutions as reference

from .convolutions import PAIRS, WRAPPED_SUM, long_sums, of, w, x, zero_points


@one_geometry_in_two(1)
def test_geometries(name):
    """Scales per tensor and per filter, with a bias and without, both output types, and ties."""
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
    """Sums that are multiples of a half, with odd zero points of both types."""
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
    """Modulo 2**32, with more terms than one product sums, and with a bias."""
    x, w, layout = long_sums(channels_last)
    bias = np.full((1, 2, 1, 1), 2**31 - 1, np.int32)
    output = jquant.quantized_linear_convolution(x, 1, None, w, 1, None, 2.0**25, np.int8(0), bias, **layout)
    assert output.ravel().tolist() == [round((WRAPPED_SUM - 2**31 - 1) / 2**25)] * 2


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize("layout", [("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC")])
def test_filters_split_over_a_mesh(layout, kind):
    """With scales, zero points and biases split like the filters, nothing moves."""
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


def test_errors():
    def call(x_scale=1, w_scale=1, bias=None, zero_point=0, **options):
        return jax.eval_shape(
            lambda x, w: jquant.quantized_linear_convolution(x, x_scale, 0, w, w_scale, 0, 1, zero_point, bias, **options),
            x,
            w,
        )

    assert call(w_scale=of(1, 4, 1, 1, dtype=np.float32), bias=of(1, 4, 1, 1, dtype=np.int32)).dtype == np.uint8
    assert call(w_scale=of(4, dtype=np.float32), zero_point=np.int8(3)).dtype == np.int8
    for arguments, message in (
        ({"x_scale": of(4, dtype=np.float32)}, "input_scale has shape (4,); dimension 0 must be 1"),
        ({"w_scale": of(3, dtype=np.float32)}, "filter_scale has shape (3,); dimension 0 must be 1 or 4"),
        ({"w_scale": of(4, dtype=np.float32), "feature_level": "4_0"}, "DML_FEATURE_LEVEL_4_0 allows 3 to 4; 1 is "
         "allowed from DML_FEATURE_LEVEL_5_2 on"),
        ({"bias": of(4, dtype=np.int32)}, "bias has rank 1 (shape (4,)); DML_FEATURE_LEVEL_6_4 allows 3 to 4"),
        ({"bias": of(1, 1, 1, 1, dtype=np.int32)}, "bias has shape (1, 1, 1, 1); dimension 1 must be 4"),
        ({"bias": of(1, 4, 1, dtype=np.int32)}, "the dimension counts must be the same"),
    ):  # fmt: skip
        with pytest.raises(DescriptorError, match=re.escape(message)):
            call(**arguments)
    with pytest.raises(DescriptorTypeError, match="bias has data type FLOAT32; DML_FEATURE_LEVEL_6_4 allows INT32"):
        call(bias=of(1, 4, 1, 1, dtype=np.float32))
