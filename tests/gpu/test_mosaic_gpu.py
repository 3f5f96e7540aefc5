"""The Hopper kernel, compiled for an H200: its instructions, and that no registers spill.

Needs the plug-in jax-cuda13-pjrt and jax-cuda13-plugin, but no GPU and no other part of CUDA.
"""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from benchmarks.shapes import PRODUCTS, named
from jquant.kernels.epilogue import Dequantize, Epilogue, Requantize, ZeroPointCorrection
from jquant.kernels.pallas import gpu
from jquant.kernels.pallas.gpu_tiles import config_for

from . import mosaic, ptx
from .mosaic import Compiled, inexact, merging, tensor

pytest.importorskip("jax_plugins.xla_cuda13", reason="XLA compiles for NVIDIA GPUs only where jax-cuda13-pjrt is installed")


def lowered(m: int, n: int, k: int, steps: Epilogue, *, transpose_b: bool = True) -> jax.stages.Lowered:
    a, b = tensor(jnp.int8, m, k), tensor(jnp.int8, *((n, k) if transpose_b else (k, n)))
    steps = jax.tree.map(lambda x: tensor(x.dtype, *x.shape), steps)
    return jax.jit(functools.partial(gpu.integer_dot, transpose_b=transpose_b)).lower(a, b, steps)


def compile_product(m: int, n: int, k: int, steps: Epilogue) -> Compiled:
    return mosaic.compile(lowered(m, n, k, steps))


def epilogues(m: int, n: int) -> dict[str, Epilogue]:
    def vector(dtype, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype)

    integer_row, integer_column = vector(jnp.int32, m, 1), vector(jnp.int32, 1, n)
    row, column, scalar = vector(jnp.float32, m, 1), vector(jnp.float32, 1, n), vector(jnp.float32, 1, 1)
    vectors, scalars = ZeroPointCorrection(((integer_row, integer_column),)), ZeroPointCorrection(((integer_column,),))
    float_types = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
    return {
        "int32": (vectors,),
        **{name: (vectors, Dequantize(row, column, column, np.dtype(type))) for name, type in float_types.items()},
        "int8": (vectors, Requantize(column, scalar, np.dtype(np.int8))),
        "uint8": (scalars, Requantize(column, None, np.dtype(np.uint8))),
    }


OUTPUTS = list(epilogues(1, 1))
LLAMA = [named(PRODUCTS, f"llama-7b.{name}") for name in ("qkv.decode-16", "up.decode-64", "qkv.decode-100")]
SHAPES = [
    *((product.m, product.n, product.k) for product in LLAMA),
    (512, 512, 512),
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (4096, 4096, 128),
    (37, 1000, 2050),
]


def multiplies_in_the_unit_for_int8(compiled: Compiled, shape, output):
    config = config_for(1, *shape, np.dtype(output).itemsize)
    opcodes = set(re.findall(r"wgmma\.mma_async\S*", compiled.text))
    assert opcodes == {f"wgmma.mma_async.sync.aligned.m64n{config.block_n}k32.s32.s8.s8"}


def loads_and_stores_by_tma(compiled: Compiled, shape, output):
    copies = set(re.findall(r"cp\.async\.bulk\.tensor\.\dd\.(\w+)\S*\.(global|shared)\b", compiled.text))
    assert copies == {("shared", "global"), ("global", "shared")}


def buffers_are_released_after_the_multiplication_that_reads_them(compiled: Compiled, shape, output):
    """The simulator does not check this: its multiplications are complete when they return."""
    events = re.findall(r"wgmma\.mma_async|wgmma\.wait_group\.sync\.aligned\s+\d+|mbarrier\.arrive\.release", compiled.text)
    following = {after for event, after in itertools.pairwise(events) if event == "wgmma.mma_async"}
    assert {re.sub(r"\s+", " ", event) for event in following} == {"wgmma.mma_async", "wgmma.wait_group.sync.aligned 0"}


def stores_follow_a_fence(compiled: Compiled, shape, output):
    """TMA sees what a warpgroup has written to shared memory only after a fence."""
    events = re.findall(r"st(?:matrix|\.shared)|fence\.proxy\.async|cp\.async\.bulk\.tensor\.\dd\.global", compiled.text)
    assert {"st.shared", "stmatrix"} & set(events)
    before = {event for event, after in itertools.pairwise(events) if after.startswith("cp.async")}
    assert before == {"fence.proxy.async"}


