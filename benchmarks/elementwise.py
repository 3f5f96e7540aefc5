"""Measures the element-wise operators beside what one would write in JAX, and beside other engines' kernels.

    python -m benchmarks.elementwise [--rounds 100] [--sizes 2^20 ...] [--operators 'quantize*' ...] [--output PREFIX]

Prints the tables, and writes them, their data and the figure to PREFIX.md, .json and .png: by default, for a run with all
operators and sizes, to benchmarks/results/elementwise-PLATFORM-jax-VERSION.

    JAX_PLATFORMS=cpu python -m benchmarks.elementwise --traffic cpu h200 v5e v6e

measures nothing: it compiles for these chips, none of which has to be present, and prints how many bytes the programs read
and write beyond their arguments and results. The compilers for GPUs and TPUs come with ``jax[cuda13]`` and ``jax[tpu]``.

The first part of this file is the naive formulas: what a JAX user writes who does not care about the last bit. Everything
exact is measured against them.
"""

import argparse
import dataclasses
import fnmatch
import functools
import json
import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jquant
from benchmarks import environment
from benchmarks.contestant import Call, Unavailable, Wrong, jitted
from benchmarks.contestants import onnxruntime, tensorflow
from benchmarks.measure import measure, quartiles
from jquant import reference

sys.path.append(str(Path(__file__).parent.parent / "tests"))  # which read what the same programs move

# --- The naive formulas -----------------------------------------------------------------------------------------------


def dequantize_linear(x, scale, zero_point):
    return (x.astype(jnp.float32) - zero_point.astype(jnp.float32)) * scale


def quantize_linear(x, scale, zero_point):
    return jnp.clip(jnp.round(x / scale) + zero_point.astype(jnp.float32), 0, 255).astype(jnp.uint8)


def in_blocks(formula, x, scale, zero_point):
    blocks = x.reshape(*scale.shape, -1)
    return formula(blocks, scale[..., None], zero_point[..., None]).reshape(x.shape)


def dynamic_quantize_linear(x):
    low, high = jnp.minimum(x.min(), 0), jnp.maximum(x.max(), 0)
    scale = (high - low) / 255
    return quantize_linear(x, scale, jnp.round(-low / scale))


def scale_and_zero_point(low, high):
    low, high = jnp.minimum(low, 0), jnp.maximum(high, 0)
    scale = (high - low) / 255
    return jnp.round(-low / scale).astype(jnp.uint8)


def quantized_linear_add(a, a_scale, a_zero_point, b, b_scale, b_zero_point, scale, zero_point):
    value = dequantize_linear(a, a_scale, a_zero_point) + dequantize_linear(b, b_scale, b_zero_point)
    return quantize_linear(value, scale, zero_point)


def quantized_linear_multiply(a, a_scale, a_zero_point, b, b_scale, b_zero_point, scale, zero_point):
    value = dequantize_linear(a, a_scale, a_zero_point) * dequantize_linear(b, b_scale, b_zero_point)
    return quantize_linear(value, scale, zero_point)


def quantized_linear_leaky_relu(x, x_scale, x_zero_point, scale, zero_point, alpha):
    value = dequantize_linear(x, x_scale, x_zero_point)
    return quantize_linear(jnp.where(value < 0, alpha * value, value), scale, zero_point)


def quantized_linear_sigmoid(x, x_scale, x_zero_point, scale, zero_point):
    return quantize_linear(jax.nn.sigmoid(dequantize_linear(x, x_scale, x_zero_point)), scale, zero_point)


def quantized_linear_softmax(x, x_scale, x_zero_point, scale, zero_point):
    return quantize_linear(jax.nn.softmax(dequantize_linear(x, x_scale, x_zero_point), axis=-1), scale, zero_point)


def quantized_linear_concat(scale, zero_point, a, a_scale, a_zero_point, b, b_scale, b_zero_point):
    values = dequantize_linear(a, a_scale, a_zero_point), dequantize_linear(b, b_scale, b_zero_point)
    return jnp.concatenate([quantize_linear(value, scale, zero_point) for value in values], axis=1)


def quantized_linear_global_average_pool(x, x_scale, x_zero_point, scale, zero_point):
    value = dequantize_linear(x, x_scale, x_zero_point).mean(axis=(2, 3), keepdims=True)
    return quantize_linear(value, scale, zero_point)


def quantized_linear_average_pool(x, x_scale, x_zero_point, scale, zero_point):
    value = dequantize_linear(x, x_scale, x_zero_point)
    total = lax.reduce_window(value, np.float32(0), lax.add, (1, 1, 3, 3), (1, 1, 1, 1), "VALID")
    return quantize_linear(total / 9, scale, zero_point)


