"""Converts what a caller may pass for a tensor to an array, without changing a value."""

import enum
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jquant.arguments.assertions import require_data_type, require_one_element
from jquant.arguments.naming import message
from jquant.errors import DescriptorError, DescriptorTypeError, shown
from jquant.modes import data_type_name, is_numeric

FLOAT32 = jnp.dtype(jnp.float32)
FLOATS = "FLOAT32", "FLOAT16", "BFLOAT16"
Operand = jax.Array | np.ndarray | np.number | np.bool


def operand(operator: str, name: str, value: ArrayLike, scalar_dtype: np.dtype | None = None) -> Operand:
    """`value` as an array.

    Arrays keep their dtype: one that JAX would narrow (float64, or any 64-bit type without ``jax_enable_x64``) raises. A
    Python scalar becomes `scalar_dtype`, if it lies in its range. So does a scalar that has passed through a caller's
    `jax.jit` (JAX calls it weakly typed); for a float type, its range is then no longer known.
    """
    if isinstance(value, jax.Array):
        if not isinstance(value.dtype, np.dtype):
            text = f"is an array of {value.dtype}; it must be an array of numbers"
            raise DescriptorTypeError(message(operator, name, text))
        if not value.weak_type:
            return value
        value = _from_weak(operator, name, value, scalar_dtype) if value.shape == () else value
        return value.astype(value.dtype)  # removes the weak type, which results would inherit
    if isinstance(value, np.ndarray | np.generic):
        _require_plain(operator, name, value)
        return value if isinstance(value, np.generic) else np.asarray(value)  # drops the behaviour of a subclass
    if hasattr(value, "__jax_array__"):
        return operand(operator, name, _as_jax_array(operator, name, value), scalar_dtype)
    if isinstance(value, int | float) and not isinstance(value, bool | enum.Enum):
        if scalar_dtype is None:
            text = f"is the Python scalar {shown(value)}; it must be an array, because its data type matters"
            raise DescriptorTypeError(message(operator, name, text))
        return _scalar(operator, name, value, scalar_dtype)
    text = f"must be an array or a Python int or float, not {type(value).__name__}"
    raise DescriptorTypeError(message(operator, name, text))


def boolean_operand(operator: str, name: str, value: ArrayLike) -> Operand:
    """A tensor of booleans; True and False are scalars, as in NumPy."""
    if isinstance(value, bool):
        return np.bool(value)
    if not isinstance(value, jax.Array | np.ndarray | np.generic) and not hasattr(value, "__jax_array__"):
        text = f"must be an array of booleans, True or False, not {type(value).__name__}"
        raise DescriptorTypeError(message(operator, name, text))
    mask = operand(operator, name, value)
    require_data_type(operator, name, mask.dtype, ("BOOL",))
    return mask


def _as_jax_array(operator: str, name: str, value: ArrayLike) -> jax.Array:
    """The array that `value` offers to JAX with `__jax_array__`."""
    try:
        return jnp.asarray(value)
    except Exception as error:  # a foreign class may raise anything
        reason = f"whose __jax_array__ does not return an array: {shown(error)}"
        raise DescriptorTypeError(message(operator, name, f"is of type {type(value).__name__}, {reason}")) from error


def _from_weak(operator: str, name: str, value: jax.Array, dtype: np.dtype | None) -> jax.Array:
    """A weakly typed scalar as the `dtype` that the Python scalar would have had; unchanged if it is no such number."""
    is_integer = jnp.issubdtype(value.dtype, jnp.integer)
    if dtype is None or not (is_integer or jnp.issubdtype(value.dtype, jnp.floating)):
        return value
    if jnp.issubdtype(dtype, jnp.floating):
        return value.astype(dtype)
    if is_integer and value.dtype != dtype and jnp.issubdtype(dtype, jnp.integer):
        reason = f"a Python int becomes {value.dtype} in jnp.array and inside jax.jit"
        remedy = f"pass jnp.{dtype.name}(...), or close over the number"
        text = f"has data type {data_type_name(value.dtype)}, but must have {data_type_name(dtype)}: {reason}; {remedy}"
        raise DescriptorTypeError(message(operator, name, text))
    return value


