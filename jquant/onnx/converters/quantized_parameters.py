"""Scales, zero points and matrices in the form that jquant's operators take, and products for those they do not take."""

import math
from typing import overload

import jax
import jax.numpy as jnp

from jquant.operators.matmul_integer import matmul_integer
from jquant.packed.matrix import PackedMatrix

LEVEL = "EXTENDED"  # for mixed ranks, and types that DirectML does not have


@overload
def plain(parameter: jax.Array) -> jax.Array: ...
@overload
def plain(parameter: None) -> None: ...
def plain(parameter: jax.Array | None) -> jax.Array | None:
    """A scale or a zero point as a scalar, or as a vector with one for each row, column or filter.

    One that differs between the matrices of a batch is left unchanged.
    """
    if parameter is None or math.prod(parameter.shape[:-2]) != 1:
        return parameter
    return parameter.reshape(() if parameter.size == 1 else -1)


def matrices(a: jax.Array, b: jax.Array | PackedMatrix) -> tuple[jax.Array, jax.Array | PackedMatrix, tuple[int, ...]]:
    """The operands of a product, with vectors made matrices, and the shape of the result, as in `numpy.matmul`."""
    rows, columns = a.shape[-2:-1], b.shape[-1:] if b.ndim > 1 else ()
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a = a[None] if a.ndim == 1 else a
    b = b[:, None] if b.ndim == 1 and not isinstance(b, PackedMatrix) else b
    return a, b, (*batch, *rows, *columns)


def are_of_a_batch(*parameters: jax.Array | None) -> bool:
    """Whether a result of `plain` differs between the matrices of a batch."""
    return any(each is not None and each.ndim > 1 for each in parameters)


def as_column(parameter: jax.Array) -> jax.Array:
    """A result of `plain` for rows, reshaped to broadcast to a matrix."""
    return parameter[:, None] if parameter.ndim == 1 else parameter


def integers_product(
    a: jax.Array, b: jax.Array | PackedMatrix, a_zero_point: jax.Array | None, b_zero_point: jax.Array | None
) -> jax.Array:
    """`matmul_integer`, also with zero points per matrix of a batch, for which it multiplies the differences in int32."""
    if isinstance(b, PackedMatrix):
        if not are_of_a_batch(a_zero_point):
            return matmul_integer(a, b, a_zero_point, feature_level=LEVEL)
        b, b_zero_point = b.unpack(), b.zero_point
    if not are_of_a_batch(a_zero_point, b_zero_point):
        return matmul_integer(a, b, a_zero_point, b_zero_point, feature_level=LEVEL)
    a, b = a.astype(jnp.int32), b.astype(jnp.int32)
    a = a if a_zero_point is None else a - as_column(a_zero_point).astype(jnp.int32)
    b = b if b_zero_point is None else b - b_zero_point.astype(jnp.int32)
    return jnp.matmul(a, b)


def padding(pads):
    """ONNX's padding, which is `resolved`, in the form that jquant's operators take."""
    return pads or "VALID"


def windows(dilations, group: int, pads, strides) -> dict:
    """ONNX's convolution attributes as arguments of `convolution_integer`."""
    window = {"padding": padding(pads), "strides": strides, "dilations": dilations}
    return {**window, "groups": group, "feature_level": LEVEL}
