"""The integer products, their fused forms and packed weights, against NumPy."""

import dataclasses
import functools
import itertools
import pickle
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import samples
from cases import assert_equal
from jax.sharding import PartitionSpec as P
from programs import together, with_packed_weights
from samples import integers as matrix

import jquant
from jquant import reference
from jquant.kernels import packed as packing
from jquant.kernels.integer_dot import integer_dot

FLOAT32 = np.float32
INTEGERS = (np.int8, np.uint8)


# The shape classes: a row, a few rows, a column, tall, wide, sizes that nothing divides, batches.
SHAPES = [
    *(((), m, 64, 96) for m in (1, 2, 3, 8, 15, 16, 17)),
    *(((), m, 129, n) for m, n in ((1, 1), (1, 77), (33, 1), (2, 2), (301, 5), (5, 301), (31, 67))),
    *(((3,), m, 40, n) for m, n in ((1, 9), (7, 1), (1, 1), (7, 9))),
    ((2, 3), 5, 6, 7),
]
ZERO_POINTS = list(itertools.product((None, "tensor", "row"), (None, "tensor", "column")))


def thinned(cases, count, seed):
    """`count` of the cases: each is a program to compile, and other seeds take others."""
    cases = list(cases)
    chosen = np.random.default_rng(seed).choice(len(cases), count, replace=False)
    return [(int(index), cases[index]) for index in chosen]


class Problem:
    """Random operands of a product, its zero points as the operators and as the reference take them."""

    def __init__(self, seed, a_dtype, b_dtype, shape, zero_points, b_batch=None):
        self.rng = rng = np.random.default_rng(seed)
        batch, self.m, k, self.n = shape
        self.a = matrix(rng, a_dtype, *batch, self.m, k)
        self.b = matrix(rng, b_dtype, *(batch if b_batch is None else b_batch), k, self.n)
        of_a, of_b = zero_points
        sizes = {"tensor": (), "row": (self.m,), "column": (self.n,)}
        self.a_zero_point = None if of_a is None else matrix(rng, a_dtype, *sizes[of_a])
        self.b_zero_point = None if of_b is None else matrix(rng, b_dtype, *sizes[of_b])
        self.a_column = 0 if of_a is None else self.a_zero_point.reshape(-1, 1)
        self.b_row = 0 if of_b is None else self.b_zero_point.reshape(1, -1)

    @functools.cached_property
    def packed(self):
        return jquant.pack_matrix(self.b, self.b_zero_point)

    @functools.cached_property
    def expected(self):
        return reference.matmul_integer(self.a, self.b, self.a_column, self.b_row)

    def scale(self, *shape):
        return self.rng.uniform(1e-3, 1e-1, shape).astype(FLOAT32)


integers = pytest.mark.parametrize(("a_dtype", "b_dtype"), list(itertools.product(INTEGERS, INTEGERS)))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matmul_integer(shape):
    """Of each pair of types, plain and packed."""
    problems = []
    for a_dtype, b_dtype in itertools.product(INTEGERS, repeat=2):
        seed = 100 * SHAPES.index(shape) + 10 * INTEGERS.index(a_dtype) + INTEGERS.index(b_dtype)
        problems.append(Problem(seed, a_dtype, b_dtype, shape, ZERO_POINTS[seed % len(ZERO_POINTS)]))
    packed = together([(jquant.pack_matrix, (p.b, p.b_zero_point)) for p in problems])  # its results are operands below
    calls = [(p.a, p.b, p.a_zero_point, p.b_zero_point) for p in problems]
    calls += [(p.a, weights, p.a_zero_point) for p, weights in zip(problems, packed, strict=True)]
    results = together([(jquant.matmul_integer, operands) for operands in calls])
    for p, result in zip(problems * 2, results, strict=True):
        assert_equal(result, p.expected, f"{p.a.dtype} x {p.b.dtype}")