def clip(x, low, high):
    return jnp.clip(x, low, high)


def clip_scaled(x, low, high, scale, bias):
    return jnp.clip(x * scale + bias, low, high)


def clip_gradient(x, gradient, low, high):
    return jnp.where((x > low) & (x < high), gradient, 0)


def quantize_min_combined(x, low, high):
    return jnp.round((jnp.clip(x, low, high) - low) * (255 / (high - low))).astype(jnp.uint8)


def quantize_min_first(x, low, high):
    scale = 255 / (high - low)
    return jnp.clip(jnp.round(x * scale) - jnp.round(low * scale), 0, 255).astype(jnp.uint8)


def quantize_scaled(x, low, high):
    return jnp.round(jnp.clip(x, 0, high) * (255 / high)).astype(jnp.uint8)


def dequantize_min_combined(x, low, high):
    return x.astype(jnp.float32) * ((high - low) / 255) + low


def dequantize_min_first(x, low, high):
    scale = (high - low) / 255
    return (x.astype(jnp.float32) + jnp.round(low / scale)) * scale


def dequantize_scaled(x, low, high):
    return x.astype(jnp.float32) * (high / 255)


def quantize_and_dequantize(x, low, high):
    scale = jnp.maximum(low / -128, high / 127)
    return jnp.clip(jnp.round(x / scale), -128, 127) * scale


def fake_quantize(x, low, high):
    scale = (high - low) / 255
    zero_point = jnp.round(-low / scale)
    return (jnp.clip(jnp.round(x / scale) + zero_point, 0, 255) - zero_point) * scale


def real(x, low, high):
    return x.astype(jnp.float32) * ((high - low) / 2.0**32) + (low + high) / 2


def requantize(x, low, high, new_low, new_high):
    steps = 255 / (new_high - new_low)
    return jnp.clip(jnp.round((real(x, low, high) - new_low) * steps), 0, 255).astype(jnp.uint8)


def requantize_to_int8(x, low, high, new_low, new_high):
    steps = 255 / (new_high - new_low)
    return jnp.clip(jnp.round((real(x, low, high) - new_low) * steps - 128), -128, 127).astype(jnp.int8)


def requantize_per_channel(x, low, high, new_low, new_high):
    magnitudes = jnp.maximum(-low, high) / jnp.maximum(-new_low, new_high)
    return jnp.clip(jnp.round(x.astype(jnp.float32) * (255 / 2.0**31 * magnitudes)), 0, 255).astype(jnp.uint8)


def requantization_range(x, low, high):
    return jnp.stack([real(x.min(), low, high), real(x.max(), low, high)])


def requantization_range_per_channel(x, low, high):
    magnitudes = jnp.abs(x.astype(jnp.float32)).max(axis=0) * jnp.maximum(-low, high)
    return magnitudes.max() / 2.0**31


def quantize_down_and_shrink_range(x, low, high):
    return requantize(x, low, high, *requantization_range(x, low, high))


def pack_integers(x):
    return x[:, ::2] | x[:, 1::2] << 4


def unpack_integers(packed):
    return jnp.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1)


# --- What is measured -------------------------------------------------------------------------------------------------


class Engine(NamedTuple):
    """Another engine's kernel: from the operands and the result to the call. Raises `Unavailable`."""

    name: str
    make: Callable[[tuple, np.ndarray], Call]


class Operator(NamedTuple):
    """An operator and what it is measured beside, all of them functions of the same operands.

    Attributes:
      ours: the function of this repository.
      naive: the formula above.
      reference: the same in NumPy, which ours must equal.
      operands: makes tensors and parameters from random numbers and a number of elements; none is a constant of a program.
      engine: whose kernel it is measured beside.
      step: how far off the naive formula may be: one step of integers, or of the real numbers that they stand for.
      checked: how many elements the reference computes, counted from the first; None: all.
    """

    ours: Callable[..., Any]
    naive: Callable[..., Any]
    reference: Callable[..., Any]
    operands: Callable[[np.random.Generator, int], tuple]
    engine: Engine
    step: float = 1
    checked: int | None = None


