"""Division and shifts of integers, where ONNX's nodes leave open what JAX defines."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.steps import cast, elementwise, is_float, is_unsigned, like, where
from jquant.onnx.writing.table import primitive
from jquant.onnx.writing.tensor import Tensor, known


@primitive("div")
def _quotient(builder: Builder, _: Any, operands: list[Tensor]) -> Tensor:
    """A divisor 0, for which onnxruntime stops with an error, gives -1; the lowest integer divided by -1 is itself."""
    x, divisor = operands
    if is_float(x.dtype) or _is_safe(divisor):
        return elementwise(builder, "Div", x, divisor)
    is_zero, safe = _without(builder, divisor, 0)
    if is_unsigned(x.dtype):
        return where(builder, is_zero, like(x, jnp.iinfo(x.dtype).max), elementwise(builder, "Div", x, safe))
    is_negative, safe = _without(builder, safe, -1)
    quotient = elementwise(builder, "Div", x, safe)
    quotient = where(builder, is_negative, elementwise(builder, "Neg", x), quotient)
    return where(builder, is_zero, like(x, -1), quotient)


@primitive("rem")
def _remainder(builder: Builder, _: Any, operands: list[Tensor]) -> Tensor:
    """The remainder with the sign of the dividend; by 0, the dividend."""
    x, divisor = operands
    if is_float(x.dtype) or _is_safe(divisor):
        return elementwise(builder, "Mod", x, divisor, fmod=1)
    is_zero, safe = _without(builder, divisor, 0)
    return where(builder, is_zero, x, elementwise(builder, "Mod", x, safe, fmod=1))


def _is_safe(divisor: Tensor) -> bool:
    return divisor.known is not None and not np.isin(divisor.known, (0, -1)).any()


def _without(builder: Builder, divisor: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Where the divisor is a number, and the divisor with 1 there."""
    found = elementwise(builder, "Equal", divisor, like(divisor, number), dtype=np.bool_)
    return found, where(builder, found, like(divisor, 1), divisor)


@primitive("shift_left")
def _shifted_left(builder: Builder, _: Any, operands: list[Tensor]) -> Tensor:
    return _shifted(builder, *operands, direction="LEFT")


@primitive("shift_right_logical")
def _shifted_right(builder: Builder, _: Any, operands: list[Tensor]) -> Tensor:
    return _shifted(builder, *operands, direction="RIGHT")


def _shifted(builder: Builder, x: Tensor, amount: Tensor, direction: str) -> Tensor:
    """The bits that come in are 0. Amounts are unsigned, and may be as large as the type or larger."""
    unsigned = _unsigned(x.dtype)
    wide = unsigned if _largest(amount) < 8 * unsigned.itemsize else np.dtype(np.uint64)
    bits = cast(builder, cast(builder, x, unsigned), wide)
    amount = cast(builder, cast(builder, amount, unsigned), wide)
    if wide != unsigned:
        amount = elementwise(builder, "Min", amount, known(np.full((1,) * amount.ndim, 63, wide)))
    return cast(
        builder, cast(builder, elementwise(builder, "BitShift", bits, amount, direction=direction), unsigned), x.dtype
    )


@primitive("shift_right_arithmetic")
def _shifted_with_sign(builder: Builder, _: Any, operands: list[Tensor]) -> Tensor:
    """The quotient by a power of two, rounded down: what is divided is first made a multiple of it.

    The highest bit is a sign in unsigned types as well.
    """
    x, amount = operands
    unsigned, signed = _unsigned(x.dtype), np.dtype(f"int{8 * x.dtype.itemsize}")
    dtype, x = x.dtype, cast(builder, x, signed)
    width = 8 * x.dtype.itemsize
    if _largest(amount) < width - 1:
        assert amount.known is not None
        wide = x
        divisor = known(np.left_shift(1, amount.known.astype(np.int64)).astype(signed))
    else:
        wide = cast(builder, x, np.int64)
        steps = cast(builder, cast(builder, amount, unsigned), np.uint64)
        steps = elementwise(builder, "Min", steps, known(np.full((1,) * steps.ndim, width - 1, np.uint64)))
        one = known(np.ones((1,) * steps.ndim, np.uint64))
        divisor = cast(builder, elementwise(builder, "BitShift", one, steps, direction="LEFT"), np.int64)
    multiple = elementwise(builder, "Sub", wide, elementwise(builder, "Mod", wide, divisor))
    return cast(builder, cast(builder, elementwise(builder, "Div", multiple, divisor), signed), dtype)


def _unsigned(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"uint{8 * dtype.itemsize}")


def _largest(amount: Tensor) -> float:
    """The largest amount that can occur."""
    if amount.known is None:
        return np.inf
    return float(amount.known.astype(np.int64).astype(_unsigned(amount.dtype)).max(initial=0))
