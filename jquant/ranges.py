"""The range of real numbers, [min, max], that TensorFlow's operators take: one, or one for each slice along an axis."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.typing import ArrayLike

from jquant.arithmetic import exact
from jquant.descriptor import require
from jquant.errors import DescriptorTypeError
from jquant.modes import data_type, data_type_name
from jquant.operands import Operand, float_operand, is_known
from jquant.statics import dimension_from_0


class QuantizeOutput(NamedTuple):
    """Integers, and the range that they cover."""

    output: jax.Array
    output_min: jax.Array
    output_max: jax.Array


class RangeOutput(NamedTuple):
    """A range for the integers of another operator to cover."""

    output_min: jax.Array
    output_max: jax.Array


export.register_namedtuple_serialization(QuantizeOutput, serialized_name="jquant.QuantizeOutput")
export.register_namedtuple_serialization(RangeOutput, serialized_name="jquant.RangeOutput")


def operands(operator: str, input: Operand, axis: int | None, **bounds: ArrayLike) -> tuple[Operand, ...]:
    """The two `bounds`, the lower first, as arrays that fit `input`: one for all of it, or for each slice along its `axis`.

    There may be none, where the range is that of `input`.
    """
    given = {name: float_operand(operator, name, bound) for name, bound in bounds.items()}
    if axis is not None:
        axis = dimension_from_0(operator, axis, input.ndim)
    for name, bound in given.items():
        if axis is None:
            message = f"{operator}: {name} has sizes {bound.shape}; without axis it must have 1 element"
            require(bound.size == 1, message)
        else:
            sizes = (input.shape[axis],)
            message = f"{operator}: {name} has sizes {bound.shape}; with axis={axis} they must be {sizes}"
            require(bound.shape == sizes, f"{message}: input has shape {input.shape}")
    if given and is_known(*given.values()):
        (low_name, low), (high_name, high) = given.items()
        require(not np.any(high < low), f"{operator}: {high_name}, {high}, is less than {low_name}, {low}")
    return tuple(given.values())


def require_one(operator: str, input: Operand, axis: int | None) -> None:
    """Asserts that there is one range, as MIN_FIRST has it."""
    if axis is not None:
        message = f"{operator}: MIN_FIRST has one range: axis={axis} must be a dimension of size 1 or None"
        require(input.shape[axis] == 1, message)


def require_quantized(operator: str, name: str, dtype: np.dtype, *allowed: str) -> None:
    """Asserts that a dtype stores one of TensorFlow's quantized types."""
    given, types = data_type_name(dtype), {type: data_type_name(data_type("dtype", type)) for type in allowed}
    listed = ", ".join(f"{type} ({stored})" for type, stored in types.items())
    require(given in types.values(), f"{operator}: {name} is {given}; the document has {listed}", DescriptorTypeError)


def sizes(axis: int | None, rank: int) -> list[int]:
    """What to reshape a bound to, for it to broadcast along `axis` of a tensor of that rank."""
    return [] if axis is None else [-1 if dimension == axis else 1 for dimension in range(rank)]


def scales(low: jax.Array, high: jax.Array, smallest: jax.Array, largest: jax.Array) -> tuple[jax.Array, jax.Array]:
    """What takes each bound to its integer; the largest float32 where that is not positive, and so limits nothing."""

    def scale(integer: jax.Array, bound: jax.Array) -> jax.Array:
        unlimited = jnp.float32(jnp.finfo(jnp.float32).max)
        return jnp.where(exact.product(integer, bound) > 0, exact.quotient(integer, bound), unlimited)

    return scale(smallest, low), scale(largest, high)


def step(low: jax.Array, high: jax.Array, dtype: np.dtype) -> jax.Array:
    """``(high - low) / (2**bits - 1)``"""
    limits = jnp.iinfo(dtype)
    # For 32 bits, the divisor as a float32, 2**32, gives the same float32.
    return exact.quotient(exact.difference(high, low), jnp.float32(limits.max - limits.min))


def steps_per_unit(low: jax.Array, high: jax.Array, dtype: np.dtype) -> jax.Array:
    """``(2**bits - 1) / (high - low)``"""
    bits, width = jnp.iinfo(dtype).bits, exact.difference(high, low)
    return exact.quotient_of_uint32_max(width) if bits == 32 else exact.quotient(jnp.float32(2.0**bits - 1), width)


def minimum(a: jax.Array, b: jax.Array) -> jax.Array:
    """C++'s `std::min`, which passes over a NaN in `b`."""
    return jnp.where(b < a, b, a)


def maximum(a: jax.Array, b: jax.Array) -> jax.Array:
    """C++'s `std::max`, which passes over a NaN in `b`."""
    return jnp.where(a < b, b, a)


def clamp(x: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    """`x` brought into the range; a NaN stays one."""
    return maximum(minimum(x, high), low)
