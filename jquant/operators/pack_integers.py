"""Integers of fewer than 8 bits, several in a byte, as ONNX stores them."""

import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jquant.arguments.assertions import (
    once_for_each_signature,
    require,
    require_data_type,
    require_dimensions,
    require_named_type,
)
from jquant.arguments.operands import operand
from jquant.arguments.statics import integer
from jquant.arithmetic import subbyte
from jquant.lowering.formula import formula
from jquant.modes import data_type, data_type_name
from jquant.placement import explain_array_errors

_DATA_TYPES = "INT4", "UINT4", "INT2", "UINT2"


@formula("pack_integers")
def _pack_integers(x: jax.Array) -> jax.Array:
    bits = jnp.iinfo(x.dtype).bits
    return subbyte.packed(x.astype(jnp.uint8) & np.uint8(2**bits - 1), bits, -1)


@explain_array_errors
def pack_integers(x: ArrayLike, /) -> jax.Array:
    """Packs integers of 4 or 2 bits, 2 or 4 of them in a byte.

    ``byte = x[0] | x[1] << 4`` for 4 bits and ``x[0] | x[1] << 2 | x[2] << 4 | x[3] << 6`` for 2, along the last dimension:
    the first integer has the lowest bits. Each row starts a new byte, so that a mesh that splits the rows splits the bytes;
    unused bits of its last byte are 0.

    ONNX stores tensors in this way, except that it packs the tensor as a whole: ``pack_integers(x.reshape(-1))``. The two
    are the same where the last size is even (a multiple of 4, for 2 bits).

    The result is an integer array and has no derivative (JAX's zero, of type float0).

    Args:
      x: int4, uint4, int2 or uint2, of shape (..., N).

    Returns:
      A uint8 array of shape (..., ceil(N / 2)), for 2 bits (..., ceil(N / 4)).

    Raises:
      DescriptorError: a scalar.
      DescriptorTypeError: a data type other than those above.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> jquant.pack_integers(jnp.array([1, -1, 7], jnp.int4))
      Array([241,   7], dtype=uint8)

    References:
      ONNX, "4 bit integer types" and "2 bit integer types".
    """
    x = operand("pack_integers", "x", x)
    require_data_type("pack_integers", "x", x.dtype, _DATA_TYPES)
    require_dimensions("pack_integers", "x", x.shape, "a last dimension, which is packed")
    return _pack_integers(x)


@formula("unpack_integers", static=("dtype", "size"))
def _unpack_integers(packed: jax.Array, dtype: np.dtype, size: int) -> jax.Array:
    flat = subbyte.unpacked(packed, jnp.iinfo(dtype).bits)[..., :size].astype(jnp.int32)
    sign = -int(jnp.iinfo(dtype).min)  # the highest bit of a signed type, 0 of an unsigned one
    return ((flat ^ sign) - sign).astype(dtype)


@explain_array_errors
def unpack_integers(packed: ArrayLike, /, dtype: DTypeLike | str, *, size: int | None = None) -> jax.Array:
    """Unpacks integers of 4 or 2 bits from the bytes that store them: the inverse of `pack_integers`.

    The result is an integer array and has no derivative (JAX's zero, of type float0). Inside a program, XLA keeps each
    integer in its own number of bits, or computes it where it is used. As an array of its own on a CPU, jax 0.10.2 stores it
    in one byte per integer, jax 0.12 in 4 or 2 bits.

    Args:
      packed: uint8, of shape (..., B).
      dtype: int4, uint4, int2 or uint2.
      size: the size of the last dimension of the result, which must need all B bytes. None: 2 * B or 4 * B.

    Returns:
      An array of shape (..., size) and of `dtype`.

    Raises:
      DescriptorError: a scalar, or a `size` that needs more or fewer bytes.
      DescriptorTypeError: a data type other than those above.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> jquant.unpack_integers(jnp.array([241, 7], jnp.uint8), jnp.int4, size=3)
      Array([1, -1, 7], dtype=int4)

    References:
      ONNX, "4 bit integer types" and "2 bit integer types".
    """
    packed, dtype = operand("unpack_integers", "packed", packed), data_type("dtype", dtype)
    require_named_type("unpack_integers", "dtype", dtype, _DATA_TYPES)
    require_data_type("unpack_integers", "packed", packed.dtype, ("UINT8",))
    require_dimensions("unpack_integers", "packed", packed.shape, "a last dimension, that of the bytes")
    if size is None:
        return _unpack_integers(packed, dtype, math.prod(packed.shape[-1:]) * _per_byte(dtype))
    what = "the last size of the result, an integer"
    size = integer("unpack_integers", "size", size, range(sys.maxsize), what)
    _require_bytes(math.prod(packed.shape[-1:]), dtype, size)
    return _unpack_integers(packed, dtype, size)


def _per_byte(dtype: np.dtype) -> int:
    return 8 // jnp.iinfo(dtype).bits


@once_for_each_signature
def _require_bytes(available: int, dtype: np.dtype, size: int) -> None:
    wanted = -(-size // _per_byte(dtype))
    require(
        wanted == available,
        f"unpack_integers: size is {size}: {size} integers of dtype {data_type_name(dtype)} need {wanted} bytes; packed has "
        f"{available}",
    )
