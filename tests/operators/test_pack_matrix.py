"""`pack_matrix`, and the packed matrices that it returns: contents, errors, trees, transformations, shardings."""

import dataclasses
import itertools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from support.comparison import assert_equal
from support.sampling import one_in

import jquant
from jquant.cases import samples
from jquant.cases.blocks import packed as packed_blocks
from jquant.kernels import packed as packing
from jquant.reference import blocks as blocks_reference
from jquant.reference import products as products_reference

from .products import FLOAT32, INTEGERS, Problem


@one_in(
    9, ("shape", "dtype"), itertools.product([(3, 2), (300, 7), (2, 64, 5), (2, 3, 8, 9), (0, 4), (4, 0)], INTEGERS), ids=str
)
def test_is_the_matrix(dtype, shape):
    b = samples.integers(np.random.default_rng(0), dtype, *shape)
    packed = jquant.pack_matrix(b)
    assert (packed.shape, packed.ndim, packed.dtype, packed.zero_point) == (b.shape, b.ndim, b.dtype, None)
    assert_equal(packed.unpack(), b)
    signed = b.astype(np.int32) - (128 if dtype == np.uint8 else 0)
    assert_equal(packed.data, np.swapaxes(signed, -1, -2).astype(np.int8))
    assert_equal(packed.block_sums.sum(-2, dtype=jnp.int32), signed.sum(-2, dtype=np.int32))
    assert repr(packed) == f"PackedMatrix({np.dtype(dtype)}[{','.join(map(str, shape))}])"


@pytest.mark.parametrize(
    ("k", "block_size"),
    [(4096, 256), (768, 256), (300, 150), (96, 96), (11008, 256), (251, 251), (509, 509), (514, 514), (1, 1), (0, 256)],
)
def test_block_size(k, block_size):
    assert packing.block_size_for(k) == block_size
    packed = jquant.pack_matrix(np.ones((k, 3), np.int8))
    assert packed.block_sums.shape == (k // block_size, 3)


def test_block_size_must_divide_k():
    b = np.ones((12, 3), np.int8)
    assert jquant.pack_matrix(b, block_size=4).block_sums.shape == (3, 3)
    for block_size in (5, 0, -4, 24):
        with pytest.raises(
            jquant.DescriptorError, match=f"block_size is {block_size}; it must be a positive divisor of K, which is 12"
        ):
            jquant.pack_matrix(b, block_size=block_size)


def test_rejects():
    b = np.ones((4, 3), np.int8)
    packed = jquant.pack_matrix(b, 1)
    beside = "b_zero_point is given with packed weights, which hold their own"
    for product in (
        lambda zero_point, packed=packed: jquant.matmul_integer(b.T, packed, None, zero_point),
        lambda zero_point, packed=packed: jquant.matmul_integer_to_float(b.T, 1.0, None, packed, 1.0, zero_point),
        lambda zero_point, packed=packed: jquant.quantized_linear_matmul(b.T, 1.0, None, packed, 1.0, zero_point, 1.0),
    ):
        for equal in (1, np.int8(1), jnp.ones(1, jnp.int8), np.ones((1, 3), np.int8)):
            np.testing.assert_array_equal(product(equal), product(None), strict=True)
        for other in (2, np.int8(0), np.int8([1, 1, 2]), np.ones(2, np.int8)):
            with pytest.raises(jquant.DescriptorError, match=f"{beside}; the two differ: pass None, or pack"):
                product(other)
        with pytest.raises(jquant.DescriptorTypeError, match="zero_point has data type UINT8; it must match the data type"):
            product(np.uint8(1))
        with pytest.raises(jquant.DescriptorError, match=f"{beside}; the two cannot be compared while tracing: pass None"):
            jax.jit(product)(np.int8(1))
    without = jquant.pack_matrix(b)
    expected = jquant.matmul_integer(b.T, b)
    np.testing.assert_array_equal(jquant.matmul_integer(b.T, without, b_zero_point=np.zeros(3, np.int8)), expected)
    with pytest.raises(jquant.DescriptorError, match=beside):
        jquant.matmul_integer(b.T, without, b_zero_point=1)
    with pytest.raises(jquant.DescriptorError, match="b has shape \\(4, 3\\); dimension 0 must be 5: K is 5"):
        jquant.matmul_integer(np.ones((2, 5), np.int8), packed)
    with pytest.raises(jquant.DescriptorTypeError, match="b has data type INT16"):
        jquant.pack_matrix(b.astype(np.int16))
    with pytest.raises(jquant.DescriptorTypeError, match="zero_point has data type UINT8; it must match the data type of"):
        jquant.pack_matrix(b, np.uint8(1))
    with pytest.raises(jquant.DescriptorError, match="BZeroPointCount is 1 or N, which is 3"):
        jquant.pack_matrix(b, np.ones(4, np.int8))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16, np.uint8, np.int32, np.float32])
