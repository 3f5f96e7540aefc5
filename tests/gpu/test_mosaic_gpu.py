"""The Hopper kernel, compiled for an H200: which instructions it is made of, and that its registers suffice.

Needs the plug-in jax-cuda13-pjrt and jax-cuda13-plugin, but no GPU and no other part of CUDA.
"""

import functools
import itertools
import os
import pathlib
import re
import tempfile
from typing import NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jquant.kernels.epilogue import Dequantize, Epilogue, Fold, Requantize
from jquant.kernels.pallas import gpu
from jquant.kernels.pallas.gpu_plans import plan_for

from . import ptx

pytest.importorskip("jax_plugins.xla_cuda13", reason="XLA compiles for NVIDIA GPUs only where jax-cuda13-pjrt is installed")


class Compiled(NamedTuple):
    text: str
    kernel: ptx.Kernel
    log: str  # of ptxas


def tensor(dtype, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=jax.sharding.SingleDeviceSharding(ptx.devices()[0]))


def lowered(m: int, n: int, k: int, steps: Epilogue, *, transpose_b: bool = True) -> jax.stages.Lowered:
    a, b = tensor(jnp.int8, m, k), tensor(jnp.int8, *((n, k) if transpose_b else (k, n)))
    steps = jax.tree.map(lambda x: tensor(x.dtype, *x.shape), steps)
    return jax.jit(functools.partial(gpu.integer_dot, transpose_b=transpose_b)).lower(a, b, steps)


def compile_product(m: int, n: int, k: int, steps: Epilogue) -> Compiled:
    product = lowered(m, n, k, steps)
    with tempfile.TemporaryDirectory() as folder:
        dump = {"MOSAIC_GPU_DUMP_TO": folder, "MOSAIC_GPU_DUMP_PTX": "1", "MOSAIC_GPU_DUMP_PTXAS": "1"}
        with mock.patch.dict(os.environ, dump):
            product.compile()
        (text,), (log,) = ([file.read_text() for file in pathlib.Path(folder).glob(f"*.{end}")] for end in ("ptx", "ptxas"))
    # Nothing of the epilogue: blocks of assembly, which wait for barriers or multiply, and addresses of symbols.
    program = re.sub(r"^\t\{.*?// end inline asm$", "", text, flags=re.MULTILINE | re.DOTALL)
    (kernel,) = ptx.parse(re.sub(r"^\tmov\.b64 \t%\w+, [A-Za-z_]\w*;$", "", program, flags=re.MULTILINE))
    return Compiled(text, kernel, log)


def epilogues(m: int, n: int) -> dict[str, Epilogue]:
    def vector(dtype, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype)

    integer_row, integer_column = vector(jnp.int32, m, 1), vector(jnp.int32, 1, n)
    row, column, scalar = vector(jnp.float32, m, 1), vector(jnp.float32, 1, n), vector(jnp.float32, 1, 1)
    vectors, scalars = Fold(((integer_row, integer_column),)), Fold(((integer_column,),))
    float_types = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
    return {
        "int32": (vectors,),
        **{name: (vectors, Dequantize(row, column, column, np.dtype(type))) for name, type in float_types.items()},
        "int8": (vectors, Requantize(column, scalar, np.dtype(np.int8))),
        "uint8": (scalars, Requantize(column, None, np.dtype(np.uint8))),
    }


OUTPUTS = list(epilogues(1, 1))
SHAPES = [
    (16, 4096, 4096),
    (64, 11008, 4096),
    (100, 4096, 4096),
    (512, 512, 512),
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (4096, 4096, 128),
    (37, 1000, 2050),
]


def multiplies_in_the_unit_for_int8(compiled: Compiled, shape, output):
    plan = plan_for(1, *shape, np.dtype(output).itemsize)
    found = set(re.findall(r"wgmma\.mma_async\S*", compiled.text))
    assert found == {f"wgmma.mma_async.sync.aligned.m64n{plan.block_n}k32.s32.s8.s8"}


def loads_and_stores_by_tma(compiled: Compiled, shape, output):
    copies = set(re.findall(r"cp\.async\.bulk\.tensor\.\dd\.(\w+)\S*\.(global|shared)\b", compiled.text))
    assert copies == {("shared", "global"), ("global", "shared")}


def buffers_are_released_after_the_multiplication_that_reads_them(compiled: Compiled, shape, output):
    """Which the simulator cannot see: its multiplications are done when they return."""
    events = re.findall(r"wgmma\.mma_async|wgmma\.wait_group\.sync\.aligned\s+\d+|mbarrier\.arrive\.release", compiled.text)
    following = {after for one, after in itertools.pairwise(events) if one == "wgmma.mma_async"}
    assert {re.sub(r"\s+", " ", one) for one in following} == {"wgmma.mma_async", "wgmma.wait_group.sync.aligned 0"}


def stores_follow_a_fence(compiled: Compiled, shape, output):
    """Of what a warpgroup has written to shared memory, TMA sees what a fence stands after."""
    events = re.findall(r"st(?:matrix|\.shared)|fence\.proxy\.async|cp\.async\.bulk\.tensor\.\dd\.global", compiled.text)
    assert {"st.shared", "stmatrix"} & set(events)
    before = {one for one, after in itertools.pairwise(events) if after.startswith("cp.async")}
    assert before == {"fence.proxy.async"}


def registers_suffice(compiled: Compiled, shape, output):
    log = compiled.log
    assert re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log) == [
        ("0", "0", "0")
    ]
    assert "serialized" not in log  # ptxas: "wgmma.mma_async instructions are serialized due to …"


def float_arithmetic_of_the_epilogue_rounds_once(compiled: Compiled, shape, output):
    kernel = compiled.kernel
    assert inexact(kernel) == []
    assert merging(kernel) == []
    opcodes = {one.opcode for one in kernel.instructions}
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
    registers_suffice,
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
    """Every second pair of a shape and an output, compiled once for all that is asked of it."""
    compiled = compile_product(*shape, epilogues(*shape[:2])[output])
    for check in CHECKS:
        check(compiled, shape, output)


def test_b_that_is_not_k_major_is_multiplied_by_the_same_kernel():
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
# Mosaic GPU writes `mul.f32` and `add.f32`, which ptxas may merge into one `fma` where one takes what the other gives.


def inexact(kernel: ptx.Kernel) -> list[str]:
    """Float instructions that round otherwise than IEEE 754's, whatever ptxas merges."""
    # The two halves of a register, of 16 bits each, are loaded and stored, tested and selected without arithmetic.
    instructions = [re.sub(r"\b(add|sub|mul)\.(f32|b?f16(x2)?)\b", r"\1.rn.\2", one.text) for one in kernel.instructions]
    return ptx.inexact([ptx.Kernel([ptx._instruction(text) for text in instructions])])


def merging(kernel: ptx.Kernel) -> list[str]:
    """Sums of products that no `exact.seal` stands between."""
    sums = [one for one in kernel.instructions if re.match(r"(add|sub)\.(rn\.)?(f32|b?f16)", one.opcode)]
    return [one.text for one in sums if not is_of_a_seal(one) and any(is_product(kernel, x) for x in one.operands)]


def is_product(kernel: ptx.Kernel, register: str) -> bool:
    return kernel.definition(register).opcode.startswith(("mul.f", "mul.rn.f", "mul.bf", "mul.rn.bf"))


def is_of_a_seal(one: ptx.Instruction) -> bool:
    """``x + x``, which counts where x is infinite or no number: merged or not, it is that then."""
    a, b = one.operands
    return one.opcode.startswith("add.") and a == b


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
