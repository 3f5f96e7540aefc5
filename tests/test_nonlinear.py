"""`quantized_linear_sigmoid` and `quantized_linear_softmax` against their formulas in float64, and where those end."""

import functools
import importlib

import jax
import numpy as np
import pytest
import samples
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from layouts import Collective, collectives

import jquant
from jquant import DescriptorError, DescriptorTypeError, reference
from jquant.reference import nonlinear

FLOAT32 = np.float32
FACTOR = FLOAT32(0.1)
EVERY = np.arange(256, dtype=np.uint8)


def parameter_sets(rng, dtype, count):
    """Scales and zero points of the input and the output: small and large steps, a half of both powers of two."""
    x_scale, y_scale = samples.scales(rng, count), (10 ** rng.uniform(-4, 0, count)).astype(FLOAT32)
    x_scale[1::8] = 0
    x_scale[3::8] *= -1
    y_scale[::2] = np.ldexp(FLOAT32(1), rng.integers(-12, -2, count))[::2]
    return x_scale, samples.integers(rng, dtype, count), y_scale, samples.integers(rng, dtype, count)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("factor", [None, FACTOR], ids=["traced", "computed"])
def test_sigmoid_of_every_integer(dtype, factor):
    """The 256 inputs of each type x 4,096 sets of scales and zero points, traced or computed by the caller."""
    sets = parameter_sets(np.random.default_rng(0), dtype, 4096)
    x = EVERY.view(dtype)

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


def test_sigmoid_before_it_is_quantized():
    """As float32 numbers, which show more than the integers made of them."""
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.normal(size=300_000) * 10, rng.uniform(-88, 20, 200_000)]).astype(FLOAT32)
    module = importlib.import_module("jquant.operators.quantized_linear_sigmoid")
    expected = nonlinear.normal(1 / (1 + np.exp(-x.astype(np.float64))))
    np.testing.assert_array_equal(jax.jit(module._sigmoid)(x), expected)


def test_sigmoid_with_constants():
    """Scales and zero points that XLA folds into the program."""
    rng = np.random.default_rng(1)
    sets = list(zip(*parameter_sets(rng, np.int8, 3), strict=True))
    sets[0] = sets[0][0], None, sets[0][2], None
    x = samples.integers(rng, np.int8, 3, 5, 7)
    actual = jax.jit(lambda x: [jquant.quantized_linear_sigmoid(x, *parameters) for parameters in sets])(x)
    sets[0] = sets[0][0], 0, sets[0][2], 0
    for result, parameters in zip(actual, sets, strict=True):
        np.testing.assert_array_equal(result, reference.quantized_linear_sigmoid(x, *parameters))


def test_sigmoid_far_below():
    """Down to the smallest normal number, in steps of the output that are as small."""
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
def test_scales_of_the_sigmoid_that_are_not_positive_or_not_finite(x_scale, y_scale, expected):
    x = np.array([-100, 5, 110], np.int8)
    x[0] = 0 if abs(x_scale) == 1 else x[0]
    actual = jquant.quantized_linear_sigmoid(x, x_scale, 5, y_scale, 3)
    np.testing.assert_array_equal(actual, reference.quantized_linear_sigmoid(x, FLOAT32(x_scale), 5, FLOAT32(y_scale), 3))
    np.testing.assert_array_equal(actual, np.array(expected, np.int8))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize(("sizes", "axis"), [((2000, 37), 1), ((300, 40, 11), 1), ((257, 400), 0)])