def test_a_cast_of_the_model_is_found(dtype):
    """A cast of all arrays of a model casts these, too, which would make the integers wrong."""
    b = samples.integers(np.random.default_rng(0), np.int8, 4, 3)
    cast = jax.tree.map(lambda x: x.astype(dtype), jquant.pack_matrix(b, 1))
    assert repr(cast) == f"PackedMatrix(int8[4,3], data of {jnp.dtype(dtype)})"
    text = f"data of the packed matrix is of dtype {jnp.dtype(dtype)}; pack_matrix made it int8"
    for product in (jquant.matmul_integer, jax.jit(jquant.matmul_integer)):
        with pytest.raises(jquant.DescriptorTypeError, match=f"matmul_integer: b: {text}"):
            product(np.ones((2, 4), np.uint8), cast)
    with pytest.raises(jquant.DescriptorTypeError, match=f"PackedMatrix.unpack: {text}"):
        cast.unpack()


def test_each_array_is_checked():
    packed = jquant.pack_matrix(np.ones((4, 3), np.int8), 1)
    for changed, text in (
        (
            {"block_sums": packed.block_sums.astype(jnp.float32)},
            "block_sums of the packed matrix is of dtype float32; pack_mat",
        ),
        (
            {"zero_point": packed.zero_point.astype(jnp.uint8)},
            "zero_point of the packed matrix is of dtype uint8; pack_matrix",
        ),
        ({"zero_point": 3}, "zero_point of the packed matrix is of type int; pack_matrix made it int8"),
        ({"data": [1]}, "data of the packed matrix is of type list; pack_matrix made it int8"),
        ({"dtype": "int8"}, "dtype of the packed matrix is 'int8'; it must be int8 or uint8"),
        ({"dtype": np.dtype(np.int16)}, "dtype of the packed matrix is dtype('int16'); it must be int8 or uint8"),
        (
            {"block_sums": packed.block_sums[:, :2]},
            "data, block_sums and zero_point of the packed matrix do not fit together: ",
        ),
        (
            {"zero_point": jnp.ones((1, 2), jnp.int8)},
            "data, block_sums and zero_point of the packed matrix do not fit together: ",
        ),
        ({"data": packed.data[None]}, "data, block_sums and zero_point of the packed matrix do not fit together: "),
    ):
        with pytest.raises(jquant.DescriptorError) as raised:
            jquant.matmul_integer(np.ones((2, 4), np.int8), dataclasses.replace(packed, **changed))
        assert str(raised.value).startswith(f"matmul_integer: b: {text}")


def test_trees():
    """Flattening, mapping to leaves that are no arrays, and pickling check nothing and lose nothing."""
    b = samples.integers(np.random.default_rng(0), np.uint8, 64, 5)
    packed = jquant.pack_matrix(b, np.arange(5, dtype=np.uint8))
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(packed)]
    assert names == [".data", ".block_sums", ".zero_point"]
    assert jax.tree.map(lambda _: None, packed).data is None
    assert jax.tree.map(lambda x: x.dtype.name, packed).block_sums == "int32"
    restored = pickle.loads(pickle.dumps(jax.tree.map(np.asarray, packed)))
    assert restored.dtype == np.uint8
    a = samples.integers(np.random.default_rng(1), np.int8, 3, 64)
    assert_equal(jquant.matmul_integer(a, restored), jquant.matmul_integer(a, b, None, np.arange(5, dtype=np.uint8)))
    assert_equal(restored.unpack(), b)


