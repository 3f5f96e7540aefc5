"""The Hopper kernel for block scales, compiled for an H200: its instructions, and that no registers spill.

Needs the plug-in jax-cuda13-pjrt and jax-cuda13-plugin, but no GPU and no other part of CUDA.
"""

import itertools
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest
from support.sampling import one_in

from jquant.kernels.pallas import gpu_blocks
from jquant.kernels.pallas.gpu_block_tiles import BlockTileConfig, config_for, steps_for
from jquant.packed.block_matrix import Layout, PackedBlockMatrix

from . import mosaic
from .mosaic import Compiled, inexact, merging, tensor

pytest.importorskip("jax_plugins.xla_cuda13", reason="XLA compiles for NVIDIA GPUs only where jax-cuda13-pjrt is installed")


class Product(NamedTuple):
    """The shape, the blocks and the zero points of a product."""

    m: int
    n: int
    block_size: int
    dtype: str = "int4"
    zero_point: bool = False
    a_zero_point: bool = False
    k: int = 4096

    @property
    def bits(self) -> int:
        return 4 if self.dtype.endswith("4") else 8

    @property
    def terms(self) -> int:
        """The number of terms that zero points subtract from the product of a block."""
        return (self.zero_point or self.dtype.startswith("u")) + self.a_zero_point

    @property
    def config(self) -> BlockTileConfig:
        return config_for(1, self.m, self.n, self.k, self.block_size, self.bits, self.terms)


