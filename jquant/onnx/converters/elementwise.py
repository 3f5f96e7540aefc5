"""Arithmetic, comparisons and functions of single elements. NumPy computes them where all operands are static."""

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from jax import lax

from jquant.onnx.registry import converter
from jquant.onnx.values import jax_dtype


@converter("Add", since=7)
def add(a, b, *, xp):
    return xp.add(a, b)


@converter("Sub", since=7)
def subtract(a, b, *, xp):
    return xp.subtract(a, b)


@converter("Mul", since=7)
def multiply(a, b, *, xp):
    return xp.multiply(a, b)


@converter("Div", since=7)
def divide(a, b, *, xp):
    """Of integers, the quotient without its fraction: truncated, not floored."""
    if xp is np:
        return _truncated(a, b) if a.dtype.kind in "iuO" else np.divide(a, b)
    return lax.div(*jnp.broadcast_arrays(a, b))


def _truncated(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    quotient = a // b
    if object in (a.dtype, b.dtype):  # sizes, which are not negative
        return quotient
    return quotient + ((quotient < 0) & (quotient * b != a)).astype(quotient.dtype)


@converter("Pow", since=7, prefers_static=("exponent",))
def power(base, exponent, *, xp):
    """Of the type of the base. A static exponent of 2, 3 or 0.5 is a product or a root."""
    if isinstance(exponent, np.ndarray) and exponent.size == 1 and exponent.dtype != object:
        value = exponent.item()
        if base.dtype.kind != "O" and xp.issubdtype(base.dtype, np.floating) and value == 0.5:
            return xp.broadcast_to(xp.sqrt(base), np.broadcast_shapes(base.shape, exponent.shape))
        if value in (2, 3):
            return xp.broadcast_to(
                base * base if value == 2 else base * base * base, np.broadcast_shapes(base.shape, exponent.shape)
            )
    return xp.power(base, xp.asarray(exponent)).astype(base.dtype)


@converter("Neg", since=6)
def negative(x, *, xp):
    return xp.negative(x)


@converter("Abs", since=6)
def absolute(x, *, xp):
    return xp.abs(x)


@converter("Sqrt", since=6)
def square_root(x, *, xp):
    return xp.sqrt(x)


@converter("Log", since=6)
def logarithm(x, *, xp):
    return xp.log(x)


@converter("Exp", since=6)
def exponential(x, *, xp):
    return xp.exp(x)


@converter("Tanh", since=6)
def tanh(x):
    return jnp.tanh(x)


@converter("Sigmoid", since=6)
def sigmoid(x):
    return jax.nn.sigmoid(x)


@converter("Erf", since=9)
def erf(x):
    return lax.erf(x)


@converter("Relu", since=6)
def relu(x):
    return jnp.maximum(x, 0)


@converter("Min", since=6)
def minimum(*values, xp):
    found = values[0]
    for value in values[1:]:
        found = xp.minimum(found, value)
    return found


@converter("Max", since=6)
def maximum(*values, xp):
    found = values[0]
    for value in values[1:]:
        found = xp.maximum(found, value)
    return found


@converter("Equal", since=7)
def equal(a, b, *, xp):
    return xp.equal(a, b)


@converter("Greater", since=7)
def greater(a, b, *, xp):
    return xp.greater(a, b)


@converter("Less", since=7)
def less(a, b, *, xp):
    return xp.less(a, b)


@converter("Where", since=9)
def where(condition, x, y, *, xp):
    return xp.where(condition, x, y)


@converter("Cast", since=6)
def cast(x, *, to, saturate=1, round_mode="up", xp):
    """Of floats to integers, towards zero."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(to)
    if xp is np:
        return x if x.dtype == np.object_ else x.astype(dtype)
    dtype = jax_dtype(dtype, "the result")
    return x != 0 if dtype == np.bool_ else x.astype(dtype)


@converter("Identity", since=1)
def identity(x, *, xp):
    return x
