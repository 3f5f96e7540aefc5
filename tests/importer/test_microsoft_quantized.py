"""onnxruntime's own quantized operators, one node at a time: its integers, and its floats where they are defined.

Its results on x86-64, that is: its kernels for other processors add and multiply otherwise.
"""

import itertools

import ml_dtypes
import numpy as np
import pytest

import jquant
from jquant.cases import samples

from .quantized_nodes import Node, check

pytestmark = pytest.mark.gate  # on the newest JAX alone

FLOAT32 = np.float32
PAIRS = np.stack(np.meshgrid(np.arange(256), np.arange(256), indexing="ij")).reshape(2, -1).astype(np.uint8)
every_type = pytest.mark.parametrize("dtype", [np.uint8, np.int8])
without_int8_uint8 = pytest.mark.parametrize(
    ("a_dtype", "b_dtype"), [(np.uint8, np.int8), (np.uint8, np.uint8), (np.int8, np.int8)]
)


def scalar(x) -> np.ndarray:
    return np.asarray(FLOAT32(x))


def integers(rng: np.random.Generator, dtype, *sizes: int) -> np.ndarray:
    return np.asarray(samples.integers(rng, dtype, *sizes))


def parameters(rng: np.random.Generator, dtype) -> list[tuple[np.ndarray, np.ndarray]]:
    """Three scales, often powers of two apart, which makes ties, and zero points."""
    first = samples.scales(rng, 1)[0]
    others = [first * (2.0 ** rng.integers(-2, 3) if rng.random() < 0.5 else rng.uniform(0.3, 4)) for _ in range(2)]
    return [(scalar(each), integers(rng, dtype)) for each in (first, *others)]


def assert_all_equal(operator: str, sets, **attributes) -> int:
    """One program for all sets of operands, which have the same shapes."""
    node, count = None, 0
    for operands in sets:
        node = node or Node(operator, *operands, microsoft=True, **attributes)
        count += node.assert_equal(*operands)
    return count


def binary(rng, operator, a, b):
    of_a, of_b, (scale, zero_point) = parameters(rng, a.dtype)
    if operator == "QLinearMul":
        scale = scalar(of_a[0] * of_b[0] * (2.0 ** rng.integers(0, 9) if rng.random() < 0.4 else rng.uniform(1, 300)))
    return a, *of_a, b, *of_b, scale, zero_point


@every_type
@pytest.mark.parametrize("operator", ["QLinearAdd", "QLinearMul"])
def test_all_pairs(operator, dtype):
    """65,536 of them, in 20 quantizations."""
    rng, pairs = np.random.default_rng(0), PAIRS.view(dtype)
    assert_all_equal(operator, [binary(rng, operator, *pairs) for _ in range(20)])


SHAPES = [
    ((4, 5), (4, 1)),
    ((4, 1), (4, 5)),
    ((1,), (300,)),
    ((300,), (1,)),
    ((3, 1, 5), (2, 5)),
    ((7, 1), (1, 9)),
    ((), ()),
]


@every_type
@pytest.mark.parametrize("operator", ["QLinearAdd", "QLinearMul"])
def test_broadcasting(operator, dtype):
    """Of the two, the kernel adds that first which it repeats."""
    rng = np.random.default_rng(1)
    for a, b in SHAPES:
        given = [(integers(rng, dtype, *a), integers(rng, dtype, *b)) for _ in range(30)]
        assert_all_equal(operator, [binary(rng, operator, *each) for each in given])


@every_type
def test_unary(dtype):
    """All 256 values, in 500 quantizations."""
    rng, x = np.random.default_rng(2), PAIRS[1, :256].view(dtype)
    sets = [parameters(rng, dtype) for _ in range(500)]
    assert_all_equal("QLinearLeakyRelu", [(x, *one, *other) for one, other, _ in sets], alpha=0.1)
    assert_all_equal("QLinearConcat", [(*output, x, *one, x, *other) for output, one, other in sets], axis=0)
    for y_sizes in ((256,), (2, 256), (1,)):
        given = [(rng.random(256) < 0.5, x, np.resize(rng.permutation(x), y_sizes)) for _ in range(100)]
        operands = [(c, x, *sets[i][0], y, *sets[i][1], *sets[i][i % 3]) for i, (c, x, y) in enumerate(given)]
        assert_all_equal("QLinearWhere", operands)


