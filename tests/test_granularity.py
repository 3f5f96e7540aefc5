"""quantize_linear and dequantize_linear beyond eight bits and one scale: every integer type, every granularity."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import samples
from cases import assert_equal
from jax import export, lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from layouts import collectives

import jquant
from jquant import reference

FLOAT32 = np.float32
TYPES = [jnp.dtype(f"{sign}int{bits}") for bits in (2, 4, 8, 16) for sign in ("", "u")]
WIDE_TYPES = [np.dtype(np.int32), np.dtype(np.uint32)]
FLOATS = [jnp.dtype(name) for name in ("float32", "float16", "bfloat16")]
EXTENDED = {"feature_level": "EXTENDED"}
SIZES = 4, 6, 5
FORMS = [  # sizes of the scale, sizes of the zero point, and what says which elements they are of
    ((), (), {}),
    ((1, 6, 1), (4, 1, 5), {}),
    (SIZES, (1, 1, 1), {}),
    *(((SIZES[axis],), (SIZES[axis],), {"axis": axis}) for axis in range(3)),
    ((), (6,), {"axis": 1}),
    ((4, 6, 3), (4, 6, 3), {"axis": 2, "block_size": 2}),
    ((4, 6, 2), (), {"axis": 2, "block_size": 3}),
    ((4, 3, 5), (1, 3, 1), {"axis": 1, "block_size": 2}),
    ((1, 2, 1), (4, 2, 5), {"axis": 1, "block_size": 5}),
    ((2, 6, 5), (2, 6, 5), {"axis": 0, "block_size": 3}),
    ((1, 6, 5), (1, 6, 5), {"axis": 0, "block_size": 99}),
    ((), (4, 6, 5), {"axis": 1, "block_size": 1}),
]


def every_form(rng, dtype, scale_dtype):
    for scale_sizes, zero_point_sizes, options in FORMS:
        scale = rng.uniform(0.1, 1, scale_sizes).astype(scale_dtype)
        yield scale, samples.integers(rng, dtype, *zero_point_sizes), options


def jitted(operator, x, forms, **options):
    """The operator in every form, as one program."""

    @jax.jit
    def program(x, operands):
        return [
            operator(x, scale, zero_point, **form, **options)
            for (scale, zero_point), (*_, form) in zip(operands, forms, strict=True)
        ]

    return program(x, [(scale, zero_point) for scale, zero_point, _ in forms])


@pytest.mark.parametrize("dtype", [*TYPES, *WIDE_TYPES], ids=str)
def test_dequantize_linear(dtype):
    rng = np.random.default_rng(0)
    x, forms = samples.integers(rng, dtype, *SIZES), [*every_form(rng, dtype, FLOAT32)]
    for actual, (scale, zero_point, form) in zip(jitted(jquant.dequantize_linear, x, forms, **EXTENDED), forms, strict=True):
        assert_equal(actual, reference.dequantize_linear(x, scale, zero_point, **form), str(form))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_quantize_linear(dtype):
    rng = np.random.default_rng(1)
    limits = jnp.iinfo(dtype)
    x = samples.near_ties(rng, np.prod(SIZES), 0.5, 2 * limits.min - 3, 2 * limits.max + 3).reshape(SIZES)
    x[0, 0] = np.inf, -np.inf, np.nan, 3e38, -3e38
    forms = [*every_form(rng, dtype, FLOAT32)]
    outputs = jitted(jquant.quantize_linear, x, forms, output_dtype=dtype, **EXTENDED)
    for actual, (scale, zero_point, form) in zip(outputs, forms, strict=True):
        assert_equal(actual, reference.quantize_linear(x, scale, zero_point, dtype, **form), str(form))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_ties_and_limits(dtype):
    """Around both limits, for zero points at both and between them: rounded first, then shifted, then saturated."""
    limits, rng = jnp.iinfo(dtype), np.random.default_rng(2)
    zero_points = np.unique([limits.min, limits.min + 1, -1, 0, 1, limits.max - 1, limits.max]).clip(limits.min, limits.max)
    width = limits.max - limits.min
    ties = np.arange(-width, width + 1) if width < 256 else np.append(rng.integers(-width, width, 5000), [-width, width])
    ties = (ties + 0.5).astype(FLOAT32)
    x = np.concatenate([np.nextafter(ties, side) for side in FLOAT32([-np.inf, np.inf])] + [ties, ties - FLOAT32(0.5)])
    tile = np.broadcast_to(x, (zero_points.size, x.size))
    zero_point = zero_points.astype(dtype).reshape(-1, 1)
    actual = jquant.quantize_linear(tile, 1.0, zero_point, **EXTENDED)
    assert_equal(actual, reference.quantize_linear(tile, FLOAT32(1), zero_point, dtype))


@pytest.mark.parametrize("dtype", TYPES[:6], ids=str)
def test_every_difference(dtype):
    """Of each value and each zero point."""
    limits = jnp.iinfo(dtype)
    values = np.arange(limits.min, limits.max + 1)
    x, zero_point = (np.broadcast_to(v, (values.size,) * 2).astype(dtype) for v in (values, values[:, None]))
    expected = (values - values[:, None]).astype(FLOAT32) * FLOAT32(0.3)
    actual = jquant.dequantize_linear(x, 0.3, zero_point, **EXTENDED)
    np.testing.assert_array_equal(actual, expected, strict=True)  # 0 - 0 and 0 alike


@pytest.mark.parametrize("scale_dtype", FLOATS, ids=str)
def test_every_float_type(scale_dtype):
    """At jquant's own level input, scale and output have theirs; each is widened exactly, each result rounded once more."""
    rng = np.random.default_rng(3)
    real = samples.wide_floats(rng, 1000, 2).clip(-60_000, 60_000)
    integers, scale = samples.integers(rng, np.int16, 1000), scale_dtype.type(0.0123)
    for dtype in FLOATS:
        actual = jquant.dequantize_linear(integers, scale, np.int16(7), output_dtype=dtype, **EXTENDED)
        assert_equal(actual, reference.dequantize_linear(integers, scale, 7, dtype=dtype))
    for x in (*(real.astype(dtype) for dtype in FLOATS), integers.astype(np.int32)):
        actual = jquant.quantize_linear(x, scale, 7, output_dtype="INT16", **EXTENDED)
        assert_equal(actual, reference.quantize_linear(x, scale, 7, np.int16))


