"""Float operators that onnxruntime's tools write into models: fused activations, products and normalizations.

onnxruntime specifies them in docs/ContribOperators.md. Where that says nothing, its results are the specification.
"""

import jax
import jax.numpy as jnp
from jax import lax

from jquant.errors import ModelError
from jquant.onnx.graphs.graph import MICROSOFT
from jquant.onnx.nodes.convolutions import convolution
from jquant.onnx.nodes.linear_algebra import gemm
from jquant.onnx.nodes.normalization import layer_normalization
from jquant.onnx.nodes.windows import ConvolutionAttributes
from jquant.onnx.running.registry import converter


@converter("Gelu", domain=MICROSOFT)
def gelu(x):
    return jax.nn.gelu(x, approximate=False)


@converter("BiasGelu", domain=MICROSOFT)
def bias_gelu(a, b):
    return gelu(a + b)


@converter("FastGelu", domain=MICROSOFT)
def fast_gelu(x, bias=None):
    return jax.nn.gelu(x if bias is None else x + bias, approximate=True)


@converter("QuickGelu", domain=MICROSOFT)
def quick_gelu(x, *, alpha=1.702):
    return x * jax.nn.sigmoid(x * jnp.asarray(alpha, x.dtype))


@converter("LayerNormalization", domain=MICROSOFT)
def layer_normalization_before_17(x, scale, bias=None, *, axis=-1, epsilon=1e-5, stash_type=1):
    return layer_normalization(x, scale, bias, axis=axis, epsilon=epsilon, stash_type=stash_type)


@converter("SimplifiedLayerNormalization", domain=MICROSOFT)
def simplified_layer_normalization(x, scale, *, axis=-1, epsilon=1e-5, stash_type=1):
    """RMS normalization: does not subtract the mean. Also returns the inverse roots of the mean squares."""
    axes = tuple(range(axis % x.ndim, x.ndim))
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    inverse = lax.rsqrt(jnp.mean(wide * wide, axes, keepdims=True) + jnp.asarray(epsilon, wide.dtype))
    return (wide * inverse).astype(x.dtype) * scale, inverse


@converter("SkipLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(input, skip, gamma, beta=None, bias=None, *, epsilon=1e-12):
    total = input + skip if bias is None else input + skip + bias
    return *layer_normalization(total, gamma, beta, axis=-1, epsilon=epsilon, stash_type=1), total


@converter("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_simplified_layer_normalization(input, skip, gamma, bias=None, *, epsilon=1e-12):
    total = input + skip if bias is None else input + skip + bias
    normalized, inverse = simplified_layer_normalization(total, gamma, epsilon=epsilon)
    return normalized, jnp.zeros_like(inverse), inverse, total


@converter("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(
    input_ids,
    segment_ids,
    word_embedding,
    position_embedding,
    segment_embedding,
    gamma,
    beta,
    mask=None,
    position_ids=None,
    *,
    epsilon=1e-12,
    mask_index_type=0,
):
    """Also returns the number of elements that are 1 in each row of the mask, and the sum before normalization."""
    length = input_ids.shape[1]
    positions = position_embedding[:length] if position_ids is None else position_embedding[position_ids]
    total = word_embedding[input_ids] + positions
    if segment_embedding is not None and segment_ids is not None:
        total = total + segment_embedding[segment_ids]
    normalized, _, _ = layer_normalization(total, gamma, beta, axis=-1, epsilon=epsilon, stash_type=1)
    counts = jnp.zeros(input_ids.shape[0], jnp.int32) if mask is None else jnp.sum(mask == 1, 1, dtype=jnp.int32)
    return normalized, counts, total


@converter("FusedMatMul", domain=MICROSOFT)
def fused_matmul(a, b, *, alpha=1.0, transA=0, transB=0, transBatchA=0, transBatchB=0):
    """With `transBatchA` or `transBatchB`, the rows of that operand are its first dimension, before the batch."""
    product = jnp.matmul(_transposed(a, transA, transBatchA), _transposed(b, transB, transBatchB))
    return product if alpha == 1 else product * jnp.asarray(alpha, product.dtype)


def _transposed(x, transposed, batch_transposed):
    x = jnp.moveaxis(x, 0, -2) if batch_transposed else x
    return x.swapaxes(-1, -2) if transposed and x.ndim > 1 else x


@converter("FusedConv", domain=MICROSOFT)
def fused_convolution(x, w, b=None, z=None, *, activation="", activation_params=(), attributes: ConvolutionAttributes):
    """`z` is added before the activation."""
    y = convolution(x, w, b, attributes=attributes)
    return _activated(y if z is None else y + z, activation, *activation_params)


@converter("FusedGemm", domain=MICROSOFT)
def fused_gemm(
    a,
    b,
    c=None,
    *,
    activation="",
    activation_alpha=None,
    activation_beta=None,
    activation_gamma=None,
    alpha=1.0,
    beta=1.0,
    transA=0,
    transB=0,
):
    params = [each for each in (activation_alpha, activation_beta, activation_gamma) if each is not None]
    return _activated(gemm(a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB), activation, *params)


def _activated(x, activation, *params):
    """Applies the activation that an operator was fused with."""
    functions = {
        "": lambda: x,
        "Relu": lambda: jnp.maximum(x, 0),
        "Sigmoid": lambda: jax.nn.sigmoid(x),
        "Tanh": lambda: jnp.tanh(x),
        "LeakyRelu": lambda alpha=0.01: jnp.where(x < 0, x * alpha, x),
        "Clip": lambda low, high: jnp.clip(x, low, high),
        "HardSigmoid": lambda alpha=0.2, beta=0.5: jnp.clip(x * alpha + beta, 0, 1),
    }
    if activation not in functions:
        raise ModelError(f"activation = {activation!r} is not supported")
    return functions[activation](*params).astype(x.dtype)
