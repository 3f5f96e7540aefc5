"""Formats whose blocks share a scale: those of the Microscaling specification, computed in float64, and NVFP4."""

import jax.numpy as jnp  # for the dtypes of ml_dtypes
import numpy as np
from numpy import float32

from jquant.reference import narrow_floats

LARGEST_EXPONENTS = {  # the exponent of the largest power of two in each type
    "float8_e4m3fn": 8,
    "float8_e5m2": 15,
    "float6_e2m3fn": 2,
    "float6_e3m2fn": 4,
    "float4_e2m1fn": 2,
    "int8": 0,
}


def split_blocks(x, axis, block_size):
    """Splits an axis into blocks: their elements are the last dimension, the blocks the one before it. Pads with 0."""
    x = np.moveaxis(x, axis, -1)
    blocks = -(-x.shape[-1] // block_size)
    padding = blocks * block_size - x.shape[-1]
    return np.concatenate([x, np.zeros((*x.shape[:-1], padding), x.dtype)], -1).reshape(*x.shape[:-1], blocks, block_size)


def join_blocks(blocks, axis, size):
    """The inverse of `split_blocks`, for an axis of this size."""
    padded = blocks.reshape(*blocks.shape[:-2], blocks.shape[-2] * blocks.shape[-1])
    return np.moveaxis(padded[..., :size], -1, axis)


def mx_quantize(x, element, *, axis=-1, block_size=32):
    """The elements, as codes if they have 6 bits, and the scales."""
    element, x = jnp.dtype(element).name, np.asarray(x)
    with np.errstate(invalid="ignore"):  # for signalling NaN
        blocks = split_blocks(x.astype(np.float64), axis, block_size)
    largest = abs(blocks).max(-1, keepdims=True, initial=0)
    is_finite = np.isfinite(largest)
    _, exponent_above = np.frexp(np.where(is_finite, largest, 1))  # 0 for zeros
    exponent = np.where(largest == 0, -127, np.clip(exponent_above - 1 - LARGEST_EXPONENTS[element], -127, 127))
    with np.errstate(invalid="ignore"):
        quotient = np.where(is_finite, blocks / 2.0**exponent, np.nan)
    if element == "int8":
        values = np.nan_to_num(np.rint(quotient * 64).clip(-127, 127)).astype(np.int8)
    else:
        values = narrow_floats.encode(quotient, element)
        values = values if element.startswith("float6") else values.view(jnp.dtype(element))
    scale = np.where(is_finite, exponent + 127, 255)[..., 0].astype(np.uint8)
    scale = np.ascontiguousarray(np.moveaxis(scale, -1, axis)).view(jnp.float8_e8m0fnu)
    return join_blocks(values, axis, x.shape[axis]), scale


def mx_dequantize(values, scale, element=None, *, axis=-1, block_size=32, dtype=float32):
    values = np.ascontiguousarray(values)
    element = values.dtype.name if element is None else jnp.dtype(element).name
    if element == "int8":
        numbers = values.astype(np.float64) / 64
    else:
        numbers = narrow_floats.decode(values.view(np.uint8), element).astype(np.float64)
    code = np.moveaxis(np.ascontiguousarray(scale).view(np.uint8), axis, -1)[..., None].astype(np.int64)
    factor = np.where(code == 255, np.nan, 2.0 ** (code - 127.0))
    with np.errstate(over="ignore", invalid="ignore"):
        product = (split_blocks(numbers, axis, block_size) * factor).astype(float32)
        return join_blocks(product, axis, values.shape[axis]).astype(dtype)


def nvfp4_quantize(x, tensor_scale=None, *, axis=-1):
    """The elements, the scales, and the scale of the tensor."""
    with np.errstate(all="ignore"):
        x = np.asarray(x).astype(float32)
        if tensor_scale is None:
            tensor_scale = abs(x).max(initial=0) / float32(448 * 6)
            tensor_scale = float32(1) if tensor_scale < 2.0**-100 else tensor_scale
        tensor_scale = float32(tensor_scale).reshape(())
        blocks = split_blocks(x, axis, 16)
        largest = abs(blocks).max(-1, keepdims=True, initial=0)
        ratio = np.where(np.isfinite(largest), largest / float32(6) / tensor_scale, np.nan).astype(float32)
        scale = narrow_floats.narrow(ratio, "float8_e4m3fn")
        step = scale.astype(float32) * tensor_scale
        quotient = np.where(scale.astype(float32) == 0, np.copysign(float32(0), blocks), blocks / step)
        values = narrow_floats.narrow(quotient, "float4_e2m1fn")
    return join_blocks(values, axis, x.shape[axis]), np.moveaxis(scale[..., 0], -1, axis), tensor_scale


def nvfp4_dequantize(values, scale, tensor_scale, *, axis=-1, dtype=float32):
    values, scale = np.asarray(values), np.moveaxis(np.asarray(scale).astype(float32), axis, -1)[..., None]
    with np.errstate(all="ignore"):
        product = split_blocks(values.astype(float32), axis, 16) * scale * float32(tensor_scale)
        return join_blocks(product, axis, values.shape[axis]).astype(dtype)