def no_registers_spill(compiled: Compiled, shape, output):
    log = compiled.log
    assert re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log) == [
        ("0", "0", "0")
    ]
    assert "serialized" not in log  # ptxas: "wgmma.mma_async instructions are serialized due to …"


def float_arithmetic_of_the_epilogue_rounds_once(compiled: Compiled, shape, output):
    kernel = compiled.kernel
    assert inexact(kernel) == []
    assert merging(kernel) == []
    opcodes = {instruction.opcode for instruction in kernel.instructions}
    if output == "int32":
        assert not any(".f32" in opcode for opcode in opcodes)
    else:
        assert {"cvt.rn.f32.s32", "mul.f32"} <= opcodes
        assert ("cvt.rni.f32.f32" in opcodes) == ("int" in output)
        rounded = {"float16": "f16", "bfloat16": "bf16"}.get(output)
        assert bool(opcodes & {f"cvt.rn.{rounded}.f32", f"cvt.rn.{rounded}x2.f32"}) == (rounded is not None)


CHECKS = (
    multiplies_in_the_unit_for_int8,
    loads_and_stores_by_tma,
    buffers_are_released_after_the_multiplication_that_reads_them,
    stores_follow_a_fence,
    no_registers_spill,
    float_arithmetic_of_the_epilogue_rounds_once,
)


@pytest.mark.parametrize(
    ("shape", "output"),
    [
        pytest.param(shape, output, id=f"{shape}-{output}")
        for (row, shape), (column, output) in itertools.product(enumerate(SHAPES), enumerate(OUTPUTS))
        if (row + column) % 2
    ],
)
def test_every_kernel(shape, output):
    """Every second pair of a shape and an output, compiled once for all checks."""
    compiled = compile_product(*shape, epilogues(*shape[:2])[output])
    for check in CHECKS:
        check(compiled, shape, output)


def test_the_kernel_is_the_same_if_b_is_not_k_major():
    m, n, k = 512, 512, 512
    k_major, other = (lowered(m, n, k, epilogues(m, n)["int8"], transpose_b=x).as_text() for x in (True, False))
    assert re.findall(r'kernel_hash = "[^"]*"', k_major) == re.findall(r'kernel_hash = "[^"]*"', other) != []
    assert ("stablehlo.transpose" in k_major, "stablehlo.transpose" in other) == (False, True)


def test_unsigned_operands_reach_no_kernel():
    """`wgmma` would read them as signed."""
    a, b = tensor(jnp.uint8, 64, 128), tensor(jnp.int8, 64, 128)
    for operands in [(a, b), (b, a), (a, a)]:
        with pytest.raises(NotImplementedError, match="multiplies int8 by int8"):
            jax.jit(functools.partial(gpu.integer_dot, epilogue=(), transpose_b=True)).lower(*operands)


# ---------------------------------------------------------------------------------------------------------------------
KERNEL = """
.visible .entry kernel()
{
	ld.global.b32 	%r1, [%rd1];
	INSTRUCTIONS
	st.global.b32 	[%rd2], %r3;
	ret;
}
"""


@pytest.mark.parametrize(
    ("instructions", "merged"),
    [
        ("mul.f32 	%r2, %r1, %r1; add.f32 	%r3, %r2, %r1;", ["add.f32 	%r3, %r2, %r1;"]),
        ("mul.f32 	%r2, %r1, %r1; sub.f32 	%r3, %r1, %r2;", ["sub.f32 	%r3, %r1, %r2;"]),
        ("mul.f32 	%r2, %r1, %r1; add.f32 	%r3, %r2, %r2;", []),
        ("mul.f32 	%r2, %r1, %r1; selp.f32 	%r4, %r2, %r1, %p1; add.f32 	%r3, %r4, %r1;", []),
    ],
)
def test_sum_of_a_product_is_reported(instructions, merged):
    (kernel,) = ptx.parse(KERNEL.replace("INSTRUCTIONS", instructions.replace("; ", ";\n\t")))
    assert merging(kernel) == merged
    assert inexact(kernel) == []


def test_fused_multiplication_is_reported():
    (kernel,) = ptx.parse(KERNEL.replace("INSTRUCTIONS", "fma.rn.f32 	%r3, %r1, %r1, %r1;"))
    assert inexact(kernel) == ["fma.rn.f32 	%r3, %r1, %r1, %r1;"]
