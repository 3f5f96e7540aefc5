"""The product with block scales by jquant-native beside XLA's: the same bits in every program, and one call in each."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from support.covers import cover_of_triples
from support.native import requires_native

import jquant
from jquant.kernels import implementations, xla_blocks
from jquant.kernels.native import blocks, shared_library
from jquant.kernels.packed import pack_codes

from .. import mapped_operands
from ..block_operands import integers

pytestmark = requires_native

NAMES = "native", "xla"
CALL = "custom_call @jquant_block_product"
DTYPES = "int4", "uint4", "int8", "uint8"
FLOATS = np.float32, np.float16, jnp.bfloat16
# How A is quantized: its dtype, and the rows of its zero point, if there is any.
ACTIVATIONS = ("int8", None), ("int8", "one"), ("uint8", None), ("uint8", "each")
CORRECTIONS = None, "zero_point", "minimum"  # of the weights of a block
# M, K and the block size: one row, few rows, more than a tile; blocks of several steps, and of incomplete words; one block.
SIZES = (1, 256, 32), (3, 512, 128), (5, 256, 256), (1, 60, 20), (2, 35, 7), (9, 96, 16), (17, 130, 65), (40, 128, 64)
COLUMNS = 1, 16, 50, 64, 131


def operands(rng, sizes, n, dtype, activations, correction, scale_dtype, batch=(), b_batch=()):
    """A, its zero point, and B, packed."""
    (m, k, block_size), (a_dtype, zero_point) = sizes, activations
    a, b = integers(rng, a_dtype, (*batch, m, k)), integers(rng, dtype, (*b_batch, k, n))
    rows = {None: None, "one": 1, "each": m}[zero_point]
    a_zero_point = None if rows is None else integers(rng, a_dtype, (*batch, rows, 1))
    of_blocks = (*b_batch, -(-k // block_size), n)
    scale = rng.normal(size=of_blocks).astype(scale_dtype)
    scale = np.where(rng.random(of_blocks) < 0.02, rng.choice([0, -0.0, np.inf], of_blocks).astype(scale_dtype), scale)
    minimum = rng.normal(size=of_blocks).astype(rng.choice(FLOATS)) if correction == "minimum" else None
    b_zero_point = integers(rng, dtype, of_blocks) if correction == "zero_point" else None
    return a, a_zero_point, jquant.pack_matrix(b, b_zero_point, scale=scale, minimum=minimum, block_size=block_size)


def assert_same_bits(actual, expected):
    """With every NaN alike."""
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(actual, expected)
    np.testing.assert_array_equal(np.signbit(actual) & ~np.isnan(actual), np.signbit(expected) & ~np.isnan(expected))


FACTORS = SIZES, COLUMNS, DTYPES, ACTIVATIONS, CORRECTIONS, FLOATS


@cover_of_triples(("sizes", "n", "dtype", "activations", "correction", "scale_dtype"), *FACTORS, suite=9)
def test_every_type(count, sizes, n, dtype, activations, correction, scale_dtype):
    rng = np.random.default_rng(sum(sizes) + n)
    drawn = operands(rng, sizes, n, dtype, activations, correction, scale_dtype)
    results = jax.jit(lambda *x: (blocks.block_dot(*x), xla_blocks.block_dot(*x)))(*drawn)
    assert_same_bits(*results)
    count("floats", results[0].size)


def multiply(name, a, a_zero_point, b, *, scale=0.5, **options):
    return jquant.block_scaled_matmul(a, scale, a_zero_point, b, implementation=name, **options)


def check(*drawn, **options):
    results = [jax.jit(functools.partial(multiply, name, **options))(*drawn) for name in NAMES]
    assert_same_bits(*results)


@pytest.mark.parametrize("output_dtype", FLOATS)
@pytest.mark.parametrize("rows", [1, 14])
def test_scales_and_biases(rows, output_dtype):
    rng = np.random.default_rng(1)
    drawn = operands(rng, (rows, 64, 32), 37, "int4", ACTIVATIONS[0], None, np.float32)
    scales = np.float32(-0.3), rng.normal(size=(rows, 1)).astype(np.float32)
    biases = None, *(rng.normal(size=shape).astype(np.float32) for shape in ((37,), (rows, 1), (rows, 37)))
    for scale, bias in itertools.product(scales, biases):
        check(*drawn, scale=scale, bias=bias, output_dtype=output_dtype)


def test_k_major_weights_and_incomplete_blocks_and_runs():
    rng = np.random.default_rng(2)
    a, b = integers(rng, "uint8", (5, 250)), integers(rng, "uint4", (250, 40))
    scale = rng.normal(size=(16, 40)).astype(np.float32)
    for k_major, k_parts in itertools.product((False, True), (1, 4)):
        packed = jquant.pack_matrix(b, np.full((16, 40), 7, jnp.uint4), scale=scale, block_size=16, k_major=k_major)
        check(a, np.uint8(3), packed, k_parts=k_parts)


@pytest.mark.parametrize("sizes", [(0, 64, 32), (4, 0, 32)])
def test_empty(sizes):
    check(*operands(np.random.default_rng(3), sizes, 5, "int8", ACTIVATIONS[0], None, np.float32), scale=-1.0)


BATCHES = [((3,), ()), ((2, 3), (2, 3)), ((), (2,)), ((2, 1), (1, 3)), ((0,), ())]


@pytest.mark.parametrize(("batch", "b_batch"), BATCHES, ids=str)
@pytest.mark.parametrize("rows", [1, 9])
def test_batches(batch, b_batch, rows):
    rng = np.random.default_rng(4)
    check(*operands(rng, (rows, 64, 32), 21, "uint4", ACTIVATIONS[3], "zero_point", np.float32, batch, b_batch))


@pytest.mark.gate
@pytest.mark.parametrize("correction", ["zero_point", "minimum"])
def test_each_operand_mapped_alone(monkeypatch, correction):
    drawn = operands(np.random.default_rng(5), (3, 96, 32), 10, "uint4", ACTIVATIONS[3], correction, np.float32)
    outputs, expected = (mapped_operands.outputs(monkeypatch, module.block_dot, drawn) for module in (blocks, xla_blocks))
    for output, expected_output in zip(outputs, expected, strict=True):
        assert_same_bits(output, expected_output)


def test_vmap_over_what_follows_computes_the_product_once():
    drawn = operands(np.random.default_rng(6), (4, 64, 32), 10, "int4", ACTIVATIONS[0], None, np.float32)
    native, xla = (jax.jit(jax.vmap(lambda scale, name=name: multiply(name, *drawn, scale=scale))) for name in NAMES)
    scales = jnp.linspace(0.1, 1.0, 4)
    assert_same_bits(native(scales), xla(scales))
    assert "tensor<1x4x10xf32>" in native.lower(scales).as_text()


@pytest.mark.parametrize("dtype", ["int4", "int8"])
def test_each_operator_is_one_call(dtype):
    """Which takes the scale and the bias of the result, and scales of 16 bits as they are."""
    a, a_zero_point, b = operands(np.random.default_rng(7), (1, 512, 32), 512, dtype, ACTIVATIONS[0], None, np.float16)
    bias = np.ones(512, np.float32)
    text = jax.jit(functools.partial(multiply, "native", bias=bias)).lower(a, a_zero_point, b).as_text()
    assert text.count("custom_call") == text.count(CALL) == 1
    assert "stablehlo.convert" not in text


def test_the_default():
    drawn = operands(np.random.default_rng(8), (2, 64, 32), 8, "int4", ACTIVATIONS[0], None, np.float32)
    is_native = CALL in jax.jit(functools.partial(multiply, None)).lower(*drawn).as_text()
    assert is_native == (implementations.default("cpu") is jquant.Implementation.NATIVE)


def test_symbolic_sizes_take_xlas_product():
    a, a_zero_point, b = operands(np.random.default_rng(9), (2, 64, 32), 8, "int4", ACTIVATIONS[0], None, np.float32)
    (rows,) = export.symbolic_shape("rows")
    a = jax.ShapeDtypeStruct((rows, 64), jnp.int8)
    assert CALL not in jax.jit(functools.partial(multiply, None)).trace(a, a_zero_point, b).lower().as_text()
    with pytest.raises(NotImplementedError, match="native does not support symbolic sizes"):
        jax.jit(blocks.block_dot).trace(a, None, b)


def test_exported_programs_take_xlas_product():
    drawn = operands(np.random.default_rng(10), (2, 64, 32), 8, "int4", ACTIVATIONS[0], None, np.float32)
    for name in (None, "native"):
        program = export.export(jax.jit(functools.partial(multiply, name)))(*drawn)
        assert CALL not in program.mlir_module()
        assert_same_bits(program.call(*drawn), multiply("xla", *drawn))


def test_on_each_shard_and_not_in_partitioned_programs():
    a, a_zero_point, b = operands(np.random.default_rng(11), (16, 64, 32), 8, "int4", ACTIVATIONS[0], None, np.float32)
    mesh = jax.make_mesh((4,), ("m",), axis_types=(jax.sharding.AxisType.Auto,))
    specs = (jax.P("m"), None, jax.tree.map(lambda _: jax.P(), b))
    sharded = jax.jit(jax.shard_map(functools.partial(multiply, "native"), mesh=mesh, in_specs=specs, out_specs=jax.P("m")))
    rows = jax.device_put(a, jax.NamedSharding(mesh, jax.P("m")))
    by_default = jax.jit(functools.partial(multiply, None))
    for program, is_native in ((sharded, True), (by_default, False)):
        assert (CALL in program.lower(rows, a_zero_point, b).as_text()) == is_native
        assert_same_bits(program(rows, a_zero_point, b), multiply("xla", a, a_zero_point, b))


def test_derivatives():
    """Of the scales, which XLA computes, and of what follows the product."""
    a, a_zero_point, b = operands(np.random.default_rng(12), (3, 64, 32), 8, "int4", ACTIVATIONS[1], None, np.float32)

    def loss(name, scale, b_scale):
        return multiply(name, a, a_zero_point, dataclasses.replace(b, scale=b_scale), scale=scale).sum()

    derivatives = (jax.grad(functools.partial(loss, name), (0, 1))(jnp.float32(0.25), b.scale) for name in NAMES)
    jax.tree.map(np.testing.assert_array_equal, *derivatives)


@pytest.mark.parametrize("dtype", ["int4", "int8"])
def test_an_operator_with_its_scales_is_one_call(dtype):
    """XLA computes nothing beside it, and so runs the program in its caller's thread."""
    rng = np.random.default_rng(5)
    a, a_zero_point, b = operands(rng, (5, 64, 32), 40, dtype, ("uint8", "each"), None, np.float32)
    a_scale, bias = rng.normal(size=(5, 1)).astype(np.float32), rng.normal(size=(1, 40)).astype(np.float32)
    text = jax.jit(jquant.block_scaled_matmul).lower(a, a_scale, a_zero_point, b, bias=bias).compile().as_text()
    assert text.count("custom_call_target=") == text.count('"jquant_block_product.1"') == 1
    assert "fusion(" not in text


