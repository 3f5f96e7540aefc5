"""onnxruntime's element-wise operators on quantized tensors, with its arithmetic."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.arithmetic import exact, fused, rounding
from jquant.arithmetic.lookup import integers, look_up
from jquant.errors import ModelError
from jquant.formulas import affine
from jquant.formulas.extremes import below_largest
from jquant.lowering import materialize
from jquant.onnx.graphs.graph import MICROSOFT
from jquant.onnx.nodes import quantized
from jquant.onnx.nodes.quantized_parameters import flat
from jquant.onnx.running.registry import converter
from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.steps import reshape
from jquant.onnx.writing.table import writer
from jquant.onnx.writing.tensor import Tensor, known
from jquant.operators.quantized_linear_concat import quantized_linear_concat
from jquant.operators.quantized_linear_leaky_relu import quantized_linear_leaky_relu
from jquant.operators.quantized_linear_sigmoid import quantized_linear_sigmoid
from jquant.quantized_tensor import Quantized, ScaleZeroPoint


@converter("QuantizeLinear", domain=MICROSOFT, counterparts=("quantize_linear",))
def quantize(x, y_scale, y_zero_point=None, *, axis=1, block_size=0, output_dtype=0, saturate=1):
    return quantized.quantize_with_precision(
        x, y_scale, y_zero_point, axis=axis, block_size=block_size, output_dtype=output_dtype, saturate=saturate
    )


@converter("DequantizeLinear", domain=MICROSOFT, counterparts=("dequantize_linear",))
def dequantize(x, x_scale, x_zero_point=None, *, axis=1, block_size=0, output_dtype=0):
    return quantized.dequantize(x, x_scale, x_zero_point, axis=axis, block_size=block_size, output_dtype=output_dtype)


def _as_float(zero_point: jax.Array | None) -> jax.Array:
    """A zero point as float32, 0 if there is none."""
    return jnp.float32(0) if zero_point is None else flat(zero_point).astype(jnp.float32)


@converter("QLinearAdd", domain=MICROSOFT, counterparts=("quantized_linear_add",))
def add(A, A_scale, A_zero_point, B, B_scale, B_zero_point, C_scale, C_zero_point=None):
    """Adds the products with the ratios of the scales in fused multiply-adds. The zero point is added before the rounding.

    This is what onnxruntime's x86-64 kernels compute. Those for ARM multiply by fixed-point ratios, and may differ by 1.
    """
    a, b = (A, A_scale, A_zero_point), (B, B_scale, B_zero_point)
    if _is_repeated_along_rows(A.shape, B.shape):
        a, b = b, a
    a_ratio, b_ratio = (exact.quotient(flat(scale), flat(C_scale)) for _, scale, _ in (a, b))
    a_zero_point, b_zero_point = _as_float(a[2]), _as_float(b[2])
    zero_points = fused.multiply_add(a_ratio, a_zero_point, exact.product(b_ratio, b_zero_point))
    offset = materialize.once(exact.difference(_as_float(C_zero_point), zero_points))
    (last, last_ratio), (first, first_ratio) = (a[0], a_ratio), (b[0], b_ratio)
    if A.size == B.size == 1:
        (last, last_ratio), (first, first_ratio) = (first, first_ratio), (last, last_ratio)
    table = fused.multiply_add(integers(first.dtype).astype(jnp.float32), first_ratio, offset)
    total = fused.multiply_add(last.astype(jnp.float32), last_ratio, look_up(table, first))
    return rounding.nearest_integer(total, None, A.dtype)


def _is_repeated_along_rows(a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> bool:
    """Whether A is broadcast along the last dimension in which A or B has a size other than 1."""
    rank = max(len(a_shape), len(b_shape))
    padded = ((1,) * (rank - len(shape)) + tuple(shape) for shape in (a_shape, b_shape))
    for a_size, b_size in reversed([*zip(*padded, strict=True)]):
        if a_size != 1 or b_size != 1:
            return a_size == 1
    return False


@converter("QLinearMul", domain=MICROSOFT, counterparts=("quantized_linear_multiply",))
def multiply(A, A_scale, A_zero_point, B, B_scale, B_zero_point, C_scale, C_zero_point=None):
    """The product of the integers, times one ratio of the scales. The zero point is added before the rounding."""
    scale = exact.product(flat(A_scale), flat(B_scale))
    a_difference = affine.difference(Quantized(A, scale, flat(A_zero_point)))
    b_difference = affine.difference(Quantized(B, scale, flat(B_zero_point)))
    product = jnp.multiply(a_difference, b_difference).astype(jnp.float32)
    value = exact.sum(exact.product(product, exact.quotient(scale, flat(C_scale))), _as_float(C_zero_point))
    return rounding.nearest_integer(value, None, A.dtype)


@converter("QLinearConcat", domain=MICROSOFT, counterparts=("quantized_linear_concat",))
def concat(Y_scale, Y_zero_point, *inputs, axis):
    triples = [(x, flat(scale), flat(zero_point)) for x, scale, zero_point in zip(*[iter(inputs)] * 3, strict=True)]
    return quantized_linear_concat(triples, flat(Y_scale), flat(Y_zero_point), axis=axis)


@writer("quantized_linear_concat", node="QLinearConcat", domain=MICROSOFT)
def write_concat(
    builder: Builder, types: Any, inputs: list[Any], output: Any, axis: int, output_dtype: np.dtype
) -> Tensor | None:
    """QLinearConcat, if all tensors have the type of the result."""
    if any(x.values.dtype != output_dtype for x in inputs):
        return None
    scale, zero_point = _scalars(builder, output.scale, output.zero_point, output_dtype)
    triples = [(x.values, *_scalars(builder, x.scale, x.zero_point, output_dtype)) for x in inputs]
    operands = [scale, zero_point, *itertools.chain.from_iterable(triples)]
    return builder.node("QLinearConcat", operands, types[0], domain=MICROSOFT, axis=axis % len(types[0].shape))


def _scalars(builder: Builder, scale: Tensor, zero_point: Tensor | None, dtype: np.dtype) -> tuple[Tensor, Tensor]:
    point = known(np.zeros((), dtype)) if zero_point is None else reshape(builder, zero_point, ())
    return reshape(builder, scale, ()), point


@converter("QLinearWhere", domain=MICROSOFT)
def where(condition, X, x_scale, x_zero_point, Y, y_scale, y_zero_point, z_scale, z_zero_point):
    output = ScaleZeroPoint(flat(z_scale), flat(z_zero_point))
    x = affine.dequantize(Quantized(X, flat(x_scale), flat(x_zero_point)))
    x = affine.quantize(x, output, z_zero_point.dtype)
    y = affine.dequantize(Quantized(Y, flat(y_scale), flat(y_zero_point)))
    y = affine.quantize(y, output, z_zero_point.dtype)
    return jnp.where(condition, x, y)


@converter("QLinearLeakyRelu", domain=MICROSOFT, counterparts=("quantized_linear_leaky_relu",))
def leaky_relu(X, X_scale, X_zero_point, Y_scale, Y_zero_point=None, *, alpha=0.01):
    return quantized_linear_leaky_relu(X, X_scale, X_zero_point, Y_scale, Y_zero_point, alpha=alpha)


@writer("quantized_linear_leaky_relu", node="QLinearLeakyRelu", domain=MICROSOFT)
def write_leaky_relu(builder: Builder, types: Any, x: Any, output: Any, alpha: Tensor | None) -> Tensor | None:
    """With a slope that is known."""
    if alpha is not None and not alpha.is_known:
        return None
    slope = np.float32(0.01) if alpha is None else alpha.item()
    dtype = x.values.dtype
    operands = [x.values, *_scalars(builder, x.scale, x.zero_point, dtype)]
    operands += _scalars(builder, output.scale, output.zero_point, dtype)
    return builder.node("QLinearLeakyRelu", operands, types[0], domain=MICROSOFT, alpha=float(slope))


@converter("QLinearSigmoid", domain=MICROSOFT, counterparts=("quantized_linear_sigmoid",))
def sigmoid(X, X_scale, X_zero_point, Y_scale, Y_zero_point=None):
    """The correctly rounded sigmoid. onnxruntime's own is off by some ulps, differently on each processor, so that next to a
    tie, and only there, it may give the other integer."""
    return quantized_linear_sigmoid(X, X_scale, X_zero_point, Y_scale, Y_zero_point)


@converter("QLinearSoftmax", domain=MICROSOFT, static=("X_scale",), counterparts=("quantized_linear_softmax",))
def softmax(X, X_scale, x_zero_point, y_scale, y_zero_point=None, *, opset, axis=-1):
    """Exponentials from a table, added in order in float32, times ``floor(1 / y_scale)``.

    Before operator set 13, the sum is over all dimensions from `axis` on.
    """
    shape, axis = X.shape, axis % X.ndim
    if opset < 13:
        X, axis = X.reshape(*shape[:axis], -1), axis
    if not isinstance(X.shape[axis], int):
        raise ModelError("the size of the axis is not known while tracing")
    if X.size == 0:
        return X.reshape(shape)
    table = jnp.asarray(_exponentials(X_scale.item(), X.shape[axis]))
    values = look_up(table, below_largest(X, jnp.bool_(False), axis))
    total = _sum_in_order(values, axis)
    numerator = exact.product(values, jnp.floor(exact.reciprocal(flat(y_scale))))
    zero_point = None if y_zero_point is None else flat(y_zero_point)
    return rounding.nearest_integer(exact.quotient(numerator, total), zero_point, X.dtype).reshape(shape)


def _exponentials(scale: float, count: int) -> np.ndarray:
    """The exponentials of 0, -1, ..., -255 times the scale, scaled up as far as a float32 sum of `count` of them allows."""
    largest = np.float64(np.finfo(np.float32).max / np.float32(count))
    shift = max(0.0, np.log(largest) - 5) / scale
    return np.exp((shift - np.arange(256)) * scale).astype(np.float32)


def _sum_in_order(x: jax.Array, axis: int) -> jax.Array:
    first = jnp.zeros_like(lax.index_in_dim(x, 0, axis, keepdims=False))
    total, _ = lax.scan(lambda total, each: (exact.sum(total, each), None), first, jnp.moveaxis(x, axis, 0))
    return jnp.expand_dims(total, axis)
