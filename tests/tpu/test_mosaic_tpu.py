"""The TPU kernel, compiled by libtpu for four chips: that it compiles, and the utilisation that its bundles allow.

Needs libtpu, but no TPU. JAX_PLATFORMS=cpu keeps jax from seeking one.
"""

import functools
import math
import operator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from support.sampling import one_in

from benchmarks.chips import TPU_TOPOLOGIES, tpus
from benchmarks.shapes import PRODUCTS, named
from jquant.kernels.epilogue import Dequantize, Requantize, ZeroPointCorrection
from jquant.kernels.pallas import tpu
from jquant.kernels.pallas.tpu_tiles import TileConfig, config_for

from . import bundles

pytest.importorskip("libtpu", reason="kernels compile for TPUs only where libtpu is installed")

CHIPS = tuple(TPU_TOPOLOGIES)
FORMS = ("int32", "float32", "float16", "bfloat16", "int8", "uint8")


class Compiled(NamedTuple):
    config: TileConfig
    program: bundles.Program


@functools.cache
def compiled(chip: str, form: str, m: int, k: int, n: int, *, transpose_b=False, chip_is_known=True, batch=0) -> Compiled:
    """The kernel with zero points and scales per row and per column."""
    leading = (batch,) if batch else ()

    def array(*shape, dtype=jnp.float32):
        return jax.ShapeDtypeStruct((*leading, *shape), dtype)

    a, b = array(m, k, dtype=jnp.int8), array(*((n, k) if transpose_b else (k, n)), dtype=jnp.int8)
    rows, columns = array(m, 1, dtype=jnp.int32), array(1, n, dtype=jnp.int32)
    steps, dtype = (ZeroPointCorrection(((rows, columns), (rows, columns))),), jnp.dtype(form)
    if form in ("int8", "uint8"):
        steps = (*steps, Requantize(array(1, n), array(1, 1), dtype))
    elif form != "int32":
        steps = (*steps, Dequantize(array(m, 1), array(1, n), array(1, n), dtype))
    stored = jnp.dtype(jnp.float32) if form == "float16" else dtype
    leaves = tuple(leaf.shape[-2:] for leaf in jax.tree.leaves(steps))
    config = config_for(chip if chip_is_known else None, m, k, n, stored, leaves)
    dot = functools.partial(tpu.integer_dot, transpose_b=transpose_b, config=config)
    return Compiled(config, bundles.compile(chip, dot, a, b, steps))


@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("chip", CHIPS)
def test_compiles_with_ragged_blocks(chip, form, transpose_b):
    config, program = compiled(chip, form, 300, 1100, 520, transpose_b=transpose_b, batch=2)
    assert 300 % config.block_m
    assert 1100 % config.block_k
    unit = "vmatmul.mubr.bf16" if chip == "7x" else "vmatmul.mubr.s8" if chip == "v6e" else "vmatmul.s8"
    assert program.bodies
    assert all(body.count("vmatmul") == body.count(unit) > 0 for body in program.bodies)


@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (1, 4096, 4096), (32, 130, 300), (17, 9000, 1000)])
@pytest.mark.parametrize("chip", CHIPS)
def test_compiles_for_few_rows(chip, m, k, n):
    compiled(chip, "bfloat16", m, k, n, transpose_b=True)


@one_in(4, "chip", CHIPS)
def test_compiles_with_a_bias_for_each_element(chip):
    """The bias takes as much vector memory as the output."""
    size = 4096
    matrix, column = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((size, size), (1, size)))
    scalar = jax.ShapeDtypeStruct((1, 1), jnp.float32)
    steps = (Dequantize(scalar, column, matrix, np.dtype(np.float32)),)
    leaves = tuple(leaf.shape for leaf in jax.tree.leaves(steps))
    config = config_for(chip, size, size, size, np.dtype(np.float32), leaves)
    a = jax.ShapeDtypeStruct((size, size), jnp.int8)
    bundles.compile(chip, functools.partial(tpu.integer_dot, config=config), a, a, steps)


