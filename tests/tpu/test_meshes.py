"""Products over 16 chips, compiled for them: the collectives of XLA's product, and of the kernel on each shard."""

import functools

import jax
import numpy as np
import pytest
from jax.sharding import AxisType
from support.layouts import BOTH, LAYOUTS, assert_only_sums_move, compiled, compiled_with_a_warning

from benchmarks.chips import tpus

pytest.importorskip("libtpu", reason="programs compile for TPUs only where libtpu is installed")

M, K, N = 64, 2048, 256
topologies = pytest.mark.parametrize("topology", ["v5e:4x4", "v6e:4x4"])


@functools.cache
def mesh_of(topology: str, kind: AxisType) -> jax.sharding.Mesh:
    return jax.sharding.Mesh(np.array(tpus(topology)).reshape(4, 4), BOTH, axis_types=(kind, kind))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@topologies
def test_xla_partitions_its_own_product(topology, packed, layout):
    mesh = mesh_of(topology, AxisType.Auto)
    program = compiled(mesh, layout, M, K, N, packed=packed)
    assert_only_sums_move(program, mesh, layout, M, N)


@pytest.mark.parametrize("layout", LAYOUTS)
@topologies
def test_the_kernel_runs_on_each_shard_of_explicit_axes(topology, layout):
    mesh = mesh_of(topology, AxisType.Explicit)
    program = compiled(mesh, layout, M, K, N, implementation="mosaic_tpu")
    assert program.as_text().count('custom_call_target="tpu_custom_call"') == 1
    assert_only_sums_move(program, mesh, layout, M, N)


@topologies
def test_xla_replaces_a_kernel_that_it_would_have_to_partition(topology):
    mesh = mesh_of(topology, AxisType.Auto)
    program = compiled_with_a_warning(mesh, "M+K", M, K, N, implementation="mosaic_tpu")
    assert "tpu_custom_call" not in program.as_text()
    assert_only_sums_move(program, mesh, "M+K", M, N)
