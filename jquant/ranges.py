"""The range of real numbers, [min, max], that TensorFlow's operators take: one, or one for each slice along an axis."""

import jax
import jax.numpy as jnp
import numpy as np

from jquant import exact
from jquant.descriptor import require, require_axis
from jquant.errors import DescriptorTypeError
from jquant.modes import data_type_name
from jquant.operands import Operand


def check(operator: str, input: Operand, axis: int | None, **bounds: Operand) -> None:
    """Asserts what the operators have in common: data types, the axis, and the two `bounds`, if given, the lower first."""
    require_float32(operator, input=input, **bounds)
    if axis is not None:
        require_axis(operator, axis, input.ndim)
    for name, bound in bounds.items():
        if axis is None:
            message = f"{operator}: {name} has sizes {bound.shape}; without axis it must have 1 element"
            require(bound.size == 1, message)
        else:
            sizes = (input.shape[axis],)
            message = f"{operator}: {name} has sizes {bound.shape}; with axis={axis} they must be {sizes}"
            require(bound.shape == sizes, message)
    if bounds and not any(isinstance(bound, jax.Array) for bound in bounds.values()):
        (low_name, low), (high_name, high) = bounds.items()
        require(not np.any(high < low), f"{operator}: {high_name}, {high}, is less than {low_name}, {low}")


def require_float32(operator: str, **tensors: Operand) -> None:
    """Asserts the one data type of the real numbers."""
    for name, tensor in tensors.items():
        given = data_type_name(tensor.dtype)
        require(given == "FLOAT32", f"{operator}: {name} has data type {given}, but is a float", DescriptorTypeError)


def sizes(axis: int | None, rank: int) -> list[int]:
    """What to reshape a bound to, for it to broadcast along `axis` of a tensor of that rank."""
    return [] if axis is None else [-1 if dimension == axis else 1 for dimension in range(rank)]


def scales(low: jax.Array, high: jax.Array, smallest: jax.Array, largest: jax.Array) -> tuple[jax.Array, jax.Array]:
    """What takes each bound to its integer; the largest float32 where that is not positive, and so limits nothing."""

    def scale(integer: jax.Array, bound: jax.Array) -> jax.Array:
        unlimited = jnp.float32(jnp.finfo(jnp.float32).max)
        return jnp.where(exact.product(integer, bound) > 0, exact.quotient(integer, bound), unlimited)

    return scale(smallest, low), scale(largest, high)


def minimum(a: jax.Array, b: jax.Array) -> jax.Array:
    """C++'s `std::min`, which passes over a NaN in `b`."""
    return jnp.where(b < a, b, a)


def maximum(a: jax.Array, b: jax.Array) -> jax.Array:
    """C++'s `std::max`, which passes over a NaN in `b`."""
    return jnp.where(a < b, b, a)


def clamp(x: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    """`x` brought into the range; a NaN stays one."""
    return maximum(minimum(x, high), low)
