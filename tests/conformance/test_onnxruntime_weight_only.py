"""onnxruntime's operators on weights of 2 to 8 bits: look-ups bit for bit, and products within the error bound of sums."""

import itertools

import ml_dtypes
import numpy as np
import pytest

import jquant
from jquant.cases import samples
from jquant.reference import weight_only as reference

from .graph import Graph, onnx, run

FLOAT32 = np.float32
MICROSOFT = {"domain": "com.microsoft"}


def draw_weights(rng, k, n, block, bits, zero_point_format):
    """Packed integers, scales, and zero points: packed, floats, or None."""
    blocks = -(-k // block)
    b = samples.integers(rng, np.uint8, n, blocks, block * bits // 8)
    zero_points = {
        None: None,
        "packed": samples.integers(rng, np.uint8, n, -(-blocks * bits // 8)),
        "floats": rng.uniform(0, 2**bits, (n, blocks)).astype(FLOAT32),
    }[zero_point_format]
    return b, rng.uniform(1e-3, 1e-1, (n, blocks)).astype(FLOAT32), zero_points


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_products(bits, count):
    """At `accuracy_level` 0, which does not round operands, both results are within the bound of the float64 sum."""
    rng = np.random.default_rng(bits)
    sizes, zero_point_formats = [(1, 256, 70, 32), (5, 160, 33, 64)], (None, "packed", "floats")
    for (m, k, n, block), zero_point_format in itertools.product(sizes, zero_point_formats):
        if (bits, zero_point_format) == (8, "floats"):  # onnxruntime has no kernel
            continue
        b, scales, zero_points = draw_weights(rng, k, n, block, bits, zero_point_format)
        a, bias = rng.normal(size=(m, k)).astype(FLOAT32), rng.normal(size=n).astype(FLOAT32)
        weights = reference.block_weights(b, scales, zero_points, k, bits).astype(np.float64)
        sum, magnitude = a.astype(np.float64) @ weights, abs(a.astype(np.float64)) @ abs(weights)
        bound = (k + 2) * 2.0**-23 * magnitude + 2.0**-23 * abs(sum + bias)
        ours = jquant.matmul_n_bits(a, b, scales, zero_points, None, bias, bits=bits)
        options = {"K": k, "N": n, "bits": bits, "block_size": block, "accuracy_level": 0, **MICROSOFT}
        theirs = run("MatMulNBits", a, b, scales, zero_points, None, bias, **options)
        for result in (ours, theirs):
            assert np.all(abs(np.asarray(result).astype(np.float64) - (sum + bias)) <= bound)
        count("elements of products of few bits", sum.size)


@pytest.mark.parametrize("float_dtype", [np.float32, np.float16])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_look_ups_in_bytes(bits, float_dtype, count):
    rng = np.random.default_rng(10 + bits)
    for sizes, has_zero_points in itertools.product([(50, 96), (20, 3, 80)], (False, True)):
        blocks = -(-sizes[-1] // 16)
        data = samples.integers(rng, np.uint8, *sizes[:-1], sizes[-1] * bits // 8)
        scales = rng.uniform(0, 0.1, (*sizes[:-1], blocks)).astype(float_dtype)
        zero_points = samples.integers(rng, np.uint8, *sizes[:-1], -(-blocks * bits // 8)) if has_zero_points else None
        indices = rng.integers(-sizes[0] - 3, sizes[0] + 3, (40, 5)).astype(np.int32)
        options = {"bits": bits, "block_size": 16, "quantize_axis": len(sizes) - 1}
        ours = jquant.gather_block_quantized(data, indices, scales, zero_points, **options)
        theirs = run("GatherBlockQuantized", data, indices, scales, zero_points, **options, **MICROSOFT)
        np.testing.assert_array_equal(ours, theirs, strict=True)
        count("elements of look-ups", theirs.size)


@pytest.mark.parametrize("float_dtype", [np.float32, np.float16])
@pytest.mark.parametrize("dtype", ["int4", "uint4"])
def test_look_ups_of_4_bits(dtype, float_dtype, count):
    """Along every axis. A cast makes the 4-bit integers, which NumPy lacks."""
    rng, limits = np.random.default_rng(20), ml_dtypes.iinfo(dtype)
    for gather_axis, quantize_axis in itertools.product(range(3), range(3)):
        sizes = [18, 20, 40]
        scale_shape = [-(-size // 16) if axis == quantize_axis else size for axis, size in enumerate(sizes)]
        integers = [rng.integers(limits.min, limits.max + 1, shape).astype(np.int32) for shape in (sizes, scale_shape)]
        indices = rng.integers(-sizes[gather_axis], sizes[gather_axis], 7).astype(np.int32)
        scales = rng.uniform(0, 0.1, scale_shape).astype(float_dtype)
        options = {"block_size": 16, "gather_axis": gather_axis, "quantize_axis": quantize_axis}
        narrow = {"to": onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))}
        inputs = {"data": integers[0], "zero_points": integers[1], "indices": indices, "scales": scales}
        graph = Graph(
            ("Cast", ["data"], ["narrow"], narrow),
            ("Cast", ["zero_points"], ["narrow_zero_points"], narrow),
            ("GatherBlockQuantized", ["narrow", "indices", "scales", "narrow_zero_points"], ["output"], options | MICROSOFT),
            **inputs,
        )
        theirs = graph(**inputs)
        data, zero_points = (x.astype(dtype) for x in integers)
        ours = jquant.gather_block_quantized(data, indices, scales, zero_points, **options)
        np.testing.assert_array_equal(ours, theirs, strict=True)
        count("elements of look-ups", theirs.size)