@integers
@pytest.mark.parametrize("dtype", [np.float32, np.float16, jnp.bfloat16])
def test_matmul_integer_to_float(a_dtype, b_dtype, dtype):
    """Scales per tensor, row and column; each shape of a bias; each type of the output."""
    cases = itertools.product(SHAPES, ("tensor", "row"), ("tensor", "column"), (None, (1, 1), (1, 0), (0, 1), (0, 0)))
    choice = 100 * INTEGERS.index(a_dtype) + 10 * INTEGERS.index(b_dtype) + np.dtype(dtype).num
    multiply = functools.partial(jquant.matmul_integer_to_float, output_dtype=dtype, feature_level="EXTENDED")
    operands, expected = [], []
    for seed, (shape, of_a, of_b, bias_shape) in thinned(cases, 4, choice):
        p = Problem(seed, a_dtype, b_dtype, shape, ZERO_POINTS[seed % len(ZERO_POINTS)])
        a_scale = p.scale(*() if of_a == "tensor" else (p.m, 1))
        b_scale = p.scale(*() if of_b == "tensor" else (1, p.n))
        a_zero_point = None if p.a_zero_point is None else p.a_column
        b_zero_point = None if p.b_zero_point is None else p.b_row
        bias = None
        if bias_shape is not None:
            sizes = [one or size for one, size in zip(bias_shape, (p.m, p.n), strict=True)]
            bias = (p.rng.normal(size=(*(1,) * len(shape[0]), *sizes)) * 100).astype(FLOAT32)
        operands.append((p.a, a_scale, a_zero_point, p.b, b_scale, b_zero_point, bias))
        expected.append(reference.matmul_integer_to_float(p.a, a_scale, p.a_column, p.b, b_scale, p.b_row, bias, dtype))
    results = together([(multiply, given) for given in [*operands, *with_packed_weights(operands)]])
    for actual, wanted in zip(results, expected * 2, strict=True):
        assert_equal(actual, wanted)


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16])
def test_scales_of_16_bits(dtype):
    """Widened, multiplied in float32, rounded once."""
    p = Problem(0, np.uint8, np.int8, ((), 33, 70, 65), ("row", "column"))
    a_scale, b_scale, bias = p.scale(33, 1).astype(dtype), p.scale(1, 65).astype(dtype), p.scale(1, 65).astype(dtype)
    expected = reference.matmul_integer_to_float(p.a, a_scale, p.a_column, p.b, b_scale, p.b_row, bias, dtype)
    arguments = (p.a, a_scale, p.a_column, p.b, b_scale, p.b_row, bias)
    assert_equal(jquant.matmul_integer_to_float(*arguments, feature_level="EXTENDED"), expected)
    assert jquant.matmul_integer_to_float(p.a, 0.5, 1, p.b, b_scale, 2, feature_level="EXTENDED").dtype == dtype


@integers
@pytest.mark.parametrize("dtype", INTEGERS)
def test_quantized_linear_matmul(a_dtype, b_dtype, dtype):
    """Scales per tensor, row and column; outputs that saturate and outputs that do not."""
    vectors = itertools.product(("tensor", "row"), ("tensor", "column"), ("tensor", "row"), (None, "tensor", "row"))
    choice = 100 * INTEGERS.index(a_dtype) + 10 * INTEGERS.index(b_dtype) + INTEGERS.index(dtype)
    cases = itertools.product(SHAPES, vectors)
    multiply = functools.partial(jquant.quantized_linear_matmul, output_dtype=dtype)
    operands, expected = [], []
    for seed, (shape, (of_a, of_b, of_output, of_zero_point)) in thinned(cases, 4, choice):
        p = Problem(seed, a_dtype, b_dtype, shape, ZERO_POINTS[seed % len(ZERO_POINTS)])
        a_scale = p.scale(*() if of_a == "tensor" else (p.m, 1))
        b_scale = p.scale(*() if of_b == "tensor" else (1, p.n))
        spread = max(1, p.expected.std()) / (50 if seed % 3 else 500)
        output_scale = p.scale(*() if of_output == "tensor" else (p.m, 1)) * FLOAT32(spread / 20)
        output_zero_point = None
        if of_zero_point is not None:
            output_zero_point = matrix(p.rng, dtype, *() if of_zero_point == "tensor" else (p.m, 1))
        expected.append(
            reference.quantized_linear_matmul(
                *(p.a, a_scale, p.a_column, p.b, b_scale, p.b_row),
                *(output_scale, 0 if output_zero_point is None else output_zero_point, dtype),
            )
        )
        a_zero_point = None if p.a_zero_point is None else p.a_column
        b_zero_point = None if p.b_zero_point is None else p.b_row
        operands.append((p.a, a_scale, a_zero_point, p.b, b_scale, b_zero_point, output_scale, output_zero_point))
    results = together([(multiply, given) for given in [*operands, *with_packed_weights(operands)]])
    for actual, wanted in zip(results, expected * 2, strict=True):
        assert_equal(actual, wanted)


