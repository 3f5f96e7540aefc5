"""Element-wise arithmetic and mathematical functions."""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import max_dim, min_dim

from jquant.onnx.graphs.values import to_jax
from jquant.onnx.running.registry import converter
from jquant.onnx.writing import kernel_types
from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.steps import cast, is_float
from jquant.onnx.writing.table import writer
from jquant.onnx.writing.tensor import Tensor, known, sizes_equal


def unary(name: str) -> Callable[..., Any]:
    """A function of `jax.numpy`, and of NumPy, which computes it where the operand is known."""

    def function(x, *, xp):
        return getattr(xp, name)(x)

    return function


def binary(name: str) -> Callable[..., Any]:
    """As `unary`, of two operands."""

    def function(a, b, *, xp):
        return getattr(xp, name)(a, b)

    return function


for _operator, _since, _function in (
    ("Abs", 6, unary("abs")),
    ("Acos", 6, jnp.arccos),
    ("Acosh", 6, jnp.arccosh),
    ("Add", 7, binary("add")),
    ("Asin", 6, jnp.arcsin),
    ("Asinh", 6, jnp.arcsinh),
    ("Atan", 6, jnp.arctan),
    ("Atanh", 6, jnp.arctanh),
    ("Ceil", 6, unary("ceil")),
    ("Cos", 6, jnp.cos),
    ("Cosh", 6, jnp.cosh),
    ("Erf", 9, lax.erf),
    ("Exp", 6, unary("exp")),
    ("Floor", 6, unary("floor")),
    ("Log", 6, unary("log")),
    ("Mul", 7, binary("multiply")),
    ("Neg", 6, unary("negative")),
    ("Round", 11, unary("round")),  # half to even
    ("Sign", 9, unary("sign")),
    ("Sin", 6, jnp.sin),
    ("Sinh", 6, jnp.sinh),
    ("Sqrt", 6, unary("sqrt")),
    ("Sub", 7, binary("subtract")),
    ("Tan", 6, jnp.tan),
    ("Tanh", 6, jnp.tanh),
):
    converter(_operator, since=_since)(_function)


@converter("Div", since=7)
def divide(a, b, *, xp):
    """For integers, the quotient is truncated, not floored."""
    if xp is np:
        return _truncating_divide(a, b) if a.dtype.kind in "iuO" else np.divide(a, b)
    return lax.div(*jnp.broadcast_arrays(a, b))


def _truncating_divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    quotient = a // b
    if object in (a.dtype, b.dtype):  # sizes, which are never negative
        return quotient
    return quotient + ((quotient < 0) & (quotient * b != a)).astype(quotient.dtype)


@converter("Mod", since=10)
def modulo(a, b, *, fmod, xp):
    """The result has the sign of the divisor; with `fmod`, that of the dividend."""
    if not fmod:
        return xp.mod(a, b)
    if xp is jnp and jnp.issubdtype(a.dtype, jnp.floating):  # jnp.fmod would promote 16-bit floats
        return lax.rem(*jnp.broadcast_arrays(a, b))
    return xp.fmod(a, b)


@converter("Pow", since=7, prefers_static=("exponent",))
def power(base, exponent, *, xp):
    """The result has the dtype of the base. For a static exponent of 2, 3 or 0.5, it is a product or a square root."""
    if isinstance(exponent, np.ndarray) and exponent.size == 1 and exponent.dtype != object:
        value, shape = exponent.item(), jnp.broadcast_shapes(base.shape, exponent.shape)
        if base.dtype.kind != "O" and xp.issubdtype(base.dtype, np.floating) and value == 0.5:
            return xp.broadcast_to(xp.sqrt(base), shape)
        if value in (2, 3):
            return xp.broadcast_to(base * base if value == 2 else base * base * base, shape)
    if xp is np:
        return np.power(base, exponent).astype(base.dtype)
    return _power(base, to_jax(exponent, "the exponent"))


def _power(base, exponent):
    """Integers to the power of nonnegative integers are exact, whatever the dtype of the exponent. Other powers of integers
    are computed in float and truncated."""
    if base.dtype == exponent.dtype and jnp.issubdtype(base.dtype, jnp.floating):
        return jnp.power(base, exponent)
    wide = jnp.float64 if jnp.float64 in (base.dtype, exponent.dtype) else jnp.float32
    float_power = jnp.power(base.astype(wide), exponent.astype(wide)).astype(base.dtype)
    if jnp.issubdtype(base.dtype, jnp.floating):
        return float_power
    integer = exponent.astype(base.dtype)
    is_integer = (integer.astype(exponent.dtype) == exponent) & (integer >= 0)
    return jnp.where(is_integer, jnp.power(base, jnp.maximum(integer, 0)), float_power)


@converter("Sum", since=6)
def sum_of(*values, xp):
    return functools.reduce(xp.add, values)


@converter("Mean", since=6)
def mean_of(*values):
    return functools.reduce(jnp.add, values) / len(values)


@converter("Min", since=6)
def minimum(*values, xp):
    """NaN if any value is NaN."""
    return functools.reduce(xp.minimum if object not in _dtypes(values) else _MINIMUM_OF_SIZES, values)


@converter("Max", since=6)
def maximum(*values, xp):
    """NaN if any value is NaN."""
    return functools.reduce(xp.maximum if object not in _dtypes(values) else _MAXIMUM_OF_SIZES, values)


_MINIMUM_OF_SIZES = np.frompyfunc(min_dim, 2, 1)
_MAXIMUM_OF_SIZES = np.frompyfunc(max_dim, 2, 1)


def _dtypes(values):
    return [value.dtype for value in values if value is not None]


@converter("Clip", since=6, until=10, counterparts=("clip", "clip1"))
def clip_to_10(input, *, min, max, xp):
    return xp.minimum(xp.maximum(input, input.dtype.type(min)), input.dtype.type(max))


@converter("Clip", since=11, counterparts=("clip", "clip1"))
def clip(input, min=None, max=None, *, xp):
    """If the lower limit exceeds the upper one, every element becomes the upper limit."""
    input = input if min is None else maximum(input, min, xp=xp)
    return input if max is None else minimum(input, max, xp=xp)


@writer("clip", node="Clip", since=6)
@writer("clip1", node="Clip", since=6)
def write_clip(
    builder: Builder, types: Any, input: Tensor, min: Tensor | None, max: Tensor | None, scale_bias: Any
) -> Tensor | None:
    """Without a product and a sum before it."""
    if scale_bias is not None or not is_float(input.dtype):
        return None
    bounds = (known(np.float32(-np.inf)) if min is None else min, known(np.float32(np.inf)) if max is None else max)
    return write_limited(builder, types, input, *(cast(builder, bound, input.dtype) for bound in bounds))


@writer("clip.limited", node="Clip", since=6)
def write_limited(builder: Builder, types: Any, x: Tensor, min: Tensor, max: Tensor) -> Tensor | None:
    """With known bounds that are in order; with others, the formula gives the lower one, and the node the upper one.

    The sign of a 0 that is a bound, too, is that of `x`.
    """
    low, high = min.known, max.known
    if x.is_known or low is None or high is None or low.size != 1 or high.size != 1 or not low <= high:
        return None
    if not sizes_equal(types[0].shape, x.shape) or kernel_types.choice("Clip", x.dtype)[0] != x.dtype:
        return None
    return builder.node("Clip", [x, known(low.reshape(())), known(high.reshape(()))], types[0], since=13)


@converter("Reciprocal", since=6)
def reciprocal(x, *, xp):
    return xp.divide(np.ones((), x.dtype), x)


@converter("Identity", since=1)
def identity(x, *, xp):
    return x
