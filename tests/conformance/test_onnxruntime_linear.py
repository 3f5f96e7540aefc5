"""QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear compared with onnxruntime, bit for bit.

`tests/operators/` compares with NumPy where onnxruntime has no kernel (uint32 DequantizeLinear, int32 QuantizeLinear), wraps
(int32 differences), or takes a float16 infinity to the lowest integer.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jquant
from jquant.cases import samples

from .graph import Graph, onnx, run

FLOAT32 = np.float32


def every_value(dtype, rng: np.random.Generator, count: int) -> np.ndarray:
    """All integers of a dtype; of 32 bits, only `count` random ones."""
    limits = np.iinfo(dtype)
    if limits.bits <= 16:
        return np.arange(limits.min, limits.max + 1).astype(dtype)
    return rng.integers(limits.min // 2, limits.max // 2, count, dtype)


@pytest.mark.parametrize("scale_dtype", [np.float32, np.float16])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32])
def test_dequantize_linear(dtype, scale_dtype):
    rng = np.random.default_rng(0)
    x = every_value(dtype, rng, 2**16)
    limits = np.iinfo(dtype)
    for scale in samples.scales(rng, 100).astype(scale_dtype):
        scale = -scale if scale > 1 else scale
        zero_point = dtype(rng.integers(limits.min // 2, limits.max // 2))
        np.testing.assert_array_equal(
            jquant.dequantize_linear(x, scale, zero_point), run("DequantizeLinear", x, scale, zero_point)
        )
        np.testing.assert_array_equal(jquant.dequantize_linear(x, scale), run("DequantizeLinear", x, scale))


@pytest.mark.parametrize("input_dtype", [np.float32, np.float16])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_quantize_linear(dtype, input_dtype):
    rng = np.random.default_rng(1)
    limits = np.iinfo(dtype)
    for scale in samples.scales(rng, 100).astype(input_dtype):
        x = np.concatenate([samples.near_ties(rng, 4096, scale, -300, 300), samples.wide_floats(rng, 4096)])
        with np.errstate(over="ignore"):
            x = x[~np.isnan(x)].astype(input_dtype)
        x = x if input_dtype == np.float32 else x[np.isfinite(x)]
        zero_point = rng.integers(limits.min, limits.max, (), dtype, endpoint=True)
        np.testing.assert_array_equal(
            jquant.quantize_linear(x, scale, zero_point), run("QuantizeLinear", x, scale, zero_point)
        )


def test_quantize_linear_along_an_axis():
    rng = np.random.default_rng(2)
    x = samples.near_ties(rng, 3 * 50 * 40, 0.5, -200, 200).reshape(3, 50, 40)
    scale, zero_point = samples.scales(rng, 50), rng.integers(-100, 100, 50, np.int8)
    theirs = run("QuantizeLinear", x, scale, zero_point, axis=1)
    np.testing.assert_array_equal(jquant.quantize_linear(x, scale, zero_point, axis=1), theirs)
    shape = (1, 50, 1)
    np.testing.assert_array_equal(jquant.quantize_linear(x, scale.reshape(shape), zero_point.reshape(shape)), theirs)


SIZES = 6, 70, 300
GRANULARITIES = {  # the shape of the scales, and the arguments for it
    (): {},
    (70,): {"axis": 1},
    (6, 70, 10): {"axis": 2, "block_size": 32},  # the last block is partial
    (6, 5, 300): {"axis": 1, "block_size": 14},
    (1, 70, 300): {"axis": 0, "block_size": 7},  # the only block is partial
}


def run_linear(op: str, x: np.ndarray, scale: np.ndarray, zero_point: np.ndarray, dtype, **attributes) -> np.ndarray:
    """QuantizeLinear or DequantizeLinear with integers as int32, because NumPy has no 4- and 2-bit integers."""
    inputs = {"x": x, "scale": scale, "zero_point": zero_point.astype(np.int32)}
    is_quantize = op == "QuantizeLinear"
    inputs["x"] = x if is_quantize else x.astype(np.int32)
    narrow = {"to": onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))}
    wide = {"to": onnx.TensorProto.INT32 if is_quantize else onnx.helper.np_dtype_to_tensor_dtype(scale.dtype)}
    return Graph(
        *(() if is_quantize else [("Cast", ["x"], ["narrow_x"], narrow)]),
        ("Cast", ["zero_point"], ["narrow_zero_point"], narrow),
        (op, ["x" if is_quantize else "narrow_x", "scale", "narrow_zero_point"], ["y"], attributes),
        ("Cast", ["y"], ["output"], wide),
        opset=25,
        **inputs,
    )(**inputs)


@pytest.mark.parametrize("float_dtype", [np.float32, np.float16])
@pytest.mark.parametrize("dtype", ["int2", "uint2", "int4", "uint4", "int8", "uint8", "int16", "uint16"])
class TestGranularity:
    """Per tensor, axis and block. Without quotients of 2**31 or more, which onnxruntime takes to the lowest integer."""

    def operands(self, rng, dtype, float_dtype):
        """A scale and a zero point for each granularity."""
        for sizes in GRANULARITIES:
            scale = np.maximum(samples.scales(rng, np.prod(sizes, dtype=int)), FLOAT32(1e-2)).astype(float_dtype)
            yield scale.reshape(sizes), samples.integers(rng, jnp.dtype(dtype), *sizes)

    def call(self, operator, x, operands, **options):
        """The results of all granularities, from one program."""
        options["feature_level"] = "EXTENDED"

        @jax.jit
        def program(x, operands):
            return [
                operator(x, scale, zero_point, **granularity, **options)
                for (scale, zero_point), granularity in zip(operands, GRANULARITIES.values(), strict=True)
            ]

        return program(x, operands)

    def test_dequantize_linear(self, dtype, float_dtype):
        rng = np.random.default_rng(8)
        x, operands = samples.integers(rng, jnp.dtype(dtype), *SIZES), [*self.operands(rng, dtype, float_dtype)]
        ours = self.call(jquant.dequantize_linear, x, operands)
        for actual, pair, granularity in zip(ours, operands, GRANULARITIES.values(), strict=True):
            theirs = run_linear("DequantizeLinear", x, *pair, dtype, **granularity)
            np.testing.assert_array_equal(actual, theirs, str(granularity), strict=True)

    def test_quantize_linear(self, dtype, float_dtype):
        rng = np.random.default_rng(9)
        count, limits = np.prod(SIZES, dtype=int), jnp.iinfo(dtype)
        x = samples.near_ties(rng, count // 2, 0.5, 2 * limits.min - 9, 2 * limits.max + 9)
        wide = np.nan_to_num(samples.wide_floats(rng, count - count // 2))
        x = rng.permutation(np.concatenate([x, wide])).clip(-60_000, 60_000).astype(float_dtype).reshape(SIZES)
        operands = [*self.operands(rng, dtype, float_dtype)]
        ours = self.call(jquant.quantize_linear, x, operands)
        for actual, pair, granularity in zip(ours, operands, GRANULARITIES.values(), strict=True):
            # Without `precision`, onnxruntime 1.32 divides float16 in float16; in ONNX, the type of the scale determines it.
            theirs = run_linear("QuantizeLinear", x, *pair, dtype, precision=onnx.TensorProto.FLOAT, **granularity)
            np.testing.assert_array_equal(np.asarray(actual).astype(np.int32), theirs, str(granularity))


def test_dynamic_quantize_linear():
    """All three outputs, for values of any magnitude on one side of 0 or both, ties, and zeros."""
    rng = np.random.default_rng(10)
    quantize, graph = jax.jit(jquant.dynamic_quantize_linear), None
    for number in range(300):
        low, high = [(-1, 1), (0, 1), (-1, 0), (0.5, 1), (-1, -0.5), (0, 0)][number % 6]
        scale = samples.scales(rng, 4)[number % 4]
        x = (rng.uniform(low, high, 10_000) * scale).astype(FLOAT32)
        if number % 2:  # with ties, and a range that results in their scale
            x[:5000] = samples.near_ties(rng, 5000, scale, 0, 255) + x.min()
            x[:2] = x.min(), x.min() + 255 * scale
        graph = graph or Graph(("DynamicQuantizeLinear", ["x"], ["output", "scale", "zero_point"], {}), x=x)
        theirs = graph.session.run(["output", "scale", "zero_point"], {"x": x})
        for ours, expected in zip(quantize(x), theirs, strict=True):
            np.testing.assert_array_equal(ours, expected, strict=True)
