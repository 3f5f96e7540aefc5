"""Activations, written so that their derivatives are finite as well."""

import math

import jax
import jax.numpy as jnp
from jax import lax

from jquant.onnx.running.registry import converter

converter("Sigmoid", since=6)(jax.nn.sigmoid)
converter("Softplus", since=1)(jax.nn.softplus)


@converter("Relu", since=6)
def relu(x):
    return jnp.maximum(x, 0)


@converter("LeakyRelu", since=6)
def leaky_relu(x, *, alpha):
    return jnp.where(x < 0, alpha * x, x)


@converter("PRelu", since=7)
def parametric_relu(x, slope):
    return jnp.where(x < 0, slope * x, x)


@converter("ThresholdedRelu", since=10)
def thresholded_relu(x, *, alpha):
    return jnp.where(x > alpha, x, 0)


@converter("Elu", since=6)
def elu(x, *, alpha):
    return jnp.where(x > 0, x, alpha * _expm1_of_negative(x))


@converter("Selu", since=6)
def selu(x, *, alpha, gamma):
    return gamma * jnp.where(x > 0, x, alpha * _expm1_of_negative(x))


@converter("Celu", since=12)
def celu(x, *, alpha):
    return jnp.where(x > 0, x, alpha * jnp.expm1(jnp.minimum(x, 0) / alpha))


def _expm1_of_negative(x):
    """exp(x) - 1 where x is negative, and 0 elsewhere, where it could overflow."""
    return jnp.expm1(jnp.minimum(x, 0))


@converter("Gelu", since=20)
def gelu(x, *, approximate):
    if approximate == "tanh":
        return 0.5 * x * (1 + jnp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + lax.erf(x * math.sqrt(0.5)))


@converter("HardSigmoid", since=6)
def hard_sigmoid(x, *, alpha, beta):
    return jnp.clip(alpha * x + beta, 0, 1)


@converter("HardSwish", since=14)
def hard_swish(x):
    return x * jnp.clip(x / 6 + 0.5, 0, 1)


@converter("Swish", since=24)
def swish(x, *, alpha):
    return x * jax.nn.sigmoid(alpha * x)


@converter("Mish", since=18)
def mish(x):
    return x * jnp.tanh(jax.nn.softplus(x))


@converter("Softsign", since=1)
def softsign(x):
    return x / (1 + jnp.abs(x))


@converter("Shrink", since=9)
def shrink(x, *, lambd, bias):
    """Integers are computed as float32, and the result is truncated."""
    wide = x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.integer) else x
    return jnp.where(wide < -lambd, wide + bias, jnp.where(wide > lambd, wide - bias, 0)).astype(x.dtype)
