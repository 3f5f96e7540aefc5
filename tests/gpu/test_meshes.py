"""Products over 8 and 16 GPUs, compiled for them: the collectives of XLA's product, and of the kernel on each shard."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.collectives import collectives
from support.layouts import BOTH, LAYOUTS, assert_only_sums_move, compiled, compiled_with_a_warning

import jquant
from benchmarks import chips

pytest.importorskip("jax_plugins.xla_cuda13", reason="XLA compiles for NVIDIA GPUs only where jax-cuda13-pjrt is installed")

M, K, N = 256, 4096, 1024
topologies = pytest.mark.parametrize("topology", ["1x8x1", "2x8x1"])  # one machine, and two


@functools.cache
def mesh_of(topology: str, kind: AxisType) -> jax.sharding.Mesh:
    devices = np.array(chips.gpus("h200", topology))
    return jax.sharding.Mesh(devices.reshape(-1, 4), BOTH, axis_types=(kind, kind))


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
    program = compiled(mesh, layout, M, K, N, implementation="mosaic_gpu")
    assert program.as_text().count('custom_call_target="mosaic_gpu_v2"') == 1
    assert_only_sums_move(program, mesh, layout, M, N)


@topologies
def test_a_split_output_is_reduced_by_scattering(topology):
    mesh = mesh_of(topology, AxisType.Auto)
    a, b = (
        jax.ShapeDtypeStruct(shape, jnp.uint8, sharding=NamedSharding(mesh, spec))
        for shape, spec in zip(((M, K), (K, N)), LAYOUTS["K"], strict=True)
    )
    multiply = jax.jit(lambda a, b: jquant.matmul_integer(a, b, 3, 5), out_shardings=NamedSharding(mesh, P(BOTH)))
    kinds = [collective.kind for collective in collectives(multiply.lower(a, b).compile().as_text())]
    assert sorted(kinds) == ["all-reduce", "reduce-scatter"]  # of the column sums, and of the product and the row sums


@topologies
def test_xla_replaces_a_kernel_that_it_would_have_to_partition(topology):
    mesh = mesh_of(topology, AxisType.Auto)
    program = compiled_with_a_warning(mesh, "M+K", M, K, N, implementation="mosaic_gpu")
    assert "mosaic_gpu_v2" not in program.as_text()
    assert_only_sums_move(program, mesh, "M+K", M, N)
