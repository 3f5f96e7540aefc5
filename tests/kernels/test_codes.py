"""Products with block scales of twice the floats of 4 bits, which are stored as codes: the integers by hand."""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from support.covers import cover
from support.sampling import one_in

import jquant
from jquant.arithmetic import four_bit_floats
from jquant.kernels.native import shared_library
from jquant.kernels.packed import pack_codes
from jquant.packed.block_matrix import Layout
from jquant.reference import blocks as reference

from .block_operands import integers

FLOATS = np.arange(16, dtype=np.uint8).astype(ml_dtypes.uint4).view(ml_dtypes.float4_e2m1fn)
DOUBLED = (2 * FLOATS.astype(np.float32)).astype(np.int8)
# M, K and the block size: one row, few rows, more; one block; blocks that are a word, and one that the matrix does not fill.
SIZES = (1, 64, 32), (2, 96, 16), (1, 24, 24), (8, 40, 4), (9, 72, 32), (3, 130, 52)
COLUMNS = 1, 17, 70
ACTIVATIONS = ("int8", None), ("int8", "one"), ("uint8", None), ("uint8", "each")
SCALES = np.float32, jnp.bfloat16


def draw(sizes, n, activations, scale_dtype=np.float32, batch=()):
    """A, its scales and zero points, the codes of B, and its scales."""
    (m, k, block_size), (a_dtype, zero_point) = sizes, activations
    rng = np.random.default_rng(sum(sizes) + n)
    a, codes = integers(rng, a_dtype, (m, k)), rng.integers(0, 16, (*batch, k, n)).astype(np.uint8)
    codes[..., rng.random(n) < 0.2] = 15 if rng.random() < 0.5 else 7  # the sums of largest magnitude
    a_scale = rng.normal(size=(m, 1)).astype(np.float32)
    rows = {None: None, "one": 1, "each": m}[zero_point]
    a_zero_point = None if rows is None else np.broadcast_to(integers(rng, a_dtype, (rows, 1)), (m, 1))
    return a, a_scale, a_zero_point, codes, rng.normal(size=(*batch, -(-k // block_size), n)).astype(scale_dtype)


def multiply(block_size, a, a_scale, a_zero_point, codes, scale, **options):
    return jquant.block_scaled_matmul(a, a_scale, a_zero_point, pack_codes(codes, scale, block_size), **options)


def by_hand(block_size, a, a_scale, a_zero_point, codes, scale, **options):
    zero_point = np.zeros_like(a_scale, a.dtype) if a_zero_point is None else a_zero_point
    operands = a, a_scale, zero_point, DOUBLED[codes], scale.astype(np.float32)
    return reference.block_scaled_matmul(*operands, None, block_size=block_size, **options)


def test_every_code():
    np.testing.assert_array_equal(four_bit_floats.doubled(jnp.arange(16, dtype=jnp.int8)), DOUBLED, strict=True)
    codes = np.arange(16, dtype=np.uint8)[:, None]
    matrix = pack_codes(codes, jnp.ones((1, 1)), 16)
    assert matrix.layout == Layout.CODES
    assert matrix.shape == (16, 1)
    for each in (matrix, matrix.n_minor(), matrix.k_major()):
        np.testing.assert_array_equal(each.unpack()[:, 0], DOUBLED, strict=True)


IS_NATIVE = any(function.name == shared_library.CODED_BLOCK_PRODUCT for function in shared_library.load().functions)
IMPLEMENTATIONS = ("xla", "native") if IS_NATIVE else ("xla",)


CASES = cover(SIZES, COLUMNS, ACTIVATIONS, SCALES)


@one_in(37, ("sizes", "n", "activations", "scale_dtype"), CASES, first=1, gate=9)
def test_products(sizes, n, activations, scale_dtype, count):
    """By each implementation, with the bits of NumPy."""
    drawn, block_size = draw(sizes, n, activations, scale_dtype), sizes[-1]
    expected = by_hand(block_size, *drawn)
    functions = [functools.partial(multiply, block_size, implementation=name) for name in IMPLEMENTATIONS]
    for actual in jax.jit(lambda *x: [function(*x) for function in functions])(*drawn):
        np.testing.assert_array_equal(actual, expected, strict=True)
        count("floats", expected.size)


@pytest.mark.gate
@pytest.mark.parametrize("rows", [1, 9])
def test_runs_and_batches(rows):
    """In runs; and for a batch of matrices, by one A."""
    sizes = rows, 64, 16
    drawn = draw(sizes, 17, ACTIVATIONS[0])
    for name in IMPLEMENTATIONS:
        actual = jax.jit(functools.partial(multiply, 16, implementation=name, k_parts=2))(*drawn)
        np.testing.assert_array_equal(actual, by_hand(16, *drawn, k_parts=2), strict=True)
    a, a_scale, _, codes, scale = draw(sizes, 5, ACTIVATIONS[0], batch=(2,))
    mapped = jax.jit(jax.vmap(functools.partial(multiply, 16, a, a_scale, None)))(codes, scale)
    for matrix, each in enumerate(zip(codes, scale, strict=True)):
        np.testing.assert_array_equal(mapped[matrix], by_hand(16, a, a_scale, None, *each), strict=True)


@pytest.mark.gate
def test_products_of_floats():
    """`matmul_n_bits` takes the matrix, too."""
    _, _, _, codes, scale = draw((1, 64, 32), 17, ACTIVATIONS[0])
    x = np.eye(64, dtype=np.float32)
    actual = jquant.matmul_n_bits(x, pack_codes(codes, scale, 32))
    np.testing.assert_array_equal(actual, DOUBLED[codes].astype(np.float32) * np.repeat(scale, 32, 0), strict=True)