def test_the_chip_of_a_mesh_chooses_the_tiles(monkeypatch):
    """Under `jax.shard_map`, for example; shardings of the arguments are not known while the kernel is traced."""
    chips = []
    monkeypatch.setattr(tpu, "config_for", lambda chip, *rest: chips.append(chip) or config_for(chip, *rest))
    mesh = jax.sharding.Mesh(np.array(tpus(TPU_TOPOLOGIES["v6e"])), ("x",))
    rows, whole = (jax.sharding.NamedSharding(mesh, spec) for spec in (P("x"), P()))
    a = jax.ShapeDtypeStruct((1024, 256), jnp.int8, sharding=rows)
    b = jax.ShapeDtypeStruct((256, 512), jnp.int8, sharding=whole)

    def dot(a, b):
        return tpu.integer_dot(a, b, ())

    jax.jit(jax.shard_map(dot, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"))).lower(a, b).compile()
    jax.jit(dot).trace(*(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (a, b))).lower(lowering_platforms=("tpu",))
    assert chips == ["v6e", None]


class Recorded(NamedTuple):
    """The programs of libtpu 0.0.42 and 0.0.50 for a product with zero points per row and per column.

    Attributes:
      layout: that of B.
      chip_is_known: whether the tile configuration is that of the chip; otherwise, it is that for an unknown chip.
      k_loop: the bundles of a K step in the middle, or of the only one.
      tile: the bundles of all K steps of a block of the output, including the pipeline.
      utilisation: the least percentages of the matrix units' peak in `k_loop` and in `tile`.
    """

    chip: str
    form: str
    shape: tuple[int, int, int]
    layout: str
    chip_is_known: bool
    k_loop: int
    tile: int
    utilisation: tuple[int, int] = (0, 0)


SQUARE, LONG = (4096, 4096, 4096), (4096, 8192, 4096)
DECODE = operator.attrgetter("m", "k", "n")(named(PRODUCTS, "llama-7b.qkv.decode-16"))
RECORDED = [
    Recorded("v5e", "int32", SQUARE, "KN", True, 16484, 16567, (99, 98)),
    Recorded("v5e", "int32", SQUARE, "NK", True, 16230, 16310, (99, 98)),
    Recorded("v5e", "uint8", SQUARE, "NK", True, 17860, 17945, (91, 90)),
    Recorded("v5e", "int32", LONG, "KN", True, 8269, 67406, (99, 97)),
    Recorded("v5e", "int32", SQUARE, "KN", False, 8263, 33670, (99, 97)),
    Recorded("v5e", "int32", DECODE, "NK", True, 792, 880),
    Recorded("v5p", "int32", SQUARE, "KN", True, 16502, 16710, (99, 98)),
    Recorded("v5p", "int32", SQUARE, "KN", False, 8263, 34315, (99, 95)),
    Recorded("v6e", "int32", SQUARE, "KN", True, 17560, 17675, (92, 91)),
    Recorded("v6e", "int32", SQUARE, "NK", True, 17560, 17675, (92, 91)),
    Recorded("v6e", "bfloat16", SQUARE, "NK", True, 20484, 20626, (79, 79)),
    Recorded("v6e", "uint8", SQUARE, "NK", True, 24180, 24295, (67, 66)),
    Recorded("v6e", "int32", LONG, "KN", True, 8356, 71400, (97, 91)),
    Recorded("v6e", "int32", SQUARE, "KN", False, 2177, 10080, (94, 80)),
    Recorded("v6e", "int32", DECODE, "NK", True, 479, 602),
    Recorded("7x", "int32", SQUARE, "KN", True, 2452, 12198),
    Recorded("7x", "int32", SQUARE, "NK", True, 2886, 13718),
]


@pytest.mark.gate
@one_in(3, "recorded", RECORDED, first=1, others="full", ids=lambda recorded: "-".join(map(str, recorded[:5])))
def test_bundles(recorded):
    chip, form, (m, k, n), layout, chip_is_known, *_ = recorded
    config, program = compiled(chip, form, m, k, n, transpose_b=layout == "NK", chip_is_known=chip_is_known)
    k_steps = math.ceil(k / config.block_k)
    k_loop, tile = program.k_loop.bundles, program.tile(k_steps)
    assert (k_loop, tile) == (pytest.approx(recorded.k_loop, rel=0.05), pytest.approx(recorded.tile, rel=0.05))
    if chip == "7x":
        return
    cycles = config.block_m * config.block_k * config.block_n / bundles.PRODUCTS_PER_CYCLE[chip]
    assert 100 * cycles / k_loop >= recorded.utilisation[0]
    assert 100 * cycles * k_steps / tile >= recorded.utilisation[1]
    sums = config.block_m * config.block_n // 1024  # registers of 8 by 128
    if recorded.shape == LONG and chip == "v5e":
        assert program.k_loop.count("vst") == sums, "something but the sums went through memory"
    assert program.k_loop.count("vst") <= sums * max(1, config.block_k // 512)