def test_quantized_linear_matmul_rounds_ties_to_even_before_the_zero_point():
    a = np.arange(-128, 128, dtype=np.int8)[:, None]
    for zero_point in (0, 1, 2, -3):
        expected = reference.saturate(np.rint(a / 2) + zero_point, np.int8)
        assert_equal(jquant.quantized_linear_matmul(a, 0.5, None, np.int8([[1]]), 1.0, None, 1.0, zero_point), expected)


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16])
def test_quantized_linear_matmul_with_scales_of_16_bits(dtype):
    """They are widened to float32, in which their product and quotient are rounded. (ONNX's reference: to 16 bits.)"""
    p = Problem(1, np.uint8, np.int8, ((), 17, 20, 33), ("row", "column"))
    a_scale, output_scale = (p.rng.uniform(0.1, 1, (17, 1)).astype(dtype) for _ in range(2))
    b_scale = p.rng.uniform(0.1, 1, (1, 33)).astype(dtype)
    expected = reference.quantized_linear_matmul(p.a, a_scale, p.a_column, p.b, b_scale, p.b_row, output_scale, 7, np.uint8)
    operands = p.a, a_scale, p.a_column, p.b, b_scale, p.b_row, output_scale, 7
    assert_equal(jquant.quantized_linear_matmul(*operands, feature_level="EXTENDED"), expected)


def test_special_scales():
    """Infinities saturate, NaN is 0."""
    p = Problem(0, np.int8, np.int8, ((), 9, 20, 11), (None, None))
    for a_scale, output_scale in itertools.product((0.0, np.inf, -np.inf, np.nan, -1.5, 3e38), repeat=2):
        scales = np.array(a_scale, FLOAT32), np.array(output_scale, FLOAT32)
        expected = reference.quantized_linear_matmul(p.a, scales[0], 0, p.b, 0.5, 0, scales[1], 3, np.uint8)
        actual = jquant.quantized_linear_matmul(p.a, *scales[:1], None, p.b, 0.5, None, *scales[1:], np.uint8(3))
        assert_equal(actual, expected)
        expected = reference.matmul_integer_to_float(p.a, scales[0], 0, p.b, scales[1], 0)
        assert_equal(jquant.matmul_integer_to_float(p.a, scales[0], None, p.b, scales[1], None), expected)


@pytest.mark.parametrize("constant", [False, True])
def test_inside_a_caller(constant):
    """Between a caller's multiplication and addition, which XLA would merge with an epilogue in the open."""
    p = Problem(0, np.uint8, np.int8, ((), 64, 300, 257), ("tensor", "column"))
    a_scale, b_scale, bias = p.scale(), p.scale(1, p.n), p.scale(1, p.n) * 1000
    factor, addend = FLOAT32(0.1), FLOAT32(1.7)

    def to_float(a_scale, b_scale, bias):
        output = jquant.matmul_integer_to_float(p.a, a_scale * factor, p.a_zero_point, p.b, b_scale, p.b_row, bias * factor)
        return output, output * factor + addend

    def quantized(a_scale, b_scale, bias):
        return jquant.quantized_linear_matmul(p.a, a_scale * factor, p.a_zero_point, p.b, b_scale, p.b_row, 0.01, 7)

    arguments = (a_scale, b_scale, bias)
    results = []
    for function in (to_float, quantized):
        traced = jax.jit(lambda *x, function=function: function(*(arguments if constant else x)))
        results.append(traced(*arguments))
    scaled = a_scale * factor, p.a_zero_point, p.b, b_scale, p.b_row
    assert_equal(results[0][0], reference.matmul_integer_to_float(p.a, *scaled, bias * factor))
    assert_equal(results[1], reference.quantized_linear_matmul(p.a, *scaled, FLOAT32(0.01), 7, np.uint8))


