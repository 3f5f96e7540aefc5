"""onnxruntime's own quantized operators, one node at a time, against onnxruntime.

These are its results on x86-64; its kernels for other processors add and multiply differently.
"""

import itertools

import ml_dtypes
import numpy as np
import pytest
from support.saturation import need_exact_products

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
    """Three scales, often with ratios that are powers of two, which makes ties, and three zero points."""
    first = samples.scales(rng, 1)[0]
    others = [first * (2.0 ** rng.integers(-2, 3) if rng.random() < 0.5 else rng.uniform(0.3, 4)) for _ in range(2)]
    return [(scalar(each), integers(rng, dtype)) for each in (first, *others)]


def assert_all_equal(operator: str, operand_sets, **attributes) -> int:
    """Compares one program on all sets of operands, which have the same shapes."""
    node, count = None, 0
    for operands in operand_sets:
        node = node or Node(operator, *operands, microsoft=True, **attributes)
        count += node.assert_equal(*operands)
    return count


def binary_operands(rng, operator, a, b):
    """The operands of QLinearAdd or QLinearMul, with random scales and zero points."""
    (a_scale, a_zero_point), (b_scale, b_zero_point), (scale, zero_point) = parameters(rng, a.dtype)
    if operator == "QLinearMul":
        scale = scalar(a_scale * b_scale * (2.0 ** rng.integers(0, 9) if rng.random() < 0.4 else rng.uniform(1, 300)))
    return a, a_scale, a_zero_point, b, b_scale, b_zero_point, scale, zero_point


@every_type
@pytest.mark.parametrize("operator", ["QLinearAdd", "QLinearMul"])
def test_all_pairs(operator, dtype):
    """All 65,536 pairs, with 20 random quantizations."""
    rng, pairs = np.random.default_rng(0), PAIRS.view(dtype)
    assert_all_equal(operator, [binary_operands(rng, operator, *pairs) for _ in range(20)])


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
    """The kernel adds the operand that is broadcast first."""
    rng = np.random.default_rng(1)
    for a_shape, b_shape in SHAPES:
        pairs = [(integers(rng, dtype, *a_shape), integers(rng, dtype, *b_shape)) for _ in range(30)]
        assert_all_equal(operator, [binary_operands(rng, operator, a, b) for a, b in pairs])


@every_type
def test_leaky_relu_concat_and_where(dtype):
    """All 256 values, with 500 random quantizations."""
    rng, x = np.random.default_rng(2), PAIRS[1, :256].view(dtype)
    quantizations = [parameters(rng, dtype) for _ in range(500)]
    assert_all_equal("QLinearLeakyRelu", [(x, *first, *second) for first, second, _ in quantizations], alpha=0.1)
    concatenated = [(*output, x, *first, x, *second) for output, first, second in quantizations]
    assert_all_equal("QLinearConcat", concatenated, axis=0)
    for y_sizes in ((256,), (2, 256), (1,)):
        operands = []
        for i in range(100):
            first, second, _ = quantizations[i]
            condition, y = rng.random(256) < 0.5, np.resize(rng.permutation(x), y_sizes)
            operands.append((condition, x, *first, y, *second, *quantizations[i][i % 3]))
        assert_all_equal("QLinearWhere", operands)


@every_type
def test_sigmoid(dtype):
    """The correctly rounded sigmoid. onnxruntime's polynomial depends on the processor, and differs next to ties alone."""
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
    """Sums in onnxruntime's order, with windows that extend beyond the edges, and global pools."""
    rng = np.random.default_rng(5)
    for sizes, attributes in POOLS:
        quantizations = [parameters(rng, dtype) for _ in range(20)]
        operands = [(integers(rng, dtype, *sizes), *first, *second) for first, second, _ in quantizations]
        assert_all_equal("QLinearAveragePool", operands, **attributes)
    for sizes, channels_last in [((20, 30, 6, 7), 0), ((2, 6, 7, 50), 1), ((3, 4, 9), 0), ((2, 3, 4, 5, 6), 0)]:
        quantizations = [parameters(rng, dtype) for _ in range(20)]
        operands = [(integers(rng, dtype, *sizes), *first, *second) for first, second, _ in quantizations]
        assert_all_equal("QLinearGlobalAveragePool", operands, channels_last=channels_last)


@without_int8_uint8
def test_gemm(a_dtype, b_dtype):
    """Transposed or not, with every shape of bias, and with integer or float32 output."""
    need_exact_products(a_dtype, b_dtype)
    rng = np.random.default_rng(6)
    biases = itertools.cycle([None, (6,), (3, 1), (3, 6), (), (1, 6)])
    for number, (trans_a, trans_b, is_quantized) in enumerate(itertools.product((0, 1), (0, 1), (True, False))):
        sizes = (6,) if number % 3 else ()
        a, b = integers(rng, a_dtype, 3, 50), integers(rng, b_dtype, 50, 6)
        (a_scale, a_zero_point), _, (_, y_zero_point) = parameters(rng, a_dtype)
        b_scale = np.asarray(rng.uniform(0.01, 1, sizes), FLOAT32)
        bias = next(biases)
        c = None if bias is None else np.asarray(rng.integers(-3000, 3000, bias), np.int32)
        a, b = np.ascontiguousarray(a.T) if trans_a else a, np.ascontiguousarray(b.T) if trans_b else b
        operands = a, a_scale, a_zero_point, b, b_scale, integers(rng, b_dtype, *sizes)
        output = (scalar(a_scale * b_scale.mean() * 500), y_zero_point) if is_quantized else ()
        operands += (c, *output) if is_quantized or c is not None else ()
        check("QGemm", *operands, microsoft=True, transA=trans_a, transB=trans_b, alpha=[1.0, 0.3][trans_a])


