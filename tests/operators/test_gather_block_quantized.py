"""`gather_block_quantized`: every type, axis and form of zero points, indices out of range, and errors."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from support.collectives import collectives
from support.comparison import assert_equal
from support.programs import together
from support.sampling import one_in

import jquant
from jquant import DescriptorError, DescriptorTypeError
from jquant.cases import samples
from jquant.reference import weight_only as reference

FLOAT32 = np.float32
FLOATS = np.float32, np.float16, jnp.bfloat16


def problem(rng, dtype, sizes, quantize_axis, scale_dtype, bits=4, zero_points=True):
    """Random integers in a tensor of these sizes, packed if they are bytes, with scales and zero points in blocks of 16."""
    per_byte = 8 // bits if dtype == np.uint8 else 1

    def stored(sizes):
        return samples.integers(rng, dtype, *sizes[:-1], -(-sizes[-1] // per_byte))

    blocks = [-(-size // 16) if axis == quantize_axis % len(sizes) else size for axis, size in enumerate(sizes)]
    scales = rng.uniform(0, 0.1, blocks).astype(scale_dtype)
    return stored(sizes), scales, stored(blocks) if zero_points else None


def assert_all_equal(calls):
    """Asserts that the results of one program for all calls are the reference's."""
    functions = [
        (lambda *operands, options=options: jquant.gather_block_quantized(*operands, **options), operands)
        for operands, options in calls
    ]
    for result, (operands, options) in zip(together(functions), calls, strict=True):
        expected = reference.gather_block_quantized(*operands, **{"block_size": 128, **options})
        assert_equal(result, expected, str(options))


@pytest.mark.gate
@one_in(3, "scale_dtype", FLOATS)
def test_integers_of_4_bits_along_every_axis(scale_dtype):
    rng, calls = np.random.default_rng(0), []
    axes = itertools.product(range(-3, 3), range(3))
    for (gather_axis, quantize_axis), dtype in zip(axes, itertools.cycle((jnp.int4, jnp.uint4)), strict=False):
        data, scales, zero_points = problem(rng, dtype, (5, 6, 40), quantize_axis, scale_dtype, zero_points=gather_axis != 1)
        indices = rng.integers(-8, 8, ((), (3,), (2, 2))[quantize_axis]).astype(np.int32)
        options = {"gather_axis": gather_axis, "quantize_axis": quantize_axis, "block_size": 16}
        calls.append(((data, indices, scales, zero_points), options))
    assert_all_equal(calls)


def test_integers_in_bytes():
    rng, calls = np.random.default_rng(1), []
    for bits, zero_points in itertools.product((2, 4, 8), (False, True)):
        data, scales, zero = problem(rng, np.uint8, (6, 3, 40), 2, FLOAT32, bits, zero_points)
        options = {"quantize_axis": -1, "block_size": 16, "bits": bits}
        calls.append(((data, rng.integers(-8, 8, (2, 3), np.int32), scales, zero), options))
    data, scales, zero = problem(rng, np.uint8, (40, 3), 0, FLOAT32, 8)
    calls.append(
        ((data, rng.integers(-50, 50, 30, np.int32), scales, zero), {"quantize_axis": 0, "block_size": 16, "bits": 8})
    )
    data, scales, zero = problem(rng, np.uint8, (4, 32, 8), 1, FLOAT32, 4)
    calls.append(((data, np.int32([3, -4]), scales, zero), {"quantize_axis": 1, "block_size": 16}))
    assert_all_equal(calls)


def test_an_index_outside_of_the_axis_gives_zeros():
    limits = np.iinfo(np.int32)
    indices = np.int32([-4, -3, 0, 2, 3, 2**20, limits.min, limits.max])
    data, scales = np.full((3, 16), 7, jnp.int4), np.full((3, 1), np.nan, FLOAT32)
    rows = np.asarray(jquant.gather_block_quantized(data, indices, scales, block_size=16))
    np.testing.assert_array_equal(np.isnan(rows).all(1), (indices >= -3) & (indices < 3))
    assert not rows[[0, 4, 5, 6, 7]].any()