@pytest.mark.parametrize(("m", "k", "n"), [(2, 0, 3), (0, 4, 3), (2, 4, 0), (0, 0, 0), (1, 0, 1), (20, 0, 30)])
def test_empty(m, k, n):
    a, b = np.ones((m, k), np.uint8), np.ones((k, n), np.int8)
    for weights in ((b, np.int8(3)), (jquant.pack_matrix(b, 3), None)):
        assert_equal(jquant.matmul_integer(a, weights[0], 7, weights[1]), np.zeros((m, n), np.int32))
        to_float = jquant.matmul_integer_to_float(a, 0.5, 7, weights[0], 0.5, weights[1], np.ones((1, n), FLOAT32))
        assert_equal(to_float, np.ones((m, n), FLOAT32))
        quantized = jquant.quantized_linear_matmul(a, 0.5, 7, weights[0], 0.5, weights[1], 0.5, 9)
        assert_equal(quantized, np.full((m, n), 9, np.uint8))


def test_wraps_modulo_2_to_the_32():
    """The fused forms scale the wrapped product, packed weights wrap in their sums."""
    k = 140_000
    a, b = np.full((1, k), 255, np.uint8), np.full((k, 2), 255, np.uint8)
    for a_zero_point, b_zero_point in ((0, 0), (7, 127)):
        expected = reference.matmul_integer(a, b, a_zero_point, b_zero_point)
        packed = jquant.pack_matrix(b, b_zero_point)
        assert_equal(jquant.matmul_integer(a, packed, a_zero_point), expected)
        to_float = jquant.matmul_integer_to_float(a, 0.5, a_zero_point, packed, 1.0, None)
        assert_equal(to_float, expected.astype(FLOAT32) * FLOAT32(0.5))
    # In parts, none of which can leave int32 by itself: there are units that saturate.
    program = jax.jit(functools.partial(integer_dot, transpose_b=True)).lower(packed.data, packed.data).as_text()
    sizes = re.findall(r"stablehlo.dot_general .*\(tensor<2x(\d+)xi8>", program)
    assert sizes == ["65536", "65536", "8928"]


@pytest.mark.parametrize("packed", [False, True])
def test_vmap_over_rows_is_a_product_of_a_matrix(packed):
    """One B for all of them: no row is added to each, and no B is read for each."""
    p = Problem(0, np.uint8, np.int8, ((), 20, 64, 7), ("tensor", None))
    weights = p.packed if packed else p.b

    def rows(a):
        return jax.vmap(lambda row: jquant.matmul_integer(row[None], weights, p.a_zero_point)[0])(a)

    assert_equal(rows(p.a), p.expected)
    program = jax.jit(rows).lower(p.a).as_text()
    assert "20x1x64" in re.findall(r"stablehlo.dot_general .*\(tensor<(\S+)xi8>, ", program)


