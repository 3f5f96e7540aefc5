"""Products with their epilogues, compiled for an NVIDIA GPU of each generation: one kernel, and no sums in memory."""

import math
import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.collectives import collectives
from support.sampling import one_in

import jquant
from benchmarks import chips, traffic
from benchmarks.gpu_products import PACKED, SCALE, SCALES, SIGNED, SIZE, TILES, ZERO_POINT, A, array

from . import ptx

pytest.importorskip("jax_plugins.xla_cuda13", reason="XLA compiles for NVIDIA GPUs only where jax-cuda13-pjrt is installed")

FUSES = jax.__version_info__ >= (0, 12)
AMPERE = r"mma\.sync\.aligned\.m16n8k32\.row\.col\.satfinite\.s32\.s8\.s8\.s32"
MULTIPLICATIONS = {  # of int8 by the tensor cores
    "a100": AMPERE,
    "a10": AMPERE,
    "l4": AMPERE,
    "h200": r"wgmma\.mma_async\.sync\.aligned\.m64n\d+k32\.s32\.s8\.s8",
    "b200": r"tcgen05\.mma\.cta_group::1\.kind::i8",
    "rtx5090": AMPERE,
}
FLOATS = A, SCALE, ZERO_POINT, PACKED, SCALES


def to(dtype) -> Callable:
    def product(a, a_scale, a_zero_point, b, b_scale, bias=None):
        options = {"output_dtype": dtype, "feature_level": "EXTENDED"}
        return jquant.matmul_integer_to_float(a, a_scale, a_zero_point, b, b_scale, None, bias, **options)

    return product


def product_of_int8(a, b, b_scale):
    return to(jnp.float32)(a, np.float32(0.5), None, b, b_scale)


PROGRAMS = {
    "int32": (jquant.matmul_integer, (A, PACKED, ZERO_POINT)),
    "float32": (to(jnp.float32), FLOATS),
    "float32, bias": (to(jnp.float32), (*FLOATS, SCALES)),
    "float16, bias": (to(jnp.float16), (*FLOATS, SCALES)),
    "bfloat16": (to(jnp.bfloat16), FLOATS),
    "uint8": (jquant.quantized_linear_matmul, (A, SCALE, ZERO_POINT, PACKED, SCALE, None, SCALE, ZERO_POINT)),
    "uint8, scales by column": (
        jquant.quantized_linear_matmul,
        (A, SCALE, ZERO_POINT, PACKED, SCALES, None, SCALE, ZERO_POINT),
    ),
    "uint8, bias": (
        jquant.quantized_gemm,
        (A, SCALE, ZERO_POINT, PACKED, SCALES, None, array(jnp.int32, SIZE), SCALE, ZERO_POINT),
    ),
    "float32, mapped": (
        jax.vmap(to(jnp.float32), (0, None, None, None, None)),
        (array(jnp.uint8, 16, SIZE // 16, SIZE), *FLOATS[1:]),
    ),
}
EVERY = [(gpu, name) for name in PROGRAMS for gpu in (chips.GPUS if FUSES else ["h200"])]


@one_in(7, ("gpu", "name"), EVERY)
def test_epilogue_is_computed_in_the_kernel_of_the_product(gpu, name):
    """From jax 0.12 on."""
    function, arguments = PROGRAMS[name]
    if not FUSES:
        program, _ = ptx.compile_for(gpu, function, *arguments)
        assert len(written(program)) > 1
        return
    program, text = ptx.compile_for(gpu, function, *arguments, **TILES)
    moves = traffic.read(program.as_text())
    assert moves.ratio <= 1.05, moves.instructions
    assert len(written(program)) == 1
    assert re.findall(MULTIPLICATIONS[gpu], text) != []
    assert ptx.inexact(ptx.parse(text)) == []
    assert ptx.spilled_bytes(text) == 0


def written(program: jax.stages.Compiled, gpus: int = 1) -> list[str]:
    """What the kernels write that has a number for each element of the output: the result, and what it is computed from."""
    _, entry = program.as_text().split("\nENTRY ")
    shapes = re.findall(r"= \(?\w+\[([\d,]+)\][^=]*? (?:fusion|custom-call)\(", entry)
    return [shape for shape in shapes if math.prod(map(int, shape.split(","))) >= SIZE**2 // gpus]


def test_scales_by_row_and_by_column_are_applied_by_a_second_kernel():
    """XLA takes no value into the kernel of a product that depends on both."""
    program, _ = ptx.compile_for("h200", to(jnp.float32), A, SCALES, None, PACKED, SCALES, **(TILES if FUSES else {}))
    assert len(written(program)) > 1


@pytest.mark.parametrize("split", [P("x", None), P(None, "x")], ids=["rows", "columns"])
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_on_a_mesh(kind, split):
    """Each GPU has the same kernel as one GPU by itself, and waits for no other."""
    mesh = jax.sharding.Mesh(np.array(chips.gpus("h200", "1x8x1")), ("x",), axis_types=(kind,))
    rows, columns = split
    program = on(mesh, product_of_int8, (SIGNED, P(rows, None)), (SIGNED, P(None, columns)), (SCALES, P(columns)))
    assert collectives(program.as_text()) == []
    assert (len(written(program, gpus=8)) == 1) == FUSES


def test_inside_shard_map():
    mesh = jax.sharding.Mesh(np.array(chips.gpus("h200", "1x8x1")), ("x",))
    sharded = jax.shard_map(product_of_int8, mesh=mesh, in_specs=(P("x"), P(), P()), out_specs=P("x"))
    program = on(mesh, sharded, (SIGNED, P("x")), (SIGNED, P()), (SCALES, P()))
    assert (len(written(program, gpus=8)) == 1) == FUSES


def on(mesh: jax.sharding.Mesh, function: Callable, *arguments: tuple) -> jax.stages.Compiled:
    """A program over a mesh, for arguments with the specs of their shardings."""
    arrays = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec)) for x, spec in arguments]
    options = {"xla_gpu_autotune_level": 0, **(TILES if FUSES else {})}
    return jax.jit(function).lower(*arrays).compile(compiler_options=options)


def test_derivative_by_the_scales():
    """The product is still one kernel, which hands its result over to the derivative's."""

    def value_and_derivative(a, b, b_scale, tangent):
        return jax.jvp(lambda b_scale: product_of_int8(a, b, b_scale), (b_scale,), (tangent,))

    program, _ = ptx.compile_for("h200", value_and_derivative, SIGNED, SIGNED, SCALES, SCALES, **(TILES if FUSES else {}))
    assert len(re.findall(r" dot\(", program.as_text())) == 1


def test_exported_program_has_the_form_for_gpus():
    exported = jax.export.export(jax.jit(product_of_int8), platforms=["cuda"])(SIGNED, SIGNED, SCALES)
    assert ("stablehlo.maximum" in exported.mlir_module()) == FUSES
