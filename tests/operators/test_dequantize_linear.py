"""`dequantize_linear`: the differences of every integer type, broadcasting, every granularity, narrow floats."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from support.collectives import collectives
from support.comparison import assert_equal
from support.programs import together
from support.sampling import one_in

import jquant
from jquant import DescriptorError, DescriptorTypeError
from jquant.cases import samples
from jquant.reference import linear as reference

from .affine import EXTENDED, FLOAT32, FLOATS, NARROW_FLOATS, SIZES, TYPES, WIDE_TYPES, every_form, jitted

INTEGERS = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32]


@pytest.mark.parametrize("scale_dtype", [np.float32, np.float16])
@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
def test_difference_neither_wraps_nor_rounds(dtype, scale_dtype):
    rng = np.random.default_rng(0)
    x, zero_point = samples.integers(rng, dtype, 100_000), samples.integers(rng, dtype, 100_000)
    limits = np.iinfo(dtype)
    x[:3], zero_point[:3] = [limits.max, limits.min, limits.max], [limits.min, limits.max, limits.max - 1]
    scale = samples.scales(rng, 100_000).astype(scale_dtype)
    with np.errstate(over="ignore"):
        assert_equal(jquant.dequantize_linear(x, scale, zero_point), reference.dequantize_linear(x, scale, zero_point))


@one_in(9, "dtype", INTEGERS)
def test_every_way_to_broadcast(dtype):
    rng = np.random.default_rng(1)
    x = samples.integers(rng, dtype, 2, 3, 4)
    shapes = [(), (1, 1, 1), (1, 3, 1), (2, 1, 4), (2, 3, 4)]
    calls = []
    for scale_shape, zero_point_shape in itertools.product(shapes, repeat=2):
        scale = rng.uniform(0.1, 1, scale_shape).astype(FLOAT32)
        calls.append((x, scale, samples.integers(rng, dtype, *zero_point_shape)))
    results = together([(jquant.dequantize_linear, operands) for operands in calls])
    for result, operands in zip(results, calls, strict=True):
        assert_equal(result, reference.dequantize_linear(*operands))


def test_special_scales():
    x = np.array([-2, 0, 3], np.int8)
    for scale in (0.0, np.inf, -np.inf, np.nan, -1.5, 3e38):
        actual = np.asarray(jquant.dequantize_linear(x, scale))
        expected = reference.dequantize_linear(x, FLOAT32(scale))
        assert_equal(actual, expected)
        np.testing.assert_array_equal(np.signbit(actual), np.signbit(expected))


def test_bfloat16():
    x = np.arange(-128, 128, dtype=np.int8)
    scale = jnp.bfloat16(0.0123)
    expected = reference.dequantize_linear(x, np.asarray(scale), 3)
    assert_equal(jquant.dequantize_linear(x, scale, 3, feature_level="EXTENDED"), expected)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (2, 0, 4)])
def test_empty_arrays(shape):
    rank_1s = (1,) * len(shape)
    scale, zero_point = np.full(rank_1s, 0.5, FLOAT32), np.zeros(rank_1s, np.int8)
    assert jquant.dequantize_linear(np.zeros(shape, np.int8), scale, zero_point).shape == shape


def test_ranks_0_to_8():
    for rank in range(9):
        x = np.arange(2**rank, dtype=np.uint8).reshape((2,) * rank)
        assert_equal(jquant.dequantize_linear(x, 0.5, 3), reference.dequantize_linear(x, FLOAT32(0.5), 3))


def test_vmap_over_every_argument():
    rng = np.random.default_rng(0)
    x, scale, zero_point = samples.integers(rng, np.int8, 3, 5, 6), samples.scales(rng, 3), samples.integers(rng, np.int8, 3)
    expected = np.stack([reference.dequantize_linear(*call) for call in zip(x, scale, zero_point, strict=True)])
    assert_equal(jax.vmap(jquant.dequantize_linear)(x, scale, zero_point), expected)


@pytest.mark.parametrize("dtype", [np.dtype(dtype).name for dtype in INTEGERS])
def test_python_zero_points(dtype):
    limits = np.iinfo(dtype)
    x = jnp.array([limits.max], dtype)
    result = jquant.dequantize_linear(x, 2, int(limits.max))
    assert (result.dtype, result.tolist()) == (jnp.float32, [0.0])
    with pytest.raises(DescriptorError, match=f"dequantize_linear: zero_point is {limits.max + 1}, outside the range of"):
        jquant.dequantize_linear(x, 2, limits.max + 1)
    with pytest.raises(DescriptorTypeError, match=f"zero_point is 1.0, but must be an integer of type {dtype.upper()}"):
        jquant.dequantize_linear(x, 2, 1.0)


def test_python_scales():
    with pytest.raises(DescriptorError, match=r"scale is 1e\+39, outside the range of FLOAT32, "):
        jquant.dequantize_linear(np.uint8([1]), 1e39)
    assert jquant.dequantize_linear(np.uint8([1]), float("inf")).tolist() == [float("inf")]


@one_in(5, "dtype", [*TYPES, *WIDE_TYPES], first=1, ids=str)
def test_every_granularity(dtype):
    rng = np.random.default_rng(0)
    x, forms = samples.integers(rng, dtype, *SIZES), [*every_form(rng, dtype, FLOAT32)]
    for actual, (scale, zero_point, form) in zip(jitted(jquant.dequantize_linear, x, forms, **EXTENDED), forms, strict=True):
        assert_equal(actual, reference.dequantize_linear(x, scale, zero_point, **form), str(form))


@pytest.mark.parametrize("dtype", TYPES[:6], ids=str)
def test_every_difference(dtype):
    """Every value with every zero point."""
    limits = jnp.iinfo(dtype)
    values = np.arange(limits.min, limits.max + 1)
    x, zero_point = (np.broadcast_to(v, (values.size,) * 2).astype(dtype) for v in (values, values[:, None]))
    expected = (values - values[:, None]).astype(FLOAT32) * FLOAT32(0.3)
    actual = jquant.dequantize_linear(x, 0.3, zero_point, **EXTENDED)
    np.testing.assert_array_equal(actual, expected, strict=True)  # which takes 0 and -0 as equal


@pytest.mark.parametrize("scale_dtype", FLOATS, ids=str)
def test_every_float_type(scale_dtype):
    """At `FeatureLevel.EXTENDED`, scale and output have any float type: the scale is widened, and results rounded again."""
    x, scale = samples.integers(np.random.default_rng(3), np.int16, 1000), scale_dtype.type(0.0123)
    for dtype in FLOATS:
        actual = jquant.dequantize_linear(x, scale, np.int16(7), output_dtype=dtype, **EXTENDED)
        assert_equal(actual, reference.dequantize_linear(x, scale, 7, dtype=dtype))


@pytest.mark.parametrize(
    ("form", "sizes"),
    [({"axis": 0}, (0,)), ({"axis": 0, "block_size": 2}, (0, 3)), ({"axis": 1, "block_size": 2}, (0, 2))],
    ids=str,
)
def test_empty_arrays_of_every_granularity(form, sizes):
    assert jquant.dequantize_linear(np.zeros((0, 3), np.int8), np.ones(sizes, FLOAT32), **form).shape == (0, 3)


def test_the_derivative_in_the_scales_of_blocks():
    """The sum over each block, of which the last is shorter."""
    x = np.int8([[1, 2, 4, 8, 16]])
    gradient = jax.grad(lambda scale: jquant.dequantize_linear(x, scale, axis=1, block_size=2).sum())
    np.testing.assert_array_equal(gradient(np.ones((1, 3), FLOAT32)), FLOAT32([[3, 12, 16]]))


def test_arrays_of_4_bits_in_transformations():
    """As mapped arguments, as carries and outputs of `scan`, and in exported programs."""
    rng = np.random.default_rng(4)
    x, scale = samples.integers(rng, jnp.int4, 3, 8, 6), rng.uniform(0.1, 1, (3, 8, 2)).astype(FLOAT32)
    dequantize = functools.partial(jquant.dequantize_linear, axis=1, block_size=4)
    expected = np.stack([reference.dequantize_linear(*call, axis=1, block_size=4) for call in zip(x, scale, strict=True)])
    assert_equal(jax.vmap(dequantize)(x, scale), expected)
    quantize = functools.partial(jquant.quantize_linear, axis=1, block_size=4, output_dtype="INT4")

    def step(carry, operands):
        _, scale = operands
        return quantize(dequantize(carry, scale), scale), dequantize(*operands)

    carry, outputs = jax.jit(lambda x, scale: lax.scan(step, x[0], (x, scale)))(x, scale)
    assert_equal((carry, outputs), (x[0], expected))
    program = export.export(jax.jit(quantize), platforms=("cpu", "cuda", "tpu"))(expected[0], scale[0])
    assert_equal(export.deserialize(program.serialize()).call(expected[0], scale[0]), x[0])


@pytest.mark.parametrize("spec", [P("x", None), P(None, "x")], ids=str)
@pytest.mark.parametrize("axis", [0, 1])
def test_blocks_on_a_mesh(axis, spec):
    """With replicated scales, nothing moves, whichever dimension is split and whichever has the blocks."""
    rng = np.random.default_rng(5)
    mesh = jax.make_mesh((8,), ("x",))
    form = {"axis": axis, "block_size": 5}
    x, scale = samples.integers(rng, np.int8, 16, 16), rng.uniform(0.1, 1, (4, 16) if axis == 0 else (16, 4)).astype(FLOAT32)
    split, replicated = jax.device_put(x, NamedSharding(mesh, spec)), jax.device_put(scale, NamedSharding(mesh, P()))
    with jax.set_mesh(mesh):
        program = jax.jit(functools.partial(jquant.dequantize_linear, **form)).lower(split, replicated).compile()
        actual = program(split, replicated)
    assert_equal(actual, reference.dequantize_linear(x, scale, **form))
    assert collectives(program.as_text()) == []


@one_in(13, ("dtype", "scale_dtype"), itertools.product(NARROW_FLOATS, FLOATS), ids=str)
def test_narrow_floats(dtype, scale_dtype):
    """Every code with scales of every type, and every granularity with zero points."""
    rng = np.random.default_rng(5)
    codes = np.arange(2 ** jnp.finfo(dtype).bits, dtype=np.uint8).view(dtype)
    for scale in (1, 0.0123, -3, 0, np.inf):
        scale = scale_dtype.type(scale)
        expected = reference.dequantize_linear(codes, scale)
        assert_equal(jquant.dequantize_linear(codes, scale, **EXTENDED), expected)
        assert_equal(jax.jit(lambda x, scale=scale: jquant.dequantize_linear(x, scale, **EXTENDED))(codes), expected)
    x = samples.narrow_floats(rng, dtype, *SIZES)
    forms = [*every_form(rng, dtype, scale_dtype)]
    outputs = jitted(jquant.dequantize_linear, x, forms, **EXTENDED)
    for actual, (scale, zero_point, form) in zip(outputs, forms, strict=True):
        assert_equal(actual, reference.dequantize_linear(x, scale, zero_point, **form), str(form))


def test_scales_that_are_powers_of_two():
    """Results may be subnormal or overflow; they are float32 by default."""
    codes = np.arange(256, dtype=np.uint8)
    scale = codes[:, None].view(jnp.float8_e8m0fnu)
    for x in (codes.view(np.int8), np.int32([2**31 - 1, -(2**31), 2**24 + 1, 3]), codes.view(jnp.float8_e5m2)):
        x = np.broadcast_to(x, (256, x.size))
        for dtype in (None, jnp.bfloat16):
            actual = jax.jit(
                lambda x, scale, dtype=dtype: jquant.dequantize_linear(x, scale, output_dtype=dtype, **EXTENDED)
            )
            assert_equal(actual(x, scale), reference.dequantize_linear(x, scale, dtype=dtype or FLOAT32))