class TestPackedMatrix:
    @pytest.mark.parametrize("dtype", INTEGERS)
    @pytest.mark.parametrize("shape", [(3, 2), (300, 7), (2, 64, 5), (2, 3, 8, 9), (0, 4), (4, 0)])
    def test_is_the_matrix(self, dtype, shape):
        b = matrix(np.random.default_rng(0), dtype, *shape)
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
    def test_block_size(self, k, block_size):
        assert packing.block_size_for(k) == block_size
        packed = jquant.pack_matrix(np.ones((k, 3), np.int8))
        assert packed.block_sums.shape == (k // block_size, 3)

    def test_block_size_must_divide_k(self):
        b = np.ones((12, 3), np.int8)
        assert jquant.pack_matrix(b, block_size=4).block_sums.shape == (3, 3)
        for block_size in (5, 0, -4, 24):
            with pytest.raises(
                jquant.DescriptorError, match=f"block_size is {block_size}; it must be a positive divisor of K, which is 12"
            ):
                jquant.pack_matrix(b, block_size=block_size)

    def test_rejects(self):
        b = np.ones((4, 3), np.int8)
        packed = jquant.pack_matrix(b, 1)
        beside = "BZeroPointTensor is given beside packed weights, which hold their own"
        for product in (
            lambda zero_point, packed=packed: jquant.matmul_integer(b.T, packed, None, zero_point),
            lambda zero_point, packed=packed: jquant.matmul_integer_to_float(b.T, 1.0, None, packed, 1.0, zero_point),
            lambda zero_point, packed=packed: jquant.quantized_linear_matmul(b.T, 1.0, None, packed, 1.0, zero_point, 1.0),
        ):
            for equal in (1, np.int8(1), jnp.ones(1, jnp.int8), np.ones((1, 3), np.int8)):
                np.testing.assert_array_equal(product(equal), product(None), strict=True)
            for other in (2, np.int8(0), np.int8([1, 1, 2]), np.ones(2, np.int8)):
                with pytest.raises(jquant.DescriptorError, match=f"{beside}, a different one: pass None, or pack"):
                    product(other)
            with pytest.raises(jquant.DescriptorTypeError, match="BZeroPointTensor has data type UINT8; it must have that"):
                product(np.uint8(1))
            with pytest.raises(jquant.DescriptorError, match=f"{beside}; traced, the two cannot be compared: pass None"):
                jax.jit(product)(np.int8(1))
        without = jquant.pack_matrix(b)
        expected = jquant.matmul_integer(b.T, b)
        np.testing.assert_array_equal(jquant.matmul_integer(b.T, without, b_zero_point=np.zeros(3, np.int8)), expected)
        with pytest.raises(jquant.DescriptorError, match=beside):
            jquant.matmul_integer(b.T, without, b_zero_point=1)
        with pytest.raises(jquant.DescriptorError, match="dimension 0 of BTensor, sizes \\(4, 3\\), must be 5: K is 5"):
            jquant.matmul_integer(np.ones((2, 5), np.int8), packed)
        with pytest.raises(jquant.DescriptorTypeError, match="BTensor has data type INT16"):
            jquant.pack_matrix(b.astype(np.int16))
        with pytest.raises(jquant.DescriptorTypeError, match="BZeroPointTensor has data type UINT8; it must have that of"):
            jquant.pack_matrix(b, np.uint8(1))
        with pytest.raises(jquant.DescriptorError, match="BZeroPointCount is 1 or N, which is 3"):
            jquant.pack_matrix(b, np.ones(4, np.int8))

    @pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16, np.uint8, np.int32, np.float32])
    def test_a_cast_of_the_model_is_found(self, dtype):
        """What casts all arrays of a model casts these, and the integers would be wrong."""
        b = samples.integers(np.random.default_rng(0), np.int8, 4, 3)
        cast = jax.tree.map(lambda x: x.astype(dtype), jquant.pack_matrix(b, 1))
        assert repr(cast) == f"PackedMatrix(int8[4,3], data of {jnp.dtype(dtype)})"
        text = f"data of the packed matrix is of {jnp.dtype(dtype)}; pack_matrix made it of int8"
        for product in (jquant.matmul_integer, jax.jit(jquant.matmul_integer)):
            with pytest.raises(jquant.DescriptorTypeError, match=f"DML_MATRIX_MULTIPLY_INTEGER: BTensor: {text}"):
                product(np.ones((2, 4), np.uint8), cast)
        with pytest.raises(jquant.DescriptorTypeError, match=f"PackedMatrix.unpack: {text}"):
            cast.unpack()

    def test_each_array_is_checked(self):
        packed = jquant.pack_matrix(np.ones((4, 3), np.int8), 1)
        for changed, text in (
            (
                {"block_sums": packed.block_sums.astype(jnp.float32)},
                "block_sums of the packed matrix is of float32; pack_mat",
            ),
            (
                {"zero_point": packed.zero_point.astype(jnp.uint8)},
                "zero_point of the packed matrix is of uint8; pack_matrix",
            ),
            ({"zero_point": 3}, "zero_point of the packed matrix is int; pack_matrix made it of int8"),
            ({"data": [1]}, "data of the packed matrix is list; pack_matrix made it of int8"),
            ({"dtype": "int8"}, "dtype of the packed matrix is 'int8'; it must be int8 or uint8"),
            ({"dtype": np.dtype(np.int16)}, "dtype of the packed matrix is dtype('int16'); it must be int8 or uint8"),
            ({"block_sums": packed.block_sums[:, :2]}, "data, block_sums and zero_point of the packed matrix do not fit: "),
            (
                {"zero_point": jnp.ones((1, 2), jnp.int8)},
                "data, block_sums and zero_point of the packed matrix do not fit: ",
            ),
            ({"data": packed.data[None]}, "data, block_sums and zero_point of the packed matrix do not fit: "),
        ):
            with pytest.raises(jquant.DescriptorError) as raised:
                jquant.matmul_integer(np.ones((2, 4), np.int8), dataclasses.replace(packed, **changed))
            assert str(raised.value).startswith(f"DML_MATRIX_MULTIPLY_INTEGER: BTensor: {text}")

    def test_trees(self):
        """Flattening, mapping to other things than arrays, pickling: nothing is checked or lost on the way."""
        b = matrix(np.random.default_rng(0), np.uint8, 64, 5)
        packed = jquant.pack_matrix(b, np.arange(5, dtype=np.uint8))
        names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(packed)]
        assert names == [".data", ".block_sums", ".zero_point"]
        assert jax.tree.map(lambda _: None, packed).data is None
        assert jax.tree.map(lambda x: x.dtype.name, packed).block_sums == "int32"
        restored = pickle.loads(pickle.dumps(jax.tree.map(np.asarray, packed)))
        assert restored.dtype == np.uint8
        a = matrix(np.random.default_rng(1), np.int8, 3, 64)
        assert_equal(jquant.matmul_integer(a, restored), jquant.matmul_integer(a, b, None, np.arange(5, dtype=np.uint8)))
        assert_equal(restored.unpack(), b)

    def test_jit_takes_and_returns_it(self):
        p = Problem(0, np.uint8, np.uint8, ((), 5, 64, 7), ("tensor", "column"))
        packed = jax.jit(jquant.pack_matrix)(p.b, p.b_zero_point)
        assert_equal(jax.jit(jquant.matmul_integer)(p.a, packed, p.a_zero_point), p.expected)
        assert_equal(jax.jit(lambda packed: packed.unpack())(packed), p.b)

    @pytest.mark.parametrize("of_b", [None, "tensor", "column"])
    def test_vmap(self, of_b):
        """Weights shared, weights mapped, zero points mapped or not."""
        problems = [Problem(seed, np.uint8, np.uint8, ((), 3, 64, 7), ("row", of_b)) for seed in range(4)]
        a, b = np.stack([p.a for p in problems]), np.stack([p.b for p in problems])
        a_zero_point = np.stack([p.a_zero_point for p in problems])
        b_zero_point = None if of_b is None else np.stack([p.b_zero_point for p in problems])
        packed = jax.vmap(jquant.pack_matrix)(b, b_zero_point)
        assert packed.shape == (4, 64, 7)
        expected = np.stack([p.expected for p in problems])
        assert_equal(jax.vmap(jquant.matmul_integer)(a, packed, a_zero_point), expected)
        first = np.stack([reference.matmul_integer(p.a, problems[0].b, p.a_column, problems[0].b_row) for p in problems])
        shared = jax.vmap(jquant.matmul_integer, in_axes=(0, None, 0))
        assert_equal(shared(a, problems[0].packed, a_zero_point), first)
        last = jax.vmap(jquant.matmul_integer, in_axes=(0, None, 0), out_axes=2)
        assert_equal(last(a, problems[0].packed, a_zero_point), np.moveaxis(first, 0, 2))

    def test_scan_over_layers(self):
        rng = np.random.default_rng(0)
        x, layers = matrix(rng, np.int8, 5, 16), matrix(rng, np.uint8, 3, 16, 16)
        zero_points = matrix(rng, np.uint8, 3, 16)
        stacks = jax.vmap(jquant.pack_matrix)(layers, zero_points), jquant.pack_matrix(layers, 128)

        def layer(x, weights):
            return jquant.quantized_linear_matmul(x, 0.01, None, weights, 0.01, None, 0.01), None

        for packed, used in zip(stacks, (zero_points, np.full_like(zero_points, 128)), strict=True):
            expected = x
            for weights, zero_point in zip(layers, used, strict=True):
                step = FLOAT32(0.01)
                expected = reference.quantized_linear_matmul(expected, step, 0, weights, step, zero_point, step, 0, np.int8)
            assert_equal(jax.jit(lambda x, packed: jax.lax.scan(layer, x, packed)[0])(x, packed), expected)

    def test_shardings(self):
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
        with pytest.raises(ValueError, match="has 3 entries, for the 2 dimensions of PackedMatrix"):
            jquant.pack_matrix(b).sharding_for(P(None, None, "k"))


