"""DirectML's clipping and its gradient."""

import numpy as np
from numpy import float32

from jquant.reference import rounding


def clip(x, low=-np.inf, high=np.inf, scale_bias=None):
    """``max(Min, min(g(x), Max))`` with FLOAT bounds, where g is the scale and bias."""
    low, high = typed_bounds(low, high, np.asarray(x).dtype)
    return clip1(x, low, high, scale_bias)


def clip1(x, low, high, scale_bias=None):
    """``max(Min, min(g(x), Max))`` with bounds of the dtype of `x`."""
    x = np.asarray(x)
    with np.errstate(all="ignore"):
        if scale_bias is not None:
            scale, bias = map(float32, scale_bias)
            x = ((x.astype(float32) * scale) + bias).astype(x.dtype)
        return np.maximum(np.asarray(low).astype(x.dtype), np.minimum(x, np.asarray(high).astype(x.dtype)))


def clip_gradient(x, gradient, low, high):
    """The gradient; 0 where ``x <= Min`` or ``x >= Max``, with FLOAT bounds."""
    return clip_gradient1(x, gradient, *typed_bounds(low, high, np.asarray(x).dtype))


def clip_gradient1(x, gradient, low, high):
    """The gradient; 0 where ``x <= Min`` or ``x >= Max``, with bounds of the dtype of `x`."""
    x = np.asarray(x)
    with np.errstate(invalid="ignore"):
        at_a_bound = (x <= np.asarray(low).astype(x.dtype)) | (x >= np.asarray(high).astype(x.dtype))
    return np.where(at_a_bound, np.zeros((), x.dtype), gradient)


def typed_bounds(low, high, dtype):
    """FLOAT bounds converted to the dtype of a tensor: for integers, truncated toward zero and saturated."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.issubdtype(dtype, np.integer):
            return tuple(rounding.saturate(np.trunc(float32(bound)), dtype) for bound in (low, high))
        return float32(low).astype(dtype), float32(high).astype(dtype)
