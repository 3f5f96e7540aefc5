"""Softmax, and layer, batch, instance, RMS, Lp and local response normalization."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from jax import lax

from jquant.onnx.graphs.values import jax_dtype
from jquant.onnx.running.registry import converter


def _as_matrix(function, x, axis):
    """Treats all dimensions from `axis` on as one, as operator sets up to 12 do."""
    rows = math.prod(x.shape[: axis % x.ndim])
    return function(x.reshape(rows, -1), 1).reshape(x.shape)


@converter("Softmax", since=1, until=12)
def softmax_to_12(x, *, axis):
    return _as_matrix(jax.nn.softmax, x, axis)


@converter("Softmax", since=13)
def softmax(x, *, axis):
    return jax.nn.softmax(x, axis)


@converter("LogSoftmax", since=1, until=12)
def log_softmax_to_12(x, *, axis):
    return _as_matrix(jax.nn.log_softmax, x, axis)


@converter("LogSoftmax", since=13)
def log_softmax(x, *, axis):
    return jax.nn.log_softmax(x, axis)


@converter("Hardmax", since=1, until=12)
def hardmax_to_12(x, *, axis):
    return _as_matrix(_hardmax, x, axis)


@converter("Hardmax", since=13)
def hardmax(x, *, axis):
    return _hardmax(x, axis)


def _hardmax(x, axis):
    """1 for the largest element, or the first among equal ones; 0 for the others."""
    return jax.nn.one_hot(jnp.argmax(x, axis), x.shape[axis], dtype=x.dtype, axis=axis)


@converter("LayerNormalization", since=17)
def layer_normalization(x, scale, bias=None, *, axis, epsilon, stash_type):
    """Also returns the means and the inverse standard deviations, computed in at least float32."""
    axes = tuple(range(axis % x.ndim, x.ndim))
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32)) if stash_type == 1 else x
    mean = jnp.mean(wide, axes, keepdims=True)
    centred = wide - mean
    inverse = lax.rsqrt(jnp.mean(centred * centred, axes, keepdims=True) + jnp.asarray(epsilon, wide.dtype))
    normalized = (centred * inverse).astype(x.dtype) * scale
    return normalized if bias is None else normalized + bias, mean, inverse


@converter("RMSNormalization", since=23)
def root_mean_square_normalization(x, scale, *, axis, epsilon, stash_type):
    """As the function body in ONNX's schema, which however accepts an axis out of range."""
    wide = x.astype(jax_dtype(onnx.helper.tensor_dtype_to_np_dtype(stash_type), "the type of the mean"))
    mean = jnp.mean(wide * wide, tuple(range(axis % x.ndim, x.ndim)), keepdims=True)
    return (wide / jnp.sqrt(mean + jnp.asarray(epsilon, wide.dtype))).astype(x.dtype) * scale


def _per_channel(values, x):
    return values.reshape(-1, *(1,) * (x.ndim - 2))


@converter("BatchNormalization", since=7, until=13)
def batch_normalization_to_13(x, scale, b, mean, var, *, epsilon, momentum, spatial=1):
    """Without `spatial`, every pixel has its own mean. The training outputs are not supported."""
    if spatial:
        scale, b, mean, var = (_per_channel(each, x) for each in (scale, b, mean, var))
    return _normalized(x, epsilon, scale, b, mean, var)


@converter("BatchNormalization", since=14)
def batch_normalization(x, scale, b, input_mean, input_var, *, epsilon, momentum, training_mode):
    """In training, uses the mean and the variance of the batch, and updates the running ones with them."""
    if not training_mode:
        return _normalized(x, epsilon, *(_per_channel(each, x) for each in (scale, b, input_mean, input_var)))
    axes = (0, *range(2, x.ndim))
    mean, variance = jnp.mean(x, axes), jnp.var(x, axes)
    y = _normalized(x, epsilon, *(_per_channel(each, x) for each in (scale, b, mean, variance)))
    running = [
        old * jnp.asarray(momentum, old.dtype) + new.astype(old.dtype) * jnp.asarray(1 - momentum, old.dtype)
        for old, new in ((input_mean, mean), (input_var, variance))
    ]
    return y, *running


def _normalized(x, epsilon, scale, bias, mean, variance):
    """One multiplication and one addition per element: the factors are computed once per channel."""
    factor = scale * lax.rsqrt(variance + jnp.asarray(epsilon, variance.dtype))
    return (x * factor + (bias - mean * factor)).astype(x.dtype)


@converter("InstanceNormalization", since=6)
def instance_normalization(input, scale, b, *, epsilon):
    axes = tuple(range(2, input.ndim))
    centred = input - jnp.mean(input, axes, keepdims=True)
    inverse = lax.rsqrt(jnp.mean(centred * centred, axes, keepdims=True) + jnp.asarray(epsilon, input.dtype))
    return centred * (inverse * _per_channel(scale, input)) + _per_channel(b, input)


@converter("LpNormalization", since=1)
def norm_normalization(input, *, axis, p):
    """Slices that are all zero stay zero."""
    magnitudes = jnp.sum(jnp.abs(input) if p == 1 else input * input, axis, keepdims=True)
    norm = magnitudes if p == 1 else jnp.sqrt(magnitudes)
    return input / jnp.where(norm == 0, jnp.ones_like(norm), norm)


@converter("LRN", since=1)
def local_response_normalization(x, *, alpha, beta, bias, size):
    """Normalizes by the squares of `size` neighbouring channels."""
    pads = [(0, 0)] * x.ndim
    pads[1] = ((size - 1) // 2, size // 2)
    window = (1, size, *(1,) * (x.ndim - 2))
    squares = lax.reduce_window(x * x, np.array(0, x.dtype), lax.add, window, (1,) * x.ndim, pads)
    return x / (bias + alpha / size * squares) ** beta