class TestImplementations:
    def test_all_names(self):
        assert [str(name) for name in jquant.Implementation] == ["xla", "mosaic_tpu", "mosaic_gpu"]
        a = jnp.ones((2, 2), jnp.int8)
        for name in ("xla", jquant.Implementation.XLA):
            assert_equal(jquant.matmul_integer(a, a, implementation=name), np.full((2, 2), 2, np.int32))

    @pytest.mark.parametrize(("name", "home"), [("mosaic_tpu", "tpu"), ("mosaic_gpu", "cuda")])
    def test_a_kernel_on_another_platform(self, name, home):
        a = jnp.ones((2, 2), jnp.int8)
        with pytest.raises(NotImplementedError, match=f"implementation {name} is for {home}; this program is for cpu"):
            jquant.matmul_integer(a, a, implementation=name)

    @pytest.mark.parametrize("argument", ["a_scale", "b_scale", "bias"])
    def test_scales_and_bias_are_differentiable(self, argument):
        p = Problem(0, np.uint8, np.int8, ((), 5, 64, 7), ("tensor", "column"))
        parameters = {"a_scale": p.scale(5, 1), "b_scale": p.scale(1, 7), "bias": p.scale(1, 7)}

        def total(**changed):
            x = {**parameters, **changed}
            weights = p.b, x["b_scale"], p.b_row, x["bias"]
            return jquant.matmul_integer_to_float(p.a, x["a_scale"], p.a_zero_point, *weights).sum()

        gradient = jax.grad(lambda x: total(**{argument: x}))(parameters[argument])
        product = p.expected.astype(np.float64)
        expected = {
            "a_scale": (product * parameters["b_scale"]).sum(1, keepdims=True),
            "b_scale": (product * parameters["a_scale"]).sum(0, keepdims=True),
            "bias": np.full((1, 7), 5.0),
        }
        np.testing.assert_allclose(gradient, expected[argument], rtol=1e-5)  # a sum of floats, in any order


