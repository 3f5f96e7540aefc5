"""`quantized_linear_global_average_pool`: every shape against the formula, temporaries, a mesh, and errors."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.collectives import Collective, collectives

import jquant
from jquant import DescriptorError
from jquant.cases import samples
from jquant.reference import nonlinear as reference

from .pools import FLOAT32, assert_every_sum_of_six, drawn, every_type

SIZES = (2, 3, 7), (2, 3, 40), (2, 5, 6, 7), (2, 3, 7, 33), (1, 2, 3, 4, 5, 6), (2, 3, 0, 4), (0, 3, 2)


@every_type
def test_every_sum_of_six(dtype):
    assert_every_sum_of_six(jax.jit(jquant.quantized_linear_global_average_pool), dtype)


@every_type
@pytest.mark.parametrize("sizes", SIZES)
def test_ranks(dtype, sizes):
    """Any rank, few elements and many; the average of no elements is NaN."""
    rng = np.random.default_rng(2)
    pool = jax.jit(jquant.quantized_linear_global_average_pool)
    for _ in range(20):
        x, x_scale, x_zero_point, y_scale, y_zero_point = drawn(rng, dtype, dtype, sizes, per_channel=False)
        operands = x, x_scale[()], x_zero_point, y_scale[()], y_zero_point
        actual = pool(*operands)
        np.testing.assert_array_equal(actual, reference.quantized_linear_global_average_pool(*operands))
        assert actual.shape == (*sizes[:2], *(1,) * (len(sizes) - 2))


@pytest.mark.parametrize("sizes", [(3, 2, 4, 6, 7), (3, 2, 4, 2, 33)])
def test_mapped(sizes):
    x = samples.integers(np.random.default_rng(3), np.uint8, *sizes)
    x_zero_points = np.array([0, 3, 255], np.uint8)
    pool = jax.jit(jax.vmap(jquant.quantized_linear_global_average_pool, (0, None, 0, None, None)))
    actual = pool(x, FLOAT32(0.02), x_zero_points, FLOAT32(0.01), np.uint8(9))
    for image, zero_point, averages in zip(x, x_zero_points, actual, strict=True):
        expected = reference.quantized_linear_global_average_pool(
            image, FLOAT32(0.02), zero_point, FLOAT32(0.01), np.uint8(9)
        )
        np.testing.assert_array_equal(averages, expected)


@pytest.mark.parametrize("sizes", [(1, 64, 32, 32), (1, 64, 64, 64)])
def test_temporaries(sizes):
    """Elements are not widened in memory: a few numbers per channel are stored, or a byte per element."""
    pool = jax.jit(jquant.quantized_linear_global_average_pool)
    program = pool.lower(jax.ShapeDtypeStruct(sizes, np.uint8), 0.1, np.uint8(3), 0.1, np.uint8(3)).compile()
    stored = program.memory_analysis().temp_size_in_bytes
    assert stored <= 16 * 64 + (np.prod(sizes) + 4 * 4096 if sizes[-1] > 32 else 0)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize("spec", [P("x"), P(None, "x"), P(None, None, "x")], ids=["N", "C", "spatial"])
def test_on_a_mesh(spec, kind):
    """A split of the batch or the channels moves nothing; a split of a spatial dimension sums int32 over the devices."""
    x = samples.integers(np.random.default_rng(4), np.uint8, 8, 16, 24, 5)
    parameters = FLOAT32(0.02), np.uint8(3), FLOAT32(0.01), np.uint8(9)
    mesh = jax.make_mesh((8,), ("x",), axis_types=(kind,))
    split = jax.device_put(x, NamedSharding(mesh, spec))
    with jax.set_mesh(mesh):
        program = jax.jit(jquant.quantized_linear_global_average_pool).lower(split, *parameters).compile()
        actual = program(split, *parameters)
    np.testing.assert_array_equal(actual, reference.quantized_linear_global_average_pool(x, *parameters))
    moved = [] if len(spec) < 3 else [Collective("all-reduce", {"s32"}, 8 * 16)]
    assert collectives(program.as_text()) == moved


def test_what_it_does_not_take():
    with pytest.raises(DescriptorError, match=r"x has shape \(2, 3\); it must have spatial dimensions after the batch"):
        jquant.quantized_linear_global_average_pool(np.zeros((2, 3), np.uint8), 1.0, 0, 1.0, 0)
