"""Comparisons, logical and bitwise operators, and Where."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.onnx.nodes.elementwise import binary, unary
from jquant.onnx.running.registry import converter

for _operator, _since, _function in (
    ("Greater", 7, binary("greater")),
    ("GreaterOrEqual", 12, binary("greater_equal")),
    ("Less", 7, binary("less")),
    ("LessOrEqual", 12, binary("less_equal")),
    ("And", 7, binary("logical_and")),
    ("Or", 7, binary("logical_or")),
    ("Xor", 7, binary("logical_xor")),
    ("Not", 1, unary("logical_not")),
    ("BitwiseAnd", 18, lambda a, b: jnp.bitwise_and(a, b)),
    ("BitwiseOr", 18, lambda a, b: jnp.bitwise_or(a, b)),
    ("BitwiseXor", 18, lambda a, b: jnp.bitwise_xor(a, b)),
    ("BitwiseNot", 18, jnp.bitwise_not),
    ("IsNaN", 9, jnp.isnan),
):
    converter(_operator, since=_since)(_function)


@converter("Equal", since=7)
def equal(a, b, *, xp):
    """For symbolic sizes, raises if the result depends on the size, while JAX itself says that ``n == 1`` is false."""
    if np.dtype(object) in (a.dtype, b.dtype):
        return np.asarray(_EQUAL_SIZES(a, b), bool)
    return xp.equal(a, b)


_EQUAL_SIZES = np.frompyfunc(lambda a, b: not (a < b or a > b), 2, 1)  # < and > raise if the result depends on the size


@converter("Where", since=9)
def where(condition, x, y, *, xp):
    return xp.where(condition, x, y)


@converter("IsInf", since=10)
def is_infinite(x, *, detect_negative, detect_positive):
    if detect_negative and detect_positive:
        return jnp.isinf(x)
    if not detect_negative and not detect_positive:
        return jnp.zeros(x.shape, bool)
    return jnp.isposinf(x) if detect_positive else jnp.isneginf(x)


@converter("BitShift", since=11)
def bit_shift(x, y, *, direction):
    """Shifts by the width or more, or by a negative count, shift out all bits. Right shifts fill in the sign."""
    x, y = jnp.broadcast_arrays(x, y)
    if direction == "LEFT":
        return lax.shift_left(x, y)
    signed = jnp.issubdtype(x.dtype, jnp.signedinteger)
    return lax.shift_right_arithmetic(x, y) if signed else lax.shift_right_logical(x, y)
