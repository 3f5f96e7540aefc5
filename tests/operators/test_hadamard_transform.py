"""`hadamard_transform`: exact products, the order of sums, inverses, derivatives, blocks and axes, meshes, and errors."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from jax import export
from jax.sharding import NamedSharding, PartitionSpec
from support.collectives import collectives
from support.comparison import assert_equal
from support.layouts import kinds
from support.sampling import one_in
from support.signatures import raises

import jquant
from jquant import DescriptorTypeError
from jquant.reference import rotations as reference

FLOAT32 = np.float32
SIZES = [2**m for m in range(11)]
DTYPES = FLOAT32, np.float16, jnp.bfloat16


def normal(*shape: int, dtype=FLOAT32) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(dtype)


def integers(*shape: int) -> np.ndarray:
    """Of so few bits that every sum is exact."""
    return np.random.default_rng(0).integers(-99, 100, shape).astype(FLOAT32)


@functools.cache
def program(block_size, axis=-1):
    return jax.jit(functools.partial(jquant.hadamard_transform, axis=axis, block_size=block_size))


@pytest.mark.parametrize("size", SIZES)
def test_exact_products(size):
    x = integers(3, size)
    factor = FLOAT32(2.0 ** -np.ceil(np.log2(size) / 2))
    assert_equal(program(None)(x), x @ scipy.linalg.hadamard(size).astype(FLOAT32) * factor)


@one_in(3, "size", SIZES, first=1)
def test_the_order_of_the_sums(size, count):
    """Eagerly, and between a product and a sum of the caller's, which must not be contracted with those here."""
    x, before, after = normal(64, 2 * size), FLOAT32(0.1), FLOAT32(0.7)
    formula = functools.partial(reference.hadamard_transform, block_size=size)
    assert_equal(jquant.hadamard_transform(x, block_size=size), formula(x))
    caller = jax.jit(lambda x: jquant.hadamard_transform(x * before, block_size=size) + after)
    assert_equal(caller(x), formula(x * before) + after)
    caller = jax.jit(lambda x: jquant.hadamard_transform(x + before, block_size=size) * after)
    assert_equal(caller(x), formula(x + before) * after)
    caller = jax.jit(lambda: jquant.hadamard_transform(x * before, block_size=size) * after)
    assert_equal(caller(), formula(x * before) * after)
    count("sums and differences", 4 * x.size * (size.bit_length() - 1))


def test_another_order_has_other_bits():
    """So that the test above would notice it: the bits of the numbers of elements, reversed, reverse the order of stages."""
    x, size = normal(64, 512), 512
    reversed_bits = np.array([int(f"{number:09b}"[::-1], 2) for number in range(size)])
    other = reference.hadamard_transform(x[:, reversed_bits])[:, reversed_bits]
    ours = np.asarray(jquant.hadamard_transform(x))
    np.testing.assert_allclose(ours, other, atol=1e-4)
    assert (ours != other).mean() > 0.5


@pytest.mark.parametrize("dtype", DTYPES)
def test_types(dtype):
    """Sums of 16-bit floats are float32, and are rounded once, at the end."""
    x = normal(64, 256, dtype=dtype)
    result = program(None)(x)
    assert_equal(result, reference.hadamard_transform(x))
    assert_equal(result, reference.hadamard_transform(x.astype(FLOAT32)).astype(dtype))
    caller = jax.jit(lambda x: jquant.hadamard_transform(x * x).astype(FLOAT32) * FLOAT32(3))
    assert_equal(caller(x), reference.hadamard_transform(x * x).astype(FLOAT32) * FLOAT32(3))


