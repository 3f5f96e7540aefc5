"""Float32 arithmetic for the float parts of a quantized model: each result is rounded once, inside any `jax.jit`.

XLA and LLVM may contract ``a * b + c`` to one rounding, turn ``x / d`` into ``x * (1 / d)``, and leave out the rounding of
a bfloat16 that is widened again. These functions return the result that IEEE 754 defines, the same on every platform, and
no compiler merges them with a caller's arithmetic:

    scores = exact.product(exact.sum(query_key, bias), scale)

They take float32 arrays, or Python scalars, whose shapes broadcast as in NumPy; `widen` and `narrow` convert from and to the
16-bit types. They are differentiable. Subnormal numbers are excluded: backends flush them to zero at run time, but not when
they fold constants.
"""

import functools
from collections.abc import Callable

import jax
import numpy as np
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from jquant.arguments.assertions import once_for_each_signature, require
from jquant.arguments.operands import any_float_operand, float_operand
from jquant.arguments.statics import float_data_type
from jquant.arithmetic import exact, rounding
from jquant.arithmetic.broadcasting import to_rank
from jquant.placement import explain_array_errors

__all__ = [
    "difference",
    "narrow",
    "product",
    "quotient",
    "reciprocal",
    "round_half_away",
    "round_half_even",
    "round_half_up",
    "seal",
    "sum",
    "widen",
]


def __dir__() -> list[str]:
    return sorted(__all__)


@functools.partial(jax.jit, static_argnums=0)
def _binary_program(operation: Callable[[jax.Array, jax.Array], jax.Array], a: jax.Array, b: jax.Array) -> jax.Array:
    rank = max(a.ndim, b.ndim)
    return operation(to_rank(_rounded(a), rank), to_rank(_rounded(b), rank))