def test_jit_takes_and_returns_it():
    p = Problem(0, np.uint8, np.uint8, ((), 5, 64, 7), ("tensor", "column"))
    packed = jax.jit(jquant.pack_matrix)(p.b, p.b_zero_point)
    assert_equal(jax.jit(jquant.matmul_integer)(p.a, packed, p.a_zero_point), p.expected)
    assert_equal(jax.jit(lambda packed: packed.unpack())(packed), p.b)


@pytest.mark.parametrize("zero_point", [None, "tensor", "column"])
def test_vmap(zero_point):
    """Mapped weights with their zero points, and shared weights."""
    problems = [Problem(seed, np.uint8, np.uint8, ((), 3, 64, 7), ("row", zero_point)) for seed in range(4)]
    a, b = np.stack([p.a for p in problems]), np.stack([p.b for p in problems])
    a_zero_point = np.stack([p.a_zero_point for p in problems])
    b_zero_point = None if zero_point is None else np.stack([p.b_zero_point for p in problems])
    packed = jax.vmap(jquant.pack_matrix)(b, b_zero_point)
    assert packed.shape == (4, 64, 7)
    expected = np.stack([p.expected for p in problems])
    assert_equal(jax.vmap(jquant.matmul_integer)(a, packed, a_zero_point), expected)
    first = np.stack(
        [products_reference.matmul_integer(p.a, problems[0].b, p.a_column, problems[0].b_row) for p in problems]
    )
    shared = jax.vmap(jquant.matmul_integer, in_axes=(0, None, 0))
    assert_equal(shared(a, problems[0].packed, a_zero_point), first)
    last = jax.vmap(jquant.matmul_integer, in_axes=(0, None, 0), out_axes=2)
    assert_equal(last(a, problems[0].packed, a_zero_point), np.moveaxis(first, 0, 2))


def test_scan_over_layers():
    rng = np.random.default_rng(0)
    x, layers = samples.integers(rng, np.int8, 5, 16), samples.integers(rng, np.uint8, 3, 16, 16)
    zero_points = samples.integers(rng, np.uint8, 3, 16)
    stacks = jax.vmap(jquant.pack_matrix)(layers, zero_points), jquant.pack_matrix(layers, 128)

    def layer(x, weights):
        return jquant.quantized_linear_matmul(x, 0.01, None, weights, 0.01, None, 0.01), None

    for packed, layer_zero_points in zip(stacks, (zero_points, np.full_like(zero_points, 128)), strict=True):
        expected = x
        for weights, zero_point in zip(layers, layer_zero_points, strict=True):
            step = FLOAT32(0.01)
            expected = products_reference.quantized_linear_matmul(
                expected, step, 0, weights, step, zero_point, step, 0, np.int8
            )
        assert_equal(jax.jit(lambda x, packed: jax.lax.scan(layer, x, packed)[0])(x, packed), expected)


def test_shardings():
    b = np.ones((512, 8), np.int8)
    spec = jquant.pack_matrix(b).sharding_for(P("k", "n"))
    assert (spec.data, spec.block_sums, spec.zero_point) == (P("n", "k"), P("k", "n"), None)
    spec = jquant.pack_matrix(b, np.ones(8, np.int8)).sharding_for(P(None, ("n", "o")))
    assert (spec.data, spec.block_sums) == (P(("n", "o"), None), P(None, ("n", "o")))
    assert spec.zero_point == P(None, ("n", "o"))
    spec = jquant.pack_matrix(b, 1).sharding_for(P("k"))
    assert (spec.data, spec.block_sums, spec.zero_point) == (P(None, "k"), P("k", None), P(None, None))
    spec = jquant.pack_matrix(b[None], 1).sharding_for(P("e", "k", "n"))
    assert (spec.data, spec.block_sums) == (P("e", "n", "k"), P("e", "k", "n"))
    assert spec.zero_point == P("e", None, None)
    with pytest.raises(ValueError, match="has 3 entries, more than the 2 dimensions of PackedMatrix"):
        jquant.pack_matrix(b).sharding_for(P(None, None, "k"))


BLOCKS = np.ones((70, 5), jnp.int4), np.full((3, 5), 0.5, np.float32)


SHAPES_AND_BLOCK_SIZES = ((64, 5), 32), ((2, 3, 70, 5), 32), ((9, 4), 3), ((0, 4), 4), ((8, 0), 4)