@without_int8_uint8
def test_products_to_float(a_dtype, b_dtype):
    need_exact_products(a_dtype, b_dtype)
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
    """Packed 2-, 4- and 8-bit integers, and 4-bit dtypes; negative indices, and indices out of range, which give zeros."""
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
        block_sizes = [-(-size // 16) if axis == quantize_axis else size for axis, size in enumerate(sizes)]
        values, zero_points = (
            rng.integers(limits.min, limits.max + 1, shape).astype(limits.dtype) for shape in (sizes, block_sizes)
        )
        indices = rng.integers(-sizes[gather_axis], sizes[gather_axis], 4).astype(np.int32)
        operands = values, indices, rng.uniform(0, 0.1, block_sizes).astype(float_dtype), zero_points
        options = {"block_size": 16, "gather_axis": gather_axis, "quantize_axis": quantize_axis}
        Node("GatherBlockQuantized", *operands, microsoft=True, constant=(0, 3), **options).assert_equal(*operands)


def test_matmul_n_bits():
    """Float sums differ in their last bits. The rows of an identity matrix give the weights themselves."""
    rng = np.random.default_rng(9)
    for bits, (k, n, block), zero_point_kind in itertools.product(
        (2, 4, 8), ((64, 10, 32), (80, 7, 32), (48, 5, 16)), (None, "integer", "float")
    ):
        if (bits, zero_point_kind) == (8, "float"):  # onnxruntime has no kernel
            continue
        blocks = -(-k // block)
        zero_points = {
            None: None,
            "integer": integers(rng, np.uint8, n, -(-blocks * bits // 8)),
            "float": rng.uniform(0, 10, (n, blocks)).astype(FLOAT32),
        }[zero_point_kind]
        weights, scale = integers(rng, np.uint8, n, blocks, block * bits // 8), rng.uniform(0, 0.1, (n, blocks))
        bias = rng.normal(size=n).astype(FLOAT32)
        for a, tolerance in ((np.eye(k, dtype=FLOAT32), 1e-6), (rng.normal(size=(2, 3, k)).astype(FLOAT32), 1e-4)):
            operands = a, weights, scale.astype(FLOAT32), zero_points, None, bias
            node = Node("MatMulNBits", *operands, microsoft=True, constant=(1,), K=k, N=n, bits=bits, block_size=block)
            (ours,), (theirs,) = node.ours(*operands), node.theirs(*operands)
            np.testing.assert_allclose(ours, theirs, atol=tolerance * abs(theirs).max(), rtol=0)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_n_bit_weights_are_packed(bits):
    """With their scales, if all of these are constant and the zero points are integers. 2-bit weights stay as stored."""
    rng, (k, n, block, blocks) = np.random.default_rng(12), (80, 7, 32, 3)
    weights, scale = integers(rng, np.uint8, n, blocks, block * bits // 8), rng.uniform(0, 0.1, (n, blocks))
    integer_zero_points = integers(rng, np.uint8, n, -(-blocks * bits // 8))
    float_zero_points = rng.uniform(0, 9, (n, blocks)).astype(FLOAT32)
    all_zero_points = (None, integer_zero_points) if bits == 8 else (None, integer_zero_points, float_zero_points)
    a, options = rng.normal(size=(3, k)).astype(FLOAT32), {"K": k, "N": n, "bits": bits, "block_size": block}
    for zero_points, constant in itertools.product(all_zero_points, ((1, 2, 3), (1, 2), (1,))):
        operands = a, weights, scale.astype(FLOAT32), zero_points
        node = Node("MatMulNBits", *operands, microsoft=True, constant=constant, **options)
        ours = node.ours(*operands)[0]
        is_packed = isinstance(node.model.params["x1"], jquant.PackedBlockMatrix)
        are_integers = zero_points is None or zero_points.dtype == np.uint8
        needed = {1, 2} if zero_points is None else {1, 2, 3}
        assert is_packed == (bits != 2 and are_integers and needed <= {*constant})
        other_params = {f"x{index}" for index in constant if index > 1 and operands[index] is not None}
        assert set(node.model.params) == {"x1"} | (set() if is_packed else other_params)
        if is_packed:
            packed = node.model.params["x1"]
            assert packed.data.nbytes == 96 * n * bits // 8  # 80 rows, padded to 3 blocks of 32
        theirs = node.theirs(*operands)[0]
        np.testing.assert_allclose(ours, theirs, atol=1e-5 * abs(theirs).max(), rtol=0)


def test_no_weights():
    """Without weights, the product is zeros, or the bias."""
    a, bias = np.ones((2, 32), FLOAT32), np.arange(3, dtype=FLOAT32)
    for rest in ((), (None, None, bias)):
        operands = a, np.zeros((0, 1, 16), np.uint8), np.zeros((0, 1), FLOAT32), *rest
        check("MatMulNBits", *operands, microsoft=True, K=32, N=3, bits=4, block_size=32)


@pytest.mark.parametrize("mask", [None, "ends", "starts", "raw", "of pairs", "none"])
@pytest.mark.parametrize("dtype", [np.uint8, pytest.param(np.int8, marks=pytest.mark.full)])
def test_attention(dtype, mask):
    """Float sums after the first product differ in their last bits."""
    need_exact_products(np.uint8, dtype)
    rng, batch, length, heads = np.random.default_rng(10), 2, 5, 2
    for per_column, past, unidirectional in [(False, 0, 0), (True, 4, 0), (False, 4, 1), (True, 0, 1)]:
        total = length + past
        mask_index = {
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
            None if mask_index is None else mask_index.astype(np.int32),
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
