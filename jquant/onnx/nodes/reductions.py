"""Reductions over axes, and cumulative sums and products."""

import functools

import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.onnx.graphs.values import sizes
from jquant.onnx.running.registry import converter


def _sum(x, axes, keepdims, xp=jnp):
    return xp.sum(x, axes, dtype=x.dtype, keepdims=keepdims)


def _product(x, axes, keepdims, xp=jnp):
    return xp.prod(x, axes, dtype=x.dtype, keepdims=keepdims)


def _largest(x, axes, keepdims, xp=jnp):
    """The maximum; of no elements, minus infinity or the smallest integer of the dtype."""
    if x.dtype == bool:
        return xp.any(x, axes, keepdims=keepdims)
    return xp.max(x, axes, keepdims=keepdims, initial=_limits(x.dtype)[0])


def _smallest(x, axes, keepdims, xp=jnp):
    """The minimum; of no elements, infinity or the largest integer of the dtype."""
    if x.dtype == bool:
        return xp.all(x, axes, keepdims=keepdims)
    return xp.min(x, axes, keepdims=keepdims, initial=_limits(x.dtype)[1])


def _limits(dtype):
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.iinfo(dtype).min, jnp.iinfo(dtype).max
    return -np.inf, np.inf


def _mean(x, axes, keepdims):
    """The mean of integers is truncated."""
    if not jnp.issubdtype(x.dtype, jnp.integer):
        return jnp.mean(x, axes, keepdims=keepdims)
    return lax.div(_sum(x, axes, keepdims), _sum(jnp.ones_like(x), axes, keepdims))


def _sum_of_absolutes(x, axes, keepdims):
    return _sum(jnp.abs(x), axes, keepdims)


def _sum_of_squares(x, axes, keepdims):
    return _sum(x * x, axes, keepdims)


def _integers_as_float(function):
    """Makes a reduction compute integers in float32, and truncate the result."""

    @functools.wraps(function)
    def reduction(x, axes, keepdims):
        wide = x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.integer) else x
        return function(wide, axes, keepdims).astype(x.dtype)

    return reduction


@_integers_as_float
def _root_of_sum_of_squares(x, axes, keepdims):
    return jnp.sqrt(_sum_of_squares(x, axes, keepdims))


@_integers_as_float
def _logarithm_of_sum(x, axes, keepdims):
    return jnp.log(_sum(x, axes, keepdims))


@_integers_as_float
def _logarithm_of_sum_of_exponentials(x, axes, keepdims):
    """Subtracts the largest element first, so that no exponential overflows."""
    largest = lax.stop_gradient(_largest(x, axes, True))
    shift = jnp.where(jnp.isfinite(largest), largest, 0)
    y = jnp.log(_sum(jnp.exp(x - shift), axes, True)) + shift
    return y if keepdims else y.reshape(jnp.sum(x, axes).shape)


def _reduce(function, data, axes, keepdims, noop_with_empty_axes=0):
    """Without axes, reduces over all of them; with `noop_with_empty_axes`, over none, so that only the element-wise part of
    the reduction remains."""
    axes = () if axes is None else sizes(axes)
    if not axes and not noop_with_empty_axes:
        axes = tuple(range(data.ndim))
    return function(data, axes, bool(keepdims))


def _register(operator: str, function, operand_since: int = 18) -> None:
    """Registers an operator whose axes are an attribute before version `operand_since`, and an operand from there on."""

    @converter(operator, since=1, until=operand_since - 1)
    def with_attribute(data, *, axes=None, keepdims):
        return _reduce(function, data, axes, keepdims)

    @converter(operator, since=operand_since, static=("axes",))
    def with_operand(data, axes=None, *, keepdims, noop_with_empty_axes):
        return _reduce(function, data, axes, keepdims, noop_with_empty_axes)


def _register_folding(operator: str, function, operand_since: int = 18) -> None:
    """`_register` for operators that NumPy computes if all operands are static, as in shape arithmetic."""

    @converter(operator, since=1, until=operand_since - 1)
    def with_attribute(data, *, axes=None, keepdims, xp):
        return _reduce(functools.partial(function, xp=xp), data, axes, keepdims)

    @converter(operator, since=operand_since, static=("axes",))
    def with_operand(data, axes=None, *, keepdims, noop_with_empty_axes, xp):
        return _reduce(functools.partial(function, xp=xp), data, axes, keepdims, noop_with_empty_axes)


_register_folding("ReduceSum", _sum, operand_since=13)
_register_folding("ReduceProd", _product)
_register_folding("ReduceMax", _largest)
_register_folding("ReduceMin", _smallest)
_register("ReduceMean", _mean)
_register("ReduceL1", _sum_of_absolutes)
_register("ReduceL2", _root_of_sum_of_squares)
_register("ReduceSumSquare", _sum_of_squares)
_register("ReduceLogSum", _logarithm_of_sum)
_register("ReduceLogSumExp", _logarithm_of_sum_of_exponentials)


@converter("CumSum", since=11, static=("axis",))
def cumulative_sum(x, axis, *, exclusive, reverse):
    return _cumulative(lax.cumsum, 0, x, int(axis.item()), exclusive, reverse)


@converter("CumProd", since=26, static=("axis",))
def cumulative_product(x, axis, *, exclusive, reverse):
    return _cumulative(lax.cumprod, 1, x, int(axis.item()), exclusive, reverse)


def _cumulative(function, neutral, x, axis, exclusive, reverse):
    """Starts from the neutral element if `exclusive`, which leaves out the element itself."""
    axis %= x.ndim
    if exclusive:
        padding = [(0, 0, 0)] * x.ndim
        padding[axis] = (-1, 1, 0) if reverse else (1, -1, 0)
        x = lax.pad(x, jnp.asarray(neutral, x.dtype), padding)
    return function(x, axis, reverse=bool(reverse))
