"""Integer products over 8 devices: the bits of one device, and no more communication than a split of K needs."""

import functools
import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.collectives import collectives
from support.layouts import BOTH, LAYOUTS, assert_only_sums_move, kinds, matmul_integer
from support.sampling import one_in

import jquant
from jquant.kernels import implementations, integer_dot
from jquant.kernels.pallas import tpu
from jquant.reference import products as reference

BATCH, K, N = 8, 512, 64
layouts = pytest.mark.parametrize("layout", LAYOUTS)
packed_or_not = pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])


@functools.cache
def mesh_of(kind: AxisType) -> jax.sharding.Mesh:
    return jax.make_mesh((2, 4), BOTH, axis_types=(kind, kind))


class Problem:
    """A product, the results of the operators for it, and its operands split over a mesh."""

    def __init__(self, layout: str, m: int):
        rng = np.random.default_rng(0)
        batch = (BATCH,) if layout == "batch" else ()
        self.a_spec, self.b_spec = LAYOUTS[layout]
        self.m_axis, self.k_axis, self.n_axis = self.a_spec[-2], self.a_spec[-1], self.b_spec[-1]
        self.output_spec = P(*self.a_spec[:-1], self.n_axis)
        self.a, self.b = (rng.integers(0, 256, (*batch, *sizes), np.uint8) for sizes in ((m, K), (K, N)))
        self.a_zero_point, self.b_zero_point = (rng.integers(0, 256, size, np.uint8) for size in (m, N))
        self.scales = a_scale, b_scale = [rng.uniform(0.01, 0.1, size).astype(np.float32) for size in (m, N)]
        a_row = self.a, a_scale[:, None], self.a_zero_point[:, None]
        self.product = reference.matmul_integer(self.a, self.b, a_row[2], self.b_zero_point)
        self.requantized = reference.quantized_linear_matmul(
            *a_row, self.b, b_scale, self.b_zero_point, np.float32(9), 7, np.uint8
        )

    def operands(self, mesh, packed: bool):
        """A and its zero point, and B and its zero point, or packed weights for those two."""

        def put(x, spec):
            return jax.device_put(x, NamedSharding(mesh, spec))

        a, a_zero_point = put(self.a, self.a_spec), put(self.a_zero_point, P(self.m_axis))
        b, b_zero_point = put(self.b, self.b_spec), put(self.b_zero_point, P(self.n_axis))
        return (a, a_zero_point, pack(b, b_zero_point)) if packed else (a, a_zero_point, b, b_zero_point)


@jax.jit
def pack(b, zero_point):
    return jquant.pack_matrix(b, zero_point, block_size=64)


def shape_of_a_shard(array: jax.Array) -> tuple[int, ...]:
    return array.sharding.shard_shape(array.shape)


@kinds
@one_in(5, ("layout", "packed"), itertools.product(LAYOUTS, (False, True)))
def test_xla_partitions_by_itself(layout, packed, kind):
    """Under plain jit, nothing moves unless K is split, and then one all-reduce moves what the sums need."""
    for m in (16, 64):  # on one device, few rows have an implementation of their own
        problem, mesh = Problem(layout, m), mesh_of(kind)
        with jax.set_mesh(mesh):
            operands = problem.operands(mesh, packed)
            program = jax.jit(matmul_integer).lower(*operands).compile()
            output = program(*operands)
        np.testing.assert_array_equal(output, problem.product)
        assert_only_sums_move(program, mesh, layout, output.shape[-2], N)
        assert output.sharding.is_equivalent_to(NamedSharding(mesh, problem.output_spec), output.ndim)


@one_in(5, ("layout", "packed"), itertools.product(LAYOUTS, (False, True)), first=1)
def test_fused_operators(layout, packed):
    """The epilogue runs after the sum over the devices, so it rounds as on one device."""
    problem, mesh = Problem(layout, 64), mesh_of(AxisType.Auto)
    a_scale, b_scale = problem.scales

    def both(a, a_zero_point, b, b_zero_point=None):
        operands = a, a_scale, a_zero_point, b, b_scale, b_zero_point
        return jquant.matmul_integer_to_float(*operands), jquant.quantized_linear_matmul(*operands, 9.0, 7)

    one_device = jax.jit(both)(problem.a, problem.a_zero_point, problem.b, problem.b_zero_point)
    np.testing.assert_array_equal(one_device[1], problem.requantized)
    outputs = jax.jit(both)(*problem.operands(mesh, packed))
    for output, expected in zip(outputs, one_device, strict=True):
        np.testing.assert_array_equal(output, expected)