@one_in(2, ("shape", "axis"), [((48,), 0), ((24, 3), 0), ((2, 40, 3), 1), ((2, 40, 3), -2), ((3, 2, 2, 16), 3), ((2, 9), 1)])
def test_axes(shape, axis):
    x = normal(*shape)
    largest = shape[axis] & -shape[axis]
    assert_equal(program(None, axis)(x), reference.hadamard_transform(x, axis=axis, block_size=largest))
    for block_size in (1, largest // 2):
        if block_size:
            expected = reference.hadamard_transform(x, axis=axis, block_size=block_size)
            assert_equal(program(block_size, axis)(x), expected)


@pytest.mark.parametrize("shape", [(0, 48), (3, 0), (0, 0), (2, 0, 3)])
def test_empty(shape):
    x = np.zeros(shape, FLOAT32)
    assert_equal(jquant.hadamard_transform(x, axis=1), x)
    assert_equal(jquant.hadamard_transform(x, axis=1, block_size=16), x)


@pytest.mark.parametrize("size", SIZES[:6])
def test_inverse(size):
    """The transform itself for an even number of stages, and twice the transform for an odd one."""
    x, is_odd = integers(3, size), size.bit_length() % 2 == 0
    assert_equal(program(None)(program(None)(x)) * FLOAT32(1 + is_odd), x)


def test_outliers_are_spread():
    x = np.zeros((1, 64), FLOAT32)
    x[0, 5] = 64
    assert_equal(abs(np.asarray(jquant.hadamard_transform(x))), np.full((1, 64), 8, FLOAT32))


def test_what_is_not_finite():
    """It fills its block, and no other; the sums come before the scaling."""
    x = np.ones((4, 16), FLOAT32)
    x[0, 0], x[1, 3], x[2, 1:3], x[3, :4] = np.nan, np.inf, np.inf, np.finfo(FLOAT32).max
    result = np.asarray(program(8)(x))
    assert_equal(result, reference.hadamard_transform(x, block_size=8))
    is_finite = np.isfinite(result)
    assert is_finite[:, 8:].all()
    assert not is_finite[:3, :8].any()
    assert_equal(is_finite[3, :8], np.arange(8) % 2 == 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_derivatives(dtype):
    """The transform itself, with the same bits; under `vmap` as well."""
    x, dot = normal(3, 5, 64, dtype=dtype), np.flip(normal(3, 5, 64, dtype=dtype), 0)
    transform = functools.partial(jquant.hadamard_transform, block_size=32)
    expected = reference.hadamard_transform(dot, block_size=32)
    assert_equal(jax.jvp(transform, (x,), (dot,)), (reference.hadamard_transform(x, block_size=32), expected))

    @jax.jit
    def pulled_back(x, cotangent):
        return jax.vjp(transform, x)[1](cotangent)[0]

    assert_equal(pulled_back(x, dot), expected)
    assert_equal(jax.vmap(pulled_back, in_axes=1, out_axes=1)(x, dot), expected)
    assert_equal(jax.linear_transpose(transform, x)(dot)[0], expected)
    second = jax.jvp(lambda dot: jax.jvp(transform, (x,), (dot,))[1], (dot,), (x,))[1]
    assert_equal(second, reference.hadamard_transform(x, block_size=32))


def test_mapped():
    """Over every dimension but the transform's own."""
    x = normal(3, 16, 4)
    expected = reference.hadamard_transform(x, axis=1)
    for axis in (0, 2):
        mapped = jax.vmap(functools.partial(jquant.hadamard_transform, axis=axis // -2), in_axes=axis, out_axes=axis)
        assert_equal(mapped(x), expected)


def test_symbolic_sizes():
    rows, blocks = export.symbolic_shape("rows, blocks")
    x = normal(5, 48)

    def exported(shape, block_size):
        return export.export(program(block_size))(jax.ShapeDtypeStruct(shape, jnp.float32)).call(x)

    assert_equal(exported((rows, 48), None), reference.hadamard_transform(x))
    assert_equal(exported((rows, 8 * blocks), 8), reference.hadamard_transform(x, block_size=8))
    text = "block_size is None, but the size of the axis, blocks, is symbolic: pass a power of two"
    with raises(f"hadamard_transform: {text}"):
        exported((rows, blocks), None)
    with raises("hadamard_transform: block_size is 2; it must be a power of two that divides the size of the axis, blocks"):
        exported((rows, blocks), 2)


def test_without_jit():
    x = normal(3, 64)
    with jax.disable_jit(), jax.debug_nans(True):
        assert_equal(jquant.hadamard_transform(x), reference.hadamard_transform(x))


@kinds
@pytest.mark.parametrize("spec", [PartitionSpec("x"), PartitionSpec(None, "x")])
def test_meshes(kind, spec):
    """Split rows, and split blocks, need no communication."""
    x = normal(16, 256)
    mesh = jax.make_mesh((8,), ("x",), axis_types=(kind,))
    split = jax.device_put(x, NamedSharding(mesh, spec))
    with jax.set_mesh(mesh):
        compiled = program(16).lower(split).compile()
        assert_equal(compiled(split), reference.hadamard_transform(x, block_size=16))
    assert not collectives(compiled.as_text())


@pytest.mark.parametrize(("size", "loops"), [(8, 1), (16, 2), (64, 2), (128, 3), (512, 3), (1024, 4)])
def test_loops_of_three_stages(size, loops):
    """Each loop of the program has a tree of sums with up to eight leaves, whose operands the loop before has stored.

    XLA would do all stages in one loop, and compute each sum again for every result that depends on it.
    """
    text = program(size).lower(jax.ShapeDtypeStruct((64, size), jnp.float32)).compile().as_text()
    sums = [len(re.findall(r" f32\S+ add\(", computation)) for computation in text.split("\n\n")]
    assert sum(each > 2 for each in sums) == loops
    assert max(sums) <= 9  # seven, and one in each seal: of the operand, and of the result


def test_arguments():
    x = normal(2, 24)
    with raises(
        "hadamard_transform: x has data type INT8; it must be one of FLOAT32, FLOAT16, BFLOAT16", DescriptorTypeError
    ):
        jquant.hadamard_transform(x.astype(np.int8))
    with raises("hadamard_transform: axis is -1, but the input is a scalar, which has no dimensions"):
        jquant.hadamard_transform(1.0)
    with raises("hadamard_transform: axis is 2; it must be a dimension of the input, from -2 to 1"):
        jquant.hadamard_transform(x, axis=2)
    wanted = "it must be a power of two that divides the size of the axis, 24"
    for block_size in (0, -8, 3, 16, 24, 2**40):
        with raises(f"hadamard_transform: block_size is {block_size}; {wanted}"):
            jquant.hadamard_transform(x, block_size=block_size)
    with raises(f"hadamard_transform: block_size is the float 8.0; {wanted}", DescriptorTypeError):
        jquant.hadamard_transform(x, block_size=8.0)
