"""Arguments for the ranges of real numbers, [min, max], that TensorFlow's operators take."""

import functools

import numpy as np
from jax.typing import ArrayLike

from jquant.arguments.assertions import once_for_each_signature, require, require_dimensions
from jquant.arguments.naming import message
from jquant.arguments.operands import Operand, float_operand, is_known, is_one_element, operand
from jquant.arguments.statics import dimension_from_0
from jquant.errors import DescriptorTypeError
from jquant.modes import RoundMode, data_type, data_type_name


def range_operands(operator: str, input: Operand, axis: int | None, **bounds: ArrayLike) -> tuple[Operand, ...]:
    """The two `bounds`, the lower first, as arrays that fit `input`: one for all of it, or for each slice along its `axis`.

    They may be missing, if the range is that of `input`.
    """
    arrays = {name: float_operand(operator, name, bound) for name, bound in bounds.items()}
    if axis is not None:
        axis = dimension_from_0(operator, axis, input.ndim)
    for name, bound in arrays.items():
        _require_bounds(operator, name, bound.shape, input.shape, axis)
    if arrays and is_known(*arrays.values()):
        (low_name, low), (high_name, high) = arrays.items()
        require_order(operator, low_name, low, high_name, high)
    return tuple(arrays.values())


@once_for_each_signature
def require_order(operator: str, low_name: str, low: Operand, high_name: str, high: Operand) -> None:
    """Asserts that no bound is above the other, for numbers that are known while tracing."""
    require(not np.any(high < low), message(operator, high_name, f"is {high}, which is less than {low_name}, {low}"))


@once_for_each_signature
def _require_bounds(operator: str, name: str, bound: tuple[int, ...], input: tuple[int, ...], axis: int | None) -> None:
    """Asserts that there is one bound, or with an axis one for each slice."""
    if axis is None:
        text = f"has shape {bound}; without axis it must have 1 element"
        require(is_one_element(bound), message(operator, name, text))
    else:
        sizes = (input[axis],)
        text = f"has shape {bound}; with axis={axis} it must be {sizes}: input has shape {input}"
        require(bound == sizes, message(operator, name, text))


def require_one_range(operator: str, input: Operand, axis: int | None) -> None:
    """Asserts that there is one range, as MIN_FIRST has it."""
    if axis is not None:
        _require_size_of_1(operator, input.shape, axis)


@once_for_each_signature
def _require_size_of_1(operator: str, input: tuple[int, ...], axis: int) -> None:
    text = f"is {axis}; MIN_FIRST has a single range: it must be None or a dimension of size 1"
    require(input[axis] == 1, message(operator, "axis", text))


@once_for_each_signature
def require_quantized(operator: str, name: str, dtype: np.dtype, *allowed: str) -> None:
    """Asserts that a tensor, or the argument `dtype`, has a dtype that stores one of TensorFlow's quantized types."""
    types = _stored_types(allowed)
    listed = ", ".join(f"{type} ({data_type_name(types[type])})" for type in types)
    verb = "is" if name == "dtype" else "has data type"
    text = f"{verb} {data_type_name(dtype)}; the operator allows {listed}"
    require(dtype in types.values(), message(operator, name, text), DescriptorTypeError)


@functools.cache
def _stored_types(types: tuple[str, ...]) -> dict[str, np.dtype]:
    return {type: data_type("dtype", type) for type in types}


def accumulators(
    operator: str, input: ArrayLike, input_min: ArrayLike, input_max: ArrayLike, *, per_channel: bool = False
) -> tuple[Operand, ...]:
    """The 32-bit integers and their range, or the ranges of their channels, as arrays."""
    input = operand(operator, "input", input)
    require_quantized(operator, "input", input.dtype, "qint32")
    if per_channel:
        require_dimensions(operator, "input", input.shape, "channels as its last dimension")
    axis = input.ndim - 1 if per_channel else None
    return input, *range_operands(operator, input, axis, input_min=input_min, input_max=input_max)


@once_for_each_signature
def require_round_mode(operator: str, round_mode: RoundMode, allowed: tuple[RoundMode, ...]) -> None:
    """Asserts that the operator's specification has this rounding mode."""
    text = f"is {round_mode}; the operator allows {', '.join(allowed)}"
    require(round_mode in allowed, message(operator, "round_mode", text))