@packed_or_not
@layouts
def test_inside_shard_map(layout, packed):
    """Each device multiplies its shards; where K is split, the caller sums, with zero points of any form."""
    problem, mesh = Problem(layout, 64), mesh_of(AxisType.Auto)
    operands = problem.operands(mesh, packed)
    specs = [problem.a_spec, P(problem.m_axis), problem.b_spec, P(problem.n_axis)]
    if packed:
        specs[2:] = [operands[2].sharding_for(problem.b_spec)]

    def multiply_shard(*operands):
        product = matmul_integer(*operands)
        return product if problem.k_axis is None else lax.psum(product, problem.k_axis)

    mapped = jax.shard_map(multiply_shard, mesh=mesh, in_specs=tuple(specs), out_specs=problem.output_spec)
    program = jax.jit(mapped).lower(*operands).compile()
    np.testing.assert_array_equal(program(*operands), problem.product)
    assert [x.kind for x in collectives(program.as_text())] == ([] if problem.k_axis is None else ["all-reduce"])


@kinds
@layouts
def test_packing_moves_nothing(layout, kind):
    problem, mesh = Problem(layout, 16), mesh_of(kind)
    with jax.set_mesh(mesh):
        b, b_zero_point = (
            jax.device_put(x, NamedSharding(mesh, spec))
            for x, spec in ((problem.b, problem.b_spec), (problem.b_zero_point, P(problem.n_axis)))
        )
        program = pack.lower(b, b_zero_point).compile()
        packed = program(b, b_zero_point)
    assert collectives(program.as_text()) == []
    expected = packed.sharding_for(NamedSharding(mesh, problem.b_spec))
    assert packed.data.sharding.is_equivalent_to(expected.data, packed.ndim)
    assert packed.block_sums.sharding.is_equivalent_to(expected.block_sums, packed.ndim)
    if layout != "batch":  # where every device broadcasts the one zero point to all matrices
        assert packed.zero_point.sharding.is_equivalent_to(expected.zero_point, packed.ndim)


@kinds
def test_a_sum_too_long_for_one_product(kind):
    """It is split into partial sums, without more communication."""
    rng, mesh = np.random.default_rng(0), mesh_of(kind)
    a, b = rng.integers(0, 256, (4, 2**17), np.uint8), rng.integers(0, 256, (2**17, 3), np.uint8)
    with jax.set_mesh(mesh):
        operands = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip((a, b), LAYOUTS["K"], strict=True)]
        program = jax.jit(lambda a, b: jquant.matmul_integer(a, b, 3, 5)).lower(*operands).compile()
        output = program(*operands)
    np.testing.assert_array_equal(output, reference.matmul_integer(a, b, 3, 5))
    assert {x.kind for x in collectives(program.as_text())} == {"all-reduce"}


