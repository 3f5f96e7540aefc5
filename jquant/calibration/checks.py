"""Checks of what observers are given: batches, states and names of mesh axes."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jquant.arguments.assertions import require
from jquant.arguments.operands import Operand, operand
from jquant.calibration.observer import AxisName
from jquant.errors import DescriptorTypeError, shown
from jquant.modes import data_type_name


def float_batch(name: str, what: str, batch: ArrayLike) -> Operand:
    """A batch as an array, asserting that it is of floats."""
    batch = operand(name, what, batch, jnp.dtype(jnp.float32))
    dtype, allowed = data_type_name(batch.dtype), ("FLOAT32", "FLOAT16", "BFLOAT16")
    message = f"{name}: {what} has data type {dtype}; it must be one of {', '.join(allowed)}"
    require(dtype in allowed, message, DescriptorTypeError)
    return batch


def checked_axis_name(name: str, axis_name: AxisName) -> AxisName:
    """`axis_name`, asserting that it names axes of a mesh; None if it names none."""
    names = axis_name if isinstance(axis_name, tuple) else () if axis_name is None else (axis_name,)
    if not all(isinstance(each, str) for each in names):
        message = f"{name}: axis_name is {shown(axis_name)}; it must be a string, a tuple of strings, or None"
        raise DescriptorTypeError(message)
    return axis_name if names else None


def require_shape(name: str, batch: Any) -> None:
    """Asserts that `batch`, of which `init` reads only the shape, has one, or is None."""
    if batch is not None and not isinstance(getattr(batch, "shape", None), tuple):
        message = f"{name}: batch is {shown(batch)}; init takes an array, a jax.ShapeDtypeStruct, or None"
        raise DescriptorTypeError(message)


def require_state(name: str, state: Any, like: Any) -> None:
    """Asserts that `state` is a tree of arrays with the shapes and dtypes of `like`."""
    is_state = isinstance(state, type(like))
    leaves, structure = jax.tree.flatten(state if is_state else None)
    expected_leaves, expected_structure = jax.tree.flatten(like)
    if structure != expected_structure or list(map(_signature, leaves)) != list(map(_signature, expected_leaves)):
        actual = shown(jax.tree.map(_described, state) if is_state else state)
        expected = shown(jax.tree.map(_described, like))
        raise DescriptorTypeError(f"{name}: state is {actual}; this observer's init and update return {expected}")


def _signature(leaf: Any) -> tuple:
    return getattr(leaf, "shape", None), getattr(leaf, "dtype", None)


def _described(leaf: Any) -> str:
    shape, dtype = _signature(leaf)
    return type(leaf).__name__ if shape is None or dtype is None else f"{dtype}{list(shape)}"
