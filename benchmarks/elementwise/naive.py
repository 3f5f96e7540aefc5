"""The naive formulas: what a JAX user writes who does not care about the last bit.

The operators, which are exact, are measured against these.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def dequantize_linear(x, scale, zero_point):
    return (x.astype(jnp.float32) - zero_point.astype(jnp.float32)) * scale


def quantize_linear(x, scale, zero_point):
    return jnp.clip(jnp.round(x / scale) + zero_point.astype(jnp.float32), 0, 255).astype(jnp.uint8)


def blockwise(formula, x, scale, zero_point):
    """`quantize_linear` or `dequantize_linear` with a scale and a zero point for each block of a row."""
    blocks = x.reshape(*scale.shape, -1)
    return formula(blocks, scale[..., None], zero_point[..., None]).reshape(x.shape)


def dynamic_quantize_linear(x):
    low, high = jnp.minimum(x.min(), 0), jnp.maximum(x.max(), 0)
    scale = (high - low) / 255
    return quantize_linear(x, scale, jnp.round(-low / scale))


def scale_and_zero_point(low, high):
    low, high = jnp.minimum(low, 0), jnp.maximum(high, 0)
    scale = (high - low) / 255
    return jnp.round(-low / scale).astype(jnp.uint8)


def quantized_linear_add(a, a_scale, a_zero_point, b, b_scale, b_zero_point, scale, zero_point):
    value = dequantize_linear(a, a_scale, a_zero_point) + dequantize_linear(b, b_scale, b_zero_point)
    return quantize_linear(value, scale, zero_point)


def quantized_linear_multiply(a, a_scale, a_zero_point, b, b_scale, b_zero_point, scale, zero_point):
    value = dequantize_linear(a, a_scale, a_zero_point) * dequantize_linear(b, b_scale, b_zero_point)
    return quantize_linear(value, scale, zero_point)


def quantized_linear_leaky_relu(x, x_scale, x_zero_point, scale, zero_point, alpha):
    value = dequantize_linear(x, x_scale, x_zero_point)
    return quantize_linear(jnp.where(value < 0, alpha * value, value), scale, zero_point)


def quantized_linear_sigmoid(x, x_scale, x_zero_point, scale, zero_point):
    return quantize_linear(jax.nn.sigmoid(dequantize_linear(x, x_scale, x_zero_point)), scale, zero_point)


def quantized_linear_softmax(x, x_scale, x_zero_point, scale, zero_point):
    return quantize_linear(jax.nn.softmax(dequantize_linear(x, x_scale, x_zero_point), axis=-1), scale, zero_point)


def quantized_linear_concat(scale, zero_point, a, a_scale, a_zero_point, b, b_scale, b_zero_point):
    values = dequantize_linear(a, a_scale, a_zero_point), dequantize_linear(b, b_scale, b_zero_point)
    return jnp.concatenate([quantize_linear(value, scale, zero_point) for value in values], axis=1)


def quantized_linear_global_average_pool(x, x_scale, x_zero_point, scale, zero_point):
    value = dequantize_linear(x, x_scale, x_zero_point).mean(axis=(2, 3), keepdims=True)
    return quantize_linear(value, scale, zero_point)


def quantized_linear_average_pool(x, x_scale, x_zero_point, scale, zero_point):
    value = dequantize_linear(x, x_scale, x_zero_point)
    total = lax.reduce_window(value, np.float32(0), lax.add, (1, 1, 3, 3), (1, 1, 1, 1), "VALID")
    return quantize_linear(total / 9, scale, zero_point)


def clip(x, low, high):
    return jnp.clip(x, low, high)


def clip_scaled(x, low, high, scale, bias):
    return jnp.clip(x * scale + bias, low, high)


def clip_gradient(x, gradient, low, high):
    return jnp.where((x > low) & (x < high), gradient, 0)


def quantize_min_combined(x, low, high):
    return jnp.round((jnp.clip(x, low, high) - low) * (255 / (high - low))).astype(jnp.uint8)


def quantize_min_first(x, low, high):
    scale = 255 / (high - low)
    return jnp.clip(jnp.round(x * scale) - jnp.round(low * scale), 0, 255).astype(jnp.uint8)


def quantize_scaled(x, low, high):
    return jnp.round(jnp.clip(x, 0, high) * (255 / high)).astype(jnp.uint8)


def dequantize_min_combined(x, low, high):
    return x.astype(jnp.float32) * ((high - low) / 255) + low


def dequantize_min_first(x, low, high):
    scale = (high - low) / 255
    return (x.astype(jnp.float32) + jnp.round(low / scale)) * scale


def dequantize_scaled(x, low, high):
    return x.astype(jnp.float32) * (high / 255)


def quantize_and_dequantize(x, low, high):
    scale = jnp.maximum(low / -128, high / 127)
    return jnp.clip(jnp.round(x / scale), -128, 127) * scale


def fake_quantize(x, low, high):
    scale = (high - low) / 255
    zero_point = jnp.round(-low / scale)
    return (jnp.clip(jnp.round(x / scale) + zero_point, 0, 255) - zero_point) * scale


def dequantize_int32(x, low, high):
    return x.astype(jnp.float32) * ((high - low) / 2.0**32) + (low + high) / 2


def requantize(x, low, high, new_low, new_high):
    steps = 255 / (new_high - new_low)
    return jnp.clip(jnp.round((dequantize_int32(x, low, high) - new_low) * steps), 0, 255).astype(jnp.uint8)


def requantize_to_int8(x, low, high, new_low, new_high):
    steps = 255 / (new_high - new_low)
    return jnp.clip(jnp.round((dequantize_int32(x, low, high) - new_low) * steps - 128), -128, 127).astype(jnp.int8)


def requantize_per_channel(x, low, high, new_low, new_high):
    magnitudes = jnp.maximum(-low, high) / jnp.maximum(-new_low, new_high)
    return jnp.clip(jnp.round(x.astype(jnp.float32) * (255 / 2.0**31 * magnitudes)), 0, 255).astype(jnp.uint8)


def requantization_range(x, low, high):
    return jnp.stack([dequantize_int32(extreme, low, high) for extreme in (x.min(), x.max())])


def requantization_range_per_channel(x, low, high):
    magnitudes = jnp.abs(x.astype(jnp.float32)).max(axis=0) * jnp.maximum(-low, high)
    return magnitudes.max() / 2.0**31


def quantize_down_and_shrink_range(x, low, high):
    return requantize(x, low, high, *requantization_range(x, low, high))


def pack_integers(x):
    return x[:, ::2] | x[:, 1::2] << 4


def unpack_integers(packed):
    return jnp.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1)