@every_type
def test_sigmoid(dtype):
    """The rounded sigmoid; onnxruntime's polynomial is the processor's, and decides otherwise next to a tie alone."""
    rng, x = np.random.default_rng(3), PAIRS[1, :256].view(dtype)
    node, different = None, 0
    for _ in range(400):
        y_scale = scalar([10 ** rng.uniform(-4, -1), 1 / 256][rng.integers(0, 2)])
        operands = x, scalar(10 ** rng.uniform(-3, 0)), integers(rng, dtype), y_scale, integers(rng, dtype)
        node = node or Node("QLinearSigmoid", *operands, microsoft=True)
        (ours,), (theirs,) = node.ours(*operands), node.theirs(*operands)
        value = (x.astype(np.int32) - operands[2].astype(np.int32)) * np.float64(operands[1])
        value = 1 / (1 + np.exp(-value)) / y_scale
        distance = abs(value - np.floor(value) - 0.5) / value
        assert ours.dtype == theirs.dtype
        assert np.all(distance[ours != theirs] < 2.0**-21)
        different += np.count_nonzero(ours != theirs)
    assert different < 10  # of 102,400


@every_type
def test_softmax(dtype):
    rng = np.random.default_rng(4)
    for sizes, axis, opset in [
        ((400, 64), -1, 13),
        ((5, 6, 7), 1, 13),
        ((5, 6, 7), 1, 12),
        ((40, 700), 1, 13),
        ((4, 7), 0, 13),
    ]:
        scale = scalar([1 / 256, 1 / 255, 0.005][rng.integers(3)])
        operands = integers(rng, dtype, *sizes), scalar(10 ** rng.uniform(-2, 0)), None, scale, integers(rng, dtype)
        node = Node("QLinearSoftmax", *operands, microsoft=True, constant=(1,), axis=axis, kernel_opset=opset)
        node.assert_equal(*operands)


