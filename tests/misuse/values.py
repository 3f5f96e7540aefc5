"""The values that are substituted for arguments."""

import array
import dataclasses
import decimal
import enum
import fractions
import functools
import math
import warnings
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

import jquant
from jquant import calibration

from .samples import packed_matrix


class Like(NamedTuple):
    """The shape and dtype of a valid array for an argument."""

    shape: tuple[int, ...]
    dtype: np.dtype


class Foreign:
    """An array of another library."""

    def __init__(self, like: Like):
        self.shape, self.dtype, self.ndim, self.size = like.shape, like.dtype, len(like.shape), math.prod(like.shape)

    def __array__(self, dtype=None, copy=None):
        return np.ones(self.shape, self.dtype if dtype is None else dtype)


class Wrapped:
    """An object that JAX converts to an array."""

    def __init__(self, value):
        self.value = value

    def __jax_array__(self):
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


class Unprintable:
    """An object that raises when it is printed or tested for truth."""

    def __repr__(self):
        raise RuntimeError("no text")

    def __bool__(self):
        raise RuntimeError("no truth value")


class IntSubclass(int):
    """Equal to an int, but of another type."""


class Quantity(np.ndarray):
    """A subclass of np.ndarray, whose meaning JAX would drop."""


_OBJECTS: dict[str, Callable[[], object]] = {
    **{
        repr(value): lambda value=value: value
        for value in (
            *(None, True, "1", "", b"1", 0, 1, -1, 2, 0.5, 1.0, -0.5, math.nan, math.inf, 1e-46, 1e39, 1j, Ellipsis),
            *([], [1], [1.0], [1, 1], [[1, 1], [1, 1]], [None], (), (1,), (1, 1), ("1", "1", "1"), {}, {"a": 1}, {1}),
            *(range(3), int, float, object, enum.Enum, fractions.Fraction(1, 2), decimal.Decimal(1)),
        )
    },
    "2**70": lambda: 2**70,
    "-(2**70)": lambda: -(2**70),
    "10**5000": lambda: 10**5000,
    "[10**5000]": lambda: [10**5000],
    "an object": object,
    "a function": lambda: lambda x: x,
    "a generator": lambda: (x for x in (1, 1)),
    "an object without a text": Unprintable,
    "a bytearray": lambda: bytearray(b"\1\1"),
    "a memoryview": lambda: memoryview(b"\1\1"),
    "array.array": lambda: array.array("i", [1, 1]),
    "a lone surrogate": lambda: "\ud800",
    "a long text": lambda: "SAME" * 1000,
    "a subclass of int": lambda: IntSubclass(1),
    "another class's FeatureLevel": lambda: enum.IntEnum("FeatureLevel", {"LATEST": 1}).LATEST,
    "FeatureLevel.LATEST": lambda: jquant.FeatureLevel.LATEST,
    "QuantizeMode.SCALED": lambda: jquant.QuantizeMode.SCALED,
    "RoundMode.HALF_UP": lambda: jquant.RoundMode.HALF_UP,
    "Implementation.XLA": lambda: jquant.Implementation.XLA,
    "np.bool_(True)": lambda: np.bool_(True),
    "np.str_('1')": lambda: np.str_("1"),
    "np.int64(1)": lambda: np.int64(1),
    "np.int32(1)": lambda: np.int32(1),
    "np.uint8(1)": lambda: np.uint8(1),
    "np.int8(1)": lambda: np.int8(1),
    "np.float64(1)": lambda: np.float64(1),
    "np.float32(1)": lambda: np.float32(1),
    "np.float16(1)": lambda: np.float16(1),
    "np.longdouble(1)": lambda: np.longdouble(1),
    "np.complex64(1)": lambda: np.complex64(1),
    "np.datetime64": lambda: np.datetime64("2024-01-01"),
    "np.void": lambda: np.void(b"1"),
    "np.ma.masked": lambda: np.ma.masked,
    "np.array(1)": lambda: np.array(1),
    "np.array([1, 1])": lambda: np.array([1, 1]),
    "np.dtype('float64')": lambda: np.dtype("float64"),
    "np.dtype('i4, i4')": lambda: np.dtype("i4, i4"),
    "jnp.int32(1)": lambda: jnp.int32(1),
    "jnp.float32(1)": lambda: jnp.float32(1),
    "jnp.bool_(True)": lambda: jnp.bool_(True),
    "jnp.asarray(1j)": lambda: jnp.asarray(1j),
    "jnp.asarray(0.5)": lambda: jnp.asarray(0.5),
    "jnp.asarray(3)": lambda: jnp.asarray(3),
    "jnp.full((7,), 0.1)": lambda: jnp.full((7,), 0.1),
    "jax.random.key(0)": lambda: jax.random.key(0),
    "keys": lambda: jax.random.split(jax.random.key(0), 3),
    "jax.ShapeDtypeStruct": lambda: jax.ShapeDtypeStruct((2, 3), np.float32),
    "a PartitionSpec": PartitionSpec,
    "jax.new_ref": lambda: jax.new_ref(jnp.ones(3)),
    "a __jax_array__ that raises": lambda: Wrapped(RuntimeError("no array")),
    "a __jax_array__ without arguments": lambda: type("Module", (), {"__jax_array__": lambda: jnp.ones(3)})(),
    "a __jax_array__ of text": lambda: Wrapped("1"),
    "a __jax_array__ of a Python scalar": lambda: Wrapped(0.5),
    "a class with __jax_array__": lambda: Wrapped,
    "a PackedMatrix": lambda: packed_matrix(),
    "a PackedMatrix cast to bfloat16": lambda: jax.tree.map(lambda x: x.astype(jnp.bfloat16), packed_matrix()),
    "a PackedMatrix without arrays": lambda: dataclasses.replace(packed_matrix(), data=None, block_sums=None),
    "a PackedMatrix of shardings": lambda: packed_matrix().sharding_for(PartitionSpec("k", "n")),
    "a ScaleBias": lambda: jquant.ScaleBias(1, 1),
    "an Observer": calibration.min_max,
}
_ARRAYS: dict[str, Callable[[Like], object]] = {
    "a masked array": lambda like: np.ma.masked_array(np.ones(like.shape, like.dtype), mask=True),
    "a big-endian array": lambda like: np.ones(like.shape, ">f4" if like.dtype == np.float32 else ">i4"),
    "an array of objects": lambda like: np.ones(like.shape, object),
    "an array of text": lambda like: np.ones(like.shape, "U1"),
    "an array of dates": lambda like: np.ones(like.shape, "M8[s]"),
    "a structured array": lambda like: np.ones(like.shape, "i4, f4"),
    "a float0 array": lambda like: np.zeros(like.shape, jax.dtypes.float0),
    **{
        f"a NumPy array of {dtype}": lambda like, dtype=dtype: np.ones(like.shape, dtype)
        for dtype in ("float64", "int64", "uint64", "complex64", "bool", "float32", "int8", "uint8", "int32", "float16")
    },
    **{
        f"a jax.Array of {dtype}": lambda like, dtype=dtype: jnp.ones(like.shape, dtype)
        for dtype in ("bfloat16", "float32", "int32", "uint8", "bool", "complex64", "float8_e4m3fn", "int4")
    },
    "9 dimensions": lambda like: np.ones((1,) * 9, like.dtype),
    "7 elements": lambda like: np.ones(7, like.dtype),
    "7 elements of a jax.Array": lambda like: jnp.ones(7, like.dtype),
    "no elements": lambda like: np.ones((0, *like.shape[1:]), like.dtype),
    "no dimensions": lambda like: np.ones((), like.dtype),
    "an array of weak type": lambda like: jnp.full(like.shape, 1 if jnp.issubdtype(like.dtype, jnp.integer) else 0.1),
    "an array of another library": Foreign,
    "a list of rows": lambda like: np.ones(like.shape).tolist(),
    "a subclass of np.ndarray": lambda like: np.ones(like.shape, like.dtype).view(Quantity),
    "np.matrix": lambda like: matrix(like),
    "a strided array": lambda like: np.ones((*like.shape, 2), like.dtype)[..., 0],
    "a read-only array": lambda like: np.broadcast_to(np.ones((), like.dtype), like.shape),
    "a __jax_array__": lambda like: Wrapped(jnp.ones(like.shape, like.dtype)),
}


def substitutes(like: Like) -> dict[str, Callable[[], object]]:
    """Functions that make substitutes for an argument with the shape and dtype of `like`, by name."""
    return {**_OBJECTS, **{name: functools.partial(make, like) for name, make in _ARRAYS.items()}}


def matrix(like: Like) -> np.ndarray:
    """An `np.matrix`, which always has two dimensions."""
    with warnings.catch_warnings(action="ignore"):
        return np.asmatrix(np.ones(like.shape[-2:], like.dtype))
