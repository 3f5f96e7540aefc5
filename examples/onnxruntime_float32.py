"""float32 functions as onnxruntime's kernels compute them on x86-64, bit for bit.

Quantized operators give the same bits everywhere, and so do single products, sums and quotients. Matrix products, means,
softmax and tanh do not: every library has its own order of summation and its own polynomials, so the last bits differ, and a
difference in the last bit before a rounding can give another integer. For a network whose integers must be onnxruntime's,
these functions replace those of `jax.numpy` and `jax.nn`. `jquant.exact` keeps compilers from changing the roundings.
"""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant import exact

CPU = Path("/proc/cpuinfo")
# The `distances` of `vector_sum`. AVX-512 adds 16 numbers at once, AVX2 eight; means use SSE, with two vectors of four.
SOFTMAX_DISTANCES = (8, 1, 2, 4) if CPU.exists() and "avx512f" in CPU.read_text() else (1, 2, 4)
MEAN_DISTANCES = (4, 2, 1)


def fused_multiply_add(a: jax.Array, b: jax.Array | float, c: jax.Array | float) -> jax.Array:
    """``a * b + c``, rounded once: float64 holds the product and, except for one sum in 2**28, enough of the sum."""
    with jax.enable_x64(True):
        a, b, c = (jnp.asarray(x, jnp.float32).astype(jnp.float64) for x in (a, b, c))
        return (a * b + c).astype(jnp.float32)


def matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    """MatMul of up to 128 terms, which are added one after another, except if there is a single row."""
    if a.shape[-2] == 1:
        return matmul_single_row(a, b)

    def add(total: jax.Array, terms: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        column, row = terms
        return fused_multiply_add(column[..., :, None], row[..., None, :], total), None

    start = jnp.zeros((*a.shape[:-1], b.shape[-1]), a.dtype)
    return lax.scan(add, start, (jnp.moveaxis(a, -1, 0), jnp.moveaxis(b, -2, 0)))[0]


def matmul_single_row(a: jax.Array, b: jax.Array) -> jax.Array:
    """MatMul of a single row: sums of four products each are added one after another, and every operation is rounded."""

    def add(total: jax.Array, terms: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        columns, rows = terms
        products = [exact.product(columns[..., :, i, None], rows[..., None, i, :]) for i in range(4)]
        return exact.sum(total, functools.reduce(exact.sum, products)), None

    padding = -a.shape[-1] % 4
    a = jnp.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, padding)])
    b = jnp.pad(b, [(0, 0)] * (b.ndim - 2) + [(0, padding), (0, 0)])
    fours = a.reshape(*a.shape[:-1], -1, 4), b.reshape(*b.shape[:-2], -1, 4, b.shape[-1])
    start = jnp.zeros((*a.shape[:-1], b.shape[-1]), a.dtype)
    return lax.scan(add, start, (jnp.moveaxis(fours[0], -2, 0), jnp.moveaxis(fours[1], -3, 0)))[0]


def vector_sum(x: jax.Array, distances: tuple[int, ...]) -> jax.Array:
    """The sum along the last axis, which is kept, in the order of vector instructions.

    A vector has ``2 ** len(distances)`` partial sums. In the end each is added to the one at the first distance, the result
    to the one at the second distance, and so on.
    """
    partial = functools.reduce(jnp.add, jnp.split(x, x.shape[-1] >> len(distances), axis=-1))
    for distance in distances:
        partial += partial[..., np.arange(partial.shape[-1]) ^ distance]
    return partial[..., :1]


def polynomial(x: jax.Array, *coefficients: float) -> jax.Array:
    """The polynomial with these coefficients, from the highest power down, by Horner's rule."""
    value = jnp.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value = fused_multiply_add(value, x, coefficient)
    return value


def exponential(x: jax.Array) -> jax.Array:
    """The exponential of numbers up to 0; 0 if it would be subnormal."""
    x = jnp.maximum(x, -88.3762626647949)
    shift = 1.5 * 2**23  # near which the float32 numbers are the integers
    power = exact.difference(fused_multiply_add(x, 1.4426950408889634, shift), shift)
    remainder = fused_multiply_add(power, -0.693145752, x)
    remainder = fused_multiply_add(power, -1.42860677e-6, remainder)
    significand = polynomial(remainder, 0.0013780594, 0.0083731245, 0.041669536, 0.16666472, 0.49999985, 1, 1)
    power_of_two = jax.lax.bitcast_convert_type((power.astype(jnp.int32) + 127) << 23, jnp.float32)
    return exact.product(significand, power_of_two)


def softmax(x: jax.Array) -> jax.Array:
    """Softmax along the last axis."""
    weights = exponential(exact.difference(x, jnp.max(x, axis=-1, keepdims=True)))
    padding = -x.shape[-1] % 2 ** len(SOFTMAX_DISTANCES)
    padded = jnp.pad(weights, [(0, 0)] * (x.ndim - 1) + [(0, padding)])
    return exact.product(weights, exact.reciprocal(vector_sum(padded, SOFTMAX_DISTANCES)))


def mean(x: jax.Array) -> jax.Array:
    """ReduceMean along the last axis, which is kept, and has a multiple of 8 elements."""
    return exact.quotient(vector_sum(x, MEAN_DISTANCES), jnp.float32(x.shape[-1]))


def tanh(x: jax.Array) -> jax.Array:
    """Tanh: a quotient of two polynomials, constant beyond 9."""
    x = jnp.clip(x, -9, 9)
    square = exact.product(x, x)
    odd = polynomial(
        square,
        -2.76076847742355e-16,
        2.00018790482477e-13,
        -8.60467152213735e-11,
        5.12229709037114e-08,
        1.48572235717979e-05,
        6.37261928875436e-04,
        4.89352455891786e-03,
    )
    even = polynomial(square, 1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)
    return exact.quotient(exact.product(x, odd), even)


def power(base: jax.Array, exponent: np.ndarray) -> jax.Array:
    """Pow with a constant integer exponent, 2 or 3, as products."""
    return functools.reduce(exact.product, [base] * int(exponent))


def square_root(x: jax.Array) -> jax.Array:
    return exact.seal(jnp.sqrt(x))


def reduce_mean(x: jax.Array, axes: np.ndarray) -> jax.Array:
    assert axes == [-1]
    return mean(x)


# For `jquant.onnx.load(overrides=...)`, which checks that Softmax has its default axis, the last.
FUNCTIONS = {
    "Add": exact.sum,
    "Sub": exact.difference,
    "Mul": exact.product,
    "Div": exact.quotient,
    "Pow": power,
    "Sqrt": square_root,
    "MatMul": matmul,
    "ReduceMean": reduce_mean,
    "Softmax": softmax,
    "Tanh": tanh,
}