@one_in(5, ("dtype", "case"), itertools.product([jnp.int4, jnp.uint4, *INTEGERS], SHAPES_AND_BLOCK_SIZES))
def test_with_scales_is_the_matrix(dtype, case):
    """Stored in words of 4-bit integers, or in bytes where a block ends inside of a word, and padded to whole blocks."""
    shape, block_size = case
    *batch, k, n = shape
    rng, blocks = np.random.default_rng(0), -(-k // block_size)
    b, scale = samples.integers(rng, dtype, *shape), samples.small_scales(rng, *batch, blocks, n)
    zero_point = samples.integers(rng, dtype, *scale.shape)
    packed = jquant.pack_matrix(b, zero_point, scale=scale, block_size=block_size)
    assert (packed.shape, packed.ndim, packed.dtype, packed.block_size) == (shape, len(shape), b.dtype, block_size)
    assert_equal(packed.unpack(), b)
    expected = packed_blocks(b, zero_point, scale, block_size)
    for field in ("data", "scale", "zero_point"):
        assert_equal(getattr(packed, field), getattr(expected, field))
    assert (packed.padding, packed.layout) == (expected.padding, expected.layout)
    assert repr(packed) == f"PackedBlockMatrix({b.dtype}[{','.join(map(str, shape))}], blocks of {block_size})"


@pytest.mark.parametrize("scale_dtype", [np.float32, np.float16])
@pytest.mark.parametrize("minimum_dtype", [np.float16, jnp.bfloat16])
def test_with_a_minimum_is_the_matrix(scale_dtype, minimum_dtype):
    """The minimum keeps its dtype, whatever that of the scale."""
    rng = np.random.default_rng(0)
    b, scale = samples.integers(rng, jnp.uint4, 2, 70, 5), samples.small_scales(rng, 2, 3, 5, dtype=scale_dtype)
    minimum = rng.normal(size=scale.shape).astype(minimum_dtype)
    packed = jquant.pack_matrix(b, scale=scale, minimum=minimum, block_size=32)
    expected = packed_blocks(b, None, scale, 32, minimum)
    assert jax.tree.structure(packed) == jax.tree.structure(expected)
    assert_equal(jax.tree.leaves(packed), jax.tree.leaves(expected))
    assert_equal(packed.unpack(), b)
    assert repr(packed) == "PackedBlockMatrix(uint4[2,70,5], blocks of 32 with a minimum)"
    assert repr(jax.tree.map(lambda _: 0, packed)) == "PackedBlockMatrix(uint4, 0, 0, None, 0)"


def test_words():
    """A word has four rows, the first in the lowest bits; int4 is stored plus 8, as unsigned."""
    b = np.array([[-8], [-7], [7], [0], [1], [0], [0], [0]], jnp.int4)
    packed = jquant.pack_matrix(b, scale=np.ones((2, 1), np.float32))
    assert_equal(packed.data, np.array([[0x8F10], [0x8889]], np.uint16))
    assert packed.zero_point is None
    unsigned = jquant.pack_matrix((b.astype(np.int8) + 8).astype(jnp.uint4), 8, scale=np.ones((2, 1), np.float32))
    assert_equal(unsigned.data, packed.data)
    assert_equal(unsigned.zero_point, np.full((2, 1), 8, np.uint8))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scale": BLOCKS[1][:2]}, "scale has 2 blocks; K, which is 70 in b, makes 3 blocks of block_size 32"),
        (
            {"scale": BLOCKS[1], "block_size": None},
            "block_size is None, but K, which is 70 in b, is not a multiple of the 3",
        ),
        ({"scale": 0.5}, "scale has rank 0"),
        ({"scale": BLOCKS[1], "zero_point": np.ones(5, jnp.int4)}, "zero_point has rank 1"),
        (
            {"scale": BLOCKS[1].astype(np.int8)},
            "scale has data type INT8; the operator allows FLOAT32, FLOAT16, BFLOAT16",
        ),
        ({"scale": BLOCKS[1], "zero_point": 8}, "zero_point is 8, outside the range of INT4"),
        (
            {"scale": BLOCKS[1], "minimum": BLOCKS[1], "zero_point": 1},
            "zero_point and minimum are both given; a packed matrix has at most one of them",
        ),
        ({"minimum": BLOCKS[1]}, "minimum is given without scale"),
        ({"scale": BLOCKS[1], "minimum": 0.5}, "minimum has rank 0"),
        ({"scale": BLOCKS[1], "minimum": BLOCKS[1][:1]}, "minimum has shape (1, 5); dimension 0 must be 3"),
        (
            {"scale": BLOCKS[1], "minimum": BLOCKS[1].astype(np.int8)},
            "minimum has data type INT8; the operator allows FLOAT32, FLOAT16, BFLOAT16",
        ),
    ],
)
def test_rejects_scales(arguments, message):
    with pytest.raises(jquant.DescriptorError) as raised:
        jquant.pack_matrix(BLOCKS[0], **{"block_size": 32, **arguments})
    assert message in str(raised.value)


