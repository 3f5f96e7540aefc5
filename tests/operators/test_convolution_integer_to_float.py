"""`convolution_integer_to_float`: every geometry against the formula, types, derivatives, a mesh, and errors."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.collectives import collectives
from support.comparison import assert_equal
from support.geometries import GEOMETRIES, formula, one_geometry_in_two, reordered
from support.sampling import one_in

import jquant
from jquant import DescriptorError, DescriptorTypeError
from jquant.cases import samples
from jquant.reference import convolutions as reference

from .convolutions import PAIRS, WRAPPED_SUM, long_sums, of, w, x, zero_points

FLOAT32 = np.float32
FLOATS = (np.float32, np.float16, jnp.bfloat16)
LAYOUTS = [("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC")]
convolve = functools.partial(jquant.convolution_integer_to_float, feature_level="EXTENDED")


@one_geometry_in_two(0)
def test_geometries(name):
    """Scales and biases per tensor and per filter, in each of their shapes, and every output type."""
    sizes, filter_sizes, options = GEOMETRIES[name]
    options = {**options, "feature_level": "EXTENDED"}
    rng = np.random.default_rng(1)
    filters, rank = filter_sizes[0], len(sizes)
    shapes = [(), *((1, filters, *(1,) * (rank - 2))[:count] for count in range(2, rank + 1)), (filters,)]
    calls = []
    for index, (input_dtype, filter_dtype) in enumerate(PAIRS, start=list(GEOMETRIES).index(name)):
        x, w = samples.integers(rng, input_dtype, *sizes), samples.integers(rng, filter_dtype, *filter_sizes)
        x_zero_point, w_zero_point = zero_points(rng, index % 3, input_dtype, filter_dtype, filters)
        w_scale = samples.small_scales(rng, *shapes[index % len(shapes)])
        bias = (rng.normal(size=shapes[(index + 1) % len(shapes)]) * 100).astype(FLOAT32)
        operands = x, samples.small_scales(rng), x_zero_point, w, w_scale, w_zero_point, bias if index % 4 else None
        calls.append((operands, FLOATS[index % len(FLOATS)]))
    outputs = jax.jit(
        lambda operands: [
            jquant.convolution_integer_to_float(*call, output_dtype=dtype, **options)
            for call, (_, dtype) in zip(operands, calls, strict=True)
        ]
    )([operands for operands, _ in calls])
    for ((x, x_scale, x_zero_point, w, w_scale, w_zero_point, bias), dtype), output in zip(calls, outputs, strict=True):
        operands = x, x_scale, x_zero_point or 0, w, w_scale, 0 if w_zero_point is None else w_zero_point, bias
        assert_equal(output, formula(reference.convolution_integer_to_float, *operands, dtype=dtype, **options))


class Problem:
    """An input and filters in a layout, with scales, zero points and biases per filter, and the integer product."""

    def __init__(self, layout=LAYOUTS[0], *, channels=3, filters=3, groups=1, seed=0):
        rng = np.random.default_rng(seed)
        x, w = samples.integers(rng, np.uint8, 2, channels, 6, 5), samples.integers(rng, np.int8, filters, channels, 3, 2)
        self.w_zero_point = samples.integers(rng, np.int8, filters)
        self.x_zero_point = samples.integers(rng, np.uint8)
        self.floats = (
            samples.small_scales(rng),
            samples.small_scales(rng, filters),
            samples.small_scales(rng, filters) * 1000,
        )
        self.padding, self.layout = ((1, 1), (0, 1)), layout
        self.product = reference.convolution_integer(x, w, self.x_zero_point, self.w_zero_point, padding=self.padding)
        self.x, self.w = reordered(x, "NCHW", layout[0]), reordered(w, "OIHW", layout[1])

    @property
    def operands(self):
        x_scale, w_scale, bias = self.floats
        return self.x, x_scale, self.x_zero_point, self.w, w_scale, self.w_zero_point, bias

    def __call__(self, x_scale, w_scale, bias, **options):
        operands = self.x, x_scale, self.x_zero_point, self.w, w_scale, self.w_zero_point, bias
        return convolve(*operands, padding=self.padding, dimension_numbers=self.layout, **options)

    def expected(self, x_scale, w_scale, bias, dtype=FLOAT32):
        x, w = reordered(self.x, self.layout[0], "NCHW"), reordered(self.w, self.layout[1], "OIHW")
        operands = x, x_scale, self.x_zero_point, w, w_scale, self.w_zero_point, bias
        output = reference.convolution_integer_to_float(*operands, dtype, padding=self.padding)
        return reordered(output, "NCHW", self.layout[2])


def test_is_the_composition_of_onnx():
    """ConvInteger, Cast, Mul of the scales, Mul and Add, each computed in NumPy."""
    p = Problem()
    x_scale, w_scale, bias = p.floats
    scale = x_scale * w_scale.reshape(1, -1, 1, 1)
    expected = p.product.astype(FLOAT32) * scale + bias.reshape(1, -1, 1, 1)
    assert_equal(p(*p.floats), expected)
    other_order = p.product.astype(FLOAT32) * x_scale * w_scale.reshape(1, -1, 1, 1) + bias.reshape(1, -1, 1, 1)
    assert np.any(expected != other_order)


@pytest.mark.gate
@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16])
def test_scales_of_16_bits(dtype):
    """Scales are widened, multiplied in float32 and the result rounded once; Python scalars take their type."""
    p = Problem()
    floats = [value.astype(dtype) for value in p.floats]
    assert_equal(p(*floats), p.expected(*floats, dtype))
    assert p(0.5, floats[1], 2.0).dtype == dtype
    assert p(0.5, 0.25, floats[2]).dtype == dtype
    assert_equal(p(*floats, output_dtype=np.float32), p.expected(*floats))


def test_special_scales():
    p = Problem()
    values = FLOAT32([0.0, np.inf, -np.inf, np.nan, -1.5, 3e38])
    outputs = jax.jit(lambda values: [[p(x_scale, w_scale, None) for w_scale in values] for x_scale in values])(values)
    for (x_scale, w_scale), output in zip(itertools.product(values, repeat=2), itertools.chain(*outputs), strict=True):
        assert_equal(output, p.expected(x_scale, w_scale, None))


@pytest.mark.parametrize("constant", [(), (1, 2), (0, 1, 2)], ids=["nothing", "weights", "all"])
@one_in(
    5, ("layout", "channels", "per_filter"), [(*x, y) for x in [(LAYOUTS[0], 3), (LAYOUTS[1], 20)] for y in (False, True)]
)
def test_inside_a_caller(layout, channels, per_filter, constant):
    """Between a caller's multiplications and additions, which XLA would merge with an unprotected epilogue.

    It would do so above all with constant weights and a computed scale, as in dynamic quantization.
    """
    p = Problem(layout, channels=channels)
    before, after, addend = FLOAT32([0.1, 1.3, 1.7])
    values = p.floats if per_filter else [value.ravel()[0] for value in p.floats]

    @jax.jit
    def caller(*floats):
        x_scale, w_scale, bias = (values[index] if index in constant else value for index, value in enumerate(floats))
        output = p(x_scale * before, w_scale, bias * before)
        return output, output * after, output + addend

    x_scale, w_scale, bias = values
    for scale in [x_scale] if 0 in constant else samples.small_scales(np.random.default_rng(1), 8):
        expected = p.expected(scale * before, w_scale, bias * before)
        assert_equal(caller(scale, w_scale, bias), (expected, expected * after, expected + addend))


@pytest.mark.parametrize("channels_last", [False, True])
def test_the_wrapped_sum_is_scaled(channels_last):
    x, w, layout = long_sums(channels_last)
    output = jquant.convolution_integer_to_float(x, 0.5, None, w, 0.5, None, 1.0, **layout)
    assert_equal(output.ravel(), np.full(2, FLOAT32(WRAPPED_SUM) * FLOAT32(0.25) + 1, FLOAT32))


@pytest.mark.gate
@one_in(5, ("layout", "channels"), [(LAYOUTS[0], 3), (LAYOUTS[1], 3), (LAYOUTS[1], 20)], first=1)
def test_scales_and_bias_are_differentiable(layout, channels):
    """In forward mode, and in reverse mode with each argument mapped alone, and with all mapped."""
    p = Problem(layout, channels=channels)
    x_scale, w_scale, bias = (value.astype(np.float64) for value in p.floats)
    by_filter = p.product.sum((0, 2, 3), dtype=np.float64)
    expected = (by_filter * w_scale).sum(), by_filter * x_scale, np.full_like(bias, p.product[:, 0].size)
    largest = np.abs(p.product.astype(np.float64)).sum() * max(x_scale, w_scale.max())

    def total(x_scale, w_scale, bias, x, w):
        operands = x, x_scale, p.x_zero_point, w, w_scale, p.w_zero_point, bias
        return convolve(*operands, padding=p.padding, dimension_numbers=p.layout).sum()

    gradient = jax.grad(total, argnums=(0, 1, 2))
    operands = *p.floats, p.x, p.w
    choices = [*((index,) for index in range(len(operands))), range(len(operands))]

    @jax.jit
    def derivatives(*operands):
        gradients = [jax.jacfwd(total, argnums=(0, 1, 2))(*operands), gradient(*operands)]
        for mapped in choices:
            axes = tuple(0 if index in mapped else None for index in range(len(operands)))
            stacks = [jnp.stack([value] * 2) if index in mapped else value for index, value in enumerate(operands)]
            batch = jax.vmap(gradient, axes)(*stacks)
            gradients += [jax.tree.map(lambda x, index=index: x[index], batch) for index in range(2)]
        return gradients

    tolerances = 1e-6 * largest, 1e-6 * largest, 0  # of sums of floats in any order, and of a count
    for gradients in derivatives(*operands):
        for actual, desired, tolerance in zip(gradients, expected, tolerances, strict=True):
            np.testing.assert_allclose(actual, desired, rtol=0, atol=tolerance)


def test_any_number_of_images():
    """One exported program takes batches of any size but 0, for which JAX exports no symbolic sizes."""
    p = Problem(LAYOUTS[1], channels=20)
    _, x_scale, x_zero_point, *others = p.operands
    function = jax.jit(
        lambda x: convolve(x, x_scale, x_zero_point, *others, padding=p.padding, dimension_numbers=LAYOUTS[1])
    )
    program = export.export(function)(jax.ShapeDtypeStruct(export.symbolic_shape("n, 6, 5, 20"), np.uint8))
    expected = p.expected(*p.floats)
    for count in (1, 2):
        assert_equal(program.call(p.x[:count]), expected[:count])
    assert_equal(function(p.x[:0]), expected[:0])


@one_in(5, ("layout", "channels", "kind"), itertools.product(LAYOUTS, (3, 20), (AxisType.Auto, AxisType.Explicit)))
def test_filters_split_over_a_mesh(layout, channels, kind):
    """With scales, zero points and biases split like the filters, nothing moves."""
    p = Problem(layout, channels=channels, filters=16)
    mesh = jax.make_mesh((8,), ("x",), axis_types=(kind,))
    filter_spec = P(*("x" if dimension == "O" else None for dimension in layout[1]))
    specs = P(), P(), P(), filter_spec, P("x"), P("x"), P("x")
    placed = [jax.device_put(value, NamedSharding(mesh, spec)) for value, spec in zip(p.operands, specs, strict=True)]
    function = functools.partial(convolve, padding=p.padding, dimension_numbers=layout)
    with jax.set_mesh(mesh):
        compiled = jax.jit(function).lower(*placed).compile()
        output = compiled(*placed)
    assert collectives(compiled.as_text()) == []
    output_spec = P(*("x" if dimension == "C" else None for dimension in layout[2]))
    assert output.sharding.is_equivalent_to(NamedSharding(mesh, output_spec), 4)
    assert_equal(output, p.expected(*p.floats))


def test_errors():
    def call(x_scale=1, w_scale=1, bias=None, **options):
        return jax.eval_shape(
            lambda x, w: jquant.convolution_integer_to_float(x, x_scale, 0, w, w_scale, 0, bias, **options), x, w
        )

    f32, f16 = (functools.partial(of, dtype=dtype) for dtype in (np.float32, np.float16))
    for shape in ((4,), (1, 4), (1, 4, 1), (1, 4, 1, 1), (1, 1, 1, 1), ()):
        assert call(w_scale=f32(*shape), bias=f32(*shape)).dtype == np.float32
    assert call(w_scale=f32(1, 4, 1, 1, 1), bias=f32(1, 4, 1, 1, 1), feature_level="EXTENDED").shape == (2, 4, 3, 3)
    assert call(bias=f16(4)).dtype == np.float16
    assert call(w_scale=f32(4), output_dtype="BFLOAT16", feature_level="EXTENDED").dtype == jnp.bfloat16
    for arguments, message in (
        ({"x_scale": f32(4)}, "input_scale has shape (4,); dimension 0 must be 1"),
        ({"w_scale": f32(3)}, "filter_scale has shape (3,); dimension 0 must be 1 or 4"),
        ({"bias": f32(3)}, "bias has shape (3,); dimension 0 must be 1 or 4: BiasChannelCount is 1 or "
         "FilterBatchCount, which is 4 in filter"),
        ({"bias": f32(1, 3, 1, 1)}, "bias has shape (1, 3, 1, 1); dimension 1 must be 1 or 4"),
        ({"bias": f32(2, 4, 1, 1)}, "bias has shape (2, 4, 1, 1); dimension 0 must be 1"),
        ({"bias": f32(1, 4, 1, 1, 1)}, "bias has rank 5 (shape (1, 4, 1, 1, 1)); DML_FEATURE_LEVEL_6_4 allows "
         "1 to 4; 5 is allowed from FeatureLevel.EXTENDED on"),
        ({"feature_level": "6_1"}, "feature_level is DML_FEATURE_LEVEL_6_1; the operator is available from "
         "DML_FEATURE_LEVEL_6_2 on"),
    ):  # fmt: skip
        with pytest.raises(DescriptorError, match=re.escape(f"convolution_integer_to_float: {message}")):
            call(**arguments)
    for arguments, message in (
        ({"bias": of(4, dtype=np.int32)}, "bias has data type INT32; it must match the data type of input_scale, FLOAT32"),
        ({"x_scale": f16(1), "bias": f32(4)}, "bias has data type FLOAT32; it must match the data type of input_scale"),
        ({"output_dtype": "FLOAT16"}, "output_dtype is FLOAT16; below FeatureLevel.EXTENDED "
         "it must match the data type of input_scale, FLOAT32"),
        ({"output_dtype": "INT32"}, "output_dtype is INT32; DML_FEATURE_LEVEL_6_4 allows FLOAT32, FLOAT16"),
    ):  # fmt: skip
        with pytest.raises(DescriptorTypeError, match=re.escape(f"convolution_integer_to_float: {message}")):
            call(**arguments)
