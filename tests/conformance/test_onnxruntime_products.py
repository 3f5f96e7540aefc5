"""Integer matrix products compared with onnxruntime, bit for bit.

onnxruntime has no kernels for zero points per row of A: `tests/operators/` compares these with NumPy.
"""

import itertools

import numpy as np
import pytest
from support.programs import together, with_packed_weights
from support.sampling import one_in
from support.saturation import need_exact_products

import jquant
from jquant.cases import samples

from .graph import DTYPE_PAIRS, Graph, onnx, pairs_with_kernel, run

FLOAT32 = np.float32
SHAPES = [((), 1, 1, 1), ((), 1, 300, 77), ((), 16, 64, 32), ((), 65, 129, 31), ((3,), 7, 40, 9), ((2, 3), 5, 6, 7)]


@pytest.mark.parametrize("b_dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("a_dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("saturated", [False, True])
def test_matmul_integer(a_dtype, b_dtype, saturated):
    """Without zero points, with scalars for both matrices, and with one per column of B."""
    need_exact_products(a_dtype, b_dtype)
    rng = np.random.default_rng(4)

    def matrix(dtype, *shape):
        limits = np.iinfo(dtype)
        if saturated:
            return rng.choice(np.array([limits.min, limits.max], dtype), shape)
        return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)

    calls, theirs = [], []
    for batch, m, k, n in SHAPES:
        a, b = matrix(a_dtype, *batch, m, k), matrix(b_dtype, *batch, k, n)
        a_zero_point = matrix(a_dtype, 1)[0]
        with_zero_points = [(a, b, a_zero_point, matrix(b_dtype, 1)[0])]
        if not batch:
            with_zero_points.append((a, b, a_zero_point, matrix(b_dtype, n)))
        for operands in ((a, b), *with_zero_points):
            calls.append((jquant.matmul_integer, operands))
            theirs.append(run("MatMulInteger", *operands))
    for ours, expected in zip(together(calls), theirs, strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_matmul_integer_wraps():
    a, b = np.full((1, 140_000), 255, np.uint8), np.full((140_000, 1), 255, np.uint8)
    assert jquant.matmul_integer(a, b) == run("MatMulInteger", a, b) == 513_565_408


FUSED_SHAPES = [*SHAPES, ((), 500, 257, 600)]


class Operands:
    """Random operands of a fused product, with B's scale and zero point per tensor or per column."""

    def __init__(self, rng, a_dtype, b_dtype, batch, m, k, n, per_column):
        def integers(dtype, *shape):
            limits = np.iinfo(dtype)
            return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)

        self.a, self.b = integers(a_dtype, *batch, m, k), integers(b_dtype, *batch, k, n)
        self.a_scale = samples.scales(rng, 1)[0]
        self.a_zero_point = integers(a_dtype)
        sizes = (n,) if per_column else ()
        self.b_scale = np.asarray(samples.scales(rng, n)[: n if per_column else 1].reshape(sizes))
        self.b_zero_point = integers(b_dtype, *sizes)
        self.spread = max(1, float(np.std(self.a @ self.b.astype(np.float64)))) * self.a_scale * self.b_scale.mean()


def assert_plain_and_packed_equal(function, calls, theirs):
    """Calls of a function, each a tuple of operands, with plain and with packed weights, return onnxruntime's results."""
    ours = together([(function, operands) for operands in [*calls, *with_packed_weights(calls)]])
    for actual, expected in zip(ours, theirs * 2, strict=True):
        np.testing.assert_array_equal(actual, expected)


@pairs_with_kernel
def test_quantized_linear_matmul(a_dtype, b_dtype):
    """QLinearMatMul, whose output has the dtype of A, with and without saturation."""
    need_exact_products(a_dtype, b_dtype)
    rng = np.random.default_rng(6)
    for width in (3, 30, 300):
        calls, theirs = [], []
        for (batch, m, k, n), per_column in itertools.product(FUSED_SHAPES, (False, True)):
            if batch and per_column:
                continue  # onnxruntime has no kernel
            p = Operands(rng, a_dtype, b_dtype, batch, m, k, n, per_column)
            output_scale, output_zero_point = np.float32(p.spread / width), samples.integers(rng, a_dtype)
            operands = p.a, p.a_scale, p.a_zero_point, p.b, p.b_scale, p.b_zero_point, output_scale, output_zero_point
            calls.append(operands)
            theirs.append(run("QLinearMatMul", *operands))
        assert_plain_and_packed_equal(jquant.quantized_linear_matmul, calls, theirs)


@pairs_with_kernel
def test_quantized_gemm(a_dtype, b_dtype):
    """QGemm, with a bias for each column, for each element, and without one."""
    need_exact_products(a_dtype, b_dtype)
    rng = np.random.default_rng(8)
    shapes = (1, 300, 77), (300, 257, 200)
    biases = (True, None), (False, "n"), (True, "mn")
    calls, theirs = [], []
    for (m, k, n), (per_column, c_sizes) in itertools.product(shapes, biases):
        p = Operands(rng, a_dtype, b_dtype, (), m, k, n, per_column)
        unit, output_scale = p.a_scale * p.b_scale.mean(), np.float32(p.spread / 60)
        c = None
        if c_sizes:
            c = (rng.normal(size=(n,) if c_sizes == "n" else (m, n)) * p.spread / unit).astype(np.int32)
        output_zero_point = samples.integers(rng, a_dtype)
        operands = p.a, p.a_scale, p.a_zero_point, p.b, p.b_scale, p.b_zero_point, c, output_scale, output_zero_point
        calls.append(operands)
        theirs.append(run("QGemm", *operands, domain="com.microsoft"))
    assert_plain_and_packed_equal(jquant.quantized_gemm, calls, theirs)


@one_in(3, ("a_dtype", "b_dtype", "with_bias"), [(*pair, bias) for pair in DTYPE_PAIRS for bias in (False, True)])
def test_matmul_integer_to_float(a_dtype, b_dtype, with_bias):
    """MatMulInteger, Cast, Mul and Add, which onnxruntime fuses to MatMulIntegerToFloat."""
    need_exact_products(a_dtype, b_dtype)
    rng = np.random.default_rng(7)
    calls, theirs = [], []
    for (batch, m, k, n), per_column in itertools.product(FUSED_SHAPES if with_bias else FUSED_SHAPES[-1:], (False, True)):
        if batch and per_column:
            continue  # onnxruntime has no kernel
        p = Operands(rng, a_dtype, b_dtype, batch, m, k, n, per_column)
        inputs = {
            name: np.asarray(getattr(p, name)) for name in ("a", "a_scale", "a_zero_point", "b", "b_scale", "b_zero_point")
        }
        nodes = [
            ("MatMulInteger", ["a", "b", "a_zero_point", "b_zero_point"], ["product"], {}),
            ("Cast", ["product"], ["value"], {"to": onnx.TensorProto.FLOAT}),
            ("Mul", ["a_scale", "b_scale"], ["scale"], {}),
            ("Mul", ["value", "scale"], ["scaled" if with_bias else "output"], {}),
        ]
        if with_bias:
            nodes.append(("Add", ["scaled", "bias"], ["output"], {}))
            inputs["bias"] = (rng.normal(size=(*(1,) * len(batch), 1, n)) * p.spread).astype(FLOAT32)
        calls.append(tuple(inputs.values()))
        theirs.append(Graph(*nodes, **inputs)(**inputs))
    assert_plain_and_packed_equal(jquant.matmul_integer_to_float, calls, theirs)
