"""The element-wise operators that are measured: a table of them, with their operands and what they are measured beside."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import jquant
from benchmarks.elementwise import naive
from benchmarks.elementwise.engines import Engine, no_kernel, onnxruntime_kernel, tensorflow_kernel
from jquant.reference import clipping, elementwise, linear, nonlinear, packing, requantization, tensorflow


class Operator(NamedTuple):
    """An operator and what it is measured beside, all of them functions of the same operands.

    Attributes:
      function: jquant's.
      naive: the naive formula.
      reference: the operator in NumPy, which `function` must equal.
      operands: makes tensors and parameters from random numbers and a number of elements; none is a constant of a program.
      engine: another engine's kernel.
      tolerance: the largest error of the naive formula: one step of integers, or of the real numbers that they stand for.
      checked: how many elements the reference computes, counted from the first; None: all.
    """

    function: Callable[..., Any]
    naive: Callable[..., Any]
    reference: Callable[..., Any]
    operands: Callable[[np.random.Generator, int], tuple]
    engine: Engine
    tolerance: float = 1
    checked: int | None = None


class Quantization(NamedTuple):
    scale: np.float32
    zero_point: np.uint8


CHANNELS, BLOCK = 128, 32
ROWS = 1024
X = Quantization(np.float32(0.007), np.uint8(121))  # -0.85 to 0.94: a tenth of the numbers from -1 to 1 saturate
A, B = Quantization(np.float32(0.011), np.uint8(121)), Quantization(np.float32(0.017), np.uint8(97))
SUM, PRODUCT = Quantization(np.float32(0.019), np.uint8(128)), Quantization(np.float32(0.03), np.uint8(128))
FRACTION = Quantization(np.float32(1 / 256), np.uint8(0))
ALPHA = np.float32(0.1)
BOUNDS = np.float32(-0.61), np.float32(0.82)
NEW_BOUNDS = np.float32(-0.33), np.float32(0.41)
STEP = 1.45 / 127  # of 8 bits in BOUNDS, or more
PYTHON_ELEMENTS = 2**14  # the reference of quint8 computes in Python's integers, which is slow
# The names of the operands of TensorFlow's operators, and how those with channels take them.
RANGE = "min_range", "max_range"
REQUANTIZED = "input", "input_min", "input_max", "requested_output_min", "requested_output_max"
TENSORFLOW_CHANNELS: dict[str, Any] = {"sizes": (1, 1, -1, CHANNELS), "quantized": "qint32"}
WINDOWS: dict[str, Any] = {"window_sizes": (3, 3)}
UNIT_WINDOWS = {"strides": (1, 1), "dilations": (1, 1), "padding": ((0, 0), (0, 0)), "include_padding": False}


# --- Operands ---------------------------------------------------------------------------------------------------------


def uint8(rng: np.random.Generator, *sizes: int) -> np.ndarray:
    return rng.integers(0, 256, sizes, np.uint8)


def int32(rng: np.random.Generator, *sizes: int) -> np.ndarray:
    return rng.integers(-(2**31), 2**31, sizes, np.int32)


def uniform(rng: np.random.Generator, *sizes: int) -> np.ndarray:
    return rng.uniform(-1, 1, sizes).astype(np.float32)


def matrix(count: int) -> tuple[int, int]:
    """The shape of a matrix with `CHANNELS` columns."""
    return count // CHANNELS, CHANNELS


def varied(value: float, rng: np.random.Generator, *sizes: int) -> np.ndarray:
    """`value`, changed by up to a fifth in each element: parameters per channel or block."""
    return (value * rng.uniform(0.8, 1.2, sizes)).astype(np.float32)


def varied_bounds(rng: np.random.Generator, *sizes: int) -> tuple[np.ndarray, np.ndarray]:
    return varied(BOUNDS[0], rng, *sizes), varied(BOUNDS[1], rng, *sizes)


def two_tensors(rng: np.random.Generator, *sizes: int) -> tuple:
    """Two quantized tensors, each followed by its scale and its zero point."""
    return uint8(rng, *sizes), *A, uint8(rng, *sizes), *B


def with_parameters(rng: np.random.Generator, x: np.ndarray, *sizes: int) -> tuple:
    """A tensor, and scales and zero points of this shape."""
    return x, varied(X.scale, rng, *sizes).astype(x.dtype if x.dtype != np.uint8 else np.float32), uint8(rng, *sizes)


# --- Operators that have several rows ---------------------------------------------------------------------------------


def quantize(mode: str, formula: Callable) -> Operator:
    return Operator(
        function=lambda x, low, high: jquant.quantize(x, low, high, "quint8", mode=mode).output,
        naive=formula,
        reference=lambda x, low, high: tensorflow.quantize(x, low, high, np.uint8, mode)[0],
        operands=lambda rng, count: (uniform(rng, count), *BOUNDS),
        engine=tensorflow_kernel("QuantizeV2", "input", *RANGE, T="quint8", mode=mode),
    )


def dequantize(mode: str, formula: Callable) -> Operator:
    return Operator(
        function=functools.partial(jquant.dequantize, mode=mode),
        naive=formula,
        reference=functools.partial(requantization.dequantize, mode=mode),
        operands=lambda rng, count: (uint8(rng, count), *BOUNDS),
        engine=tensorflow_kernel("Dequantize", "input", *RANGE, quantized="quint8", mode=mode),
        tolerance=STEP,
    )


def requantize(dtype: Any, name: str, formula: Callable) -> Operator:
    return Operator(
        function=lambda *operands: jquant.requantize(*operands, dtype=name).output,
        naive=formula,
        reference=lambda x, *bounds: requantization.requantize(x[:PYTHON_ELEMENTS], *bounds, dtype)[0],
        operands=lambda rng, count: (int32(rng, count), *BOUNDS, *NEW_BOUNDS),
        engine=tensorflow_kernel("Requantize", *REQUANTIZED, quantized="qint32", out_type=name),
        checked=PYTHON_ELEMENTS,
    )


def softmax(sizes: Callable[[int], tuple[int, int]]) -> Operator:
    """onnxruntime divides integers, and is off by 1 at most."""
    return Operator(
        function=functools.partial(jquant.quantized_linear_softmax, axis=1),
        naive=naive.quantized_linear_softmax,
        reference=functools.partial(nonlinear.quantized_linear_softmax, axis=1),
        operands=lambda rng, count: (uint8(rng, *sizes(count)), *A, *FRACTION),
        engine=onnxruntime_kernel("QLinearSoftmax", domain="com.microsoft", axis=1, opset=13, tolerance=1),
    )


def linear_per_axis_or_block(**options: int) -> dict[str, Operator]:
    """quantize_linear and dequantize_linear with a scale and a zero point for each column, or for each block."""

    def sizes(count: int) -> tuple[int, ...]:
        return (count // CHANNELS, CHANNELS // BLOCK) if "block_size" in options else (CHANNELS,)

    def naive_formula(formula: Callable) -> Callable:
        return functools.partial(naive.blockwise, formula) if "block_size" in options else formula

    name = f"blocks of {BLOCK}" if "block_size" in options else "axis"
    return {
        f"quantize_linear, {name}": Operator(
            function=functools.partial(jquant.quantize_linear, **options),
            naive=naive_formula(naive.quantize_linear),
            reference=functools.partial(linear.quantize_linear, dtype=np.uint8, **options),
            operands=lambda rng, count: with_parameters(rng, uniform(rng, *matrix(count)), *sizes(count)),
            engine=onnxruntime_kernel("QuantizeLinear", **options),
        ),
        f"dequantize_linear, {name}": Operator(
            function=functools.partial(jquant.dequantize_linear, **options),
            naive=naive_formula(naive.dequantize_linear),
            reference=functools.partial(linear.dequantize_linear, **options),
            operands=lambda rng, count: with_parameters(rng, uint8(rng, *matrix(count)), *sizes(count)),
            engine=onnxruntime_kernel("DequantizeLinear", **options),
            tolerance=X.scale,
        ),
    }


def quantize_linear_16_bits(dtype: Any, engine: Engine) -> Operator:
    """quantize_linear of a 16-bit float type."""
    return Operator(
        function=functools.partial(jquant.quantize_linear, feature_level="EXTENDED"),
        naive=naive.quantize_linear,
        reference=functools.partial(linear.quantize_linear, dtype=np.uint8),
        operands=lambda rng, count: (uniform(rng, count).astype(dtype), X.scale.astype(dtype), X.zero_point),
        engine=engine,
    )


# --- The table --------------------------------------------------------------------------------------------------------

SIZES = 2**10, 2**16, 2**20, 2**24
VARIANT_SIZE = 2**20
OPERATORS: dict[str, Operator] = {
    "dequantize_linear": Operator(
        function=jquant.dequantize_linear,
        naive=naive.dequantize_linear,
        reference=linear.dequantize_linear,
        operands=lambda rng, count: (uint8(rng, count), *X),
        engine=onnxruntime_kernel("DequantizeLinear"),
        tolerance=X.scale,
    ),
    "quantize_linear": Operator(
        function=jquant.quantize_linear,
        naive=naive.quantize_linear,
        reference=functools.partial(linear.quantize_linear, dtype=np.uint8),
        operands=lambda rng, count: (uniform(rng, count), *X),
        engine=onnxruntime_kernel("QuantizeLinear"),
    ),
    "dynamic_quantize_linear": Operator(
        function=lambda x: jquant.dynamic_quantize_linear(x).output,
        naive=naive.dynamic_quantize_linear,
        reference=lambda x: linear.dynamic_quantize_linear(x)[0],
        operands=lambda rng, count: (uniform(rng, count),),
        engine=onnxruntime_kernel("DynamicQuantizeLinear", other_outputs=("scale", "zero_point")),
    ),
    "scale_and_zero_point": Operator(
        function=lambda low, high: jquant.scale_and_zero_point(low, high, "uint8").zero_point,
        naive=naive.scale_and_zero_point,
        reference=lambda low, high: linear.scale_and_zero_point(low, high, np.uint8)[1],
        operands=lambda rng, count: (-abs(uniform(rng, count)), 0.1 + abs(uniform(rng, count))),
        engine=no_kernel(),
    ),
    "quantized_linear_add": Operator(
        function=jquant.quantized_linear_add,
        naive=naive.quantized_linear_add,
        reference=functools.partial(elementwise.quantized_linear_add, dtype=np.uint8),
        operands=lambda rng, count: (*two_tensors(rng, count), *SUM),
        engine=onnxruntime_kernel("QLinearAdd", domain="com.microsoft", tolerance=1),
    ),
    "quantized_linear_multiply": Operator(
        function=jquant.quantized_linear_multiply,
        naive=naive.quantized_linear_multiply,
        reference=functools.partial(elementwise.quantized_linear_multiply, dtype=np.uint8),
        operands=lambda rng, count: (*two_tensors(rng, count), *PRODUCT),
        engine=onnxruntime_kernel("QLinearMul", domain="com.microsoft", tolerance=1),
    ),
    "quantized_linear_leaky_relu": Operator(
        function=lambda *operands: jquant.quantized_linear_leaky_relu(*operands[:-1], alpha=operands[-1]),
        naive=naive.quantized_linear_leaky_relu,
        reference=functools.partial(elementwise.quantized_linear_leaky_relu, dtype=np.uint8),
        operands=lambda rng, count: (uint8(rng, count), *A, np.float32(0.012), np.uint8(60), ALPHA),
        engine=onnxruntime_kernel(
            "QLinearLeakyRelu", domain="com.microsoft", order=range(5), alpha=float(ALPHA), tolerance=1
        ),
    ),
    "quantized_linear_sigmoid": Operator(
        function=jquant.quantized_linear_sigmoid,
        naive=naive.quantized_linear_sigmoid,
        reference=nonlinear.quantized_linear_sigmoid,
        operands=lambda rng, count: (uint8(rng, count), np.float32(0.04), A.zero_point, *FRACTION),
        engine=onnxruntime_kernel("QLinearSigmoid", domain="com.microsoft", tolerance=1),
    ),
    "quantized_linear_softmax": softmax(lambda count: (ROWS, count // ROWS)),
    "quantized_linear_concat": Operator(
        function=lambda *operands: jquant.quantized_linear_concat([operands[2:5], operands[5:]], *operands[:2], axis=1),
        naive=naive.quantized_linear_concat,
        reference=lambda *operands: elementwise.quantized_linear_concat(
            [operands[2:5], operands[5:]], *operands[:2], axis=1, dtype=np.uint8
        ),
        operands=lambda rng, count: (*SUM, *two_tensors(rng, count // 2 // CHANNELS, CHANNELS)),
        engine=onnxruntime_kernel("QLinearConcat", domain="com.microsoft", axis=1, tolerance=1),
    ),
    "quantized_linear_global_average_pool": Operator(
        function=jquant.quantized_linear_global_average_pool,
        naive=naive.quantized_linear_global_average_pool,
        reference=nonlinear.quantized_linear_global_average_pool,
        operands=lambda rng, count: (uint8(rng, 1, count // 64, 8, 8), *A, np.float32(0.003), np.uint8(100)),
        engine=onnxruntime_kernel("QLinearGlobalAveragePool", domain="com.microsoft", tolerance=1),
    ),
    "quantized_linear_average_pool": Operator(
        function=functools.partial(jquant.quantized_linear_average_pool, **WINDOWS),
        naive=naive.quantized_linear_average_pool,
        reference=functools.partial(nonlinear.quantized_linear_average_pool, dtype=np.uint8, **WINDOWS, **UNIT_WINDOWS),
        operands=lambda rng, count: (uint8(rng, 1, count // 1024, 32, 32), *A, *A),
        engine=onnxruntime_kernel("QLinearAveragePool", domain="com.microsoft", kernel_shape=(3, 3), tolerance=1),
    ),
    "clip": Operator(
        function=jquant.clip,
        naive=naive.clip,
        reference=clipping.clip,
        operands=lambda rng, count: (uniform(rng, count), *BOUNDS),
        engine=onnxruntime_kernel("Clip"),
        tolerance=0,
    ),
    "clip, scale_bias": Operator(
        function=lambda x, low, high, *scale_bias: jquant.clip(x, low, high, scale_bias=jquant.ScaleBias(*scale_bias)),
        naive=naive.clip_scaled,
        reference=lambda x, low, high, *scale_bias: clipping.clip(x, low, high, scale_bias),
        operands=lambda rng, count: (uniform(rng, count), *BOUNDS, np.float32(1.3), np.float32(0.1)),
        engine=no_kernel(),
        tolerance=1e-6,
    ),
    "clip1": Operator(
        function=jquant.clip1,
        naive=naive.clip,
        reference=clipping.clip1,
        operands=lambda rng, count: (uint8(rng, count), np.uint8(20), np.uint8(230)),
        engine=onnxruntime_kernel("Clip"),
        tolerance=0,
    ),
    "clip_gradient": Operator(
        function=jquant.clip_gradient,
        naive=naive.clip_gradient,
        reference=clipping.clip_gradient,
        operands=lambda rng, count: (uniform(rng, count), uniform(rng, count), *BOUNDS),
        engine=no_kernel(),
        tolerance=0,
    ),
    "quantize, MIN_COMBINED": quantize("MIN_COMBINED", naive.quantize_min_combined),
    "quantize, MIN_FIRST": quantize("MIN_FIRST", naive.quantize_min_first),
    "quantize, SCALED": quantize("SCALED", naive.quantize_scaled),
    "dequantize, MIN_COMBINED": dequantize("MIN_COMBINED", naive.dequantize_min_combined),
    "dequantize, MIN_FIRST": dequantize("MIN_FIRST", naive.dequantize_min_first),
    "dequantize, SCALED": dequantize("SCALED", naive.dequantize_scaled),
    "quantize_and_dequantize": Operator(
        function=jquant.quantize_and_dequantize,
        naive=naive.quantize_and_dequantize,
        reference=tensorflow.quantize_and_dequantize,
        operands=lambda rng, count: (uniform(rng, count), *BOUNDS),
        engine=tensorflow_kernel("QuantizeAndDequantizeV4", *REQUANTIZED[:3], range_given=True),
        tolerance=STEP,
    ),
    "fake_quantize": Operator(
        function=jquant.fake_quantize,
        naive=naive.fake_quantize,
        reference=tensorflow.fake_quantize,
        operands=lambda rng, count: (uniform(rng, count), *BOUNDS),
        engine=tensorflow_kernel("FakeQuantWithMinMaxVars", "inputs", "min", "max"),
        tolerance=STEP,
    ),
    "requantize, quint8": requantize(np.uint8, "quint8", naive.requantize),
    "requantize, qint8": requantize(np.int8, "qint8", naive.requantize_to_int8),
    "requantize_per_channel": Operator(
        function=lambda *operands: jquant.requantize_per_channel(*operands).output,
        naive=naive.requantize_per_channel,
        reference=lambda *operands: requantization.requantize_per_channel(*operands, np.uint8)[0],
        operands=lambda rng, count: (int32(rng, *matrix(count)), *varied_bounds(rng, CHANNELS), *NEW_BOUNDS),
        engine=tensorflow_kernel("RequantizePerChannel", *REQUANTIZED, **TENSORFLOW_CHANNELS, out_type="quint8"),
    ),
    "requantization_range": Operator(
        function=lambda *operands: jnp.stack(jquant.requantization_range(*operands)),
        naive=naive.requantization_range,
        reference=lambda *operands: np.stack(requantization.requantization_range(*operands)),
        operands=lambda rng, count: (int32(rng, count), *BOUNDS),
        engine=tensorflow_kernel("RequantizationRange", *REQUANTIZED[:3], quantized="qint32", result=None),
        tolerance=1e-6,
    ),
    "requantization_range_per_channel": Operator(
        function=lambda *operands: jquant.requantization_range_per_channel(*operands).output_max,
        naive=naive.requantization_range_per_channel,
        reference=lambda *operands: requantization.requantization_range_per_channel(*operands)[1],
        operands=lambda rng, count: (int32(rng, *matrix(count)), *varied_bounds(rng, CHANNELS)),
        engine=tensorflow_kernel(
            "RequantizationRangePerChannel",
            *REQUANTIZED[:3],
            **TENSORFLOW_CHANNELS,
            result=1,
            clip_value_max=float(np.inf),
        ),
        tolerance=1e-6,
    ),
    "quantize_down_and_shrink_range": Operator(
        function=lambda *operands: jquant.quantize_down_and_shrink_range(*operands).output,
        naive=naive.quantize_down_and_shrink_range,
        reference=lambda x, *bounds: requantization.requantize(
            x[:PYTHON_ELEMENTS], *bounds, *requantization.requantization_range(x, *bounds), np.uint8
        )[0],
        operands=lambda rng, count: (int32(rng, count), *BOUNDS),
        engine=tensorflow_kernel("QuantizeDownAndShrinkRange", *REQUANTIZED[:3], quantized="qint32", out_type="quint8"),
        checked=PYTHON_ELEMENTS,
    ),
    "pack_integers": Operator(
        function=lambda x: jquant.pack_integers(x.astype(jnp.uint4)),
        naive=naive.pack_integers,
        reference=lambda x: packing.pack_integers(x.astype(jnp.uint4)),
        operands=lambda rng, count: (uint8(rng, *matrix(count)) >> 4,),
        engine=no_kernel(),
        tolerance=0,
    ),
    "unpack_integers": Operator(
        function=lambda packed: jquant.unpack_integers(packed, "uint4").astype(jnp.uint8),
        naive=naive.unpack_integers,
        reference=lambda packed: packing.unpack_integers(packed, jnp.uint4, CHANNELS).astype(np.uint8),
        operands=lambda rng, count: (uint8(rng, count // CHANNELS, CHANNELS // 2),),
        engine=no_kernel(),
        tolerance=0,
    ),
}

VARIANTS: dict[str, Operator] = {  # which are measured at `VARIANT_SIZE` alone
    **linear_per_axis_or_block(axis=1),
    **linear_per_axis_or_block(axis=1, block_size=BLOCK),
    "quantize_linear, float16": quantize_linear_16_bits(jnp.float16, onnxruntime_kernel("QuantizeLinear")),
    "quantize_linear, bfloat16": quantize_linear_16_bits(
        jnp.bfloat16, no_kernel("onnxruntime has no kernel for it on a CPU")
    ),
    "quantize_and_dequantize, axis": Operator(
        function=functools.partial(jquant.quantize_and_dequantize, axis=1),
        naive=naive.quantize_and_dequantize,
        reference=functools.partial(tensorflow.quantize_and_dequantize, axis=1),
        operands=lambda rng, count: (uniform(rng, *matrix(count)), *varied_bounds(rng, CHANNELS)),
        engine=tensorflow_kernel("QuantizeAndDequantizeV3", *REQUANTIZED[:3], range_given=True, axis=1, num_bits=8),
        tolerance=1.2 * STEP,
    ),
    "fake_quantize, axis": Operator(
        function=functools.partial(jquant.fake_quantize, axis=1),
        naive=naive.fake_quantize,
        reference=functools.partial(tensorflow.fake_quantize, axis=1),
        operands=lambda rng, count: (uniform(rng, *matrix(count)), *varied_bounds(rng, CHANNELS)),
        engine=tensorflow_kernel("FakeQuantWithMinMaxVarsPerChannel", "inputs", "min", "max"),
        tolerance=1.2 * STEP,
    ),
    "quantized_linear_softmax, rows of 1": softmax(lambda count: (count, 1)),
}
ALL = OPERATORS | VARIANTS
