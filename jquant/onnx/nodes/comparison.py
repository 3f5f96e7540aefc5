"""Comparisons, logical and bitwise operators, and Where."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.onnx.running.registry import converter


@converter("Equal", since=7)
def equal(a, b, *, xp):
    """For symbolic sizes, raises if the result depends on the size, while JAX itself says that ``n == 1`` is false."""
    if np.dtype(object) in (a.dtype, b.dtype):
        return np.asarray(_EQUAL_SIZES(a, b), bool)
    return xp.equal(a, b)


_EQUAL_SIZES = np.frompyfunc(lambda a, b: not (a < b or a > b), 2, 1)  # < and > raise if the result depends on the size


@converter("Greater", since=7)
def greater(a, b, *, xp):
    return xp.greater(a, b)


@converter("GreaterOrEqual", since=12)
def greater_or_equal(a, b, *, xp):
    return xp.greater_equal(a, b)


@converter("Less", since=7)
def less(a, b, *, xp):
    return xp.less(a, b)


@converter("LessOrEqual", since=12)
def less_or_equal(a, b, *, xp):
    return xp.less_equal(a, b)


@converter("And", since=7)
def and_(a, b, *, xp):
    return xp.logical_and(a, b)


@converter("Or", since=7)
def or_(a, b, *, xp):
    return xp.logical_or(a, b)


@converter("Xor", since=7)
def xor(a, b, *, xp):
    return xp.logical_xor(a, b)


@converter("Not", since=1)
def not_(x, *, xp):
    return xp.logical_not(x)


@converter("Where", since=9)
def where(condition, x, y, *, xp):
    return xp.where(condition, x, y)


@converter("IsNaN", since=9)
def is_nan(x):
    return jnp.isnan(x)


@converter("IsInf", since=10)
def is_infinite(x, *, detect_negative, detect_positive):
    if detect_negative and detect_positive:
        return jnp.isinf(x)
    if not detect_negative and not detect_positive:
        return jnp.zeros(x.shape, bool)
    return jnp.isposinf(x) if detect_positive else jnp.isneginf(x)


@converter("BitwiseAnd", since=18)
def bitwise_and(a, b):
    return jnp.bitwise_and(a, b)


@converter("BitwiseOr", since=18)
def bitwise_or(a, b):
    return jnp.bitwise_or(a, b)


@converter("BitwiseXor", since=18)
def bitwise_xor(a, b):
    return jnp.bitwise_xor(a, b)


@converter("BitwiseNot", since=18)
def bitwise_not(x):
    return jnp.bitwise_not(x)


@converter("BitShift", since=11)
def bit_shift(x, y, *, direction):
    """Shifts by the width or more, or by a negative count, shift out all bits. Right shifts fill in the sign."""
    x, y = jnp.broadcast_arrays(x, y)
    if direction == "LEFT":
        return lax.shift_left(x, y)
    signed = jnp.issubdtype(x.dtype, jnp.signedinteger)
    return lax.shift_right_arithmetic(x, y) if signed else lax.shift_right_logical(x, y)