def test_each_array_of_blocks_is_checked():
    """A cast of the model may change the type of the scales, but not the integers."""
    packed = packed_blocks(BLOCKS[0], np.int8(1), BLOCKS[1], 32)
    half = dataclasses.replace(packed, scale=packed.scale.astype(np.float16))
    a = np.ones((1, 70), np.int8)
    expected = blocks_reference.block_scaled_matmul(a, np.float32(1), None, BLOCKS[0], half.scale, np.int8(1), block_size=32)
    assert_equal(jquant.block_scaled_matmul(a, 1.0, None, half), expected)
    sizes = "data, scale, zero_point and minimum of the packed matrix do not fit"
    for changed, text in (
        (
            {"data": packed.data.astype(np.float16)},
            "data of the packed matrix is of dtype float16; pack_matrix made it uint16",
        ),
        (
            {"scale": BLOCKS[1].astype(np.int8)},
            "scale of the packed matrix is of dtype int8; pack_matrix made it float32 or",
        ),
        ({"zero_point": BLOCKS[1]}, "zero_point of the packed matrix is of dtype float32; pack_matrix made it int8"),
        (
            {"dtype": np.dtype(np.int8)},
            "dtype of the packed matrix is dtype('int8'); in words it must be one of int4, uint4",
        ),
        ({"layout": "nibbles"}, "layout of the packed matrix is 'nibbles'; it must be one of words, bytes"),
        ({"block_size": 16}, f"{sizes} blocks of 16 less 26 rows"),
        ({"padding": 32}, f"{sizes} blocks of 32 less 32 rows"),
        ({"scale": BLOCKS[1][:2]}, f"{sizes} blocks of 32 less 26 rows"),
        ({"zero_point": None, "minimum": BLOCKS[1][:2]}, f"{sizes} blocks of 32 less 26 rows"),
        (
            {"zero_point": None, "minimum": BLOCKS[1].astype(np.int8)},
            "minimum of the packed matrix is of dtype int8; pack_matrix made it float32 or",
        ),
        ({"minimum": BLOCKS[1]}, "the packed matrix has both zero_point and minimum; it must have at most one"),
    ):
        with pytest.raises(jquant.DescriptorError) as raised:
            jquant.block_scaled_matmul(a, 1.0, None, dataclasses.replace(packed, **changed))
        assert str(raised.value).startswith(f"block_scaled_matmul: b: {text}")


def test_shardings_of_blocks():
    packed = packed_blocks(BLOCKS[0], None, BLOCKS[1], 32)
    spec = packed.sharding_for(P("k", "n"))
    assert (spec.data, spec.scale, spec.zero_point, spec.minimum) == (P("k", "n"), P("k", "n"), None, None)
    with_minimum = jquant.pack_matrix(BLOCKS[0], scale=BLOCKS[1], minimum=BLOCKS[1], block_size=32, k_major=True)
    spec_with_minimum = with_minimum.sharding_for(P("k", "n"))
    assert (spec_with_minimum.data, spec_with_minimum.minimum) == (P("n", "k"), P("k", "n"))
    mesh = jax.make_mesh((2,), ("k",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    with pytest.raises(
        jquant.DescriptorError, match=r"K is split into 2 parts over k, but PackedBlockMatrix.* has 3 blocks"
    ):
        packed.sharding_for(jax.sharding.NamedSharding(mesh, P("k")))
    assert repr(spec).startswith("PackedBlockMatrix(int4, P")
    restored = pickle.loads(pickle.dumps(packed))
    assert (restored.block_size, restored.padding, restored.layout) == (32, 26, "words")
