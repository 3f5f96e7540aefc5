"""Clipping to an interval, [Min, Max], as in DirectML's clip operators, and its gradient."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.typing import ArrayLike

from jquant.arithmetic import exact, rounding
from jquant.arithmetic.broadcasting import to_rank
from jquant.lowering.recording import recorded


class ScaleBias(NamedTuple):
    """DML_SCALE_BIAS: what `clip` and `clip1` first do to their input, ``input * scale + bias``. Both are float32."""

    scale: ArrayLike
    bias: ArrayLike


export.register_namedtuple_serialization(ScaleBias, serialized_name="jquant.ScaleBias")


def clip(input: jax.Array, min: jax.Array | None, max: jax.Array | None, scale_bias: ScaleBias | None) -> jax.Array:
    """``max(Min, min(g(x), Max))``, where g applies the scale and the bias; differentiable. A bound of None is infinite."""
    low = jnp.float32(-np.inf) if min is None else min
    high = jnp.float32(np.inf) if max is None else max
    value = _sealed(input)
    if scale_bias is not None:
        scale, bias = map(exact.seal, scale_bias)
        value = exact.narrow(exact.sum(exact.product(value.astype(jnp.float32), scale), bias), input.dtype)
    return _max_min(value, _bound(low, input.dtype), _bound(high, input.dtype))


def gradient(input: jax.Array, input_gradient: jax.Array, min: jax.Array, max: jax.Array) -> jax.Array:
    """The gradient of ``max(Min, min(x, Max))`` by `input`, from the gradient by the result."""
    is_inside = _is_inside(_sealed(input), _bound(min, input.dtype), _bound(max, input.dtype))
    return jnp.where(is_inside, to_rank(_sealed(input_gradient), input.ndim), jnp.zeros((), input.dtype))


@jax.custom_jvp
def _max_min(x: jax.Array, min: jax.Array, max: jax.Array) -> jax.Array:
    """``max(Min, min(x, Max))``, which is Min if Min > Max; `lax.clamp` and `jnp.clip` give Max."""
    return _limited(x, min, max)


@recorded("clip.limited", elementwise=True)
def _limited(x: jax.Array, min: jax.Array, max: jax.Array) -> jax.Array:
    return jnp.maximum(min, jnp.minimum(x, max))


@_max_min.defjvp
def _max_min_jvp(primals, tangents):
    """Inside the interval, the derivative of x; elsewhere, that of the bound that is the result."""
    (x, min, max), (x_dot, min_dot, max_dot) = primals, tangents
    bound_dot = jnp.where(jnp.minimum(x, max) <= min, min_dot, max_dot)
    return _max_min(*primals), jnp.where(_is_inside(x, min, max), x_dot, bound_dot)


def _is_inside(x: jax.Array, min: jax.Array, max: jax.Array) -> jax.Array:
    """Where CLIP_GRAD and CLIP_GRAD1 pass the gradient on: not where ``x <= Min`` or ``x >= Max``; at a NaN, they do."""
    return ~((x <= min) | (x >= max))


def _sealed(x: jax.Array) -> jax.Array:
    return exact.seal(x) if jnp.issubdtype(x.dtype, jnp.floating) else x


def _bound(bound: jax.Array, dtype: np.dtype) -> jax.Array:
    """A bound, converted to the type of the tensor: to an integer type toward zero, saturating."""
    if jnp.issubdtype(dtype, jnp.floating):
        return exact.seal(bound.astype(dtype))
    return bound if bound.dtype == dtype else rounding.saturating_cast(bound, dtype)
