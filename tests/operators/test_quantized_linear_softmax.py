"""`quantized_linear_softmax`: against its formula in float64, long slices, special scales, temporaries, a mesh, errors."""

import functools

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.collectives import Collective, collectives
from support.sampling import one_in

import jquant
from jquant import DescriptorError
from jquant.cases import samples
from jquant.reference import nonlinear as reference

from .elementwise import FACTOR, parameter_sets

FLOAT32 = np.float32


_OTHER_SLICES = [((300, 40, 11), 1), ((257, 400), 0)]


@pytest.mark.gate
@one_in(2, "dtype", [np.int8, np.uint8])
@pytest.mark.parametrize(
    ("sizes", "axis"), [((2000, 37), 1), *(pytest.param(*x, marks=pytest.mark.full) for x in _OTHER_SLICES)]
)
def test_slices(dtype, sizes, axis):
    """Parameters that are traced, constant and computed by the caller; more than 1,000,000 outputs in the full run."""
    rng = np.random.default_rng(2)
    softmax = functools.partial(jquant.quantized_linear_softmax, axis=axis)
    traced = jax.jit(softmax)

    @jax.jit
    def computed(x, x_scale, x_zero_point, y_scale, y_zero_point):
        return softmax(x, x_scale * FACTOR, x_zero_point, y_scale * FACTOR, y_zero_point)

    for index, parameters in enumerate(zip(*parameter_sets(rng, dtype, 4), strict=True)):
        x_scale, x_zero_point, y_scale, y_zero_point = parameters
        x_scale = x_scale / FLOAT32(8)
        y_scale = np.ldexp(y_scale, -rng.integers(0, 12))
        x = (samples.integers(rng, dtype, *sizes) >> rng.integers(0, 5)).astype(dtype)
        arguments = x, x_scale, x_zero_point, y_scale, y_zero_point
        np.testing.assert_array_equal(traced(*arguments), reference.quantized_linear_softmax(*arguments, axis))
        scaled = x, x_scale * FACTOR, x_zero_point, y_scale * FACTOR, y_zero_point
        expected = reference.quantized_linear_softmax(*scaled, axis)
        np.testing.assert_array_equal(computed(*arguments), expected)
        if index == 0:
            constant = jax.jit(lambda x, parameters=arguments[1:]: softmax(x, *parameters))
            np.testing.assert_array_equal(constant(x), reference.quantized_linear_softmax(*arguments, axis))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_long_slices(dtype):
    """Slices with another implementation, differences of more than 127, and sums of mostly small terms."""
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


@pytest.mark.parametrize("sizes", [(40, 37), (3, 900)])
def test_what_tpus_compute(sizes, as_on_a_tpu):
    """TPUs compute an exponential for each element; other platforms use tables."""
    rng = np.random.default_rng(4)
    softmax = as_on_a_tpu(functools.partial(jquant.quantized_linear_softmax, axis=1))
    x = samples.integers(rng, np.uint8, *sizes)
    for x_scale, y_scale in FLOAT32([(0.05, 1e-3), (-0.05, 1e-6), (1e-3, 2.0**-12), (0.3, 1e-30), (3, 1e-2), (np.inf, 1)]):
        arguments = x, x_scale, np.uint8(0), y_scale, np.uint8(7)
        np.testing.assert_array_equal(softmax(*arguments), reference.quantized_linear_softmax(*arguments, 1))


@pytest.mark.parametrize("x_scale", [0.1, -0.1, 0.0, np.inf, np.nan])
def test_slices_of_one_element(x_scale):
    """The result is 1 or NaN, whatever the element, and no exponential is computed."""
    x = np.arange(256, dtype=np.uint8).reshape(256, 1)
    softmax = jax.jit(functools.partial(jquant.quantized_linear_softmax, axis=1))
    program = softmax.lower(x, FLOAT32(x_scale), None, FLOAT32(0.01), np.uint8(3)).compile()
    expected = reference.quantized_linear_softmax(x, FLOAT32(x_scale), 0, FLOAT32(0.01), np.uint8(3), 1)
    np.testing.assert_array_equal(program(x, FLOAT32(x_scale), None, FLOAT32(0.01), np.uint8(3)), expected)
    assert program.memory_analysis().temp_size_in_bytes < x.size


