"""Products over 16 chips, compiled for them: what moves, with XLA's product and with the kernel on each shard."""

import functools

import jax
import numpy as np
import pytest
from jax.sharding import AxisType
from layouts import BOTH, LAYOUTS, assert_only_sums_move, matmul_integer, shapes

from jquant.kernels import integer_dot

from . import bundles

pytest.importorskip("libtpu", reason="programs compile for TPUs only where libtpu is installed")

M, K, N = 64, 2048, 256


@functools.cache
def mesh_of(topology: str, kind: AxisType) -> jax.sharding.Mesh:
    return jax.sharding.Mesh(np.array(bundles.devices(topology)).reshape(4, 4), BOTH, axis_types=(kind, kind))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize("topology", ["v5e:4x4", "v6e:4x4"])
def test_xla_partitions_by_itself(topology, packed, layout):
    mesh = mesh_of(topology, AxisType.Auto)
    program = jax.jit(matmul_integer).lower(*shapes(mesh, layout, M, K, N, packed=packed)).compile()
    assert_only_sums_move(program, mesh, layout, M, N)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("topology", ["v5e:4x4", "v6e:4x4"])
def test_the_kernel_runs_on_each_shard_of_explicit_axes(topology, layout):
    mesh = mesh_of(topology, AxisType.Explicit)
    multiply = functools.partial(matmul_integer, implementation="mosaic_tpu")
    program = jax.jit(multiply).lower(*shapes(mesh, layout, M, K, N, packed=True)).compile()
    assert program.as_text().count('custom_call_target="tpu_custom_call"') == 1
    assert_only_sums_move(program, mesh, layout, M, N)


@pytest.mark.parametrize("topology", ["v5e:4x4", "v6e:4x4"])
def test_a_kernel_that_xla_would_have_to_partition_gives_way(topology):
    mesh = mesh_of(topology, AxisType.Auto)
    integer_dot._warn_of_partitioning.cache_clear()
    multiply = jax.jit(functools.partial(matmul_integer, implementation="mosaic_tpu"))
    with pytest.warns(UserWarning, match="implementation mosaic_tpu cannot be partitioned by XLA"):
        program = multiply.lower(*shapes(mesh, "M+K", M, K, N, packed=True)).compile()
    assert "tpu_custom_call" not in program.as_text()
    assert_only_sums_move(program, mesh, "M+K", M, N)
