"""Scales, zero points and matrices in the form that jquant's operators take, and integer products in every form of ONNX."""

import math
from typing import Any, overload

import jax
import jax.numpy as jnp

from jquant.onnx.nodes.windows import ConvolutionAttributes, WindowAttributes
from jquant.operators.matmul_integer import matmul_integer
from jquant.packed.matrix import PackedMatrix

FEATURE_LEVEL = "EXTENDED"  # allows mixed ranks, and types that DirectML does not have


@overload
def flat(parameter: jax.Array) -> jax.Array: ...
@overload
def flat(parameter: None) -> None: ...
def flat(parameter: jax.Array | None) -> jax.Array | None:
    """A scale or a zero point as a scalar, or as a vector with one element per row, column or filter.

    A parameter that differs between the matrices of a batch is returned unchanged.
    """
    if parameter is None or math.prod(parameter.shape[:-2]) != 1:
        return parameter
    return parameter.reshape(() if parameter.size == 1 else -1)


def flat_pair(scale: jax.Array, zero_point: jax.Array | None) -> tuple[jax.Array, jax.Array | None]:
    return flat(scale), flat(zero_point)


def with_parameters(x: Any, scale: jax.Array, zero_point: jax.Array | None) -> tuple[Any, jax.Array, jax.Array | None]:
    """A tensor with its parameters, as jquant's operators take it. A packed matrix contains its zero point."""
    return x, *flat_pair(scale, None if isinstance(x, PackedMatrix) else zero_point)


def as_matrices(a: jax.Array, b: jax.Array | PackedMatrix) -> tuple[jax.Array, jax.Array | PackedMatrix, tuple[int, ...]]:
    """The operands of a product, with vectors made matrices, and the shape of the result, as in `numpy.matmul`."""
    rows, columns = a.shape[-2:-1], b.shape[-1:] if b.ndim > 1 else ()
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a = a[None] if a.ndim == 1 else a
    b = b[:, None] if b.ndim == 1 and not isinstance(b, PackedMatrix) else b
    return a, b, (*batch, *rows, *columns)


def any_batched(*parameters: jax.Array | None) -> bool:
    """Whether a result of `flat` differs between the matrices of a batch."""
    return any(each is not None and each.ndim > 1 for each in parameters)


def as_column(parameter: jax.Array) -> jax.Array:
    """A per-row result of `flat`, reshaped to broadcast to a matrix."""
    return parameter[:, None] if parameter.ndim == 1 else parameter


def integer_product(
    a: jax.Array, b: jax.Array | PackedMatrix, a_zero_point: jax.Array | None, b_zero_point: jax.Array | None
) -> jax.Array:
    """`matmul_integer`, which also takes zero points per matrix of a batch: then it multiplies the differences in int32."""
    if isinstance(b, PackedMatrix):
        if not any_batched(a_zero_point):
            return matmul_integer(a, b, a_zero_point, feature_level=FEATURE_LEVEL)
        b, b_zero_point = b.unpack(), b.zero_point
    if not any_batched(a_zero_point, b_zero_point):
        return matmul_integer(a, b, a_zero_point, b_zero_point, feature_level=FEATURE_LEVEL)
    a, b = a.astype(jnp.int32), b.astype(jnp.int32)
    a = a if a_zero_point is None else a - as_column(a_zero_point).astype(jnp.int32)
    b = b if b_zero_point is None else b - b_zero_point.astype(jnp.int32)
    return jnp.matmul(a, b)


def padding_argument(attributes: WindowAttributes) -> Any:
    """ONNX's padding, after `resolve_padding`, as the argument `padding` of jquant's operators."""
    return attributes.pads or "VALID"


def convolution_options(attributes: ConvolutionAttributes) -> dict[str, Any]:
    """ONNX's convolution attributes, after `resolve_padding`, as keyword arguments of jquant's convolutions."""
    return {
        "strides": attributes.strides,
        "padding": padding_argument(attributes),
        "dilations": attributes.dilations,
        "groups": attributes.group,
        "feature_level": FEATURE_LEVEL,
    }
