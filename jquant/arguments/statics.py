"""Checks of static arguments: numbers, switches and lists of numbers."""

import enum
from collections.abc import Container, Sequence
from typing import Any, TypeGuard

import jax
import numpy as np
from jax.typing import DTypeLike

from jquant.arguments.descriptor import require
from jquant.arguments.operands import FLOATS
from jquant.errors import DescriptorTypeError, shown
from jquant.modes import data_type, data_type_name


def integer(operator: str, name: str, value: int, allowed: Container[int], what: str) -> int:
    """`value`, asserting that it is an integer in `allowed`, which an error describes as `what`."""
    if not _is_integer(value):
        raise DescriptorTypeError(f"{operator}: {name} is {_typed(value)}; it must be {what}")
    if int(value) not in allowed:  # a range would search for a NumPy integer element by element
        require(False, f"{operator}: {name} is {shown(value)}; it must be {what}")
    return int(value)


def number(operator: str, name: str, value: float, low: float, high: float) -> float:
    """`value`, asserting that it is a number from `low` to `high`."""
    if not _is_integer(value) and not isinstance(value, float | np.floating):
        raise DescriptorTypeError(f"{operator}: {name} is {_typed(value)}; it must be a number from {low} to {high}")
    require(low <= value <= high, f"{operator}: {name} is {shown(value)}; it must be from {low} to {high}")
    return float(value)


def boolean(operator: str, name: str, value: bool) -> bool:
    """`value`, asserting that it is a truth value: what merely has one raises."""
    if not isinstance(value, bool | np.bool):
        raise DescriptorTypeError(f"{operator}: {name} is {_typed(value)}; it must be True or False")
    return bool(value)


def positive_integers(operator: str, name: str, values: Sequence[int], count: int) -> tuple[int, ...]:
    """`values`, asserting that they are `count` positive integers."""
    wanted = f"must be {count} positive Python ints, one for each spatial dimension, not"
    if not are_integers(values):
        raise DescriptorTypeError(f"{operator}: {name} {wanted} {_typed(values)}")
    if len(values) != count or min(values, default=1) < 1:
        require(False, f"{operator}: {name} {wanted} {shown(values)}")
    require_words(operator, name, values)
    return tuple(map(int, values))


def require_words(operator: str, name: str, values: Sequence[int]) -> None:
    """Asserts that integers without another limit fit the integers that compilers count in."""
    if max(values, default=0) >= 2**31:
        require(False, f"{operator}: {name} is {shown(values)}; it must be less than 2**31")


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
    _require_dimensions(operator, axis, rank, name)
    what = f"a dimension of the input, from {-rank} to {rank - 1}" + (", or None" if optional else "")
    return integer(operator, name, axis, range(-rank, rank), what) % max(rank, 1)


def dimensions(operator: str, axis: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """`axis`, one or several dimensions, counted from 0 and in order."""
    given: Any = axis if is_sequence(axis) else (axis,)
    found = tuple(sorted(dimension(operator, each, rank) for each in given))
    if len(set(found)) < len(found):
        require(False, f"{operator}: axis is {shown(axis)}, which names a dimension twice")
    return found


def dimension_from_0(operator: str, axis: int, rank: int) -> int:
    """`axis` of a TensorFlow operator, where a negative one stands for none."""
    _require_dimensions(operator, axis, rank)
    what = (
        f"a dimension of the input, from 0 to {rank - 1}, or None (a negative axis means no axis in "
        "TensorFlow, and counts from the end elsewhere; here it is refused)"
    )
    return integer(operator, "axis", axis, range(rank), what)


def _require_dimensions(operator: str, axis: object, rank: int, name: str = "axis") -> None:
    require(rank > 0, f"{operator}: {name} is {shown(axis)}, but the input is a scalar, which has no dimensions")


def _is_integer(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool | enum.Enum)


def _typed(value: object) -> str:
    if isinstance(value, jax.Array):
        return "a jax.Array"
    return "None" if value is None else f"the {type(value).__name__} {shown(value)}"


_QUANTIZED = "INT16", "INT8", "INT4", "INT2", "UINT16", "UINT8", "UINT4", "UINT2"


def quantized_data_type(operator: str, dtype: DTypeLike | str) -> np.dtype:
    """The integer dtype that a caller names; one that quantized tensors can have."""
    found = data_type("dtype", dtype)
    given, allowed = data_type_name(found), ", ".join(_QUANTIZED)
    require(given in _QUANTIZED, f"{operator}: dtype is {given}; it must be one of {allowed}", DescriptorTypeError)
    return found


def float_data_type(operator: str, name: str, dtype: DTypeLike | str) -> np.dtype:
    """The float dtype that a caller names."""
    found = data_type(name, dtype)
    given, allowed = data_type_name(found), ", ".join(FLOATS)
    require(given in FLOATS, f"{operator}: {name} is {given}; it must be one of {allowed}", DescriptorTypeError)
    return found