def test_codes_and_a_library_without_their_function(monkeypatch):
    """Products of codes have a function of their own, and are XLA's where the library has none."""
    rng, call = np.random.default_rng(12), f"custom_call @{shared_library.CODED_BLOCK_PRODUCT}"
    codes, scale = rng.integers(0, 16, (64, 37)).astype(np.uint8), rng.normal(size=(2, 37)).astype(np.float32)
    operands = integers(rng, "uint8", (3, 64)), np.uint8(100), pack_codes(codes, scale, 32)
    programs = [jax.jit(lambda *x: multiply(None, *x)).lower(*operands)]
    monkeypatch.setattr(shared_library, "_load_once", functools.cache(shared_library._load_once.__wrapped__))
    monkeypatch.setitem(shared_library._VERSIONS, shared_library.CODED_BLOCK_PRODUCT, (99,))  # which this one has not
    programs.append(jax.jit(lambda *x: multiply(None, *x)).lower(*operands))
    assert [program.as_text().count(call) for program in programs] == [1, 0]
    assert_same_bits(*(program.compile()(*operands) for program in programs))
    with pytest.raises(NotImplementedError, match=r"this jquant-native has no jquant_coded_block_product\.99; install"):
        jax.jit(functools.partial(multiply, "native"))(*operands)