def tensors(operands: tuple) -> list[int]:
    """The indices of the operands that are tensors, not parameters."""
    return [index for index, value in enumerate(operands) if np.size(value) >= max(map(np.size, operands)) // 2]


def by_onnxruntime(operator: str, *, off: int = 0, order: Sequence[int] | None = None, **attributes: Any) -> Engine:
    """onnxruntime's kernel, which may differ by `off`, on the operands in another order, or without some of them."""

    def call(operands: tuple, expected: np.ndarray) -> Call:
        named = [(f"input{index}", operands[index]) for index in order or range(len(operands))]
        inputs = [f"input{index}" for index in tensors(operands)]
        tolerance = np.asarray(off) if off else None
        return onnxruntime.run(operator, named, inputs, expected, tolerance=tolerance, **attributes)

    return Engine("onnxruntime", call)


def by_tensorflow(operator: str, *names: str, sizes: Sequence[int] | None = None, **attributes: Any) -> Engine:
    """TensorFlow's kernel, on operands with these names, the first one reshaped to `sizes`."""

    def call(operands: tuple, expected: np.ndarray) -> Call:
        first, *others = operands
        named = dict(zip(names, (first if sizes is None else first.reshape(sizes), *others), strict=True))
        return tensorflow.run(operator, named, expected, **attributes)

    return Engine("TensorFlow", call)


def by_none(reason: str) -> Engine:
    def call(operands: tuple, expected: np.ndarray) -> Call:
        raise Unavailable(reason)

    return Engine("none", call)


def uint8(rng: np.random.Generator, *sizes: int) -> np.ndarray:
    return rng.integers(0, 256, sizes, np.uint8)


def int32(rng: np.random.Generator, *sizes: int) -> np.ndarray:
    return rng.integers(-(2**31), 2**31, sizes, np.int32)


def uniform(rng: np.random.Generator, *sizes: int) -> np.ndarray:
    return rng.uniform(-1, 1, sizes).astype(np.float32)


def matrix(count: int) -> tuple[int, int]:
    return count // CHANNELS, CHANNELS


def around(value: float, rng: np.random.Generator, *sizes: int) -> np.ndarray:
    """Parameters per channel or block."""
    return (value * rng.uniform(0.8, 1.2, sizes)).astype(np.float32)


CHANNELS, BLOCK = 128, 32
ROWS = 1024
X = np.float32(0.007), np.uint8(121)  # the integers stand for -0.85 to 0.94: a tenth of what is between -1 and 1 saturates
A, B = (np.float32(0.011), np.uint8(121)), (np.float32(0.017), np.uint8(97))
SUM, PRODUCT = (np.float32(0.019), np.uint8(128)), (np.float32(0.03), np.uint8(128))
FRACTION = np.float32(1 / 256), np.uint8(0)
ALPHA = np.float32(0.1)
BOUNDS = np.float32(-0.61), np.float32(0.82)
NEW_BOUNDS = np.float32(-0.33), np.float32(0.41)
STEP = 1.45 / 127  # of 8 bits in BOUNDS, or more
RANGE = "min_range", "max_range"
IN_FOUR: dict[str, Any] = {"sizes": (1, 1, -1, CHANNELS), "quantized": "qint32"}  # TensorFlow's, by channels
REQUANTIZED = "input", "input_min", "input_max", "requested_output_min", "requested_output_max"


def two(rng: np.random.Generator, *sizes: int) -> tuple:
    return uint8(rng, *sizes), *A, uint8(rng, *sizes), *B


def bounds_of(rng: np.random.Generator, *sizes: int) -> tuple[np.ndarray, np.ndarray]:
    return around(BOUNDS[0], rng, *sizes), around(BOUNDS[1], rng, *sizes)


def linear(rng: np.random.Generator, x: np.ndarray, *sizes: int) -> tuple:
    """A tensor of this shape, and its scales and zero points."""
    return x, around(X[0], rng, *sizes).astype(x.dtype if x.dtype != np.uint8 else np.float32), uint8(rng, *sizes)


def quantize(mode: str, formula: Callable) -> Operator:
    return Operator(
        lambda x, low, high: jquant.quantize(x, low, high, "quint8", mode=mode).output,
        formula,
        lambda x, low, high: reference.quantize(x, low, high, np.uint8, mode)[0],
        lambda rng, count: (uniform(rng, count), *BOUNDS),
        by_tensorflow("QuantizeV2", "input", *RANGE, T="quint8", mode=mode),
    )


def dequantize(mode: str, formula: Callable) -> Operator:
    return Operator(
        functools.partial(jquant.dequantize, mode=mode),
        formula,
        functools.partial(reference.dequantize, mode=mode),
        lambda rng, count: (uint8(rng, count), *BOUNDS),
        by_tensorflow("Dequantize", "input", *RANGE, quantized="quint8", mode=mode),
        step=STEP,
    )


def of_granularity(**options: int) -> dict[str, Operator]:
    """quantize_linear and dequantize_linear with a scale and a zero point for each column, or for each block."""

    def sizes(count: int) -> tuple[int, ...]:
        return (count // CHANNELS, CHANNELS // BLOCK) if "block_size" in options else (CHANNELS,)

    def naive(formula: Callable) -> Callable:
        return functools.partial(in_blocks, formula) if "block_size" in options else formula

    name = f"blocks of {BLOCK}" if "block_size" in options else "axis"
    return {
        f"quantize_linear, {name}": Operator(
            functools.partial(jquant.quantize_linear, **options),
            naive(quantize_linear),
            functools.partial(reference.quantize_linear, dtype=np.uint8, **options),
            lambda rng, count: linear(rng, uniform(rng, *matrix(count)), *sizes(count)),
            by_onnxruntime("QuantizeLinear", **options),
        ),
        f"dequantize_linear, {name}": Operator(
            functools.partial(jquant.dequantize_linear, **options),
            naive(dequantize_linear),
            functools.partial(reference.dequantize_linear, **options),
            lambda rng, count: linear(rng, uint8(rng, *matrix(count)), *sizes(count)),
            by_onnxruntime("DequantizeLinear", **options),
            step=X[0],
        ),
    }


def of_narrow_floats(dtype: Any, engine: Engine) -> Operator:
    return Operator(
        functools.partial(jquant.quantize_linear, feature_level="EXTENDED"),
        quantize_linear,
        functools.partial(reference.quantize_linear, dtype=np.uint8),
        lambda rng, count: (uniform(rng, count).astype(dtype), X[0].astype(dtype), X[1]),
        engine,
    )


def softmax(sizes: Callable[[int], tuple[int, int]]) -> Operator:
    """onnxruntime divides integers, and is off by 1 at most."""
    return Operator(
        functools.partial(jquant.quantized_linear_softmax, axis=1),
        quantized_linear_softmax,
        functools.partial(reference.quantized_linear_softmax, axis=1),
        lambda rng, count: (uint8(rng, *sizes(count)), *A, *FRACTION),
        by_onnxruntime("QLinearSoftmax", domain="com.microsoft", axis=1, opset=13, off=1),
    )


IN_PYTHON = 2**14  # the reference of quint8 computes in Python's integers


def requantized(dtype: Any, name: str, formula: Callable) -> Operator:
    return Operator(
        lambda *operands: jquant.requantize(*operands, dtype=name).output,
        formula,
        lambda x, *bounds: reference.requantize(x[:IN_PYTHON], *bounds, dtype)[0],
        lambda rng, count: (int32(rng, count), *BOUNDS, *NEW_BOUNDS),
        by_tensorflow("Requantize", *REQUANTIZED, quantized="qint32", out_type=name),
        checked=IN_PYTHON,
    )


WINDOWS: dict[str, Any] = {"window_sizes": (3, 3)}
UNIT_WINDOWS = {"strides": (1, 1), "dilations": (1, 1), "padding": ((0, 0), (0, 0)), "include_padding": False}

OPERATORS: dict[str, Operator] = {
    "dequantize_linear": Operator(
        jquant.dequantize_linear,
        dequantize_linear,
        reference.dequantize_linear,
        lambda rng, count: (uint8(rng, count), *X),
        by_onnxruntime("DequantizeLinear"),
        step=X[0],
    ),
    "quantize_linear": Operator(
        jquant.quantize_linear,
        quantize_linear,
        functools.partial(reference.quantize_linear, dtype=np.uint8),
        lambda rng, count: (uniform(rng, count), *X),
        by_onnxruntime("QuantizeLinear"),
    ),
    "dynamic_quantize_linear": Operator(
        lambda x: jquant.dynamic_quantize_linear(x).output,
        dynamic_quantize_linear,
        lambda x: reference.dynamic_quantize_linear(x)[0],
        lambda rng, count: (uniform(rng, count),),
        by_onnxruntime("DynamicQuantizeLinear", other_outputs=("scale", "zero_point")),
    ),
    "scale_and_zero_point": Operator(
        lambda low, high: jquant.scale_and_zero_point(low, high, "uint8").zero_point,
        scale_and_zero_point,
        lambda low, high: reference.scale_and_zero_point(low, high, np.uint8)[1],
        lambda rng, count: (-abs(uniform(rng, count)), 0.1 + abs(uniform(rng, count))),
        by_none("neither onnxruntime nor TensorFlow has it"),
    ),
    "quantized_linear_add": Operator(
        jquant.quantized_linear_add,
        quantized_linear_add,
        functools.partial(reference.quantized_linear_add, dtype=np.uint8),
        lambda rng, count: (*two(rng, count), *SUM),
        by_onnxruntime("QLinearAdd", domain="com.microsoft", off=1),
    ),
    "quantized_linear_multiply": Operator(
        jquant.quantized_linear_multiply,
        quantized_linear_multiply,
        functools.partial(reference.quantized_linear_multiply, dtype=np.uint8),
        lambda rng, count: (*two(rng, count), *PRODUCT),
        by_onnxruntime("QLinearMul", domain="com.microsoft", off=1),
    ),
    "quantized_linear_leaky_relu": Operator(
        lambda *operands: jquant.quantized_linear_leaky_relu(*operands[:-1], alpha=operands[-1]),
        quantized_linear_leaky_relu,
        functools.partial(reference.quantized_linear_leaky_relu, dtype=np.uint8),
        lambda rng, count: (uint8(rng, count), *A, np.float32(0.012), np.uint8(60), ALPHA),
        by_onnxruntime("QLinearLeakyRelu", domain="com.microsoft", order=range(5), alpha=float(ALPHA), off=1),
    ),
    "quantized_linear_sigmoid": Operator(
        jquant.quantized_linear_sigmoid,
        quantized_linear_sigmoid,
        reference.quantized_linear_sigmoid,
        lambda rng, count: (uint8(rng, count), np.float32(0.04), A[1], *FRACTION),
        by_onnxruntime("QLinearSigmoid", domain="com.microsoft", off=1),
    ),
    "quantized_linear_softmax": softmax(lambda count: (ROWS, count // ROWS)),
    "quantized_linear_concat": Operator(
        lambda *operands: jquant.quantized_linear_concat([operands[2:5], operands[5:]], *operands[:2], axis=1),
        quantized_linear_concat,
        lambda *operands: reference.quantized_linear_concat(
            [operands[2:5], operands[5:]], *operands[:2], axis=1, dtype=np.uint8
        ),
        lambda rng, count: (*SUM, *two(rng, count // 2 // CHANNELS, CHANNELS)),
        by_onnxruntime("QLinearConcat", domain="com.microsoft", axis=1, off=1),
    ),
    "quantized_linear_global_average_pool": Operator(
        jquant.quantized_linear_global_average_pool,
        quantized_linear_global_average_pool,
        reference.quantized_linear_global_average_pool,
        lambda rng, count: (uint8(rng, 1, count // 64, 8, 8), *A, np.float32(0.003), np.uint8(100)),
        by_onnxruntime("QLinearGlobalAveragePool", domain="com.microsoft", off=1),
    ),
    "quantized_linear_average_pool": Operator(
        functools.partial(jquant.quantized_linear_average_pool, **WINDOWS),
        quantized_linear_average_pool,
        functools.partial(reference.quantized_linear_average_pool, dtype=np.uint8, **WINDOWS, **UNIT_WINDOWS),
        lambda rng, count: (uint8(rng, 1, count // 1024, 32, 32), *A, *A),
        by_onnxruntime("QLinearAveragePool", domain="com.microsoft", kernel_shape=(3, 3), off=1),
    ),
    "clip": Operator(
        jquant.clip,
        clip,
        reference.clip,
        lambda rng, count: (uniform(rng, count), *BOUNDS),
        by_onnxruntime("Clip"),
        step=0,
    ),
    "clip, scale_bias": Operator(
        lambda x, low, high, *scale_bias: jquant.clip(x, low, high, scale_bias=jquant.ScaleBias(*scale_bias)),
        clip_scaled,
        lambda x, low, high, *scale_bias: reference.clip(x, low, high, scale_bias),
        lambda rng, count: (uniform(rng, count), *BOUNDS, np.float32(1.3), np.float32(0.1)),
        by_none("neither onnxruntime nor TensorFlow has it"),
        step=1e-6,
    ),
    "clip1": Operator(
        jquant.clip1,
        clip,
        reference.clip1,
        lambda rng, count: (uint8(rng, count), np.uint8(20), np.uint8(230)),
        by_onnxruntime("Clip"),
        step=0,
    ),
    "clip_gradient": Operator(
        jquant.clip_gradient,
        clip_gradient,
        reference.clip_gradient,
        lambda rng, count: (uniform(rng, count), uniform(rng, count), *BOUNDS),
        by_none("neither onnxruntime nor TensorFlow has it"),
        step=0,
    ),
    "quantize, MIN_COMBINED": quantize("MIN_COMBINED", quantize_min_combined),
    "quantize, MIN_FIRST": quantize("MIN_FIRST", quantize_min_first),
    "quantize, SCALED": quantize("SCALED", quantize_scaled),
    "dequantize, MIN_COMBINED": dequantize("MIN_COMBINED", dequantize_min_combined),
    "dequantize, MIN_FIRST": dequantize("MIN_FIRST", dequantize_min_first),
    "dequantize, SCALED": dequantize("SCALED", dequantize_scaled),
    "quantize_and_dequantize": Operator(
        jquant.quantize_and_dequantize,
        quantize_and_dequantize,
        reference.quantize_and_dequantize,
        lambda rng, count: (uniform(rng, count), *BOUNDS),
        by_tensorflow("QuantizeAndDequantizeV4", *REQUANTIZED[:3], range_given=True),
        step=STEP,
    ),
    "fake_quantize": Operator(
        jquant.fake_quantize,
        fake_quantize,
        reference.fake_quantize,
        lambda rng, count: (uniform(rng, count), *BOUNDS),
        by_tensorflow("FakeQuantWithMinMaxVars", "inputs", "min", "max"),
        step=STEP,
    ),
    "requantize, quint8": requantized(np.uint8, "quint8", requantize),
    "requantize, qint8": requantized(np.int8, "qint8", requantize_to_int8),
    "requantize_per_channel": Operator(
        lambda *operands: jquant.requantize_per_channel(*operands).output,
        requantize_per_channel,
        lambda *operands: reference.requantize_per_channel(*operands, np.uint8)[0],
        lambda rng, count: (int32(rng, *matrix(count)), *bounds_of(rng, CHANNELS), *NEW_BOUNDS),
        by_tensorflow("RequantizePerChannel", *REQUANTIZED, **IN_FOUR, out_type="quint8"),
    ),
    "requantization_range": Operator(
        lambda *operands: jnp.stack(jquant.requantization_range(*operands)),
        requantization_range,
        lambda *operands: np.stack(reference.requantization_range(*operands)),
        lambda rng, count: (int32(rng, count), *BOUNDS),
        by_tensorflow("RequantizationRange", *REQUANTIZED[:3], quantized="qint32", result=None),
        step=1e-6,
    ),
    "requantization_range_per_channel": Operator(
        lambda *operands: jquant.requantization_range_per_channel(*operands).output_max,
        requantization_range_per_channel,
        lambda *operands: reference.requantization_range_per_channel(*operands)[1],
        lambda rng, count: (int32(rng, *matrix(count)), *bounds_of(rng, CHANNELS)),
        by_tensorflow("RequantizationRangePerChannel", *REQUANTIZED[:3], **IN_FOUR, result=1, clip_value_max=float(np.inf)),
        step=1e-6,
    ),
    "quantize_down_and_shrink_range": Operator(
        lambda *operands: jquant.quantize_down_and_shrink_range(*operands).output,
        quantize_down_and_shrink_range,
        lambda x, *bounds: reference.requantize(
            x[:IN_PYTHON], *bounds, *reference.requantization_range(x, *bounds), np.uint8
        )[0],
        lambda rng, count: (int32(rng, count), *BOUNDS),
        by_tensorflow("QuantizeDownAndShrinkRange", *REQUANTIZED[:3], quantized="qint32", out_type="quint8"),
        checked=IN_PYTHON,
    ),
    "pack_integers": Operator(
        lambda x: jquant.pack_integers(x.astype(jnp.uint4)),
        pack_integers,
        lambda x: reference.pack_integers(x.astype(jnp.uint4)),
        lambda rng, count: (uint8(rng, *matrix(count)) >> 4,),
        by_none("neither onnxruntime nor TensorFlow has it"),
        step=0,
    ),
    "unpack_integers": Operator(
        lambda packed: jquant.unpack_integers(packed, "uint4").astype(jnp.uint8),
        unpack_integers,
        lambda packed: reference.unpack_integers(packed, jnp.uint4, CHANNELS).astype(np.uint8),
        lambda rng, count: (uint8(rng, count // CHANNELS, CHANNELS // 2),),
        by_none("neither onnxruntime nor TensorFlow has it"),
        step=0,
    ),
}

VARIANTS: dict[str, Operator] = {  # at one size
    **of_granularity(axis=1),
    **of_granularity(axis=1, block_size=BLOCK),
    "quantize_linear, float16": of_narrow_floats(jnp.float16, by_onnxruntime("QuantizeLinear")),
    "quantize_linear, bfloat16": of_narrow_floats(jnp.bfloat16, by_none("onnxruntime has no kernel for it on a CPU")),
    "quantize_and_dequantize, axis": Operator(
        functools.partial(jquant.quantize_and_dequantize, axis=1),
        quantize_and_dequantize,
        functools.partial(reference.quantize_and_dequantize, axis=1),
        lambda rng, count: (uniform(rng, *matrix(count)), *bounds_of(rng, CHANNELS)),
        by_tensorflow("QuantizeAndDequantizeV3", *REQUANTIZED[:3], range_given=True, axis=1, num_bits=8),
        step=1.2 * STEP,
    ),
    "fake_quantize, axis": Operator(
        functools.partial(jquant.fake_quantize, axis=1),
        fake_quantize,
        functools.partial(reference.fake_quantize, axis=1),
        lambda rng, count: (uniform(rng, *matrix(count)), *bounds_of(rng, CHANNELS)),
        by_tensorflow("FakeQuantWithMinMaxVarsPerChannel", "inputs", "min", "max"),
        step=1.2 * STEP,
    ),
    "quantized_linear_softmax, rows of 1": softmax(lambda count: (count, 1)),
}
EVERY = OPERATORS | VARIANTS
SIZES = 2**10, 2**16, 2**20, 2**24
OF_VARIANTS = 2**20
ALLOCATING = "dequantize_linear", "quantize_linear", "quantized_linear_add"
OF_ALLOCATION = 2**24
OURS, NAIVE, MOVING = "jquant", "naive", "memory alone"


def moving(*operands: jax.Array, dtype: np.dtype) -> jax.Array:
    """Reads the tensors and writes a result of this type, and computes almost nothing."""
    unsigned = {size: jnp.dtype(f"uint{8 * size}") for size in (1, 2, 4)}
    bits = (lax.bitcast_convert_type(x, unsigned[x.dtype.itemsize]) for x in operands)
    mixed = functools.reduce(jnp.bitwise_xor, (x.astype(unsigned[dtype.itemsize]) for x in bits))
    return lax.bitcast_convert_type(mixed, dtype)


def cut(call: Call, count: int | None) -> Call:
    """The call, with only the first elements checked."""
    return call if count is None else dataclasses.replace(call, fetch=lambda result: call.fetch(result)[:count])


def measure_operator(name: str, count: int, rounds: int) -> dict:
    """A row of the table."""
    from benchmarks import traffic

    operator = EVERY[name]
    operands = operator.operands(np.random.default_rng(0), count)
    expected = np.asarray(operator.reference(*operands))
    row: dict[str, Any] = {"operator": name, "elements": count, "engine": operator.engine.name, "rounds": rounds}
    calls = {
        OURS: Call(jitted(operator.ours, *operands), expected),
        NAIVE: Call(jitted(operator.naive, *operands), expected, np.asarray(1.01 * operator.step)),
    }
    for contestant, call in calls.items():
        try:
            cut(call, operator.checked).check()
        except Wrong as error:
            raise Wrong(f"{name} of {count} elements, {contestant}: {error}") from error
    try:
        call = operator.engine.make(operands, expected)
        cut(call, operator.checked).check()
        calls[operator.engine.name] = call
    except (Unavailable, Wrong) as reason:
        row["reason"] = str(reason)
    except Exception as error:  # whatever another engine raises is its cell of the table
        row["reason"] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    given, result = [operands[index] for index in tensors(operands)], calls[OURS].run()
    if count == OF_VARIANTS and all(x.shape == result.shape for x in given):
        calls[MOVING] = Call(jitted(functools.partial(moving, dtype=result.dtype), *given), np.asarray(result))
    times = measure({contestant: call.run for contestant, call in calls.items()}, rounds)
    row["times_ms"] = {contestant: quartiles(found.further) for contestant, found in times.items()}
    row["ratios"] = {
        other: quartiles(times[OURS].further / found.further) for other, found in times.items() if other != OURS
    }
    compiled = jax.jit(operator.ours).lower(*operands).compile()
    row["temporary_bytes"] = compiled.memory_analysis().temp_size_in_bytes
    row["traffic"] = traffic.of(compiled.as_text()).ratio
    return row


def measure_allocation(name: str, count: int, rounds: int) -> dict:
    """The same program with a freshly allocated output and with a donated one; how many pages each has to fetch."""
    operator = EVERY[name]
    operands = tuple(map(jnp.asarray, operator.operands(np.random.default_rng(0), count)))
    into = jax.jit(lambda output, *operands: operator.ours(*operands), donate_argnums=0, keep_unused=True)
    fresh = jitted(operator.ours, *operands)
    outputs = [fresh()]

    def donated() -> None:
        outputs.append(into(outputs.pop(), *operands).block_until_ready())

    calls: dict[str, Callable[[], Any]] = {"an output of its own": fresh, "a donated output": donated}
    times = measure(calls, rounds)
    return {
        "operator": name,
        "elements": count,
        "bytes": outputs[0].nbytes,
        "times_ms": {kind: quartiles(found.further) for kind, found in times.items()},
        "page_faults": {kind: page_faults(call) for kind, call in calls.items()},
    }


def page_faults(call: Callable[[], Any]) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    call()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def measured(names: Sequence[str], sizes: Sequence[int], rounds: int) -> dict:
    """All results. Calls on 2**24 elements take a hundred times as long as their turns, and get a fifth of the rounds."""
    from tqdm import tqdm

    results = {
        "environment": environment.describe(["onnxruntime", "tensorflow-cpu"]),
        "rounds": rounds,
        "operators": [],
        "allocation": [],
    }
    fewer = max(2, rounds // 5)
    tasks = [(name, count) for count in sizes for name in names if name in OPERATORS or count == OF_VARIANTS]
    for name, count in (progress := tqdm(tasks, leave=False, disable=None)):
        progress.set_description(f"{name}, {count:,} elements")
        results["operators"].append(measure_operator(name, count, fewer if count > 2**20 else rounds))
    if OF_ALLOCATION in sizes:
        for name in ALLOCATING:
            if name in names:
                results["allocation"].append(measure_allocation(name, OF_ALLOCATION, fewer))
    return results


def programs(chip: str) -> Callable[[Callable, tuple], str]:
    """What turns a function and its operands into the text of the program compiled for the chip."""
    options: dict[str, Any] = {}
    if chip == "cpu":
        device = jax.devices("cpu")[0]
    elif chip == "h200":
        from gpu import ptx

        device = ptx.devices()[0]
        options = {"xla_gpu_autotune_level": 0}  # which would need a GPU
    else:
        from tpu import bundles

        device = bundles.devices(bundles.TOPOLOGIES[chip])[0]
    sharding = jax.sharding.SingleDeviceSharding(device)

    def text(function: Callable, operands: tuple) -> str:
        shaped = [jax.ShapeDtypeStruct(np.shape(x), np.asarray(x).dtype, sharding=sharding) for x in operands]
        return jax.jit(function).lower(*shaped).compile(compiler_options=options).as_text()

    return text


def print_traffic(chips: Sequence[str], names: Sequence[str], count: int) -> None:
    from benchmarks import traffic

    compiled = {chip: programs(chip) for chip in chips}
    print(f"Bytes read and written beside those of arguments and results, {count:,} elements, jax {jax.__version__}\n")
    print("| | " + " | ".join(f"{chip}, ours | naive" for chip in chips) + " |\n|---" + "|--:|--:" * len(chips) + "|")
    for name in names:
        operator = EVERY[name]
        operands = operator.operands(np.random.default_rng(0), count)
        cells = [
            f"{traffic.of(compiled[chip](function, operands)).ratio:.2f}"
            for chip in chips
            for function in (operator.ours, operator.naive)
        ]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def selected(patterns: Sequence[str]) -> list[str]:
    for pattern in patterns:
        if not fnmatch.filter(EVERY, pattern):
            raise SystemExit(f"{pattern!r} matches none of {', '.join(EVERY)}")
    return [name for name in EVERY if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]


def number(text: str) -> int:
    base, _, exponent = text.partition("^")
    return int(base) ** int(exponent or 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--sizes", type=number, nargs="+", default=[*SIZES], metavar="COUNT", help="such as 1024 or 2^20")
    parser.add_argument("--operators", nargs="+", default=["*"], metavar="NAME", help="names or patterns; all by default")
    parser.add_argument("--output", type=Path, metavar="PREFIX", help="prefix of the three files to write")
    parser.add_argument("--traffic", nargs="+", metavar="CHIP", help="cpu, h200, or a TPU: v5e, v5p, v6e, 7x")
    arguments = parser.parse_args()
    names = selected(arguments.operators)
    if arguments.traffic:
        print_traffic(arguments.traffic, names, OF_VARIANTS)
        return
    from benchmarks import elementwise_report, report

    results = measured(names, arguments.sizes, arguments.rounds)
    prefix = arguments.output
    if prefix is None and (names, arguments.sizes) == ([*EVERY], [*SIZES]):
        prefix = Path(__file__).parent / "results" / f"elementwise-{report.name(results)}"
    print(elementwise_report.markdown(results))
    if prefix is not None:
        prefix.parent.mkdir(parents=True, exist_ok=True)
        Path(f"{prefix}.json").write_text(json.dumps(results, indent=1) + "\n")
        Path(f"{prefix}.md").write_text(elementwise_report.markdown(results))
        elementwise_report.plot(results, Path(f"{prefix}.png"))


if __name__ == "__main__":
    main()
