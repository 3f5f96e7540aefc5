"""Arguments that many calls have, and the shapes and dtypes of results."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from .call import Argument
from .kinds import Boolean, DataType, Integer, Level, Mode, Sharding, Tensor, anything, one_element


def abstract(shape: Sequence[int], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(shape), jnp.dtype(dtype))


def like(array: Any, dtype: Any = None) -> jax.ShapeDtypeStruct:
    """The shape of an array, with its dtype or another."""
    return abstract(jnp.shape(array), array.dtype if dtype is None else dtype)


def dtype_of(value: Any, default: Any) -> np.dtype:
    """The dtype of an array; the `default` of None and of Python scalars."""
    return jnp.dtype(getattr(value, "dtype", default))


BYTES, FLOATS = "int8 uint8", "float32 float16"
INTEGERS = "int8 uint8 int16 uint16 int32 uint32"
WIDE = f"{INTEGERS} int64 uint64"
FLOAT = Tensor("float32", one_element, "float32")
OPTIONAL_FLOAT = dataclasses.replace(FLOAT, optional=True)
PER_COLUMN = Tensor("float32 float16 bfloat16", lambda shape: len(shape) == 2 and shape[1] == 3)
ROWS, COLUMNS = 2, 3

_DATA_TYPES: dict[str, Callable[[], object]] = {
    f"data type {value!r}": lambda value=value: value
    for value in (
        *("INT9", "int8", "INT8", "qint8", "quint9", "uint8 ", "float32", "f4, f4", ">i4", "object", "M8[s]", "U1", "int4"),
        *(np.int8, np.uint8, np.generic, np.dtype(">i4"), np.dtype("M8[s]"), np.dtype("uint8"), jnp.dtype("int4"), bool),
        *("INT2", "BFLOAT16", "(2,3)i1", "i1,", "1000000000000i1", "c8,("),
    )
}


def scale(names: str, value: Any = 0.5, shapes: Any = one_element, data_types: str = "float32") -> Argument:
    return Argument(value, Tensor(data_types, shapes, "float32"), names)


def zero_point(
    names: str, value: Any = 3, shapes: Any = one_element, data_types: str = "uint8", scalar: str = ""
) -> Argument:
    return Argument(value, Tensor(data_types, shapes, scalar or data_types, optional=True), names)


def bound(names: str, value: Any, values: Any = anything, shapes: Any = one_element) -> Argument:
    return Argument(value, Tensor("float32", shapes, "float32", values=values), names)


def at_least(low: float) -> Callable[[Any], bool]:
    return lambda x: not x < low


def at_most(high: float) -> Callable[[Any], bool]:
    return lambda x: not x > high


def level(first: str) -> Argument:
    return Argument(None, Level(first), "feature_level")


def data_type(names: str, value: Any, allowed: str) -> Argument:
    return Argument(value, DataType(allowed, optional=value is None), names, _DATA_TYPES)


def mode(name: str, value: Any, allowed: str) -> Argument:
    return Argument(value, Mode(allowed, optional=value is None), name)


def boolean(name: str, value: bool = False) -> Argument:
    return Argument(value, Boolean(), name)


def integer(name: str, value: int | None, allowed: Sequence[int], *, optional: bool = False) -> Argument:
    return Argument(value, Integer(allowed, optional), name)


def matrix_sharding() -> Argument:
    """How a matrix is split over a mesh."""

    def make_mesh(*names: str) -> Any:
        return jax.make_mesh((1,) * len(names), names, axis_types=(jax.sharding.AxisType.Auto,) * len(names))

    return Argument(
        PartitionSpec("k", "n"),
        Sharding(),
        "sharding",
        {
            "three entries": lambda: PartitionSpec("k", "n", None),
            "an unconstrained entry": lambda: PartitionSpec(PartitionSpec.UNCONSTRAINED, None),
            "an unconstrained entry on a mesh": lambda: NamedSharding(
                make_mesh("k"), PartitionSpec(PartitionSpec.UNCONSTRAINED, None)
            ),
            "three entries on a mesh": lambda: NamedSharding(make_mesh("k"), PartitionSpec(None, None, "k")),
            "another sharding": lambda: jax.sharding.SingleDeviceSharding(jax.devices()[0]),
            "a mesh": lambda: make_mesh("k"),
        },
    )