@pytest.mark.parametrize("value", [0.0, np.inf, -np.inf, np.nan, -0.5, 3e38, -3e38])
def test_scales_that_are_not_positive_or_not_finite(value):
    x = np.array([[-128, 127, 5], [9, 9, 9]], np.int8)
    expected_integers = {
        0.0: [[46, 46, 46], [46, 46, 46]],
        -0.5: [[127, 3, 3], [46, 46, 46]],
        3e38: [[3, 127, 3], [46, 46, 46]],
        -3e38: [[127, 3, 3], [46, 46, 46]],
    }
    softmax = functools.partial(jquant.quantized_linear_softmax, axis=1)
    actual = softmax(x, value, None, 1 / 128, 3)
    np.testing.assert_array_equal(actual, np.array(expected_integers.get(value, np.zeros((2, 3))), np.int8))
    y_scale = FLOAT32(value)
    expected = reference.quantized_linear_softmax(x, FLOAT32(0.1), 0, y_scale, np.int8(3), 1)
    np.testing.assert_array_equal(softmax(x, 0.1, None, y_scale, 3), expected)


@pytest.mark.gate
def test_the_zero_point_of_the_input_cancels():
    x = np.arange(256, dtype=np.uint8).reshape(8, 32)
    softmax = functools.partial(jquant.quantized_linear_softmax, axis=1)
    np.testing.assert_array_equal(softmax(x, 0.1, 200, 0.003, 1), softmax(x, 0.1, None, 0.003, 1))


def test_no_elements():
    for sizes in ((0, 3), (3, 0)):
        assert jquant.quantized_linear_softmax(np.zeros(sizes, np.uint8), 1.0, None, 1.0, 0, axis=1).shape == sizes


@pytest.mark.parametrize(("sizes", "most"), [((16_384, 64), 4.5), ((1024, 1024), 1.5)])
def test_temporaries(sizes, most):
    """Bytes per element: the quotients of short slices, or the differences and tables of long ones."""
    softmax = jax.jit(functools.partial(jquant.quantized_linear_softmax, axis=1))
    program = softmax.lower(jax.ShapeDtypeStruct(sizes, np.uint8), 0.1, None, 0.01).compile()
    assert program.memory_analysis().temp_size_in_bytes <= most * np.prod(sizes)


@pytest.mark.gate
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_an_axis_that_a_mesh_splits(kind):
    """Only the maxima and the sums of the digits move, and the result has the bits of one device."""
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
    assert moved == [Collective("all-reduce", {"u8"}, 40), Collective("all-reduce", {"s32"}, 3 * 40)]
    assert actual.sharding.spec == P(None, "x")


@pytest.mark.parametrize(
    ("axis", "sizes", "message"),
    [
        (-3, (2, 3), "axis is -3; it must be a dimension of the input, from -2 to 1"),
        (2, (2, 3), "axis is 2; it must be a dimension of the input, from -2 to 1"),
        (None, (2, 3), "axis is None; it must be a dimension of the input, from -2 to 1"),
        (0, (2**19,), "axis is 0, along which there are 524288 elements; the sum is exact for at most 524287"),
    ],
)
def test_axes_that_it_does_not_take(axis, sizes, message):
    x = jax.ShapeDtypeStruct(sizes, np.uint8)
    with pytest.raises(DescriptorError) as raised:
        jax.eval_shape(lambda x: jquant.quantized_linear_softmax(x, 1.0, None, 1.0, 0, axis=axis), x)
    assert f"quantized_linear_softmax: {message}" in str(raised.value)
    jax.eval_shape(lambda x: jquant.quantized_linear_softmax(x, 1.0, None, 1.0, 0, axis=0), x.update(shape=(2**19 - 1,)))
