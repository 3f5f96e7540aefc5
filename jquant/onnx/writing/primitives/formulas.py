"""Functions without a node of their own, as formulas in JAX, which are traced and written in their place.

Their results differ from JAX's in their last digits. Narrow floats are computed in float32 and rounded once.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.onnx.writing import walk
from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.steps import cast, elementwise, is_float
from jquant.onnx.writing.table import PRIMITIVES, primitive
from jquant.onnx.writing.tensor import Tensor


def _select(condition: jax.Array, on_true: Any, on_false: jax.Array) -> jax.Array:
    return lax.select(condition, jnp.broadcast_to(on_true, on_false.shape).astype(on_false.dtype), on_false)


def _expm1(x: jax.Array) -> jax.Array:
    """The hyperbolic tangent keeps the digits near 0, the exponential function those elsewhere."""
    t = lax.tanh(x * 0.5)
    return _select(lax.abs(x) < 0.5, 2 * t / (1 - t), lax.exp(x) - 1)


def _log1p(x: jax.Array) -> jax.Array:
    return _select(lax.abs(x) < 0.5, 2 * lax.atanh(x / (x + 2)), lax.log(1 + x))


def _cbrt(x: jax.Array) -> jax.Array:
    return lax.sign(x) * lax.pow(lax.abs(x), np.float32(1 / 3))


def _exp2(x: jax.Array) -> jax.Array:
    return lax.pow(lax.full_like(x, 2), x)


def _log2(x: jax.Array) -> jax.Array:
    return lax.log(x) * np.float32(1 / np.log(2))


def _atan2(y: jax.Array, x: jax.Array) -> jax.Array:
    """The arc tangent of the quotient, turned by half a circle to the left of the origin; -0 counts as 0."""
    largest = np.finfo(np.float32).max
    x, y = lax.clamp(-largest, x, largest), lax.clamp(-largest, y, largest)
    x = _select(x == 0, 0, x)
    angle = _select((x == 0) & (y == 0), 0, lax.atan(y / x))
    half = _select(y < 0, -np.pi, lax.full_like(x, np.pi))
    return _select(x < 0, angle + half, angle)


_ERF_INV = (  # Giles, "Approximating the erfinv function": coefficients for the middle, and for the tails
    (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
     -0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
    (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
     -0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)  # fmt: skip


def _erf_inv(x: jax.Array) -> jax.Array:
    w = -lax.log((1 - x) * (1 + x))
    is_middle = w < 5
    w = _select(is_middle, w - 2.5, lax.sqrt(w) - 3)
    p = jnp.zeros_like(w)
    for middle, tail in zip(*_ERF_INV, strict=True):
        p = _select(is_middle, np.float32(middle), lax.full_like(w, tail)) + p * w
    return _select(lax.abs(x) == 1, x * np.inf, p * x)


def _polynomial(x: jax.Array, *coefficients: jax.Array) -> jax.Array:
    """The constant comes first."""
    return functools.reduce(lambda result, coefficient: result * x + coefficient, reversed(coefficients))


_FORMULAS: dict[str, Callable[..., jax.Array]] = {
    "atan2": _atan2,
    "cbrt": _cbrt,
    "erf_inv": _erf_inv,
    "erfc": lambda x: 1 - lax.erf(x),
    "exp2": _exp2,
    "expm1": _expm1,
    "log1p": _log1p,
    "log2": _log2,
    "one_minus_square": lambda x: (1 + x) * (1 - x),
    "polynomial": _polynomial,
}


def _written(builder: Builder, _: Any, operands: list[Tensor], formula: Callable[..., jax.Array]) -> Tensor:
    wide = [cast(builder, operand, np.float32) if is_float(operand.dtype) else operand for operand in operands]
    return cast(builder, walk.traced(builder, formula, *wide), operands[0].dtype)


def _register() -> None:
    for name, formula in _FORMULAS.items():
        PRIMITIVES[name] = functools.partial(_written, formula=formula)


_register()


def _away_from_zero(x: jax.Array) -> jax.Array:
    size = lax.abs(x)
    whole = lax.floor(size)
    rounded = whole + (size - whole >= 0.5).astype(x.dtype)
    return _select(x < 0, -rounded, rounded)


@primitive("round")
def _rounded(builder: Builder, equation: Any, operands: list[Tensor]) -> Tensor:
    if equation.params["rounding_method"] == lax.RoundingMethod.TO_NEAREST_EVEN:
        return elementwise(builder, "Round", *operands)
    return _written(builder, equation, operands, _away_from_zero)