def test_softmax(dtype, sizes, axis):
    """More than 1,000,000 outputs over all: traced parameters, constants, and what the caller computes."""
    rng = np.random.default_rng(2)
    softmax = functools.partial(jquant.quantized_linear_softmax, axis=axis)
    traced = jax.jit(softmax)
    computed = jax.jit(lambda x, x_scale, xz, y_scale, yz: softmax(x, x_scale * FACTOR, xz, y_scale * FACTOR, yz))
    for index, parameters in enumerate(zip(*parameter_sets(rng, dtype, 4), strict=True)):
        x_scale, x_zero_point, y_scale, y_zero_point = parameters
        x_scale = x_scale / FLOAT32(8)
        y_scale = np.ldexp(y_scale, -rng.integers(0, 12))
        x = (samples.integers(rng, dtype, *sizes) >> rng.integers(0, 5)).astype(dtype)
        arguments = x, x_scale, x_zero_point, y_scale, y_zero_point
        np.testing.assert_array_equal(traced(*arguments), reference.quantized_linear_softmax(*arguments, axis))
        arguments_times = x, x_scale * FACTOR, x_zero_point, y_scale * FACTOR, y_zero_point
        expected = reference.quantized_linear_softmax(*arguments_times, axis)
        np.testing.assert_array_equal(computed(*arguments), expected)
        if index == 0:
            constant = jax.jit(lambda x, parameters=arguments[1:]: softmax(x, *parameters))
            np.testing.assert_array_equal(constant(x), reference.quantized_linear_softmax(*arguments, axis))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_softmax_of_long_slices(dtype):
    """Differences of more than 127, in slices that XLA works on in another way; sums of almost nothing but small terms."""
    rng = np.random.default_rng(3)
    limits = np.iinfo(dtype)
    softmax = jax.jit(functools.partial(jquant.quantized_linear_softmax, axis=1))
    x = samples.integers(rng, dtype, 3, 50_000)
    x[1] = rng.integers(limits.min, limits.min + 30, 50_000)
    x[1, 7] = limits.max
    x[2] = limits.min
    for x_scale, y_scale in FLOAT32([(0.05, 1e-8), (0.05, 1e-6), (1e-3, 2.0**-22), (0.3, 1e-30), (0.3, 2e-38)]):
        arguments = x, x_scale, None, y_scale, dtype(limits.min)
        expected = reference.quantized_linear_softmax(x, x_scale, 0, y_scale, dtype(limits.min), 1)
        np.testing.assert_array_equal(softmax(*arguments), expected)


@pytest.mark.parametrize("value", [0.0, np.inf, -np.inf, np.nan, -0.5, 3e38, -3e38])
def test_scales_of_the_softmax_that_are_not_positive_or_not_finite(value):
    x = np.array([[-128, 127, 5], [9, 9, 9]], np.int8)
    given = {
        0.0: [[46, 46, 46], [46, 46, 46]],
        -0.5: [[127, 3, 3], [46, 46, 46]],
        3e38: [[3, 127, 3], [46, 46, 46]],
        -3e38: [[127, 3, 3], [46, 46, 46]],
    }
    softmax = functools.partial(jquant.quantized_linear_softmax, axis=1)
    actual = softmax(x, value, None, 1 / 128, 3)
    np.testing.assert_array_equal(actual, np.array(given.get(value, np.zeros((2, 3))), np.int8))
    y_scale = FLOAT32(value)
    expected = reference.quantized_linear_softmax(x, FLOAT32(0.1), 0, y_scale, np.int8(3), 1)
    np.testing.assert_array_equal(softmax(x, 0.1, None, y_scale, 3), expected)


def test_the_zero_point_of_the_input_cancels():
    x = EVERY.reshape(8, 32)
    softmax = functools.partial(jquant.quantized_linear_softmax, axis=1)
    np.testing.assert_array_equal(softmax(x, 0.1, 200, 0.003, 1), softmax(x, 0.1, None, 0.003, 1))


def test_no_elements():
    assert jquant.quantized_linear_sigmoid(np.zeros((0, 3), np.uint8), 1.0, None, 1.0).shape == (0, 3)
    for sizes in ((0, 3), (3, 0)):
        assert jquant.quantized_linear_softmax(np.zeros(sizes, np.uint8), 1.0, None, 1.0, 0, axis=1).shape == sizes