def test_empty():
    data, scales = np.zeros((3, 16), jnp.int4), np.ones((3, 1), FLOAT32)
    assert jquant.gather_block_quantized(data, np.zeros((0, 2), np.int32), scales, block_size=16).shape == (0, 2, 16)
    empty = np.zeros((0, 16), jnp.int4), np.ones((0, 1), FLOAT32)
    rows = jquant.gather_block_quantized(empty[0], np.int32([0, -1]), empty[1], block_size=16)
    assert_equal(rows, np.zeros((2, 16), FLOAT32))


def test_the_derivative_in_the_scales():
    """The sum over the gathered integers of each block."""
    data = np.full((3, 20), 3, jnp.int4)
    gradient = jax.grad(
        lambda scales: jquant.gather_block_quantized(data, np.int32([1, 1, 2, 5]), scales, block_size=16).sum()
    )
    assert_equal(gradient(np.ones((3, 2), FLOAT32)), FLOAT32([[0, 0], [96, 24], [48, 12]]))


@pytest.mark.parametrize("spec", [P("x", None), P(None, "x")], ids=["indices", "columns"])
def test_on_a_mesh(spec):
    """Nothing moves, whether the indices are split or the table along its blocks."""
    rng = np.random.default_rng(2)
    data, scales, zero_points = problem(rng, np.uint8, (10, 256), 1, FLOAT32)
    indices = rng.integers(-12, 12, 16, np.int32)
    mesh = jax.make_mesh((8,), ("x",))
    table = [jax.device_put(x, NamedSharding(mesh, P(None, spec[1]))) for x in (data, scales, zero_points)]
    placed = table[0], jax.device_put(indices, NamedSharding(mesh, P(spec[0]))), *table[1:]

    def look_up(*operands):
        return jquant.gather_block_quantized(*operands, block_size=16)

    program = jax.jit(look_up).lower(*placed).compile()
    assert_equal(program(*placed), reference.gather_block_quantized(data, indices, scales, zero_points, block_size=16))
    assert collectives(program.as_text()) == []


def raises(message, error=DescriptorError):
    return pytest.raises(error, match=f"gather_block_quantized: {message}")


def test_errors():
    rng = np.random.default_rng(3)
    data, scales, zero_points = problem(rng, np.uint8, (4, 40), 1, FLOAT32)
    indices = np.int32([1])
    with raises(r"scales has shape \(4, 3\), but must have \(4, 1\): the integers of data have shape \(4, 40\), in blocks"):
        jquant.gather_block_quantized(data, indices, scales)
    with raises(r"zero_points has shape \(4, 3\), but must have \(4, 2\)"):
        jquant.gather_block_quantized(data, indices, scales, np.zeros((4, 3), np.uint8), block_size=16)
    with raises("block_size is 24; it must be a power of two, 16 or more"):
        jquant.gather_block_quantized(data, indices, scales, block_size=24)
    with raises("bits is 3; it must be 2, 4 or 8"):
        jquant.gather_block_quantized(data, indices, scales, block_size=16, bits=3)
    with raises("gather_axis is 1; for uint8 data it must be 0"):
        jquant.gather_block_quantized(data, indices, scales, block_size=16, gather_axis=1)
    with raises("quantize_axis and gather_axis are both 0; where bytes hold several integers, they must differ"):
        jquant.gather_block_quantized(data, indices, scales, block_size=16, quantize_axis=-2)
    with raises("gather_axis is 2; it must be a dimension of the input, from -2 to 1"):
        jquant.gather_block_quantized(data, indices, scales, block_size=16, gather_axis=2)
    with raises("indices has data type FLOAT32; the operator allows INT32, INT64", DescriptorTypeError):
        jquant.gather_block_quantized(data, FLOAT32([1]), scales, zero_points, block_size=16)
    with raises("zero_points has data type INT8; ", DescriptorTypeError):
        jquant.gather_block_quantized(data, indices, scales, zero_points.astype(np.int8), block_size=16)
