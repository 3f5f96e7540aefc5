"""The TPU kernel, compiled by libtpu for four chips: that it compiles, and what the bundles say of its speed.

Needs libtpu, but no TPU. JAX_PLATFORMS=cpu keeps jax from seeking one.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jquant.kernels import mosaic_tpu
from jquant.kernels.epilogue import Dequantize, Fold, Requantize
from jquant.kernels.mosaic_tpu_plans import Plan, plan_for

from . import bundles

pytest.importorskip("libtpu", reason="kernels compile for TPUs only where libtpu is installed")

CHIPS = tuple(bundles.TOPOLOGIES)
FORMS = ("int32", "float32", "float16", "bfloat16", "int8", "uint8")


class Compiled(NamedTuple):
    plan: Plan
    program: bundles.Program


@functools.cache
def compiled(chip: str, form: str, m: int, k: int, n: int, *, transpose_b=False, chip_is_known=True, batch=0) -> Compiled:
    """With zero points per row and per column, and scales likewise."""
    leading = (batch,) if batch else ()

    def array(*shape, dtype=jnp.float32):
        return jax.ShapeDtypeStruct((*leading, *shape), dtype)

    a, b = array(m, k, dtype=jnp.int8), array(*((n, k) if transpose_b else (k, n)), dtype=jnp.int8)
    rows, columns = array(m, 1, dtype=jnp.int32), array(1, n, dtype=jnp.int32)
    steps, dtype = (Fold(((rows, columns), (rows, columns))),), jnp.dtype(form)
    if form in ("int8", "uint8"):
        steps = (*steps, Requantize(array(1, n), array(1, 1), dtype))
    elif form != "int32":
        steps = (*steps, Dequantize(array(m, 1), array(1, n), array(1, n), dtype))
    stored = jnp.dtype(jnp.float32) if form == "float16" else dtype
    leaves = tuple(leaf.shape[-2:] for leaf in jax.tree.leaves(steps))
    plan = plan_for(chip if chip_is_known else None, m, k, n, stored, leaves)
    dot = functools.partial(mosaic_tpu.integer_dot, transpose_b=transpose_b, plan=plan)
    return Compiled(plan, bundles.compile(chip, dot, a, b, steps))


@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("chip", CHIPS)
def test_compiles_with_ragged_blocks(chip, form, transpose_b):
    plan, program = compiled(chip, form, 300, 1100, 520, transpose_b=transpose_b, batch=2)
    assert 300 % plan.block_m
    assert 1100 % plan.block_k
    # TPU 7x has no int8 unit.
    assert all(body.count("vmatmul") for body in program.bodies)
    assert any("bf16" if chip == "7x" else ".s8" in name for name in program.k_loop.instructions)


@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (1, 4096, 4096), (32, 130, 300), (17, 9000, 1000)])
@pytest.mark.parametrize("chip", CHIPS)
def test_compiles_for_few_rows(chip, m, k, n):
    compiled(chip, "bfloat16", m, k, n, transpose_b=True)


@pytest.mark.parametrize("chip", CHIPS)
def test_compiles_with_a_whole_matrix_of_bias(chip):
    """Which takes as much vector memory as the output."""
    size = 4096
    matrix, column = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((size, size), (1, size)))
    scalar = jax.ShapeDtypeStruct((1, 1), jnp.float32)
    steps = (Dequantize(scalar, column, matrix, np.dtype(np.float32)),)
    leaves = tuple(leaf.shape for leaf in jax.tree.leaves(steps))
    plan = plan_for(chip, size, size, size, np.dtype(np.float32), leaves)
    a = jax.ShapeDtypeStruct((size, size), jnp.int8)
    bundles.compile(chip, functools.partial(mosaic_tpu.integer_dot, plan=plan), a, a, steps)


class Recorded(NamedTuple):
    """Bundles of libtpu 0.0.42 and 0.0.50, which agree within the 5 % that a test allows, and percentages to reach."""

    chip: str
    form: str
    shape: tuple[int, int, int]
    layout: str
    chip_is_known: bool
    k_loop: int
    tile: int
    k_loop_utilisation: int
    tile_utilisation: int


SQUARE, LONG, DECODE = (4096, 4096, 4096), (4096, 8192, 4096), (16, 4096, 4096)
RECORDED = [
    Recorded("v5e", "int32", SQUARE, "KN", True, 0, 0, 97, 97),
    Recorded("v5e", "int32", SQUARE, "NK", True, 0, 0, 97, 97),
    Recorded("v5e", "uint8", SQUARE, "NK", True, 0, 0, 97, 97),
    Recorded("v5e", "int32", LONG, "KN", True, 0, 0, 97, 95),
    Recorded("v5e", "int32", SQUARE, "KN", False, 0, 0, 97, 95),
    Recorded("v5e", "int32", DECODE, "NK", True, 0, 0, 0, 0),
    Recorded("v5p", "int32", SQUARE, "KN", True, 0, 0, 97, 97),
    Recorded("v5p", "int32", SQUARE, "KN", False, 0, 0, 97, 93),
    Recorded("v6e", "int32", SQUARE, "KN", True, 0, 0, 90, 90),
    Recorded("v6e", "int32", SQUARE, "NK", True, 0, 0, 90, 90),
    Recorded("v6e", "bfloat16", SQUARE, "NK", True, 0, 0, 90, 90),
    Recorded("v6e", "uint8", SQUARE, "NK", True, 0, 0, 90, 90),
    Recorded("v6e", "int32", LONG, "KN", True, 0, 0, 97, 90),
    Recorded("v6e", "int32", SQUARE, "KN", False, 0, 0, 90, 75),
    Recorded("v6e", "int32", DECODE, "NK", True, 0, 0, 0, 0),
    Recorded("7x", "int32", SQUARE, "KN", True, 0, 0, 0, 0),
    Recorded("7x", "int32", SQUARE, "NK", True, 0, 0, 0, 0),
]


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda recorded: "-".join(map(str, recorded[:5])))
def test_bundles(recorded):
    m, k, n = recorded.shape
    plan, program = compiled(
        recorded.chip, recorded.form, m, k, n, transpose_b=recorded.layout == "NK", chip_is_known=recorded.chip_is_known
    )
    tile = program.tile(math.ceil(k / plan.block_k))
    if recorded.chip in bundles.PRODUCTS_PER_CYCLE:
        cycles = plan.block_m * plan.block_k * plan.block_n / bundles.PRODUCTS_PER_CYCLE[recorded.chip]
        print("UTIL", recorded[:5], plan, "%.1f %.1f" % (100*cycles/program.k_loop.bundles, 100*cycles*k/plan.block_k/tile))
        assert cycles / program.k_loop.bundles >= recorded.k_loop_utilisation / 100
        assert cycles * k / plan.block_k / tile >= recorded.tile_utilisation / 100
    print("FIG", recorded[:5], program.k_loop.bundles, tile, program.k_loop.count("vst"), plan.block_m*plan.block_n/1024*plan.block_k/512)
    assert program.k_loop.bundles == pytest.approx(recorded.k_loop, rel=0.05)
    assert tile == pytest.approx(recorded.tile, rel=0.05)