@functools.partial(jax.jit, static_argnums=0)
def _unary_program(operation: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    return operation(_rounded(x))


@functools.partial(jax.jit, static_argnums=1)
def _narrow_program(x: jax.Array, dtype: np.dtype) -> jax.Array:
    return exact.narrow(_rounded(x), dtype)


def _rounded(x: jax.Array) -> jax.Array:
    """The operand after its own rounding; otherwise XLA would contract a caller's product with a sum here.

    The conversion makes a weak dtype, as of a Python scalar, strong.
    """
    return exact.seal(lax.convert_element_type(x, x.dtype))


def _binary(name: str, operation: Callable[[jax.Array, jax.Array], jax.Array], a: ArrayLike, b: ArrayLike) -> jax.Array:
    a, b = float_operand(name, "a", a), float_operand(name, "b", b)
    _require_broadcast(name, a.shape, b.shape)
    return _binary_program(operation, a, b)


@once_for_each_signature
def _require_broadcast(name: str, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    fits = all(1 in pair or pair[0] == pair[1] for pair in zip(a[::-1], b[::-1], strict=False))
    require(fits, f"{name}: a has shape {a}, b has {b}; they must broadcast")


@explain_array_errors
def product(a: ArrayLike, /, b: ArrayLike) -> jax.Array:
    """``fl(a * b)``, rounded once to float32.

    Args:
      a, b: float32, of shapes that broadcast.

    Returns:
      A float32 array of the broadcast shape.

    Raises:
      DescriptorError: shapes that do not broadcast, or a scalar outside of float32.
      DescriptorTypeError: a data type other than float32.

    Example:
      >>> import jax, jax.numpy as jnp, jquant
      >>> a = jnp.float32(1 + 2**-12)
      >>> print(jax.jit(lambda a: jquant.exact.product(a, a) - 1)(a))  # no fused multiply-add
      0.00048828125
    """
    return _binary("product", exact.product, a, b)


@explain_array_errors
def sum(a: ArrayLike, /, b: ArrayLike) -> jax.Array:
    """``fl(a + b)``, rounded once to float32.

    Args:
      a, b: float32, of shapes that broadcast.

    Returns:
      A float32 array of the broadcast shape.

    Raises:
      DescriptorError: shapes that do not broadcast, or a scalar outside of float32.
      DescriptorTypeError: a data type other than float32.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> print(int(jquant.exact.sum(jnp.float32(2**24), 1)))  # a tie, rounded to even
      16777216
    """
    return _binary("sum", exact.sum, a, b)


@explain_array_errors
def difference(a: ArrayLike, /, b: ArrayLike) -> jax.Array:
    """``fl(a - b)``, rounded once to float32.

    Args:
      a, b: float32, of shapes that broadcast.

    Returns:
      A float32 array of the broadcast shape.

    Raises:
      DescriptorError: shapes that do not broadcast, or a scalar outside of float32.
      DescriptorTypeError: a data type other than float32.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> print(jquant.exact.difference(jnp.array([1.0, 2.0]), 0.5))
      [0.5 1.5]
    """
    return _binary("difference", exact.difference, a, b)


@explain_array_errors
def quotient(a: ArrayLike, /, b: ArrayLike) -> jax.Array:
    """``fl(a / b)``, correctly rounded to float32, also on platforms whose division is off by an ulp or two.

    Args:
      a, b: float32, of shapes that broadcast. Division by 0 follows IEEE 754.

    Returns:
      A float32 array of the broadcast shape.

    Raises:
      DescriptorError: shapes that do not broadcast, or a scalar outside of float32.
      DescriptorTypeError: a data type other than float32.

    Example:
      >>> import jax, jax.numpy as jnp, jquant
      >>> x = jnp.array([5.0, 6.0, 7.0])
      >>> print(jax.jit(lambda x: jquant.exact.quotient(x, 10))(x) == jnp.array([0.5, 0.6, 0.7]))
      [ True  True  True]
    """
    return _binary("quotient", exact.quotient, a, b)


@explain_array_errors
def reciprocal(x: ArrayLike, /) -> jax.Array:
    """``fl(1 / x)``, correctly rounded to float32, never a platform's approximation.

    Args:
      x: float32.

    Returns:
      A float32 array of the shape of `x`.

    Raises:
      DescriptorError: a scalar outside of float32.
      DescriptorTypeError: a data type other than float32.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> print(jquant.exact.reciprocal(jnp.array([4.0, 0.0])))
      [0.25  inf]
    """
    return _unary_program(exact.reciprocal, float_operand("reciprocal", "x", x))


@explain_array_errors
def round_half_even(x: ArrayLike, /) -> jax.Array:
    """The nearest integer, ties to even, as in NumPy's `rint`, ONNX and DirectML.

    Args:
      x: float32. NaN and infinities are returned unchanged.

    Returns:
      A float32 array of the shape of `x`.

    Raises:
      DescriptorError: a scalar outside of float32.
      DescriptorTypeError: a data type other than float32.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> print(jquant.exact.round_half_even(jnp.array([-1.5, 0.5, 2.5])))
      [-2.  0.  2.]
    """
    return _unary_program(rounding.round_half_even, float_operand("round_half_even", "x", x))


@explain_array_errors
def round_half_away(x: ArrayLike, /) -> jax.Array:
    """The nearest integer, ties away from zero, as in C's `round`.

    Args:
      x: float32. NaN and infinities are returned unchanged.

    Returns:
      A float32 array of the shape of `x`.

    Raises:
      DescriptorError: a scalar outside of float32.
      DescriptorTypeError: a data type other than float32.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> print(jquant.exact.round_half_away(jnp.array([-1.5, 0.5, 2.5])))
      [-2.  1.  3.]
    """
    return _unary_program(rounding.round_half_away, float_operand("round_half_away", "x", x))


@explain_array_errors
def round_half_up(x: ArrayLike, /) -> jax.Array:
    """``floor(fl(x + 0.5))``: ties toward infinity. The sum rounds the float32 just below 0.5 to 1, as in TensorFlow.

    Args:
      x: float32. NaN and infinities are returned unchanged.

    Returns:
      A float32 array of the shape of `x`.

    Raises:
      DescriptorError: a scalar outside of float32.
      DescriptorTypeError: a data type other than float32.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> print(jquant.exact.round_half_up(jnp.array([-1.5, 0.5, 2.5])))
      [-1.  1.  3.]
    """
    return _unary_program(rounding.round_half_up, float_operand("round_half_up", "x", x))


@explain_array_errors
def seal(x: ArrayLike, /) -> jax.Array:
    """Returns `x` unchanged, and keeps compilers from merging the arithmetic before it with that after it.

    For results of functions that are not in this module.

    Args:
      x: float32, float16 or bfloat16.

    Returns:
      An array of the shape and dtype of `x`.

    Raises:
      DescriptorError: a scalar outside of float32.
      DescriptorTypeError: a data type other than these.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> print(jquant.exact.seal(jnp.sqrt(jnp.float32(2))))
      1.4142135
    """
    return _unary_program(exact.seal, any_float_operand("seal", "x", x))


@explain_array_errors
def widen(x: ArrayLike, /) -> jax.Array:
    """Converts to float32, after the array's own rounding.

    With a plain conversion, XLA leaves out the rounding of a bfloat16 product that is widened immediately.

    Args:
      x: float32, float16 or bfloat16.

    Returns:
      A float32 array of the shape of `x`.

    Raises:
      DescriptorError: a scalar outside of float32.
      DescriptorTypeError: a data type other than these.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> jquant.exact.widen(jnp.array([0.1], jnp.bfloat16))
      Array([0.10009766], dtype=float32)
    """
    return _unary_program(exact.widen, any_float_operand("widen", "x", x))


@explain_array_errors
def narrow(x: ArrayLike, /, dtype: DTypeLike | str) -> jax.Array:
    """Rounds float32 to `dtype`, half to even, after the array's own rounding to float32.

    Args:
      x: float32.
      dtype: float32, float16 or bfloat16.

    Returns:
      An array of the shape of `x` and of `dtype`.

    Raises:
      DescriptorError: a scalar outside of float32.
      DescriptorTypeError: a data type other than these.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> jquant.exact.narrow(jnp.array([0.1, 70000.0]), "FLOAT16")
      Array([0.1, inf], dtype=float16)
    """
    return _narrow_program(float_operand("narrow", "x", x), float_data_type("narrow", "dtype", dtype))
