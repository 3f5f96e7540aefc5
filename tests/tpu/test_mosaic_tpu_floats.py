"""The TPU kernel that quantizes floats, compiled by libtpu for four chips: its bundles, and what its programs store.

Needs libtpu, but no TPU. JAX_PLATFORMS=cpu keeps jax from seeking one.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.sampling import one_in

import jquant
from benchmarks import chips
from jquant.kernels.epilogue import Dequantize
from jquant.kernels.float_rows import FloatRows
from jquant.kernels.pallas import tpu
from jquant.kernels.pallas.tpu_tiles import config_for

from . import bundles

pytest.importorskip("libtpu", reason="kernels compile for TPUs only where libtpu is installed")

CHIPS = tuple(chips.TPU_TOPOLOGIES)
BFLOAT16 = jnp.dtype(jnp.bfloat16)
# The most bundles in which 1024 floats, a register of them, become integers. A correctly rounded quotient takes 23 to 26.
BUNDLES = {"v5e": 7.8, "v6e": 7.0, "7x": 8.0}


def compiled(chip: str, m: int, k: int, n: int, a_dtype, *, transpose_b=True, batch=0) -> bundles.Program:
    """The kernel for A in `a_dtype`, with scales per row and per column, in the tiles that floats get."""
    leading = (batch,) if batch else ()

    def array(*shape, dtype=jnp.float32):
        return jax.ShapeDtypeStruct((*leading, *shape), dtype)

    is_float = a_dtype != np.int8
    a, b = array(m, k, dtype=a_dtype), array(*((n, k) if transpose_b else (k, n)), dtype=jnp.int8)
    a = FloatRows(a, array(m, 1)) if is_float else a
    steps = (Dequantize(array(m, 1), array(1, n), None, BFLOAT16),)
    floats = a_dtype if is_float else BFLOAT16
    config = config_for(chip, m, k, n, BFLOAT16, ((m, 1), (m, 1), (1, n)), np.dtype(floats))
    dot = functools.partial(tpu.integer_dot, transpose_b=transpose_b, config=config)
    return bundles.compile(chip, dot, a, b, steps, kernel="integer_dot_of_floats" if is_float else "integer_dot")


def quantizing_loop(program: bundles.Program) -> bundles.Body:
    """What quantizes 32 rows."""
    return max(program.others, key=lambda body: body.count("vmul.f32"))


@one_in(2, "chip", CHIPS, others="full")
@pytest.mark.parametrize("a_dtype", [np.float32, jnp.bfloat16])
def test_compiles_with_ragged_blocks(chip, a_dtype):
    for transpose_b in (False, True):
        program = compiled(chip, 40, 4300, 200, a_dtype, transpose_b=transpose_b, batch=2)
        unit = "vmatmul.mubr.bf16" if chip == "7x" else "vmatmul.mubr.s8" if chip == "v6e" else "vmatmul.s8"
        assert all(body.count("vmatmul") == body.count(unit) > 0 for body in program.bodies)
    compiled(chip, 1, 130, 300, a_dtype)


@pytest.mark.gate
@pytest.mark.parametrize("chip", BUNDLES)
def test_bundles(chip):
    """The products take as long as those of integers that are read, within 6 %; floats, a third of their quotients' time."""
    m, k, n = 96, 4096, 1024
    of_floats, of_integers = (compiled(chip, m, k, n, dtype) for dtype in (jnp.bfloat16, np.int8))
    quantizing = quantizing_loop(of_floats)
    registers = (1024 if chip == "7x" else k) * 32 // 1024  # of the block of K that 32 rows have in a step
    assert quantizing.count("vmul.f32") >= 6 * registers
    assert quantizing.bundles / registers <= BUNDLES[chip]
    assert of_floats.k_loop.bundles <= 1.06 * of_integers.k_loop.bundles
    assert of_floats.k_loop.count("vmatmul") == of_integers.k_loop.count("vmatmul")


@pytest.mark.full
@pytest.mark.parametrize(("chip", "share", "quantized_before"), [("v5e", 81, 54), ("v6e", 53, 22)])
def test_share_of_the_int8_unit(chip, share, quantized_before):
    """Of 4096 x 4096 x 4096: percentages of the peak. XLA estimates 447,000 cycles for quantizing before the product."""
    size = 4096
    config = config_for(chip, size, size, size, BFLOAT16, ((size, 1), (size, 1), (1, size)), BFLOAT16)
    program = compiled(chip, size, size, size, jnp.bfloat16)
    loop = quantizing_loop(program).bundles
    quantizing = loop * config.block_m // 32
    products = (program.k_loop.bundles + program.pipeline - loop) * size // config.block_n
    ideal = config.block_m * size * size / bundles.PRODUCTS_PER_CYCLE[chip]
    assert 100 * ideal / (quantizing + products) >= share
    row_blocks = size // config.block_m
    assert 100 * row_blocks * ideal / (447_000 + row_blocks * products) <= quantized_before + 1


@one_in(2, "chip", ["v5e", "v6e", "7x"], others="full")
def test_no_program_stores_integers(chip):
    """In the program of the operators, with the search for the scales, floats of A's shape alone reach the kernel."""
    m, k, n = 512, 1024, 640

    def function(x, weights, weights_scale):
        by_row = {"axis": -1, "symmetric": True, "output_dtype": "INT8", "feature_level": "EXTENDED"}
        scale = jquant.dynamic_quantize_linear(x, **by_row).scale
        options = {"implementation": "mosaic_tpu", "feature_level": "EXTENDED"}
        return jquant.matmul_integer_to_float(x, scale, None, weights, weights_scale, **options)

    shapes = [jax.ShapeDtypeStruct((m, k), jnp.bfloat16), jax.ShapeDtypeStruct((k, n), jnp.int8)]
    text = chips.compile(chip, function, *shapes, jax.ShapeDtypeStruct((n,), jnp.float32)).as_text()
    assert text.count('custom_call_target="tpu_custom_call"') == 1
    assert f"bf16[{m},{k}]" in text
    assert f"s8[{m},{k}]" not in text