POOLS = [
    ((2, 5, 9, 10), {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}),
    ((2, 5, 9, 10), {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1], "count_include_pad": 1}),
    ((2, 3, 5, 6, 7), {"kernel_shape": [2, 3, 3], "pads": [1, 1, 1, 0, 1, 1]}),
    ((2, 3, 20), {"kernel_shape": [3], "strides": [2], "ceil_mode": 1}),
    ((2, 9, 10, 5), {"kernel_shape": [2, 2], "strides": [2, 2], "channels_last": 1}),
    ((1, 3, 13, 14), {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((1, 3, 13, 14), {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    ((1, 3, 6, 7), {"kernel_shape": [6, 7]}),
    ((1, 3, 11, 12), {"kernel_shape": [3, 3], "strides": [3, 3], "pads": [1, 1, 1, 1], "ceil_mode": 1}),
    ((1, 2, 7, 9), {"kernel_shape": [2, 3], "strides": [4, 4], "ceil_mode": 1}),
    ((1, 2, 12, 12), {"kernel_shape": [5, 5], "pads": [2, 2, 2, 2], "count_include_pad": 1}),
]


@every_type
def test_average_pool(dtype):
    """Every sum in onnxruntime's order, and windows of one kind or another beyond the edges."""
    rng = np.random.default_rng(5)
    for sizes, attributes in POOLS:
        sets = [parameters(rng, dtype) for _ in range(20)]
        operands = [(integers(rng, dtype, *sizes), *one, *other) for one, other, _ in sets]
        assert_all_equal("QLinearAveragePool", operands, **attributes)
    for sizes, channels_last in [((20, 30, 6, 7), 0), ((2, 6, 7, 50), 1), ((3, 4, 9), 0), ((2, 3, 4, 5, 6), 0)]:
        sets = [parameters(rng, dtype) for _ in range(20)]
        operands = [(integers(rng, dtype, *sizes), *one, *other) for one, other, _ in sets]
        assert_all_equal("QLinearGlobalAveragePool", operands, channels_last=channels_last)


@without_int8_uint8
def test_gemm(a_dtype, b_dtype):
    """Transposed or not, with each kind of bias, and an output of integers or of float32."""
    rng = np.random.default_rng(6)
    biases = itertools.cycle([None, (6,), (3, 1), (3, 6), (), (1, 6)])
    for number, (trans_a, trans_b, is_quantized) in enumerate(itertools.product((0, 1), (0, 1), (True, False))):
        sizes = (6,) if number % 3 else ()
        a, b = integers(rng, a_dtype, 3, 50), integers(rng, b_dtype, 50, 6)
        (a_scale, a_zero_point), _, (_, y_zero_point) = parameters(rng, a_dtype)
        b_scale = np.asarray(rng.uniform(0.01, 1, sizes), FLOAT32)
        bias = next(biases)
        c = None if bias is None else np.asarray(rng.integers(-3000, 3000, bias), np.int32)
        of_a = np.ascontiguousarray(a.T) if trans_a else a, a_scale, a_zero_point
        of_b = np.ascontiguousarray(b.T) if trans_b else b, b_scale, integers(rng, b_dtype, *sizes)
        output = (scalar(a_scale * b_scale.mean() * 500), y_zero_point) if is_quantized else ()
        operands = (*of_a, *of_b, c, *output) if is_quantized or c is not None else (*of_a, *of_b)
        check("QGemm", *operands, microsoft=True, transA=trans_a, transB=trans_b, alpha=[1.0, 0.3][trans_a])


@without_int8_uint8
def test_products_to_float(a_dtype, b_dtype):
    rng = np.random.default_rng(7)
    for b_sizes, sizes in [((50, 4), ()), ((50, 4), (4,)), ((2, 50, 4), (2, 1, 4))]:
        a, b = integers(rng, a_dtype, 2, 30, 50), integers(rng, b_dtype, *b_sizes)
        a_scale, b_scale = scalar(0.3), np.asarray(rng.uniform(0.01, 1, sizes), FLOAT32)
        zero_points, bias = (integers(rng, a_dtype), integers(rng, b_dtype, *sizes)), rng.normal(size=4).astype(FLOAT32)
        for rest in ((*zero_points, bias * 100), ()):
            check("MatMulIntegerToFloat", a, b, a_scale, b_scale, *rest, microsoft=True)
        if a_dtype == np.uint8:
            x = rng.normal(size=(2, 30, 50)).astype(FLOAT32)
            for rest in ((zero_points[1], bias), (None, bias)):
                check("DynamicQuantizeMatMul", x, b, b_scale, *rest, microsoft=True)
    for a_sizes, sizes in [((30, 1), ()), ((2, 30, 1), (4,)), ((4,), ()), ((1,), (2, 30, 1)), ((4,), (30, 1))]:
        scales = (np.asarray(rng.uniform(0.01, 1, each), FLOAT32) for each in (a_sizes, sizes))
        b = integers(rng, b_dtype, 50, 4)
        check("MatMulIntegerToFloat", a, b, *scales, zero_points[0], integers(rng, b_dtype), bias, microsoft=True)


@pytest.mark.parametrize("float_dtype", [np.float32, np.float16])
def test_gather(float_dtype):
    """Bytes of 2, 4 and 8 bits, and integers of 4; indices from the end, and outside of the axis, which give zeros."""
    rng = np.random.default_rng(8)
    for bits, sizes, with_zero_points in itertools.product((2, 4, 8), ((20, 24), (20, 3, 12)), (False, True)):
        blocks = -(-sizes[-1] * 8 // bits // 16)
        scale = rng.uniform(0, 0.1, (*sizes[:-1], blocks)).astype(float_dtype)
        zero_points = (integers(rng, np.uint8, *sizes[:-1], -(-blocks * bits // 8)),) if with_zero_points else ()
        operands = integers(rng, np.uint8, *sizes), rng.integers(-22, 22, (2, 3)).astype(np.int32), scale, *zero_points
        options = {"bits": bits, "block_size": 16, "quantize_axis": len(sizes) - 1}
        Node("GatherBlockQuantized", *operands, microsoft=True, constant=(0,), **options).assert_equal(*operands)
    for dtype, (gather_axis, quantize_axis) in itertools.product(("int4", "uint4"), ((0, 1), (2, 1), (1, 1))):
        limits = ml_dtypes.iinfo(getattr(ml_dtypes, dtype))
        sizes = [6, 8, 40]
        of_blocks = [-(-size // 16) if axis == quantize_axis else size for axis, size in enumerate(sizes)]
        values, zero_points = (
            rng.integers(limits.min, limits.max + 1, each).astype(limits.dtype) for each in (sizes, of_blocks)
        )
        indices = rng.integers(-sizes[gather_axis], sizes[gather_axis], 4).astype(np.int32)
        operands = values, indices, rng.uniform(0, 0.1, of_blocks).astype(float_dtype), zero_points
        options = {"block_size": 16, "gather_axis": gather_axis, "quantize_axis": quantize_axis}
        Node("GatherBlockQuantized", *operands, microsoft=True, constant=(0, 3), **options).assert_equal(*operands)


def test_product_of_few_bits():
    """In floating point, whose sums are other ones; their weights are those of one row of ones at a time."""
    rng = np.random.default_rng(9)
    for bits, (k, n, block), kind in itertools.product(
        (2, 4, 8), ((64, 10, 32), (80, 7, 32), (48, 5, 16)), (None, "u", "f")
    ):
        if (bits, kind) == (8, "f"):  # onnxruntime has no kernel
            continue
        blocks = -(-k // block)
        zero_points = {
            None: None,
            "u": integers(rng, np.uint8, n, -(-blocks * bits // 8)),
            "f": rng.uniform(0, 10, (n, blocks)).astype(FLOAT32),
        }[kind]
        weights, scale = integers(rng, np.uint8, n, blocks, block * bits // 8), rng.uniform(0, 0.1, (n, blocks))
        bias = rng.normal(size=n).astype(FLOAT32)
        for a, tolerance in ((np.eye(k, dtype=FLOAT32), 1e-6), (rng.normal(size=(2, 3, k)).astype(FLOAT32), 1e-4)):
            operands = a, weights, scale.astype(FLOAT32), zero_points, None, bias
            node = Node("MatMulNBits", *operands, microsoft=True, constant=(1,), K=k, N=n, bits=bits, block_size=block)
            (ours,), (theirs,) = node.ours(*operands), node.theirs(*operands)
            np.testing.assert_allclose(ours, theirs, atol=tolerance * abs(theirs).max(), rtol=0)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_weights_of_few_bits_are_packed(bits):
    """With their scales, where all of it is constant and zero points are integers; 2 bits stay as they are stored."""
    rng, (k, n, block, blocks) = np.random.default_rng(12), (80, 7, 32, 3)
    weights, scale = integers(rng, np.uint8, n, blocks, block * bits // 8), rng.uniform(0, 0.1, (n, blocks))
    given = integers(rng, np.uint8, n, -(-blocks * bits // 8)), rng.uniform(0, 9, (n, blocks)).astype(FLOAT32)
    a, options = rng.normal(size=(3, k)).astype(FLOAT32), {"K": k, "N": n, "bits": bits, "block_size": block}
    for zero_points, constant in itertools.product((None, *given[: 1 if bits == 8 else 2]), ((1, 2, 3), (1, 2), (1,))):
        operands = a, weights, scale.astype(FLOAT32), zero_points
        node = Node("MatMulNBits", *operands, microsoft=True, constant=constant, **options)
        ours = node.ours(*operands)[0]
        is_packed = isinstance(node.model.params["x1"], jquant.PackedBlockMatrix)
        are_integers = zero_points is None or zero_points.dtype == np.uint8
        needed = {1, 2} if zero_points is None else {1, 2, 3}
        assert is_packed == (bits != 2 and are_integers and needed <= {*constant})
        beside = {f"x{index}" for index in constant if index > 1 and operands[index] is not None}
        assert set(node.model.params) == {"x1"} | (set() if is_packed else beside)
        if is_packed:
            packed = node.model.params["x1"]
            assert packed.data.nbytes == 96 * n * bits // 8  # in whole blocks
        theirs = node.theirs(*operands)[0]
        np.testing.assert_allclose(ours, theirs, atol=1e-5 * abs(theirs).max(), rtol=0)


def test_no_weights():
    """An omitted projection: zeros, or the bias."""
    a, bias = np.ones((2, 32), FLOAT32), np.arange(3, dtype=FLOAT32)
    for rest in ((), (None, None, bias)):
        operands = a, np.zeros((0, 1, 16), np.uint8), np.zeros((0, 1), FLOAT32), *rest
        check("MatMulNBits", *operands, microsoft=True, K=32, N=3, bits=4, block_size=32)


@pytest.mark.parametrize("mask", [None, "ends", "starts", "raw", "of pairs", "none"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_attention(dtype, mask):
    """In floating point from the first product on, whose sums are other ones."""
    rng, batch, length, heads = np.random.default_rng(10), 2, 5, 2
    for per_column, past, unidirectional in [(False, 0, 0), (True, 4, 0), (False, 4, 1), (True, 0, 1)]:
        total = length + past
        given = {
            None: None,
            "ends": np.array([3, total]),
            "starts": np.array([3, total, 1, 0]),
            "raw": np.arange(total) < rng.integers(1, total, (batch, 1)),
            "of pairs": np.arange(total) < rng.integers(1, total, (batch, length, 1)),
            "none": np.zeros((batch, 1)),
        }[mask]
        columns = (24,) if per_column else ()
        operands = (
            integers(rng, np.uint8, batch, length, 8),
            integers(rng, dtype, 8, 24),
            rng.normal(size=24).astype(FLOAT32),
            scalar(0.02),
            np.asarray(rng.uniform(0, 0.01, columns), FLOAT32),
            None if given is None else given.astype(np.int32),
            integers(rng, np.uint8),
            integers(rng, dtype, *columns),
            rng.normal(size=(2, batch, heads, past, 4)).astype(FLOAT32) if past else None,
        )
        node = Node(
            "QAttention",
            *operands,
            microsoft=True,
            outputs=2,
            constant=(1, 7),
            num_heads=heads,
            unidirectional=unidirectional,
        )
        for ours, theirs in zip(node.ours(*operands), node.theirs(*operands), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * abs(theirs).max())