@pytest.mark.parametrize(
    ("form", "sizes"),
    [({"axis": 0}, (0,)), ({"axis": 0, "block_size": 2}, (0, 3)), ({"axis": 1, "block_size": 2}, (0, 2))],
    ids=str,
)
def test_empty_arrays(form, sizes):
    x, scale = np.zeros((0, 3), np.int8), np.ones(sizes, FLOAT32)
    assert jquant.dequantize_linear(x, scale, **form).shape == (0, 3)
    assert jquant.quantize_linear(x.astype(FLOAT32), scale, **form).shape == (0, 3)


def test_the_derivative_in_the_scales_of_blocks():
    """The sum over each block, of which the last has fewer elements."""
    x = np.int8([[1, 2, 4, 8, 16]])
    gradient = jax.grad(lambda scale: jquant.dequantize_linear(x, scale, axis=1, block_size=2).sum())
    np.testing.assert_array_equal(gradient(np.ones((1, 3), FLOAT32)), FLOAT32([[3, 12, 16]]))


def test_arrays_of_4_bits_in_transformations():
    """Where an array of them is an argument, a carry and a result."""
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
    """Whichever dimension is split, and whichever has the blocks, the scales being whole on each device: nothing moves."""
    rng = np.random.default_rng(5)
    mesh = jax.make_mesh((8,), ("x",))
    form = {"axis": axis, "block_size": 5}
    x, scale = samples.integers(rng, np.int8, 16, 16), rng.uniform(0.1, 1, (4, 16) if axis == 0 else (16, 4)).astype(FLOAT32)
    split, whole = jax.device_put(x, NamedSharding(mesh, spec)), jax.device_put(scale, NamedSharding(mesh, P()))
    with jax.set_mesh(mesh):
        program = jax.jit(functools.partial(jquant.dequantize_linear, **form)).lower(split, whole).compile()
        actual = program(split, whole)
    assert_equal(actual, reference.dequantize_linear(x, scale, **form))
    assert collectives(program.as_text()) == []


# Integers of fewer than 8 bits, in bytes.


@pytest.mark.parametrize("dtype", TYPES[:4], ids=str)
def test_packed_integers(dtype):
    """Every byte, and every number of integers that fills the last byte in part."""
    count = 8 // jnp.iinfo(dtype).bits
    every_byte = np.arange(256, dtype=np.uint8).reshape(4, 64)
    integers = reference.unpack_integers(every_byte, dtype, 64 * count)
    assert_equal(jquant.unpack_integers(every_byte, dtype), integers)
    assert_equal(jquant.pack_integers(integers), every_byte)
    for x in (integers[0, :0], *(integers[:, None, :size] for size in range(1, count + 2))):
        packed = reference.pack_integers(x)
        assert_equal(jquant.pack_integers(x), packed)
        assert_equal(jquant.unpack_integers(packed, dtype, size=x.shape[-1]), x)


def test_the_first_integer_has_the_lowest_bits():
    assert jquant.pack_integers(jnp.array([1, -2], jnp.int4)) == 0xE1
    assert jquant.pack_integers(jnp.array([1, 0, 3, 2], jnp.uint2)) == 0b10_11_00_01