def lowered(product: Product, *, k_major: bool = True) -> jax.stages.Lowered:
    m, n, block_size, dtype, zero_point, a_zero_point, k = product
    is_words = product.bits == 4
    rows = k // 4 if is_words else k
    layouts = (Layout.WORDS, Layout.K_MAJOR_WORDS) if is_words else (Layout.BYTES, Layout.K_MAJOR_BYTES)
    zero_point_dtype = jnp.uint8 if dtype.startswith("u") else jnp.int8
    b = PackedBlockMatrix(
        data=tensor(jnp.uint16 if is_words else jnp.int8, *((n, rows) if k_major else (rows, n))),
        scale=tensor(jnp.float32, k // block_size, n),
        zero_point=tensor(zero_point_dtype, k // block_size, n) if zero_point else None,
        minimum=None,
        dtype=jnp.dtype(dtype),
        block_size=block_size,
        layout=layouts[k_major],
    )
    return jax.jit(gpu_blocks.block_dot).lower(tensor(jnp.int8, m, k), tensor(jnp.int8, m, 1) if a_zero_point else None, b)


def multiplies_in_the_unit_for_int8_from_registers(product: Product, compiled: Compiled):
    config, steps = product.config, steps_for(product.block_size)
    multiplications = re.findall(r"(wgmma\.mma_async\S*) \{[^}]*\}, (\{[^}]*\}), %rd\d+, p;", compiled.text)
    assert {opcode for opcode, _ in multiplications} == {f"wgmma.mma_async.sync.aligned.m64n{config.tile_m}k32.s32.s8.s8"}
    assert {registers.count("%r") for _, registers in multiplications} == {4}
    count = len(re.findall("wgmma.mma_async", compiled.text))
    assert len(multiplications) == count == steps.step_k * steps.parts // 32


def unpacks_in_registers(product: Product, compiled: Compiled):
    """Each unpacking makes two registers of int8; an instruction multiplies four."""
    unpacked = compiled.text.count(".reg .b32 sign_even, sign_odd;")
    steps = steps_for(product.block_size)
    distinct = steps.step_k * steps.parts // 32 * 4
    assert unpacked == (distinct // 2 if product.bits == 4 else 0)


def loads_and_stores_by_tma(product: Product, compiled: Compiled):
    copies = set(re.findall(r"cp\.async\.bulk\.tensor\.\dd\.(\w+)\S*\.(global|shared)\b", compiled.text))
    assert copies == {("shared", "global"), ("global", "shared")}


def a_step_is_released_after_its_multiplications_and_a_fence(product: Product, compiled: Compiled):
    """The simulator does not check this: its multiplications are complete when they return."""
    events = re.findall(
        r"wgmma\.mma_async|wgmma\.wait_group\.sync\.aligned\s+\d+|fence\.proxy\.async|mbarrier\.arrive\.release",
        compiled.text,
    )
    events = [re.sub(r"\s+", " ", event) for event in events]
    following = {after for event, after in itertools.pairwise(events) if event == "wgmma.mma_async"}
    assert following <= {"wgmma.mma_async", "wgmma.wait_group.sync.aligned 0"}
    assert {before for before, event in itertools.pairwise(events) if event.startswith("mbarrier")} == {"fence.proxy.async"}


def no_registers_spill(product: Product, compiled: Compiled):
    """Mosaic leaves the stack frame of an array that it keeps in registers, which nothing reads or writes."""
    log = compiled.log
    assert re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log) == [("0", "0")]
    assert "serialized" not in log  # ptxas: "wgmma.mma_async instructions are serialized due to …"
    assert re.findall(r"\b(?:ld|st)\.local\b", compiled.text) == []


def each_sum_is_converted_scaled_and_added_separately(product: Product, compiled: Compiled):
    kernel, config, steps = compiled.kernel, product.config, steps_for(product.block_size)
    assert inexact(kernel) == []
    opcodes = [instruction.opcode for instruction in kernel.instructions]
    sums = 64 * config.tile_m // 128 * steps.blocks  # of a thread
    assert opcodes.count("cvt.rn.f32.s32") == opcodes.count("mul.rn.f32") == sums
    # Without a loop, LLVM sees that the first addition changes nothing.
    assert opcodes.count("add.f32") == sums - (sums // steps.blocks if product.k == steps.step_k else 0)
    assert not {opcode for opcode in opcodes if opcode.startswith(("fma", "mul.f32", "add.rn.f32"))}
    # ptxas does not merge a product that names its rounding.
    assert {text for text in merging(kernel) if "mul.f32" in text} == set()


CHECKS = (
    multiplies_in_the_unit_for_int8_from_registers,
    unpacks_in_registers,
    loads_and_stores_by_tma,
    a_step_is_released_after_its_multiplications_and_a_fence,
    no_registers_spill,
    each_sum_is_converted_scaled_and_added_separately,
)

# Each kernel once, because Mosaic compiles none twice. Unsigned weights have the kernels of signed ones with zero points.
ZEROS = [(False, False), (True, False), (True, True)]
PRODUCTS = [
    *(
        Product(m, 4096, size, f"int{bits}", *zeros)
        for size in (64, 128, 32)
        for bits in (4, 8)
        for m in (1, 2048)
        for zeros in ZEROS
    ),
    Product(100, 4096, 16),
    Product(2048, 4096, 256, "uint4", zero_point=True, a_zero_point=True),
    Product(2048, 11008, 128),
    Product(37, 1000, 64, "uint4", zero_point=True, k=1024),
    Product(16, 4096, 128, "int4", k=128),
]


@one_in(5, "product", PRODUCTS, ids=str)
def test_every_kernel(product):
    compiled = mosaic.compile(lowered(product))
    for check in CHECKS:
        check(product, compiled)


def test_other_layouts_are_transposed_for_the_same_kernel():
    product = Product(64, 512, 64, k=512)
    k_major, other = (lowered(product, k_major=x).as_text() for x in (True, False))
    assert re.findall(r'kernel_hash = "[^"]*"', k_major) == re.findall(r'kernel_hash = "[^"]*"', other) != []
    transposed = [re.search(r"stablehlo\.transpose.*xui16>", text) is not None for text in (k_major, other)]
    assert transposed == [False, True]


def test_k_major_words_are_not_copied():
    """XLA reads the words as 4-bit integers without a copy."""
    text = lowered(Product(64, 512, 64, k=512)).compile().as_text()
    (integers,) = re.findall(r"s4\[1,512,512\]\S* (\w+)\(", text)
    assert integers == "bitcast"