def test_without_pallas():
    """jquant is imported and multiplies where Pallas cannot be imported; a kernel that needs it says so."""
    program = """
import sys
sys.modules["jax.experimental.pallas"] = None
import jax.numpy as jnp, jquant
a = jnp.ones((2, 2), jnp.uint8)
print(jquant.matmul_integer(a, a, 3).tolist())
from jquant.kernels import integer_dot
try:
    integer_dot.function_for("tpu", jquant.Implementation.MOSAIC_TPU)
except NotImplementedError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    product, error = result.stdout.splitlines()
    assert product == "[[-4, -4], [-4, -4]]"
    assert error.startswith("implementation mosaic_tpu needs a part of Pallas that is missing: ")


def test_near_ties():
    """Multipliers that put the products on ties and next to them."""
    rng = np.random.default_rng(0)
    a, b = matrix(rng, np.int8, 200, 3), matrix(rng, np.int8, 3, 200)
    for a_scale, output_scale in samples.scales(rng, 200).reshape(-1, 2):
        expected = reference.quantized_linear_matmul(a, a_scale, 0, b, FLOAT32(0.5), 0, output_scale, 3, np.int8)
        assert_equal(jquant.quantized_linear_matmul(a, a_scale, None, b, 0.5, None, output_scale, 3), expected)


class TestQuantizedGemm:
    def gemm(self, c, a_scale=0.5, b_scale=0.25, **options):
        a, b = np.uint8([[11, 7, 3], [10, 6, 2]]), np.int8([[1, 4], [2, 5], [3, 6]])
        output = jquant.quantized_gemm(a, a_scale, 12, b, b_scale, None, c, 0.25, 100, **options)
        assert_equal(output, reference.quantized_gemm(a, 0.5, 12, b, 0.25, 0, c, 0.25, np.uint8(100), output.dtype))

    @pytest.mark.parametrize("sizes", [None, (), (1,), (2,), (1, 1), (1, 2), (2, 1), (2, 2)])
    def test_c_broadcasts(self, sizes):
        self.gemm(None if sizes is None else matrix(np.random.default_rng(0), np.int8, *sizes).astype(np.int32))

    @pytest.mark.parametrize("dtype", INTEGERS)
    def test_output_types(self, dtype):
        self.gemm(np.int32([200, -300]), output_dtype=dtype)

    def test_the_sum_wraps(self):
        """As a product past 32 bits does: one past the top is the bottom."""
        one = np.ones((1, 1), np.int8)
        output = jquant.quantized_gemm(one, 1.0, None, one, 1.0, None, 2**31 - 1, 2.0**24, output_dtype="INT8")
        assert_equal(output, np.int8([[-128]]))
        assert_equal(jquant.quantized_gemm(one, 1.0, None, one, 1.0, None, 2**31 - 2, 2.0**25), np.int8([[64]]))

    @pytest.mark.parametrize(
        ("changed", "text"),
        [
            (
                {"c": np.int32([1, 2, 3])},
                "dimension 0 of C, sizes (3,), must be 1 or 2: CColumnCount is 1 or N, which is 2 in B",
            ),
            (
                {"c": np.ones((3, 2), np.int32)},
                "dimension 0 of C, sizes (3, 2), must be 1 or 2: CRowCount is 1 or M, which is 2",
            ),
            ({"c": np.float32(1)}, "C has data type FLOAT32; the document allows INT32"),
            ({"c": 0.5}, "C is 0.5, but must be an integer of type INT32"),
            (
                {"c": None, "a_scale": np.ones((1, 2), np.float32)},
                "a_scale has 2 dimensions, sizes (1, 2); the document allows 0 to 1",
            ),
            (
                {"c": None, "b_scale": np.ones(3, np.float32)},
                "dimension 0 of b_scale, sizes (3,), must be 1 or 2: BScaleCount is 1 or N",
            ),
            ({"c": None, "output_dtype": "INT32"}, "Y has data type INT32; the document allows INT8, UINT8"),
        ],
    )
    def test_errors(self, changed, text):
        with pytest.raises(jquant.DescriptorError, match=f"QGemm: {re.escape(text)}"):
            self.gemm(**changed)

    def test_packed_weights_hold_their_zero_point(self):
        packed = jquant.pack_matrix(np.ones((3, 2), np.int8))
        with pytest.raises(jquant.DescriptorError, match="QGemm: b_zero_point is given beside packed weights"):
            jquant.quantized_gemm(np.ones((2, 3), np.uint8), 1.0, None, packed, 1.0, 3, None, 1.0)