def _require_plain(operator: str, name: str, value: np.ndarray | np.generic) -> None:
    """Asserts that JAX accepts the array without changing it."""
    dtype = value.dtype
    if isinstance(value, np.ma.MaskedArray):
        text = "is a masked array; fill in the masked elements with .filled(...)"
        raise DescriptorTypeError(message(operator, name, text))
    if not dtype.isnative:
        text = f"has byte order {dtype.str!r}; convert it with .astype(np.{dtype.name})"
        raise DescriptorTypeError(message(operator, name, text))
    if not is_numeric(dtype):
        raise DescriptorTypeError(message(operator, name, f"has data type {dtype}, which JAX does not support"))
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        remedy = "convert it explicitly, or set jax_enable_x64"
        text = f"has data type {data_type_name(dtype)}, which JAX narrows to 32 bits by default; {remedy}"
        raise DescriptorTypeError(message(operator, name, text))


def is_known(*values: Operand) -> bool:
    """Whether they are Python's or NumPy's: a `jax.Array` may be traced, and is not read back for a check."""
    return not any(isinstance(value, jax.Array) for value in values)


def optional_operand(operator: str, name: str, value: ArrayLike | None, scalar_dtype: np.dtype) -> Operand | None:
    """`operand`, for a tensor that the specification calls optional."""
    return None if value is None else operand(operator, name, value, scalar_dtype)


def _scalar(operator: str, name: str, value: float, dtype: np.dtype) -> Operand:
    return _checked_scalar(operator, name, value, dtype, value == 0 and math.copysign(1, value))


@functools.lru_cache(typed=True)  # an eager call in a loop has the same scalars each time
def _checked_scalar(operator: str, name: str, value: float, dtype: np.dtype, sign_of_zero: float) -> Operand:
    type_name = data_type_name(dtype)
    if not jnp.issubdtype(dtype, jnp.integer) and not jnp.issubdtype(dtype, jnp.floating):
        return dtype.type(value)  # no operator supports it; the error should name the tensor that has this dtype
    if jnp.issubdtype(dtype, jnp.integer):
        if not isinstance(value, int):
            text = f"is {value!r}, but must be an integer of type {type_name}"
            raise DescriptorTypeError(message(operator, name, text))
        limits = jnp.iinfo(dtype)
        fits = limits.min <= value <= limits.max
    else:
        limits = jnp.finfo(dtype)
        is_finite = isinstance(value, int) or math.isfinite(value)
        fits = not is_finite or abs(value) <= float(limits.max)
        if is_finite and fits and value != 0 and _is_flushed_to_zero(dtype.type(value)):
            text = f"is {value!r}, which becomes 0: the smallest normal {type_name} is {limits.tiny}"
            raise DescriptorError(message(operator, name, text))
    if not fits:
        limit = f"outside the range of {type_name}, [{limits.min}, {limits.max}]"
        raise DescriptorError(message(operator, name, f"is {shown(value)}, {limit}"))
    return dtype.type(value)


def _is_flushed_to_zero(value: np.number) -> bool:
    """Whether it is 0, or so small that a backend flushes it to 0, as a float32."""
    return abs(float(value)) < float(jnp.finfo(jnp.float32).tiny)


def float_operand(operator: str, name: str, value: ArrayLike) -> Operand:
    """A tensor of FLOAT, for which the specification has no other type."""
    return _typed(operator, name, value, ("FLOAT32",))


def any_float_operand(operator: str, name: str, value: ArrayLike) -> Operand:
    """A tensor of one of the float types; a Python scalar is float32."""
    return _typed(operator, name, value, FLOATS)


def _typed(operator: str, name: str, value: ArrayLike, allowed: tuple[str, ...]) -> Operand:
    array = operand(operator, name, value, FLOAT32)
    require_data_type(operator, name, array.dtype, allowed)
    return array


def float_scalar(operator: str, name: str, value: ArrayLike) -> Operand:
    """A single FLOAT of a specification."""
    return require_scalar(operator, name, float_operand(operator, name, value))


def optional_scalar(operator: str, name: str, value: ArrayLike | None) -> Operand | None:
    """`float_scalar`; None for the default, which the formula holds and which need not be sent to the device."""
    return None if value is None else float_scalar(operator, name, value)


def require_scalar(operator: str, name: str, value: Operand) -> Operand:
    """`value` as a scalar, asserting that it has one element."""
    if value.shape == ():
        return value
    require_one_element(operator, name, value.shape)
    return value.reshape(())


def without_dimensions(value: Operand) -> Operand:
    """`value`, of rank 0 if it has one element: it may be given in any rank."""
    return value.reshape(()) if value.shape != () and is_one_element(value.shape) else value


def is_one_element(shape: tuple[int, ...]) -> bool:
    return all(size == 1 for size in shape)


def broadcast_shape(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """The common shape of two operands; if there is none, `one`, so that the descriptor reports the mismatch."""
    if one == other:
        return one
    try:
        return jnp.broadcast_shapes(one, other)
    except ValueError:
        return one
