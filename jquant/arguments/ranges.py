"""Arguments for the ranges of real numbers, [min, max], that TensorFlow's operators take."""

import functools

import numpy as np
from jax.typing import ArrayLike

from jquant.arguments.descriptor import require
from jquant.arguments.operands import Operand, float_operand, is_known, is_one_element, operand
from jquant.arguments.statics import dimension_from_0
from jquant.errors import DescriptorTypeError
from jquant.modes import data_type, data_type_name


def range_operands(operator: str, input: Operand, axis: int | None, **bounds: ArrayLike) -> tuple[Operand, ...]:
    """The two `bounds`, the lower first, as arrays that fit `input`: one for all of it, or for each slice along its `axis`.

    They may be missing, if the range is that of `input`.
    """
    given = {name: float_operand(operator, name, bound) for name, bound in bounds.items()}
    if axis is not None:
        axis = dimension_from_0(operator, axis, input.ndim)
    sizes = () if axis is None else (input.shape[axis],)
    for name, bound in given.items():
        if axis is None and not is_one_element(bound.shape):
            require(False, f"{operator}: {name} has shape {bound.shape}; without axis it must have 1 element")
        if axis is not None and bound.shape != sizes:
            message = f"{operator}: {name} has shape {bound.shape}; with axis={axis} it must be {sizes}"
            require(False, f"{message}: input has shape {input.shape}")
    if given and is_known(*given.values()):
        (low_name, low), (high_name, high) = given.items()
        require(not np.any(high < low), f"{operator}: {high_name}, {high}, is less than {low_name}, {low}")
    return tuple(given.values())


def require_one_range(operator: str, input: Operand, axis: int | None) -> None:
    """Asserts that there is one range, as MIN_FIRST has it."""
    if axis is not None:
        message = f"{operator}: MIN_FIRST has a single range: axis={axis} must be None or a dimension of size 1"
        require(input.shape[axis] == 1, message)


def require_quantized(operator: str, name: str, dtype: np.dtype, *allowed: str) -> None:
    """Asserts that a dtype stores one of TensorFlow's quantized types."""
    types = _stored_types(allowed)
    if dtype not in types.values():
        given, listed = data_type_name(dtype), ", ".join(f"{type} ({data_type_name(types[type])})" for type in types)
        require(False, f"{operator}: {name} is {given}; the operator allows {listed}", DescriptorTypeError)


@functools.cache
def _stored_types(types: tuple[str, ...]) -> dict[str, np.dtype]:
    return {type: data_type("dtype", type) for type in types}


def accumulators(
    operator: str, input: ArrayLike, input_min: ArrayLike, input_max: ArrayLike, *, per_channel: bool = False
) -> tuple[Operand, ...]:
    """The 32-bit integers and their range, or the ranges of their channels, as arrays."""
    input = operand(operator, "input", input)
    require_quantized(operator, "the data type of input", input.dtype, "qint32")
    if per_channel:
        require(input.ndim > 0, f"{operator}: input is a scalar; it must have channels as its last dimension")
    axis = input.ndim - 1 if per_channel else None
    return input, *range_operands(operator, input, axis, input_min=input_min, input_max=input_max)
