"""Cases of the integer products of DirectML and ONNX, and of `dot_general`."""

import dataclasses
import functools
from typing import Any

import numpy as np

import jquant
from jquant.cases import samples
from jquant.cases.case import CHANNELS, FLOATS, Case
from jquant.reference import products as reference

DEPTH = 96
product = functools.partial(Case, elementwise=False)


def packed(b, zero_point: Any = None, block_size=DEPTH):
    """The documented result of `pack_matrix`, in NumPy."""
    *batch, k, n = b.shape
    data = (b.astype(np.int16) - (128 if b.dtype == np.uint8 else 0)).astype(np.int8)
    block_sums = data.reshape(*batch, k // block_size, block_size, n).sum(-2, dtype=np.int32)
    if zero_point is not None:
        zero_point = np.atleast_2d(zero_point)
        zero_point = np.broadcast_to(zero_point, (*batch, *zero_point.shape[-2:]))
    return jquant.PackedMatrix(data=np.swapaxes(data, -1, -2), block_sums=block_sums, zero_point=zero_point, dtype=b.dtype)


def unpacked(matrix):
    """The inverse of `packed`: the matrix and its zero point."""
    b = np.swapaxes(np.asarray(matrix.data), -1, -2).astype(np.int16) + (128 if matrix.dtype == np.uint8 else 0)
    return b.astype(matrix.dtype), 0 if matrix.zero_point is None else np.asarray(matrix.zero_point)


def draw_product(rng, rows):
    """uint8 A and int8 B, with a scale and a zero point for each row and each column."""
    return (
        samples.integers(rng, np.uint8, rows, DEPTH),
        samples.small_scales(rng, rows, 1),
        samples.integers(rng, np.uint8, rows, 1),
        samples.integers(rng, np.int8, DEPTH, CHANNELS),
        samples.small_scales(rng, 1, CHANNELS),
        samples.integers(rng, np.int8, 1, CHANNELS),
    )


def draw_matmul_integer(rng, rows):
    a, _, a_zero_point, b, _, b_zero_point = draw_product(rng, rows)
    return a, b, a_zero_point, b_zero_point


def draw_quantized_gemm(rng, rows):
    """A scale and a zero point per tensor of A, per column of B, and a bias."""
    a, _, _, b, _, _ = draw_product(rng, rows)
    return (
        a,
        samples.small_scales(rng),
        samples.integers(rng, np.uint8),
        b,
        samples.small_scales(rng, CHANNELS),
        samples.integers(rng, np.int8, CHANNELS),
        rng.integers(-(2**18), 2**18, CHANNELS, np.int32),
        rng.uniform(1, 9, ()).astype(np.float32),
        samples.integers(rng, np.int8),
    )


def draw_many_matrices(rng, rows):
    """A batch of matrices A with a zero point per row, one matrix B, and a bias."""
    return (
        samples.integers(rng, np.uint8, rows, 3, DEPTH),
        samples.small_scales(rng),
        samples.integers(rng, np.uint8, 3, 1),
        samples.integers(rng, np.int8, DEPTH, CHANNELS),
        samples.small_scales(rng, CHANNELS),
        samples.integers(rng, np.int8),
        (rng.normal(size=CHANNELS) * 100).astype(np.float32),
    )


def to_float(dtype) -> Case:
    """`matmul_integer_to_float` to a float dtype, with a scale per tensor of A and per column of B."""

    def draw(rng, rows):
        a, _, _, b, _, _ = draw_product(rng, rows)
        bias = (rng.normal(size=(1, CHANNELS)) * 100).astype(dtype)
        a_scale, b_scale = samples.small_scales(rng, dtype=dtype), samples.small_scales(rng, CHANNELS, dtype=dtype)
        return a, a_scale, samples.integers(rng, np.uint8), b, b_scale, bias

    def function(a, a_scale, a_zero_point, b, b_scale, bias):
        return jquant.matmul_integer_to_float(a, a_scale, a_zero_point, b, b_scale, None, bias, feature_level="EXTENDED")

    def formula(a, a_scale, a_zero_point, b, b_scale, bias):
        return reference.matmul_integer_to_float(a, a_scale, a_zero_point, b, b_scale, 0, bias, dtype)

    return product(function, formula, draw)


DENSE, BATCHED = (((1,), (0,)), ((), ())), (((2,), (1,)), ((0,), (0,)))  # dimension numbers


def symmetric_rows(rng, rows, specials=True):
    """Rows of different magnitude, with values next to ties of 127 steps. The last three have zeros, an infinity and NaN."""
    step = 10 ** rng.uniform(-4, 2, (rows, 1))
    x = samples.near_ties(rng, rows * DEPTH, np.repeat(step, DEPTH), -127, 127).reshape(rows, DEPTH)
    x[:, 0] = (127 * step[:, 0]).astype(np.float32)
    if specials:
        x[-3] = 0
        x[-2:, 1] = np.inf, np.nan
    return x


def dot_general(lhs_scales: str, lhs_dtype: Any = np.float32, rhs_dtype: Any = np.float32, **options: Any) -> Case:
    """`dot_general` of rows and a matrix."""
    per_tensor = lhs_scales == "PER_TENSOR"

    def draw(rng, rows):
        weights = rng.normal(size=(DEPTH, CHANNELS)) * 10 ** rng.uniform(-2, 2, CHANNELS)
        return symmetric_rows(rng, rows, specials=not per_tensor).astype(lhs_dtype), weights.astype(rhs_dtype)

    return product(
        functools.partial(jquant.dot_general, dimension_numbers=DENSE, lhs_scales=lhs_scales, **options),
        functools.partial(reference.dot_general, dimension_numbers=DENSE, lhs_per_tensor=per_tensor, dtype=lhs_dtype),
        draw,
        collectives=("all-reduce",) if per_tensor else (),
    )


def draw_batch(rng, rows):
    """A matrix and a vector for each row."""
    return symmetric_rows(rng, 4 * rows).reshape(rows, 4, DEPTH), symmetric_rows(rng, rows).reshape(rows, DEPTH, 1)


def draw_quantized_matmul(rng, rows):
    """A scale per tensor of A and of the output, and per column of B."""
    a, _, _, b, b_scale, b_zero_point = draw_product(rng, rows)
    a_scale, output_scale = samples.small_scales(rng), np.float32(rng.uniform(1, 9))
    a_zero_point, output_zero_point = samples.integers(rng, np.uint8), samples.integers(rng, np.uint8)
    return a, a_scale, a_zero_point, b, b_scale[0], b_zero_point[0], output_scale, output_zero_point


def with_packed_b(case: Case, b: int, b_zero_point: int) -> Case:
    """A case with the argument at index `b` packed; it then holds the zero point, whose own argument becomes None."""

    def draw(rng, rows):
        arguments = list(case.draw(rng, rows))
        arguments[b], arguments[b_zero_point] = packed(arguments[b], arguments[b_zero_point]), None
        return tuple(arguments)

    def formula(*arguments):
        plain = list(arguments)
        plain[b], plain[b_zero_point] = unpacked(arguments[b])
        return case.formula(*plain)

    return dataclasses.replace(case, formula=formula, draw=draw)


CASES: dict[str, Case] = {
    "matmul_integer": product(jquant.matmul_integer, reference.matmul_integer, draw_matmul_integer, rows=(0, 2)),
    "matmul_integer_to_float": product(
        jquant.matmul_integer_to_float,
        reference.matmul_integer_to_float,
        lambda rng, rows: (*draw_product(rng, rows), (rng.normal(size=(1, CHANNELS)) * 100).astype(np.float32)),
        rows=(0, 1, 2),
    ),
    "matmul_integer_to_float, ranks": product(
        functools.partial(jquant.matmul_integer_to_float, feature_level="EXTENDED"),
        reference.matmul_integer_to_float,
        draw_many_matrices,
    ),
    "quantized_linear_matmul": product(
        jquant.quantized_linear_matmul,
        functools.partial(reference.quantized_linear_matmul, dtype=np.int8),
        lambda rng, rows: (
            *draw_product(rng, rows),
            rng.uniform(1, 9, (rows, 1)).astype(np.float32),
            samples.integers(rng, np.int8, rows, 1),
        ),
        rows=(0, 1, 2, 6, 7),
    ),
    "quantized_gemm": product(
        jquant.quantized_gemm,
        functools.partial(reference.quantized_gemm, dtype=np.int8),
        draw_quantized_gemm,
        divisor=lambda *operands: operands[7],
    ),
    "dot_general": dot_general("PER_CHANNEL"),
    "dot_general, per tensor": dot_general("PER_TENSOR"),
    "dot_general, batch": product(
        functools.partial(jquant.dot_general, dimension_numbers=BATCHED),
        functools.partial(reference.dot_general, dimension_numbers=BATCHED),
        draw_batch,
        rows=(0, 1),
    ),
    "pack_matrix": product(
        jquant.pack_matrix,
        packed,
        lambda rng, rows: (
            samples.integers(rng, np.uint8, rows, DEPTH, CHANNELS),
            samples.integers(rng, np.uint8, 1, 1, CHANNELS),
        ),
    ),
}
for name, b, b_zero_point in (
    ("matmul_integer", 1, 3),
    ("matmul_integer_to_float", 3, 5),
    ("matmul_integer_to_float, ranks", 3, 5),
    ("quantized_linear_matmul", 3, 5),
    ("quantized_gemm", 3, 5),
):
    CASES[f"{name}, packed"] = with_packed_b(CASES[name], b=b, b_zero_point=b_zero_point)

VARIANTS: dict[str, Case] = {
    **{f"matmul_integer_to_float, {dtype}, tensor": to_float(dtype) for dtype in FLOATS},
    "dot_general, bfloat16": dot_general("PER_CHANNEL", FLOATS[2], FLOATS[2]),
    "dot_general, float16": dot_general("PER_CHANNEL", FLOATS[1], FLOATS[1], rhs_scales="PER_CHANNEL"),
    "quantized_linear_matmul, tensor": product(
        jquant.quantized_linear_matmul,
        functools.partial(reference.quantized_linear_matmul, dtype=np.uint8),
        draw_quantized_matmul,
        divisor=lambda *operands: operands[6],
    ),
}