@packed_or_not
def test_a_mesh_of_one_device(packed):
    """With explicit axes, the operands' types name mesh axes although nothing is split."""
    problem = Problem("M+K", 1)
    mesh = jax.make_mesh((1, 1), BOTH, axis_types=(AxisType.Explicit, AxisType.Explicit), devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
        output = jax.jit(matmul_integer)(*problem.operands(mesh, packed))
    np.testing.assert_array_equal(output, problem.product)


def test_vmap_over_split_matrices():
    rng, mesh = np.random.default_rng(0), mesh_of(AxisType.Explicit)
    a, b = rng.integers(0, 256, (8, 16, 64), np.uint8), rng.integers(0, 256, (8, 64, 32), np.uint8)
    with jax.set_mesh(mesh):
        operands = [jax.device_put(x, NamedSharding(mesh, P(BOTH))) for x in (a, b)]
        program = jax.jit(jax.vmap(lambda a, b: jquant.matmul_integer(a, b, 3, 5))).lower(*operands).compile()
        output = program(*operands)
    np.testing.assert_array_equal(output, reference.matmul_integer(a, b, 3, 5))
    assert collectives(program.as_text()) == []


class TestKernels:
    """The TPU kernel, interpreted: the operands that reach it on a mesh."""

    @pytest.fixture
    def shapes(self, monkeypatch):
        """The shapes of A and B in each call of the kernel."""
        shapes, function_for = [], integer_dot.function_for

        def interpreted(a, b, epilogue=(), *, transpose_b=False):
            shapes.append((a.shape, b.shape))
            return tpu.integer_dot(a, b, epilogue, transpose_b=transpose_b, interpret=True)

        def on_a_cpu(platform, implementation):
            is_kernel = implementation is jquant.Implementation.MOSAIC_TPU
            return interpreted if is_kernel else function_for(platform, implementation)

        monkeypatch.setattr(integer_dot, "function_for", on_a_cpu)
        implementations.warn_of_partitioning.cache_clear()
        return shapes

    @one_in(5, ("layout", "packed"), itertools.product(LAYOUTS, (False, True)), first=2)
    def test_run_on_each_shard_of_explicit_axes(self, shapes, layout, packed):
        problem, mesh = Problem(layout, 64), mesh_of(AxisType.Explicit)
        with jax.set_mesh(mesh):
            operands = problem.operands(mesh, packed)
            program = jax.jit(functools.partial(matmul_integer, implementation="mosaic_tpu")).lower(*operands).compile()
            output = program(*operands)
        np.testing.assert_array_equal(output, problem.product)
        b = operands[2].data if packed else operands[2]
        assert shapes == [(shape_of_a_shard(operands[0]), shape_of_a_shard(b))]
        assert_only_sums_move(program, mesh, layout, output.shape[-2], N)

    def test_epilogues_follow_the_sum(self, shapes):
        for layout in ("M+N", "M+K"):
            problem, mesh = Problem(layout, 64), mesh_of(AxisType.Explicit)
            a_scale, b_scale = problem.scales

            def requantized(a, a_zero_point, b, a_scale=a_scale, b_scale=b_scale):
                operands = a, a_scale, a_zero_point, b, b_scale, None
                return jquant.quantized_linear_matmul(*operands, 9.0, 7, implementation="mosaic_tpu")

            with jax.set_mesh(mesh):
                output = jax.jit(requantized)(*problem.operands(mesh, packed=True))
            np.testing.assert_array_equal(output, problem.requantized)
        assert len(shapes) == 2

    def test_leave_other_meshes_to_xla_and_say_so_once(self, shapes):
        multiply = functools.partial(matmul_integer, implementation="mosaic_tpu")
        problem, mesh = Problem("M+K", 64), mesh_of(AxisType.Auto)
        with pytest.warns(UserWarning, match="implementation mosaic_tpu cannot be partitioned by XLA, whose own product"):
            output = jax.jit(multiply)(*problem.operands(mesh, packed=False))
        np.testing.assert_array_equal(output, problem.product)
        with warnings.catch_warnings(action="error"):
            output = jax.jit(multiply)(*problem.operands(mesh, packed=True))
        np.testing.assert_array_equal(output, problem.product)
        assert shapes == []

    def test_leave_a_mesh_of_both_kinds_of_axes_to_xla(self, shapes):
        mesh = jax.make_mesh((2, 4), BOTH, axis_types=(AxisType.Explicit, AxisType.Auto))
        problem = Problem("M+N", 64)
        multiply = jax.jit(functools.partial(jquant.matmul_integer, implementation="mosaic_tpu"))
        with jax.set_mesh(mesh):
            a, b = (jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in ((problem.a, P("x")), (problem.b, P())))
            with pytest.warns(UserWarning, match="cannot be partitioned"):
                output = multiply(a, b)
        np.testing.assert_array_equal(output, reference.matmul_integer(problem.a, problem.b))
        assert shapes == []

    def test_inside_shard_map(self, shapes):
        """Over all axes of the mesh, the kernel runs on shards; over some, XLA partitions the product."""
        mesh = jax.make_mesh((2, 4), BOTH, axis_types=(AxisType.Auto, AxisType.Auto))
        problem = Problem("M+N", 64)
        options = {"mesh": mesh, "in_specs": (P("x"), P()), "out_specs": P("x"), "check_vma": False}
        multiply = functools.partial(jquant.matmul_integer, implementation="mosaic_tpu")
        expected = reference.matmul_integer(problem.a, problem.b)
        np.testing.assert_array_equal(jax.jit(jax.shard_map(multiply, **options))(problem.a, problem.b), expected)
        assert shapes == [((32, K), (K, N))]
        with pytest.warns(UserWarning, match="cannot be partitioned"):
            output = jax.jit(jax.shard_map(multiply, **options, axis_names={"x"}))(problem.a, problem.b)
        np.testing.assert_array_equal(output, expected)
        assert len(shapes) == 1


def test_sharding_for_a_split_of_k_between_blocks():
    packed = jquant.pack_matrix(jnp.ones((512, 16), jnp.uint8), block_size=128)
    message = r"K is split into 8 parts over x, y, but PackedMatrix\(uint8\[512,16\]\) has 4 blocks of column sums, "
    message += "which must not be split"
    with pytest.raises(ValueError, match=message):
        packed.sharding_for(NamedSharding(mesh_of(AxisType.Auto), P(BOTH)))
    shardings = packed.sharding_for(NamedSharding(mesh_of(AxisType.Auto), P("y")))
    assert repr(shardings).startswith("PackedMatrix(uint8, NamedSharding(")