def test_scales_of_one_element_may_have_a_dimension():
    x, scale, zero = np.int8([[3, -4]]), np.full(1, 0.25, FLOAT32), np.full(1, 2, np.int8)
    for function in (jquant.quantized_linear_sigmoid, functools.partial(jquant.quantized_linear_softmax, axis=1)):
        np.testing.assert_array_equal(function(x, scale, zero, scale, zero), function(x, 0.25, 2, 0.25, 2))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_softmax_along_an_axis_that_a_mesh_splits(kind):
    """The largest elements and the sums of the digits are all that moves; the bits are those of one device."""
    rng = np.random.default_rng(4)
    x = samples.integers(rng, np.int8, 40, 800)
    parameters = FLOAT32(0.02), np.int8(3), FLOAT32(1e-5), np.int8(-128)
    mesh = jax.make_mesh((8,), ("x",), axis_types=(kind,))
    split = jax.device_put(x, NamedSharding(mesh, P(None, "x")))
    with jax.set_mesh(mesh):
        softmax = jax.jit(functools.partial(jquant.quantized_linear_softmax, axis=1))
        program = softmax.lower(split, *parameters).compile()
        actual = program(split, *parameters)
    np.testing.assert_array_equal(actual, reference.quantized_linear_softmax(x, *parameters, 1))
    moved = collectives(program.as_text())
    assert moved == [Collective("all-reduce", {"s8"}, 40), Collective("all-reduce", {"s32"}, 5 * 40)]
    assert actual.sharding.spec == P(None, "x")


@pytest.mark.parametrize(
    ("axis", "sizes", "message"),
    [
        (-3, (2, 3), "axis is -3; it must be a dimension of the input, from -2 to 1"),
        (2, (2, 3), "axis is 2; it must be a dimension of the input, from -2 to 1"),
        (None, (2, 3), "axis is None; it must be a dimension of the input, from -2 to 1"),
        (0, (2**19,), "axis 0 has 524288 elements; the sum is exact for 524287 at most"),
    ],
)
def test_axes_that_softmax_does_not_take(axis, sizes, message):
    x = jax.ShapeDtypeStruct(sizes, np.uint8)
    with pytest.raises(DescriptorError) as raised:
        jax.eval_shape(lambda x: jquant.quantized_linear_softmax(x, 1.0, None, 1.0, 0, axis=axis), x)
    assert f"QLinearSoftmax: {message}" in str(raised.value)
    jax.eval_shape(lambda x: jquant.quantized_linear_softmax(x, 1.0, None, 1.0, 0, axis=0), x.update(shape=(2**19 - 1,)))


@pytest.mark.parametrize("operator", ["sigmoid", "softmax", "global_average_pool"])
def test_what_the_table_does_not_have(operator):
    """One type, 8-bit integers, float32 scales of one element; zero points that may be missing."""
    function = getattr(jquant, f"quantized_linear_{operator}")
    function = functools.partial(function, axis=1) if operator == "softmax" else function
    x, scale, zero = np.ones((2, 3, 4), np.uint8), FLOAT32(0.5), np.uint8(1)
    wrong = {
        0: (x.astype(np.int16), "X has data type INT16; the document allows INT8, UINT8", DescriptorTypeError),
        1: (np.float16(1), "X_scale has data type FLOAT16; the document allows FLOAT32", DescriptorTypeError),
        2: (np.int8(1), "X_zero_point has data type INT8; it must have that of X, UINT8", DescriptorTypeError),
        3: (np.ones(2, FLOAT32), "dimension 0 of Y_scale, sizes (2,), must be 1: the sizes are (1)", DescriptorError),
        4: (np.int8(1), "Y_zero_point has data type INT8; it must have that of X, UINT8", DescriptorTypeError),
    }
    for position, (value, message, error) in wrong.items():
        arguments = [x, scale, zero, scale, zero]
        arguments[position] = value
        with pytest.raises(error) as raised:
            function(*arguments)
        assert message in str(raised.value)
    with pytest.raises(DescriptorError, match=r"X_zero_point is 256, outside of UINT8, \[0, 255\]"):
        function(x, scale, 256, scale, zero)
    with pytest.raises(DescriptorTypeError, match="X is the Python scalar 1; it must be an array"):
        function(1, scale, zero, scale, zero)
    for zero_points in ((None, zero), (zero, None), (None, None)):
        given, zeros = ([x, scale, first, scale, second] for first, second in (zero_points, (z or 0 for z in zero_points)))
        np.testing.assert_array_equal(function(*given), function(*zeros), strict=True)
