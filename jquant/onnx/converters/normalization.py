"""Softmax and the normalizations."""

import jax
import jax.numpy as jnp

from jquant.onnx.registry import converter


@converter("Softmax", since=13)
def softmax(x, *, axis):
    return jax.nn.softmax(x, axis)


@converter("LayerNormalization", since=17)
def layer_normalization(x, scale, bias=None, *, axis, epsilon, stash_type=1):
    """Also returns the means and the inverse standard deviations."""
    axes = tuple(range(axis % x.ndim, x.ndim))
    wide = x.astype(jnp.float32) if x.dtype in (jnp.float16, jnp.bfloat16) else x
    mean = jnp.mean(wide, axes, keepdims=True)
    centred = wide - mean
    inverse = jax.lax.rsqrt(jnp.mean(centred * centred, axes, keepdims=True) + jnp.asarray(epsilon, wide.dtype))
    normalized = (centred * inverse).astype(x.dtype) * scale
    return normalized if bias is None else normalized + bias, mean, inverse
