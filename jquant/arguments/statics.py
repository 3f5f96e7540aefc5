"""Checks of static arguments: numbers, switches and lists of numbers."""

import enum
from collections.abc import Container, Sequence
from typing import Any, TypeGuard

import jax
import numpy as np
from jax.typing import DTypeLike

from jquant.arguments.assertions import once_for_each_signature, require, require_named_type
from jquant.arguments.naming import message
from jquant.arguments.operands import FLOATS
from jquant.errors import DescriptorError, DescriptorTypeError, shown
from jquant.modes import data_type


def integer(operator: str, name: str, value: int, allowed: Container[int], what: str) -> int:
    """`value`, asserting that it is an integer in `allowed`, which an error describes as `what`."""
    _require_integer(operator, name, value, allowed, what)
    return int(value)


@once_for_each_signature
def _require_integer(operator: str, name: str, value: int, allowed: Container[int], what: str) -> None:
    is_integer = _is_integer(value)
    require(is_integer, message(operator, name, f"is {_typed(value)}; it must be {what}"), DescriptorTypeError)
    # As a Python int: a range would search for a NumPy integer element by element.
    require(int(value) in allowed, message(operator, name, f"is {shown(value)}; it must be {what}"))


def number(operator: str, name: str, value: float, low: float, high: float) -> float:
    """`value`, asserting that it is a number from `low` to `high`."""
    _require_number(operator, name, value, low, high)
    return float(value)


@once_for_each_signature
def _require_number(operator: str, name: str, value: float, low: float, high: float) -> None:
    is_number = _is_integer(value) or isinstance(value, float | np.floating)
    wanted = f"it must be a number from {low} to {high}"
    require(is_number, message(operator, name, f"is {_typed(value)}; {wanted}"), DescriptorTypeError)
    text = f"is {shown(value)}; it must be from {low} to {high}"
    require(low <= value <= high, message(operator, name, text))


def boolean(operator: str, name: str, value: bool) -> bool:
    """`value`, asserting that it is a truth value: what merely has one is refused."""
    _require_boolean(operator, name, value)
    return bool(value)


@once_for_each_signature
def _require_boolean(operator: str, name: str, value: bool) -> None:
    text = f"is {_typed(value)}; it must be True or False"
    require(isinstance(value, bool | np.bool), message(operator, name, text), DescriptorTypeError)


def positive_integers(operator: str, name: str, values: Sequence[int], count: int) -> tuple[int, ...]:
    """`values`, asserting that they are `count` positive integers."""
    types = tuple(map(type, values)) if is_sequence(values) else ()
    _require_positive_integers(operator, name, _hashable(values), types, count)
    return tuple(map(int, values))


@once_for_each_signature
def _require_positive_integers(operator: str, name: str, values: Sequence[int], types: tuple[type, ...], count: int) -> None:
    """The `types` of the values tell (1.0, 1) from (1, 1), which are equal."""
    del types
    wanted = f"must be {count} positive Python ints, one for each spatial dimension, not"
    require(are_integers(values), message(operator, name, f"{wanted} {_typed(values)}"), DescriptorTypeError)
    is_right = len(values) == count and min(values, default=1) >= 1
    require(is_right, message(operator, name, f"{wanted} {shown(values)}"))
    require_words(operator, name, values)


def require_words(operator: str, name: str, values: Sequence[int]) -> None:
    """Asserts that integers without another limit fit the integers that compilers count in."""
    fits = max(values, default=0) < 2**31
    require(fits, message(operator, name, f"is {shown(values)}; it must be less than 2**31"))


def require_countable(operator: str, name: str, what: str, num_bytes: int) -> None:
    """Refuses an array whose bytes XLA cannot count: some versions end the process, so assertions do not matter."""
    if num_bytes >= 2**63:
        text = f"{what} takes an array of {num_bytes} bytes; it must be less than 2**63"
        raise DescriptorError(message(operator, name, text))


def _hashable(values: Sequence[int]) -> Sequence[int]:
    """A list of integers as a tuple."""
    return tuple(values) if isinstance(values, list) else values


def is_sequence(value: object) -> TypeGuard[Sequence]:
    """Whether it is a list of something: not a string, not bytes, and not a `jax.Array`, which may be traced."""
    if isinstance(value, tuple | list):  # the common ones, decided at once
        return True
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)


def are_integers(values: object) -> TypeGuard[Sequence[int]]:
    """Whether it is a list of integers."""
    return is_sequence(values) and all(map(_is_integer, values))


def dimension(operator: str, axis: int, rank: int, *, optional: bool = False, name: str = "axis") -> int:
    """`axis`, counted from 0. A negative one counts from the end, as in ONNX and NumPy."""
    _require_dimension(operator, name, axis, rank, optional)
    return int(axis) % max(rank, 1)


@once_for_each_signature
def _require_dimension(operator: str, name: str, axis: int, rank: int, optional: bool) -> None:
    _require_dimensions(operator, name, axis, rank)
    what = f"a dimension of the input, from {-rank} to {rank - 1}" + (", or None" if optional else "")
    _require_integer(operator, name, axis, range(-rank, rank), what)


def dimensions(operator: str, axis: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """`axis`, one or several dimensions, counted from 0 and in order."""
    each: Any = axis if is_sequence(axis) else (axis,)
    axes = tuple(sorted(dimension(operator, one, rank) for one in each))
    _require_distinct(operator, axes, shown(axis))
    return axes


@once_for_each_signature
def _require_distinct(operator: str, axes: tuple[int, ...], axis: str) -> None:
    require(len(set(axes)) == len(axes), message(operator, "axis", f"is {axis}, which names a dimension twice"))


def dimension_from_0(operator: str, axis: int, rank: int) -> int:
    """`axis` of a TensorFlow operator, where a negative one stands for none."""
    _require_dimension_from_0(operator, axis, rank)
    return int(axis)


@once_for_each_signature
def _require_dimension_from_0(operator: str, axis: int, rank: int) -> None:
    _require_dimensions(operator, "axis", axis, rank)
    what = (
        f"a dimension of the input, from 0 to {rank - 1}, or None (a negative axis means no axis in "
        "TensorFlow, and counts from the end elsewhere; here it is refused)"
    )
    _require_integer(operator, "axis", axis, range(rank), what)


def _require_dimensions(operator: str, name: str, axis: object, rank: int) -> None:
    text = f"is {shown(axis)}, but the input is a scalar, which has no dimensions"
    require(rank > 0, message(operator, name, text))


def _is_integer(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool | enum.Enum)


def _typed(value: object) -> str:
    if isinstance(value, jax.Array):
        return "a jax.Array"
    return "None" if value is None else f"the {type(value).__name__} {shown(value)}"


_QUANTIZED = "INT16", "INT8", "INT4", "INT2", "UINT16", "UINT8", "UINT4", "UINT2"


def quantized_data_type(operator: str, dtype: DTypeLike | str) -> np.dtype:
    """The integer dtype that a caller names; one that quantized tensors can have."""
    named = data_type("dtype", dtype)
    require_named_type(operator, "dtype", named, _QUANTIZED)
    return named


def float_data_type(operator: str, name: str, dtype: DTypeLike | str) -> np.dtype:
    """The float dtype that a caller names."""
    named = data_type(name, dtype)
    require_named_type(operator, name, named, FLOATS)
    return named
