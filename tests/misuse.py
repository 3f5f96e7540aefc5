"""The sweep over wrong arguments: calls of every public function, and what is put in the place of each argument.

A `Call` names the arguments of a call that is right. Each `Argument` has a kind, which says of any value what it means
there: the canonical spelling of the same argument, or `WRONG`. The kinds follow the docstrings, and share no code with the
checks of the package. Another function is another entry of `calls`; `things` is what is put in the place of arguments.
"""

import array
import dataclasses
import decimal
import enum
import fractions
import functools
import inspect
import itertools
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

import jquant
from jquant import calibration

# What is put in the place of an argument.


class Like(NamedTuple):
    """The shape and dtype that an array in the place of an argument would rightly have."""

    shape: tuple[int, ...]
    dtype: np.dtype


class Foreign:
    """An array of another library."""

    def __init__(self, like: Like):
        self.shape, self.dtype, self.ndim, self.size = like.shape, like.dtype, len(like.shape), math.prod(like.shape)

    def __array__(self, dtype=None, copy=None):
        return np.ones(self.shape, self.dtype if dtype is None else dtype)


class Wrapped:
    """An object that JAX takes for an array."""

    def __init__(self, value):
        self.value = value

    def __jax_array__(self):
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


class Unprintable:
    """An object without a text."""

    def __repr__(self):
        raise RuntimeError("no text")

    def __bool__(self):
        raise RuntimeError("no truth value")


class Answer(int):
    """A subclass of int that is no number of its own."""


class Quantity(np.ndarray):
    """An array whose class means something that JAX would drop."""


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
    "a subclass of int": lambda: Answer(1),
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


def things(like: Like) -> dict[str, Callable[[], object]]:
    """What is put in the place of an argument that is `like` that, by name; made when it is called."""
    return {**_OBJECTS, **{name: functools.partial(make, like) for name, make in _ARRAYS.items()}}


def matrix(like: Like) -> np.ndarray:
    """NumPy's matrix, which has two dimensions whatever is done with it."""
    with warnings.catch_warnings(action="ignore"):
        return np.asmatrix(np.ones(like.shape[-2:], like.dtype))


# What a value means in the place of an argument.


class Verdict(enum.Enum):
    WRONG = enum.auto()
    UNSPECIFIED = enum.auto()


WRONG, UNSPECIFIED = Verdict


class Kind:
    """What an argument may be."""

    def means(self, value: object) -> object:
        """The canonical spelling of the argument that `value` is, or `WRONG`; `UNSPECIFIED` where all may happen."""
        raise NotImplementedError

    def means_traced(self, value: object) -> object:
        """The same of what a `jax.jit` around the call makes of a `value`."""
        return self.means(value)


def anything(_: object) -> bool:
    return True


def one(shape: tuple[int, ...]) -> bool:
    """Whether it is the shape of one element."""
    return all(size == 1 for size in shape)


def ranks(low: int, high: int) -> Callable[[tuple[int, ...]], bool]:
    return lambda shape: low <= len(shape) <= high


def exactly(*shapes: tuple[int, ...]) -> Callable[[tuple[int, ...]], bool]:
    return lambda shape: shape in shapes


@dataclasses.dataclass(frozen=True)
class Tensor(Kind):
    """An array.

    Attributes:
      data_types: the names of the dtypes that it may have.
      shapes: whether it may have a shape.
      scalar: the data type that a Python scalar becomes; None where only arrays will do.
      optional: whether it may be None.
      values: whether an element may be what it is; of Python's and NumPy's values alone.
    """

    data_types: str
    shapes: Callable[[tuple[int, ...]], bool] = anything
    scalar: str | None = None
    optional: bool = False
    values: Callable[[Any], bool] = anything

    def means(self, value: object) -> object:
        if value is None:
            return None if self.optional else WRONG
        if type(value) is Wrapped:
            return self.means(jnp.asarray(value)) if isinstance(value.value, jax.Array | float) else WRONG
        if isinstance(value, int | float) and not isinstance(value, bool | enum.Enum | np.generic):
            return self._of_a_python_scalar(value)
        if isinstance(value, jax.Array):
            return self._of_a_jax_array(value)
        is_array = isinstance(value, np.ndarray | np.generic) and not isinstance(value, np.ma.MaskedArray)
        if not is_array or not value.dtype.isnative or not self._allows(value.dtype):
            return WRONG
        plain = np.array(value)
        return plain if self.shapes(plain.shape) and all(map(self.values, plain.flat)) else WRONG

    def _of_a_jax_array(self, value: jax.Array) -> object:
        if not isinstance(value.dtype, np.dtype):
            return WRONG
        weak_scalar = value.weak_type and value.shape == ()
        if weak_scalar and self.scalar == "float32" and value.dtype in (np.int32, np.int64, np.float32, np.float64):
            return value.astype(np.float32) if self.shapes(()) else WRONG
        allowed = self._allows(value.dtype) and self.shapes(value.shape)
        return jnp.array(value, value.dtype) if allowed else WRONG

    def _of_a_python_scalar(self, value: float) -> object:
        if self.scalar is None or not self.shapes(()) or not self.values(value):
            return WRONG
        dtype = np.dtype(self.scalar)
        if np.issubdtype(dtype, np.integer):
            limits = np.iinfo(dtype)
            return dtype.type(value) if isinstance(value, int) and limits.min <= value <= limits.max else WRONG
        limits = np.finfo(dtype)
        is_finite = isinstance(value, int) or math.isfinite(value)
        if is_finite and (abs(value) > float(limits.max) or 0 < abs(value) < float(limits.tiny)):
            return WRONG
        return dtype.type(value)

    def _allows(self, dtype: np.dtype) -> bool:
        narrowed = dtype.itemsize == 8 and not jax.config.jax_enable_x64
        return dtype.name in self.data_types.split() and not narrowed


class MatrixOrPacked(Kind):
    """A matrix of one shape: an array, or packed weights."""

    def __init__(self, data_types: str, shape: tuple[int, ...]):
        self.tensor, self.shape = Tensor(data_types, exactly(shape)), shape

    def means(self, value: object) -> object:
        if not isinstance(value, jquant.PackedMatrix):
            return self.tensor.means(value)
        arrays = value.data, value.block_sums
        intact = all(isinstance(x, jax.Array) for x in arrays) and [x.dtype for x in arrays] == [np.int8, np.int32]
        return value if intact and value.shape == self.shape else WRONG


class ZeroPointOfPacked(Kind):
    """The zero point that packed weights hold, or None. A traced one cannot be compared."""

    def __init__(self, value: int, *shapes: tuple[int, ...]):
        self.tensor = Tensor("int8", or_shapes(*shapes), "int8", optional=True, values=lambda x: x == value)

    def means(self, value: object) -> object:
        return self.tensor.means(value)

    def means_traced(self, value: object) -> object:
        return None if value is None else WRONG


@dataclasses.dataclass(frozen=True)
class Boolean(Kind):
    allowed: Sequence[bool] = (True, False)

    def means(self, value: object) -> object:
        return bool(value) if isinstance(value, bool | np.bool_) and bool(value) in self.allowed else WRONG


def is_integer(value: object) -> bool:
    return isinstance(value, np.integer) or (isinstance(value, int) and not isinstance(value, bool | enum.Enum))


@dataclasses.dataclass(frozen=True)
class Integer(Kind):
    allowed: range | Sequence[int]
    optional: bool = False

    def means(self, value: object) -> object:
        if value is None:
            return None if self.optional else WRONG
        return int(value) if is_integer(value) and int(value) in self.allowed else WRONG


@dataclasses.dataclass(frozen=True)
class Number(Kind):
    low: float
    high: float

    def means(self, value: object) -> object:
        is_number = is_integer(value) or isinstance(value, float | np.floating)
        return float(value) if is_number and self.low <= value <= self.high else WRONG


def is_list(value: object) -> bool:
    """Whether it is a list of something: no text, and nothing that can be read once only."""
    is_sequence = isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)
    return is_sequence or (isinstance(value, np.ndarray) and value.ndim > 0)


@dataclasses.dataclass(frozen=True)
class Integers(Kind):
    """So many integers from 1 to the `largest`, or None for the default."""

    count: int
    largest: int = 2**31 - 1
    optional: bool = True

    def means(self, value: object) -> object:
        if value is None:
            return None if self.optional else WRONG
        right = is_list(value) and len(value) == self.count and all(is_integer(x) and 0 < x <= self.largest for x in value)
        return tuple(map(int, value)) if right else WRONG


@dataclasses.dataclass(frozen=True)
class Padding(Kind):
    rank: int

    def means(self, value: object) -> object:
        if isinstance(value, str):
            return value if value in ("VALID", "SAME", "SAME_UPPER", "SAME_LOWER") else WRONG
        if not is_list(value):
            return WRONG
        if all(map(is_integer, value)):
            right = len(value) == 2 * self.rank and min(value) >= 0 and max(value) < 2**31
            return [*zip(value[: self.rank], value[self.rank :], strict=True)] if right else WRONG
        pairs = [is_list(pair) and len(pair) == 2 and all(is_integer(x) and 0 <= x < 2**31 for x in pair) for pair in value]
        return [tuple(map(int, pair)) for pair in value] if len(pairs) == self.rank and all(pairs) else WRONG


class Nothing(Kind):
    """None alone, beside the other arguments."""

    def means(self, value: object) -> object:
        return None if value is None else WRONG


class DimensionNumbers(Kind):
    """The layout of the documents, in any spelling: the tensors fit no other."""

    def means(self, value: object) -> object:
        if value is None:
            return None
        if isinstance(value, lax.ConvDimensionNumbers):
            are_numbers = all(type(spec) is tuple and all(map(is_integer, spec)) for spec in value)
            return None if are_numbers and tuple(value) == ((0, 1, 2, 3),) * 3 else WRONG
        is_text = is_list(value) and all(isinstance(order, str) for order in value)
        return None if is_text and tuple(value) == ("NCHW", "OIHW", "NCHW") else WRONG


class DotNumbers(Kind):
    """Those of one product of matrices, in any spelling."""

    def means(self, value: object) -> object:
        pairs = is_list(value) and len(value) == 2 and all(is_list(pair) and len(pair) == 2 for pair in value)
        if not pairs or not all(is_list(one) and all(map(is_integer, one)) for pair in value for one in pair):
            return WRONG
        found = tuple(tuple(tuple(map(int, one)) for one in pair) for pair in value)
        return found if found == (((1,), (0,)), ((), ())) else WRONG


class Precision(Kind):
    """What lax takes for one, which makes no difference to the result."""

    def means(self, value: object) -> object:
        of_two = isinstance(value, list) and value == ["highest", "high"]
        return value if value is None or isinstance(value, lax.Precision) or of_two else WRONG


@dataclasses.dataclass(frozen=True)
class DataType(Kind):
    data_types: str
    optional: bool = False

    def means(self, value: object) -> object:
        if value is None:
            return None if self.optional else WRONG
        if isinstance(value, str):
            named = value.startswith("q") or value.isupper()
            name = {">i4": "int32"}.get(value, value.removeprefix("q").lower() if named else value)
        elif isinstance(value, np.dtype):
            name = value.name
        else:
            name = np.dtype(value).name if isinstance(value, type) and value in (np.int8, np.uint8, int, float, bool) else ""
        return jnp.dtype(name) if name in self.data_types.split() else WRONG


@dataclasses.dataclass(frozen=True)
class Level(Kind):
    """A feature level from the one on that has what the call is about; None for the surrounding one."""

    first: str
    optional: bool = True

    def means(self, value: object) -> object:
        if value is None:
            return None if self.optional else WRONG
        levels = [level for level in jquant.FeatureLevel if level >= jquant.FeatureLevel(self.first)]
        if isinstance(value, jquant.FeatureLevel):
            return value if value in levels else WRONG
        if isinstance(value, str):
            spelled = {name: level for level in levels for name in (str(level), f"DML_FEATURE_LEVEL_{level}", level.name)}
            return spelled.get(str(value), WRONG)
        by_value = {level.value: level for level in levels}
        return by_value.get(value, WRONG) if type(value) is int else WRONG


@dataclasses.dataclass(frozen=True)
class Mode(Kind):
    """A member of an enumeration, or its name."""

    names: str
    optional: bool = False

    def means(self, value: object) -> object:
        if value is None:
            return None if self.optional else WRONG
        return str(value) if isinstance(value, str) and value in self.names.split() else WRONG


class ScaleAndBias(Kind):
    """Two float32 scalars, or None."""

    def means(self, value: object) -> object:
        if value is None:
            return None
        scalar = Tensor("float32", one, "float32")
        if not isinstance(value, tuple | list) or isinstance(value, PartitionSpec) or len(value) != 2:
            return WRONG
        parts = [scalar.means(part) for part in value]
        return WRONG if any(part is None or part is WRONG for part in parts) else jquant.ScaleBias(*parts)


class Field(Kind):
    """An array of packed weights, as it was packed: no other spelling of it."""

    def __init__(self, data_type: str, shape: tuple[int, ...], *, optional: bool = False):
        self.tensor = Tensor(data_type, exactly(shape), optional=optional)

    def means(self, value: object) -> object:
        return WRONG if isinstance(value, Wrapped) else self.tensor.means(value)


class ADataType(Kind):
    """The dtype of a packed matrix, as it was packed."""

    def means(self, value: object) -> object:
        return value if isinstance(value, np.dtype) and value == np.int8 else WRONG


class Sharding(Kind):
    """How a matrix lies on a mesh of one device."""

    def means(self, value: object) -> object:
        spec = value.spec if isinstance(value, NamedSharding) else value
        return value if isinstance(spec, PartitionSpec) and len(spec) <= 2 else WRONG


class AxisNames(Kind):
    """The axes of a mesh, or None."""

    def means(self, value: object) -> object:
        if value is None or isinstance(value, str):
            return value
        return value if isinstance(value, tuple) and all(isinstance(name, str) for name in value) else WRONG


class AnObserver(Kind):
    def means(self, value: object) -> object:
        return value if isinstance(value, calibration.Observer) else WRONG


class Batches(Kind):
    """An iterable of batches: of float arrays or Python scalars, or of lists and tuples of them."""

    def means(self, value: object) -> object:
        if isinstance(value, str | bytes | bytearray | memoryview | Mapping | type):
            return WRONG
        try:
            batches = [jax.tree.map(self._batch, batch) for batch in value]
        except TypeError:  # it is no iterable
            return WRONG
        except Exception:  # it is one that fails by itself
            return UNSPECIFIED
        leaves = [jax.tree.leaves(batch) for batch in batches]
        return batches if all(leaves) and batches and WRONG not in itertools.chain(*leaves) else WRONG

    def _batch(self, leaf: object) -> object:
        """Without `jax_enable_x64`, a jitted program makes float32 of float64."""
        narrows = isinstance(leaf, np.ndarray | np.float64) and leaf.dtype == np.float64 and not jax.config.jax_enable_x64
        return FLOAT_BATCH.means(leaf.astype(np.float32) if narrows else leaf)


class Progress(Boolean):
    """A progress bar, or none: for which tqdm may not be there."""

    def means(self, value: object) -> object:
        return UNSPECIFIED if super().means(value) is True else super().means(value)


class FirstBatch(Kind):
    """What an observer takes the shape of a batch from."""

    def means(self, value: object) -> object:
        return UNSPECIFIED if value is None or isinstance(getattr(value, "shape", None), tuple) else WRONG


class State(Kind):
    """The state of an observer, which none of the things is."""

    def means(self, value: object) -> object:
        return WRONG


class Function(Kind):
    """A pure function of a batch. What another one does is its own affair."""

    def means(self, value: object) -> object:
        return UNSPECIFIED if callable(value) else WRONG


# Calls of every public function.


@dataclasses.dataclass(frozen=True)
class Argument:
    """An argument of a call.

    Attributes:
      value: a right one.
      kind: what it may be.
      names: what an error may call it, separated by spaces.
      also: further things to put in its place, by name.
      like: what arrays are like that are put in its place, where `value` is no array.
    """

    value: Any
    kind: Kind
    names: str
    also: Mapping[str, Callable[[], object]] = dataclasses.field(default_factory=dict)
    like: Like | None = None

    def things(self) -> dict[str, Callable[[], object]]:
        return {**things(self._like()), **self.also}

    def _like(self) -> Like:
        if self.like is not None:
            return self.like
        if isinstance(self.value, np.ndarray | jax.Array):
            return Like(self.value.shape, np.dtype(self.value.dtype))
        if isinstance(self.kind, Tensor):
            return Like((1,), jnp.dtype(self.kind.scalar or self.kind.data_types.split()[0]))
        return Like((2,), np.dtype(np.int32))

    def is_named_in(self, message: str) -> bool:
        return any(re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", message) for name in self.names.split())


@dataclasses.dataclass(frozen=True)
class Call:
    """A right call of a public function.

    Attributes:
      name: the function's, as an attribute of `jquant`.
      arguments: by the names of its parameters, or of those of `function`.
      promise: from all arguments, in canonical spelling, the tree of shapes and dtypes that the docstring promises.
      function: what is called instead, to put something in the place of a part of an argument.
    """

    name: str
    arguments: Mapping[str, Argument]
    promise: Callable[..., Any]
    function: Callable[..., Any] | None = None

    def __call__(self, **changed: object) -> Any:
        function = public(self.name) if self.function is None else self.function
        values = self._values(changed)
        parameters = inspect.signature(function).parameters.values()
        first = [values.pop(p.name) for p in parameters if p.kind == p.POSITIONAL_ONLY]
        return function(*first, **values)

    def promised(self, **changed: object) -> Any:
        """What comes out of the call with the arguments changed to those, in canonical spelling."""
        values = self._values(changed)
        for name, argument in self.arguments.items():
            if isinstance(argument.kind, DataType) and isinstance(values[name], str):
                values[name] = argument.kind.means(values[name])
        return self.promise(**values)

    def _values(self, changed: Mapping[str, object]) -> dict[str, object]:
        return {**{name: argument.value for name, argument in self.arguments.items()}, **changed}


def public(name: str) -> Callable[..., Any]:
    return functools.reduce(getattr, name.split("."), jquant)


def public_functions() -> dict[str, Callable[..., Any]]:
    """Every function that a user may call, by its name as an attribute of `jquant`."""
    found = {
        f"{prefix}{name}": value
        for prefix, module in {"": jquant, "calibration.": calibration, "exact.": jquant.exact}.items()
        for name, value in vars(module).items()
        if name.islower() and not name.startswith("_") and callable(value) and _is_of(module, value)
    }
    methods = itertools.product((jquant.PackedMatrix, jquant.PackedBlockMatrix), ("sharding_for", "unpack"))
    return {**found, **{f"{matrix.__name__}.{name}": getattr(matrix, name) for matrix, name in methods}}


def _is_of(module: ModuleType, function: Callable[..., Any]) -> bool:
    """Whether a module exports a function: one of its own, or of a module in its package, and none that it uses."""
    return f"{function.__module__}.".startswith(f"{module.__name__}.")


def S(shape: Sequence[int], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(shape), jnp.dtype(dtype))


def like(array: Any, dtype: Any = None) -> jax.ShapeDtypeStruct:
    """An array of the shape of another one, and of its dtype where there is no other."""
    return S(jnp.shape(array), array.dtype if dtype is None else dtype)


def dtype_of(value: Any, default: Any) -> np.dtype:
    """That of an array; of None and a Python scalar the `default`."""
    return jnp.dtype(getattr(value, "dtype", default))


def ints(dtype: str, *shape: int) -> np.ndarray:
    return np.arange(math.prod(shape)).reshape(shape).astype(jnp.dtype(dtype))


def floats(*shape: int) -> np.ndarray:
    return (np.arange(math.prod(shape)).reshape(shape) / 8 - 0.25).astype(np.float32)


@functools.cache
def packed_matrix(zero_point: int | None = None) -> jquant.PackedMatrix:
    return jquant.pack_matrix(ints("int8", 3, 4), zero_point)


BYTES, FLOATS = "int8 uint8", "float32 float16"
INTEGERS = "int8 uint8 int16 uint16 int32 uint32"
WIDE = f"{INTEGERS} int64 uint64"
FLOAT = Tensor("float32", one, "float32")
OPTIONAL_FLOAT = dataclasses.replace(FLOAT, optional=True)
FLOAT_BATCH = Tensor("float32 float16 bfloat16", scalar="float32")
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


def or_shapes(*shapes: tuple[int, ...]) -> Callable[[tuple[int, ...]], bool]:
    """One element, or one of these shapes."""
    return lambda shape: one(shape) or shape in shapes


def scale(names: str, value: Any = 0.5, shapes: Any = one, data_types: str = "float32") -> Argument:
    return Argument(value, Tensor(data_types, shapes, "float32"), names)


def zero_point(names: str, value: Any = 3, shapes: Any = one, data_types: str = "uint8", scalar: str = "") -> Argument:
    return Argument(value, Tensor(data_types, shapes, scalar or data_types, optional=True), names)


def bound(names: str, value: Any, values: Any = anything, shapes: Any = one) -> Argument:
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


def _clips() -> list[Call]:
    x, small = floats(ROWS, COLUMNS), ints("int8", ROWS, COLUMNS)
    inputs, of_int8 = Tensor(f"{FLOATS} {WIDE}", ranks(0, 8)), Tensor("int8", one, "int8")
    scale_bias = Argument(None, ScaleAndBias(), "scale_bias ScaleBias")

    def of_input(input: Any, **_: Any) -> Any:
        return like(input)

    def of_parts(name: str) -> Call:
        parts = {"scale": Argument(2.0, FLOAT, "ScaleBias.Scale"), "bias": Argument(1.0, FLOAT, "ScaleBias.Bias")}
        function = public(name)
        return Call(
            name, parts, lambda **_: like(x), lambda **given: function(x, 0, 6, scale_bias=jquant.ScaleBias(**given))
        )

    def gradients(name: str, first: str) -> list[Call]:
        bounds = {"min": Argument(0, FLOAT, "Min"), "max": Argument(6, FLOAT, "Max"), "feature_level": level(first)}
        same = exactly(x.shape)
        broadcast = exactly(x.shape, (1, COLUMNS), (ROWS, 1), (1, 1), ())
        return [
            Call(
                name,
                {
                    "input": Argument(x, Tensor("float32", shapes), "InputTensor"),
                    "input_gradient": Argument(gradient, Tensor("float32", broadcast), "InputGradientTensor"),
                    **bounds,
                },
                of_input,
            )
            for gradient, shapes in ((x, same), (np.float32(1), ranks(0, 8)))
        ]

    return [
        Call(
            "clip",
            {
                "input": Argument(x, inputs, "InputTensor"),
                "min": Argument(0, OPTIONAL_FLOAT, "Min"),
                "max": Argument(6, OPTIONAL_FLOAT, "Max"),
                "scale_bias": scale_bias,
                "feature_level": level("3_0"),
            },
            of_input,
        ),
        Call(
            "clip1",
            {
                "input": Argument(x, inputs, "InputTensor"),
                "min": Argument(0, FLOAT, "Min"),
                "max": Argument(6, FLOAT, "Max"),
                "scale_bias": scale_bias,
                "feature_level": level("5_0"),
            },
            of_input,
        ),
        Call(
            "clip1",
            {
                "input": Argument(small, inputs, "InputTensor"),
                "min": Argument(0, of_int8, "Min"),
                "max": Argument(6, of_int8, "Max"),
                "scale_bias": Argument(None, Nothing(), "scale_bias ScaleBias"),
            },
            of_input,
        ),
        *map(of_parts, ("clip", "clip1")),
        *gradients("clip_gradient", "3_1"),
        *gradients("clip_gradient1", "5_0"),
    ]


def _linear() -> list[Call]:
    x, q = floats(ROWS, COLUMNS), ints("uint8", ROWS, COLUMNS)
    narrow = "int8 uint8 int4 uint4"
    aligned = (ROWS, COLUMNS), (1, COLUMNS), (ROWS, 1)
    per_axis, of_blocks = or_shapes((COLUMNS,)), or_shapes((ROWS, 2), (1, 2))
    values = np.full(COLUMNS, 0.5, np.float32), np.full((ROWS, 2), 0.5, np.float32)
    no_blocks = integer("block_size", None, (), optional=True)
    no_axis = integer("axis", None, range(-2, 2), optional=True)

    def of_each_kind(name: str, tensor: Argument, of_output: Callable[..., Any], data_types: str, first: str) -> list[Call]:
        def promise(input: Any, scale: Any, zero_point: Any, output_dtype: Any = None, **_: Any) -> Any:
            return like(input, output_dtype or of_output(input, scale, zero_point))

        quantizes = name == "quantize_linear"
        scales = {"data_types": "float32" if quantizes else FLOATS}
        zeros = {"data_types": narrow, "scalar": "uint8"} if quantizes else {}
        saturating = {"saturate": Argument(True, Boolean((True,)), "saturate")} if quantizes else {}  # what integers do
        wide = Tensor("float32 int32" if quantizes else tensor.kind.data_types, lambda s: len(s) == 2 and s[1] == COLUMNS)
        of_uint8 = wide if quantizes else dataclasses.replace(wide, data_types="uint8")
        return [
            Call(
                name,
                {
                    "input": tensor,
                    "scale": scale("ScaleTensor", shapes=or_shapes(*aligned), **scales),
                    "zero_point": zero_point("ZeroPointTensor", shapes=or_shapes(*aligned), **zeros),
                    "axis": no_axis,
                    "block_size": no_blocks,
                    "output_dtype": data_type("output_dtype OutputTensor", None, data_types),
                    **saturating,
                    "feature_level": level(first),
                },
                promise,
            ),
            Call(
                name,
                {
                    "input": dataclasses.replace(tensor, kind=of_uint8, names="InputTensor input"),
                    "scale": scale("ScaleTensor", values[0], per_axis, **scales),
                    "zero_point": zero_point("ZeroPointTensor", ints("uint8", COLUMNS), per_axis, **zeros),
                    "axis": integer("axis", 1, (1, -1)),
                    "block_size": no_blocks,
                },
                promise,
            ),
            Call(
                name,
                {
                    "input": dataclasses.replace(
                        tensor, kind=dataclasses.replace(wide, shapes=exactly(x.shape)), names="InputTensor input"
                    ),
                    "scale": scale("ScaleTensor", values[1], of_blocks, **scales),
                    "zero_point": zero_point("ZeroPointTensor", 3, of_blocks, **zeros),
                    "axis": integer("axis", -1, (1, -1)),
                    "block_size": integer("block_size", 2, (2,)),
                },
                promise,
            ),
        ]

    def dynamic(input: Any, output_dtype: Any, **_: Any) -> Any:
        return jquant.DynamicQuantizeOutput(like(input, output_dtype), S((), "float32"), S((), output_dtype))

    def expressed(min: Any, dtype: Any, **_: Any) -> Any:
        return jquant.ScaleZeroPoint(S(jnp.shape(min), "float32"), S(jnp.shape(min), dtype))

    def ends(low: Any, high: Any) -> dict[str, Argument]:
        same = exactly(jnp.shape(low))
        return {
            "min": bound("min", low, at_most(1), same),
            "max": bound("max", high, at_least(-1), same),
            "dtype": data_type("dtype", "INT8", f"{narrow} int16 uint16 int2 uint2"),
            "symmetric": boolean("symmetric"),
            "narrow_range": boolean("narrow_range"),
        }

    mask = Tensor("bool", exactly((), (1, 1), (ROWS, COLUMNS), *aligned), optional=True)
    any_float = Tensor(FLOATS, ranks(0, 8), "float32")
    masked = dataclasses.replace(any_float, shapes=exactly(x.shape))
    return [
        *of_each_kind(
            "quantize_linear",
            Argument(x, Tensor("float32 int32 float16", ranks(0, 8)), "InputTensor"),
            lambda input, scale, zero_point: dtype_of(zero_point, "uint8"),
            narrow,
            "3_0",
        ),
        *of_each_kind(
            "dequantize_linear",
            Argument(q, Tensor(f"{INTEGERS} int4 uint4", ranks(0, 8)), "InputTensor"),
            lambda input, scale, zero_point: dtype_of(scale, "float32"),
            "float32",
            "3_0",
        ),
        *(
            Call(
                "dynamic_quantize_linear",
                {
                    "input": Argument(x, kind, "InputTensor"),
                    "output_dtype": data_type("output_dtype OutputTensor", "UINT8", BYTES),
                    "axis": Argument(None, Integer((), optional=True), "axis"),
                    "symmetric": Argument(False, Boolean(), "symmetric"),
                    "where": Argument(where, mask, "where"),
                    "feature_level": level("4_0"),
                },
                dynamic,
            )
            for where, kind in ((None, any_float), (x > 0, masked))
        ),
        Call("scale_and_zero_point", ends(-1.0, 1.0), expressed),
        Call("scale_and_zero_point", ends(np.full(3, -1, np.float32), np.full(3, 1, np.float32)), expressed),
        Call(
            "pack_integers",
            {"x": Argument(ints("int4", ROWS, COLUMNS), Tensor("int4 uint4 int2 uint2", ranks(1, 99)), "x")},
            lambda x: S((*x.shape[:-1], -(-x.shape[-1] // 2)), "uint8"),
        ),
        *(
            Call(
                "unpack_integers",
                {
                    "packed": Argument(q, Tensor("uint8", packs), "packed"),
                    "dtype": data_type("dtype", "INT4", data_types),
                    "size": integer("size", size, (5, 6), optional=True),
                },
                lambda packed, dtype, size: S(
                    (*packed.shape[:-1], packed.shape[-1] * (8 // jnp.iinfo(dtype).bits) if size is None else size), dtype
                ),
            )
            for size, packs, data_types in (
                (None, ranks(1, 99), "int4 uint4 int2 uint2"),
                (5, lambda shape: shape[-1:] == (3,), "int4 uint4"),
            )
        ),
    ]


def _elementwise() -> list[Call]:
    q = ints("uint8", ROWS, COLUMNS)

    def of_one(name: str, *, shapes: Any = anything, x: np.ndarray = q, promise: Any = like, **others: Argument) -> Call:
        return Call(
            name,
            {
                "x": Argument(x, Tensor(BYTES, shapes), "X input"),
                "x_scale": scale("X_scale"),
                "x_zero_point": zero_point("X_zero_point"),
                "output_scale": scale("Y_scale"),
                "output_zero_point": zero_point("Y_zero_point"),
                **others,
            },
            lambda x, **_: promise(x),
        )

    def of_two(name: str, names: Callable[[str], tuple[str, str, str]], output: str, b: Any, **others: Argument) -> Call:
        (a, a_scale, a_zero), (b_name, b_scale, b_zero), (of_output, out_scale, out_zero) = map(names, ("A", "B", output))
        broadcasts = exactly(q.shape, (1, COLUMNS), (ROWS, 1), (1, 1), ())
        if name != "quantized_linear_add":  # of DirectML, where the ranks must be the same
            broadcasts = or_shapes(q.shape, (1, COLUMNS), (ROWS, 1), (COLUMNS,))

        def promise(a: Any, b: Any, output_zero_point: Any, output_dtype: Any, **_: Any) -> Any:
            dtype = output_dtype or dtype_of(output_zero_point, a.dtype)
            return S(np.broadcast_shapes(a.shape, b.shape), dtype)

        return Call(
            name,
            {
                "a": Argument(q, Tensor(BYTES, broadcasts), a),
                "a_scale": scale(a_scale),
                "a_zero_point": zero_point(a_zero),
                "b": Argument(b, Tensor(BYTES, broadcasts), b_name),
                "b_scale": scale(b_scale),
                "b_zero_point": zero_point(b_zero),
                "output_scale": scale(out_scale),
                "output_zero_point": zero_point(out_zero, data_types=BYTES, scalar="uint8"),
                "output_dtype": data_type(f"output_dtype {of_output}", None, BYTES),
                **others,
            },
            promise,
        )

    def concat(tensor: Any, scale: Any, zero_point: Any, output_scale: Any) -> Any:
        inputs = [(q, 0.5, 3), (tensor, scale, zero_point)]
        return jquant.quantized_linear_concat(inputs, output_scale, axis=-1)

    def concat_first(tensor: Any, scale: Any, zero_point: Any) -> Any:
        return jquant.quantized_linear_concat([(tensor, scale, zero_point), (q, 0.5, 3)], 0.5, axis=-1)

    def part(index: int) -> dict[str, Argument]:
        name = f"inputs[{index}]"
        return {
            "tensor": Argument(q, Tensor(BYTES, lambda shape: len(shape) == 2 and shape[0] == ROWS), f"{name} input"),
            "scale": scale(f"{name}_scale"),
            "zero_point": zero_point(f"{name}_zero_point"),
        }

    def joined(tensor: Any, **_: Any) -> Any:
        return S((ROWS, COLUMNS + tensor.shape[1]), "uint8")

    image = ints("uint8", 1, 2, 4, 4)
    return [
        of_one("quantized_linear_leaky_relu", alpha=Argument(None, OPTIONAL_FLOAT, "alpha")),
        of_one("quantized_linear_sigmoid"),
        of_one("quantized_linear_softmax", shapes=ranks(1, 99), axis=integer("axis", -1, range(-2, 2))),
        of_one(
            "quantized_linear_global_average_pool",
            x=image,
            shapes=ranks(3, 99),
            promise=lambda x: S((*x.shape[:2], *(1,) * (x.ndim - 2)), x.dtype),
        ),
        of_two("quantized_linear_add", _directml, "Output", q, feature_level=level("4_0")),
        of_two("quantized_linear_multiply", _onnx, "C", q),
        Call(
            "quantized_linear_concat",
            {
                "inputs": Argument([(q, 0.5, 3)], Concatenated(), "inputs inputs[0] inputs[1]", _TRIPLES),
                "output_scale": scale("Y_scale"),
                "output_zero_point": zero_point("Y_zero_point", data_types=BYTES, scalar="uint8"),
                "axis": integer("axis", -1, range(-2, 2)),
                "output_dtype": data_type("output_dtype Y", None, BYTES),
            },
            lambda output_zero_point, output_dtype, **_: like(q, output_dtype or dtype_of(output_zero_point, "uint8")),
        ),
        Call("quantized_linear_concat", {**part(1), "output_scale": scale("Y_scale")}, joined, concat),
        Call("quantized_linear_concat", part(0), lambda tensor, **_: S(joined(tensor).shape, tensor.dtype), concat_first),
    ]


class Concatenated(Kind):
    """The inputs of a concatenation. What is put in their places is swept by itself; no other list of triples is."""

    def means(self, value: object) -> object:
        return WRONG


_TRIPLES: dict[str, Callable[[], object]] = {
    "a triple of two": lambda: [(np.ones((2, 3), np.uint8), 0.5)],
    "a triple of four": lambda: [(np.ones((2, 3), np.uint8), 0.5, 3, 1)],
    "a triple that is an array": lambda: [np.ones((3, 2), np.uint8)],
    "a triple that is text": lambda: ["abc"],
    "a triple that is a set": lambda: [{1, 2, 3}],
    "triples that are a dictionary": lambda: {0: (np.ones((2, 3), np.uint8), 0.5, 3)},
    "triples that are a generator": lambda: ((np.ones((2, 3), np.uint8), 0.5, 3) for _ in range(2)),
}


def _directml(name: str) -> tuple[str, str, str]:
    return f"{name}Tensor", f"{name}ScaleTensor", f"{name}ZeroPointTensor"


def _onnx(name: str) -> tuple[str, str, str]:
    return name, f"{name}_scale", f"{name}_zero_point"


def _gemm(name: str) -> tuple[str, str, str]:
    return name, f"{name.lower()}_scale", f"{name.lower()}_zero_point"


def _matmuls() -> list[Call]:
    a, b = ints("uint8", ROWS, 3), ints("int8", 3, 4)
    row, column = or_shapes((ROWS,), (ROWS, 1)), or_shapes((4,), (1, 4))
    implementation = mode("implementation", None, "xla")
    output = {
        "output_zero_point": zero_point("OutputZeroPointTensor", 3, row, BYTES, "uint8"),
        "output_dtype": data_type("output_dtype OutputTensor", None, BYTES),
        "implementation": implementation,
        "feature_level": level("4_0"),
    }
    per_row, per_column = np.full((ROWS, 1), 0.5, np.float32), np.full((1, 4), 0.5, np.float32)

    def matrices(names: Callable[[str], tuple[str, str, str]], fits: Any = row, of: Any = column) -> dict[str, Argument]:
        """Arrays, with Python scalars; or None, for packed weights to take the place of B."""
        (a_name, a_scale, a_zero), (b_name, b_scale, b_zero) = names("A"), names("B")
        return {
            "a": Argument(a, Tensor(BYTES, lambda shape: len(shape) == 2 and shape[1] == 3), a_name),
            "a_scale": scale(a_scale, shapes=fits),
            "a_zero_point": zero_point(a_zero, shapes=fits),
            "b": Argument(b, MatrixOrPacked(BYTES, b.shape), b_name),
            "b_scale": scale(b_scale, shapes=of),
            "b_zero_point": zero_point(b_zero, None, of, "int8"),
        }

    def with_arrays() -> dict[str, Argument]:
        """One scale and one zero point for each row and each column, all of them of two dimensions."""
        rows, columns = or_shapes((ROWS, 1)), or_shapes((1, 4))
        return {
            "a": Argument(a, Tensor("uint8", exactly(a.shape)), "ATensor"),
            "a_scale": scale("AScaleTensor", per_row, rows),
            "a_zero_point": zero_point("AZeroPointTensor", ints("uint8", ROWS, 1), rows),
            "b": Argument(b, Tensor("int8", exactly(b.shape)), "BTensor BZeroPointTensor"),
            "b_scale": scale("BScaleTensor", per_column, columns),
            "b_zero_point": zero_point("BZeroPointTensor", ints("int8", 1, 4), columns, "int8"),
        }

    def packed(arguments: dict[str, Argument]) -> dict[str, Argument]:
        of_b = Argument(packed_matrix(1), MatrixOrPacked(BYTES, b.shape), arguments["b"].names, like=Like(b.shape, b.dtype))
        zeros = Argument(None, ZeroPointOfPacked(1, (4,), (1, 4)), arguments["b_zero_point"].names, like=Like((4,), b.dtype))
        return {**arguments, "b": of_b, "b_zero_point": zeros}

    def of_two_types(arguments: dict[str, Argument]) -> dict[str, Argument]:
        """With scales that are all float16 where one of them is, the others being Python scalars."""
        scales = {name: dataclasses.replace(arguments[name].kind, data_types=FLOATS) for name in ("a_scale", "b_scale")}
        return {**arguments, **{name: dataclasses.replace(arguments[name], kind=kind) for name, kind in scales.items()}}

    def without_scales(arguments: dict[str, Argument]) -> dict[str, Argument]:
        return {name: argument for name, argument in arguments.items() if not name.endswith("_scale")}

    def shape(a: Any) -> tuple[int, int]:
        return a.shape[0], 4

    def to_int32(a: Any, **_: Any) -> Any:
        return S(shape(a), "int32")

    def to_float(a: Any, a_scale: Any, b_scale: Any, bias: Any, output_dtype: Any, **_: Any) -> Any:
        given = [x.dtype for x in (a_scale, b_scale, bias) if hasattr(x, "dtype")]
        return S(shape(a), output_dtype or (given or ["float32"])[0])

    def quantized(a: Any, output_zero_point: Any, output_dtype: Any, **_: Any) -> Any:
        return S(shape(a), output_dtype or dtype_of(output_zero_point, a.dtype))

    def bias(value: Any, data_types: str) -> Argument:
        shapes = exactly((), (ROWS, 4), (1, 4), (ROWS, 1), (1, 1))
        tensor = Tensor(data_types, shapes, "float32", optional=True)
        return Argument(value, tensor, "BiasTensor", like=Like((1, 4), np.dtype(np.float32)))

    x, weights = floats(ROWS, COLUMNS), floats(COLUMNS, 4)
    any_float = f"{FLOATS} bfloat16"
    numbers = (((1,), (0,)), ((), ()))
    otherwise = {
        "dimensions of lists": lambda: [[[1], [0]], [[], []]],
        "dimensions of NumPy": lambda: ((np.array([1]), np.array([0])), ((), ())),
        "a negative dimension": lambda: (((-1,), (0,)), ((), ())),
        "a dimension too many": lambda: (((2,), (0,)), ((), ())),
        "a dimension of floats": lambda: (((1.0,), (0,)), ((), ())),
        "a dimension alone": lambda: ((1, 0), ((), ())),
    }
    precisions = {"Precision.HIGHEST": lambda: lax.Precision.HIGHEST, "two precisions": lambda: ["highest", "high"]}
    of_floats = {
        "lhs": Argument(x, Tensor(any_float, lambda shape: len(shape) >= 2 and shape[1] == COLUMNS), "lhs"),
        "rhs": Argument(weights, Tensor(any_float, lambda shape: len(shape) >= 1 and shape[0] == COLUMNS), "rhs"),
        "dimension_numbers": Argument(numbers, DotNumbers(), "dimension_numbers", otherwise),
        "precision": Argument(None, Precision(), "precision", precisions),
        "preferred_element_type": data_type("preferred_element_type", None, any_float),
        "out_sharding": Argument(None, Nothing(), "out_sharding"),
        "lhs_scales": mode("lhs_scales", "PER_CHANNEL", "PER_CHANNEL PER_TENSOR"),
        "rhs_scales": mode("rhs_scales", "PER_CHANNEL", "PER_CHANNEL PER_TENSOR"),
    }

    def of_lax(lhs: Any, rhs: Any, preferred_element_type: Any, **_: Any) -> Any:
        options = {"dimension_numbers": numbers, "preferred_element_type": preferred_element_type}
        return jax.eval_shape(functools.partial(lax.dot_general, **options), lhs, rhs)

    found = [Call("dot_general", of_floats, of_lax)]
    for arguments in (scalars := matrices(_directml), with_arrays(), packed(scalars)):
        integers = without_scales(arguments) | {"implementation": implementation, "feature_level": level("4_0")}
        found.append(Call("matmul_integer", integers, to_int32))
        output_fits = or_shapes((ROWS, 1)) if arguments["a_scale"].value is per_row else row
        outputs = {
            "output_scale": scale("OutputScaleTensor", shapes=output_fits),
            **output,
            "output_zero_point": zero_point("OutputZeroPointTensor", 3, output_fits, BYTES, "uint8"),
        }
        found.append(Call("quantized_linear_matmul", {**arguments, **outputs}, quantized))
        options = {
            "output_dtype": data_type("output_dtype OutputTensor", None, "float32"),
            "implementation": implementation,
            "feature_level": level("6_2"),
        }
        if arguments["a_scale"].value is per_row:
            given = {**arguments, "bias": bias(np.ones((1, 4), np.float32), "float32")}
        else:
            given = {**of_two_types(arguments), "bias": bias(None, FLOATS)}
        found.append(Call("matmul_integer_to_float", {**given, **options}, to_float))
    biases = Tensor("int32", or_shapes((4,), (1, 4), (ROWS, 1), (ROWS, 4)), "int32", optional=True)
    for arguments in (scalars := matrices(_gemm, one, or_shapes((4,))), packed(scalars)):
        given = {
            **arguments,
            "c": Argument(ints("int32", 4), biases, "C"),
            "output_scale": scale("y_scale"),
            "output_zero_point": zero_point("y_zero_point", data_types=BYTES, scalar="uint8"),
            "output_dtype": data_type("output_dtype Y", None, BYTES),
            "implementation": implementation,
        }
        found.append(Call("quantized_gemm", given, quantized))
    return found


def a_sharding() -> Argument:
    """Of a matrix."""

    def mesh_of(*names: str) -> Any:
        return jax.make_mesh((1,) * len(names), names, axis_types=(jax.sharding.AxisType.Auto,) * len(names))

    return Argument(
        PartitionSpec("k", "n"),
        Sharding(),
        "sharding",
        {
            "three entries": lambda: PartitionSpec("k", "n", None),
            "an unconstrained entry": lambda: PartitionSpec(PartitionSpec.UNCONSTRAINED, None),
            "an unconstrained entry on a mesh": lambda: NamedSharding(
                mesh_of("k"), PartitionSpec(PartitionSpec.UNCONSTRAINED, None)
            ),
            "three entries on a mesh": lambda: NamedSharding(mesh_of("k"), PartitionSpec(None, None, "k")),
            "another sharding": lambda: jax.sharding.SingleDeviceSharding(jax.devices()[0]),
            "a mesh": lambda: mesh_of("k"),
        },
    )


def _packed() -> list[Call]:
    b = ints("int8", 4, 3)
    packed = jquant.pack_matrix(b, 1)

    def pack(b: Any, zero_point: Any, block_size: Any) -> Any:
        *batch, k, n = b.shape
        blocks = 1 if block_size is None else k // block_size
        if zero_point is not None:
            zero_point = S((*batch, 1, 1 if jnp.shape(zero_point) == () or one(zero_point.shape) else n), b.dtype)
        return jquant.PackedMatrix(
            S((*batch, n, k), "int8"), S((*batch, blocks, n), "int32"), zero_point, jnp.dtype(b.dtype)
        )

    def unpack(data: Any, block_sums: Any, zero_point: Any, dtype: Any) -> Any:
        return jquant.PackedMatrix(data, block_sums, zero_point, dtype).unpack()

    def sharding_for(sharding: Any) -> Any:
        return packed.sharding_for(sharding)

    def shardings(sharding: Any) -> Any:
        on_mesh = isinstance(sharding, NamedSharding)
        k, n = (*(sharding.spec if on_mesh else sharding), None, None)[:2]
        specs = (PartitionSpec(*entries) for entries in ((n, k), (k, n), (None, None)))
        places = (NamedSharding(sharding.mesh, spec) if on_mesh else spec for spec in specs)
        return jquant.PackedMatrix(*places, np.dtype(np.int8))

    return [
        Call(
            "pack_matrix",
            {
                "b": Argument(b, Tensor(BYTES, lambda shape: len(shape) == 2 and shape[0] % 2 == 0), "BTensor"),
                "zero_point": zero_point("BZeroPointTensor", 1, or_shapes((3,), (1, 3)), "int8"),
                "block_size": integer("block_size", 2, (1, 2, 4), optional=True),
            },
            pack,
        ),
        Call(
            "PackedMatrix.unpack",
            {
                "data": Argument(packed.data, Field("int8", (3, 4)), "data"),
                "block_sums": Argument(packed.block_sums, Field("int32", (1, 3)), "block_sums"),
                "zero_point": Argument(packed.zero_point, Field("int8", (1, 1), optional=True), "zero_point"),
                "dtype": Argument(packed.dtype, ADataType(), "dtype"),
            },
            lambda **_: S((4, 3), "int8"),
            unpack,
        ),
        Call("PackedMatrix.sharding_for", {"sharding": a_sharding()}, shardings, sharding_for),
    ]


def _blocks() -> list[Call]:
    a, b = ints("int8", ROWS, 4), ints("int8", 4, 3)
    scales = np.full((2, 3), 0.5, np.float32)
    packed = jquant.pack_matrix(b, 1, scale=scales)
    any_float, rows = f"{FLOATS} bfloat16", or_shapes((ROWS,), (ROWS, 1))
    implementation = mode("implementation", None, "xla")
    of_a = {
        "a": Argument(a, Tensor(BYTES, lambda shape: len(shape) == 2 and shape[1] == 4), "a"),
        "a_scale": scale("a_scale", shapes=rows, data_types=any_float),
        "a_zero_point": zero_point("a_zero_point", None, rows, "int8"),
    }
    biases = Tensor(
        any_float, lambda shape: (one(shape) and len(shape) <= 2) or shape in ((3,), (1, 3)), "float32", optional=True
    )
    others = {
        "bias": Argument(None, biases, "bias", like=Like((3,), np.dtype(np.float32))),
        "k_parts": integer("k_parts", 1, (1, 2)),
        "output_dtype": data_type("output_dtype", None, any_float),
        "implementation": implementation,
    }
    of_scales = Tensor(any_float, exactly((2, 3)))
    zero_points = Tensor("int8", or_shapes((2, 3)), "int8", optional=True)

    def product(a: Any, a_scale: Any, output_dtype: Any, **_: Any) -> Any:
        return S((a.shape[0], 3), output_dtype or dtype_of(a_scale, "float32"))

    def pack(b: Any, scale: Any, zero_point: Any, block_size: Any) -> Any:
        if scale is None:
            return jax.eval_shape(functools.partial(jquant.pack_matrix, block_size=block_size), b, zero_point)
        zero_point = None if zero_point is None else S((2, 3), "int8")
        arrays = {"data": S((4, 3), "int8"), "scale": S((2, 3), scale.dtype), "zero_point": zero_point}
        return dataclasses.replace(packed, **arrays, dtype=jnp.dtype(b.dtype))

    def unpack(data: Any, scale: Any, zero_point: Any, dtype: Any) -> Any:
        return dataclasses.replace(packed, data=data, scale=scale, zero_point=zero_point, dtype=dtype).unpack()

    def sharding_for(sharding: Any) -> Any:
        return packed.sharding_for(sharding)

    def shardings(sharding: Any) -> Any:
        on_mesh = isinstance(sharding, NamedSharding)
        k, n = (*(sharding.spec if on_mesh else sharding), None, None)[:2]
        spec = PartitionSpec(k, n)
        return jax.tree.map(lambda _: NamedSharding(sharding.mesh, spec) if on_mesh else spec, packed)

    return [
        Call(
            "block_scaled_matmul",
            {
                **of_a,
                "b": Argument(b, Tensor(f"{BYTES} int4", exactly((4, 3))), "b"),
                "b_scale": Argument(scales, of_scales, "b_scale"),
                "b_zero_point": Argument(None, zero_points, "b_zero_point", like=Like((2, 3), np.dtype(np.int8))),
                "block_size": integer("block_size", None, (2,), optional=True),
                **others,
            },
            product,
        ),
        Call(
            "block_scaled_matmul",
            {
                **of_a,
                "b_scale": Argument(None, Nothing(), "b_scale"),
                "b_zero_point": Argument(None, Nothing(), "b_zero_point"),
                "block_size": integer("block_size", None, (2,), optional=True),
                **others,
            },
            product,
            functools.partial(_by_packed, packed),
        ),
        Call(
            "pack_matrix",
            {
                "b": Argument(b, Tensor(f"{BYTES} int4", exactly((4, 3))), "BTensor"),
                "scale": Argument(scales, Tensor(any_float, exactly((2, 3)), optional=True), "BScaleTensor"),
                "zero_point": Argument(None, zero_points, "BZeroPointTensor", like=Like((2, 3), np.dtype(np.int8))),
                "block_size": integer("block_size", None, (2,), optional=True),
            },
            pack,
        ),
        Call(
            "PackedBlockMatrix.unpack",
            {
                "data": Argument(packed.data, Field("int8", (4, 3)), "data"),
                "scale": Argument(packed.scale, Field(any_float, (2, 3)), "scale"),
                "zero_point": Argument(packed.zero_point, Field("int8", (2, 3), optional=True), "zero_point"),
                "dtype": Argument(packed.dtype, ADataType(), "dtype"),
            },
            lambda **_: S((4, 3), "int8"),
            unpack,
        ),
        Call("PackedBlockMatrix.sharding_for", {"sharding": a_sharding()}, shardings, sharding_for),
    ]


def _by_packed(packed: jquant.PackedBlockMatrix, *, a: Any, a_scale: Any, a_zero_point: Any, **options: Any) -> Any:
    return jquant.block_scaled_matmul(a, a_scale, a_zero_point, packed, **options)


def _windows() -> list[Call]:
    x, w = ints("uint8", 1, 2, 4, 4), ints("int8", 2, 2, 2, 2)
    large: dict[str, Callable[[], object]] = {
        repr(value): lambda value=value: value
        for value in (
            (2**70, 1),
            (1, 2**40),
            (-1, 1),
            (True, 1),
            (1.0, 1),
            (None, 1),
            (np.uint64(2**63), 1),
            (1, 9),
            "11",
            {1: 1, 2: 2},
        )
    }
    paddings: dict[str, Callable[[], object]] = {
        repr(value): lambda value=value: value
        for value in (
            *("valid", "same", ["SAME"], [(1, 1), (1, -1)], [1, 1, 1, 1], [1, 1, 1, -1], [(1, 1, 1), (1, 1, 1)]),
            *([(2**70, 0), (0, 0)], [(2**31, 0), (0, 0)], [(1, 1), [1, 1]], [(True, 1), (1, 1)], {0: (1, 1), 1: (1, 1)}),
            *(np.ones((2, 2), np.int32), np.ones((2, 2)), np.ones((2, 2, 1), np.int32), np.ones(4, np.int32)),
        )
    }
    layouts: dict[str, Callable[[], object]] = {
        repr(value): lambda value=value: value
        for value in (
            *(("NCHW", "OIHW", "NCHW"), ["NCHW", "OIHW", "NCHW"], ("NCHW", "OIHW"), ("NCHW", "OIHW", "NCHX"), "NCHW"),
            *(("NNNN", "OIHW", "NCHW"), ("NCHW", "OIHW", 1), ("NCH", "OIH", "NCH"), ("", "", ""), ("NC", "OI", "NC")),
            *(("NCHW", "OIHW", "NCWZ"), ("NCHWW", "OIHW", "NCHW"), ("nchw", "oihw", "nchw"), (("N", "C"), "OIHW", "NCHW")),
        )
    } | {
        f"ConvDimensionNumbers{fields!r}": lambda fields=fields: lax.ConvDimensionNumbers(*fields)
        for fields in (
            ((0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3)),
            ((0, 1, 2, 9), (0, 1, 2, 3), (0, 1, 2, 3)),
            ((0, 1, 2, 3), (0, 1, 2, 9), (0, 1, 2, 3)),
            ((0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 9)),
            ((0, 1, 1, 1), (0, 1, 2, 3), (0, 1, 2, 3)),
            ((0, 1, 2), (0, 1, 2), (0, 1, 2)),
            (None, None, None),
            ("NCHW", "OIHW", "NCHW"),
        )
    }

    def shapes(*given: tuple[int, ...]) -> dict[str, Callable[[], object]]:
        return {f"shape {shape}": lambda shape=shape: np.ones(shape, np.int8) for shape in given}

    misfits = shapes((1, 3, 4, 4), (1, 2, 1, 1), (1, 2, 4), (1, 2, 4, 4, 4))
    image = Argument(x, Tensor(BYTES, lambda shape: shape[1:] == x.shape[1:]), "InputTensor input", misfits)

    def sizes(sizes: Any, strides: Any, dilations: Any, padding: Any) -> list[int]:
        reach = [(size - 1) * dilation + 1 for size, dilation in zip(sizes, dilations or (1, 1), strict=True)]
        if isinstance(padding, str):
            same = padding.removesuffix("_UPPER").removesuffix("_LOWER") == "SAME"
            steps = zip(reach, strides or (1, 1), strict=True)
            return [-(-4 // stride) if same else (4 - window) // stride + 1 for window, stride in steps]
        return [
            (4 + low + high - window) // stride + 1
            for window, stride, (low, high) in zip(reach, strides or (1, 1), padding, strict=True)
        ]

    spatial = {
        "strides": Argument((1, 1), Integers(2), "strides", large),
        "padding": Argument("VALID", Padding(2), "padding", paddings),
        "dilations": Argument((1, 1), Integers(2, 3), "dilations", large),
    }
    convolves = {
        **spatial,
        "groups": integer("groups", 1, (1,)),
        "dimension_numbers": Argument(None, DimensionNumbers(), "dimension_numbers", layouts),
    }
    misfits = shapes((2, 3, 2, 2), (2, 2, 0, 2), (2, 2, 5, 5), (0, 2, 2, 2), (2, 2, 2), (2, 2, 2, 2, 2))
    filters = Argument(w, Tensor(BYTES, exactly(w.shape)), "FilterTensor filters", misfits)
    zeros = zero_point("FilterZeroPointTensor", 1, or_shapes((2,), (1, 2), (1, 2, 1), (1, 2, 1, 1)), "int8")
    filter_scales = or_shapes((2,), (1, 2), (1, 2, 1), (1, 2, 1, 1))
    optional_floats = Tensor(FLOATS, filter_scales, "float32", optional=True)

    def convolved(input: Any, strides: Any, dilations: Any, padding: Any, output_dtype: Any, **_: Any) -> Any:
        return S((input.shape[0], 2, *sizes((2, 2), strides, dilations, padding)), output_dtype)

    def quantized(input: Any, output_zero_point: Any, output_dtype: Any, **options: Any) -> Any:
        dtype = output_dtype or dtype_of(output_zero_point, input.dtype)
        return convolved(input, output_dtype=dtype, **options)

    def to_float(input_scale: Any, filter_scale: Any, bias: Any, output_dtype: Any, **options: Any) -> Any:
        given = [x.dtype for x in (input_scale, filter_scale, bias) if hasattr(x, "dtype")]
        return convolved(output_dtype=output_dtype or (given or ["float32"])[0], **options)

    def to_floats(input_scale: Argument, filter_scale: Argument, bias: Argument) -> Call:
        return Call(
            "convolution_integer_to_float",
            {
                "input": image,
                "input_scale": input_scale,
                "input_zero_point": zero_point("InputZeroPointTensor"),
                "filter": filters,
                "filter_scale": filter_scale,
                "filter_zero_point": zeros,
                "bias": bias,
                "output_dtype": data_type("output_dtype OutputTensor", None, "float32"),
                **convolves,
                "feature_level": level("6_2"),
            },
            to_float,
        )

    def pooled(input: Any, output_zero_point: Any, output_dtype: Any, window_sizes: Any, **options: Any) -> Any:
        counts = sizes(window_sizes, options["strides"], options["dilations"], options["padding"])
        return S((*input.shape[:2], *counts), output_dtype or dtype_of(output_zero_point, input.dtype))

    per_channel = or_shapes((1, 2, 1, 1))
    output = {
        "output_zero_point": zero_point("OutputZeroPointTensor", data_types=BYTES, scalar="uint8"),
        "output_dtype": data_type("output_dtype OutputTensor", None, BYTES),
    }
    return [
        Call(
            "convolution_integer",
            {
                "input": image,
                "filter": filters,
                "input_zero_point": zero_point("InputZeroPointTensor"),
                "filter_zero_point": zeros,
                **convolves,
                "feature_level": level("2_1"),
            },
            functools.partial(convolved, output_dtype="int32"),
        ),
        to_floats(  # scalars of Python, which have the type of an array in the place of one of them
            scale("InputScaleTensor", data_types=FLOATS),
            scale("FilterScaleTensor", 0.5, filter_scales, FLOATS),
            Argument(None, optional_floats, "BiasTensor"),
        ),
        to_floats(
            scale("InputScaleTensor", np.float32(0.5)),
            scale("FilterScaleTensor", np.full(2, 0.5, np.float32), filter_scales),
            Argument(floats(2), dataclasses.replace(optional_floats, data_types="float32"), "BiasTensor"),
        ),
        Call(
            "quantized_linear_convolution",
            {
                "input": image,
                "input_scale": scale("InputScaleTensor"),
                "input_zero_point": zero_point("InputZeroPointTensor"),
                "filter": filters,
                "filter_scale": scale("FilterScaleTensor", 0.5, filter_scales),
                "filter_zero_point": zeros,
                "output_scale": scale("OutputScaleTensor"),
                "bias": Argument(
                    ints("int32", 1, 2, 1, 1), Tensor("int32", exactly((1, 2, 1, 1)), None, optional=True), "BiasTensor"
                ),
                **output,
                **convolves,
                "feature_level": level("2_1"),
            },
            quantized,
        ),
        Call(
            "quantized_linear_average_pool",
            {
                "input": Argument(x, Tensor(BYTES, lambda shape: len(shape) == 4 and shape[2:] == (4, 4)), "InputTensor"),
                "input_scale": scale("InputScaleTensor", 0.5, per_channel),
                "input_zero_point": zero_point("InputZeroPointTensor", 3, per_channel),
                "output_scale": scale("OutputScaleTensor", 0.5, per_channel),
                **output,
                "window_sizes": Argument((2, 2), Integers(2, 4, optional=False), "window_sizes", large),
                **spatial,
                "include_padding": boolean("include_padding"),
                "feature_level": level("6_2"),
            },
            pooled,
        ),
    ]


def _tensorflow() -> list[Call]:
    x, q, wide = floats(ROWS, COLUMNS), ints("uint8", ROWS, COLUMNS), ints("int32", ROWS, COLUMNS)
    each = exactly((COLUMNS,))
    low, high = np.full(COLUMNS, -1, np.float32), np.full(COLUMNS, 1, np.float32)
    no_axis = integer("axis", None, (), optional=True)
    small = "int8 uint8 int32 int16 uint16"
    modes = "MIN_COMBINED MIN_FIRST SCALED"

    def of_range(names: str, per_axis: bool, **options: Any) -> dict[str, Argument]:
        first, second = names.split()
        fits = each if per_axis else one
        return {
            first: bound(first, low if per_axis else -1.0, at_most(1), fits, **options),
            second: bound(second, high if per_axis else 1.0, at_least(-1), fits, **options),
        }

    def tensor(value: np.ndarray, data_types: str, per_axis: bool) -> Argument:
        """Of any shape; of one along whose dimension 1 there are as many slices as the range has."""
        shapes = (lambda s: len(s) > 1 and s[1] == COLUMNS) if per_axis else anything
        return Argument(value, Tensor(data_types, shapes, "float32" if value.dtype == np.float32 else None), "input")

    def axis(per_axis: bool) -> Argument:
        return integer("axis", 1, (1,)) if per_axis else no_axis

    def quantized(input: Any, dtype: Any, axis: Any, **_: Any) -> Any:
        ends = S(() if axis is None else (COLUMNS,), "float32")
        return jquant.QuantizeOutput(like(input, dtype), ends, ends)

    def requantized(input: Any, dtype: Any = "uint8", **_: Any) -> Any:
        return jquant.QuantizeOutput(like(input, dtype), S((), "float32"), S((), "float32"))

    def ranged(**_: Any) -> Any:
        return jquant.RangeOutput(S((), "float32"), S((), "float32"))

    found = []
    for per_axis in (False, True):
        any_modes = "MIN_COMBINED SCALED" if per_axis else modes
        found += [
            Call(
                "quantize",
                {
                    "input": tensor(x, "float32", per_axis),
                    **of_range("min_range max_range", per_axis),
                    "dtype": data_type("dtype", "qint8", small),
                    "mode": mode("mode", "MIN_COMBINED", any_modes),
                    "round_mode": mode("round_mode", "HALF_AWAY_FROM_ZERO", "HALF_AWAY_FROM_ZERO"),
                    "narrow_range": boolean("narrow_range"),
                    "axis": axis(per_axis),
                    "ensure_minimum_range": Argument(None, OPTIONAL_FLOAT, "ensure_minimum_range"),
                },
                quantized,
            ),
            Call(
                "dequantize",
                {
                    "input": tensor(q, small, per_axis),
                    **of_range("min_range max_range", per_axis),
                    "mode": mode("mode", "MIN_COMBINED", any_modes),
                    "narrow_range": boolean("narrow_range"),
                    "axis": axis(per_axis),
                    "dtype": data_type("dtype", "FLOAT32", "float32 bfloat16"),
                },
                lambda input, dtype, **_: like(input, dtype),
            ),
            Call(
                "fake_quantize",
                {
                    "input": tensor(x, "float32", per_axis),
                    **of_range("min max", per_axis),
                    "num_bits": integer("num_bits", 8, range(2, 17)),
                    "narrow_range": boolean("narrow_range"),
                    "axis": axis(per_axis),
                },
                lambda input, **_: like(input),
            ),
            Call(
                "quantize_and_dequantize",
                {
                    "input": tensor(x, "float32", per_axis),
                    **of_range("input_min input_max", per_axis),
                    "signed_input": boolean("signed_input", value=True),
                    "num_bits": integer("num_bits", 8, range(1, 62)),
                    "round_mode": mode("round_mode", "HALF_TO_EVEN", "HALF_TO_EVEN HALF_UP"),
                    "narrow_range": boolean("narrow_range"),
                    "axis": axis(per_axis),
                },
                lambda input, **_: like(input),
            ),
        ]
    requested = {
        "requested_output_min": bound("requested_output_min", -0.5, lambda low: low <= 0),
        "requested_output_max": bound("requested_output_max", 0.5, at_least(-0.5)),
    }
    by_channel = Tensor("int32", lambda shape: shape[-1:] == (COLUMNS,))
    of_one_range = {"input": tensor(wide, "int32", False), **of_range("input_min input_max", False)}
    of_channels = {"input": Argument(wide, by_channel, "input"), **of_range("input_min input_max", True)}
    dtype = data_type("dtype", "qint8", BYTES)
    return [
        *found,
        Call(
            "quantize_and_dequantize",
            {
                "input": tensor(x, "float32", False),
                "input_min": Argument(None, Nothing(), "input_min", like=Like((), np.dtype(np.float32))),
                "input_max": Argument(None, Nothing(), "input_max", like=Like((), np.dtype(np.float32))),
            },
            lambda input, **_: like(input),
        ),
        Call("requantization_range", of_one_range, ranged),
        Call("quantize_down_and_shrink_range", of_one_range, requantized),
        Call("requantize", {**of_one_range, **requested, "dtype": dtype}, requantized),
        Call(
            "requantization_range_per_channel",
            {**of_channels, "clip_value_max": Argument(None, OPTIONAL_FLOAT, "clip_value_max")},
            ranged,
        ),
        Call(
            "requantize_per_channel",
            {
                **of_channels,
                **requested,
                "requested_output_min": bound("requested_output_min", -0.5, lambda low: low < 0),
                "dtype": dtype,
            },
            requantized,
        ),
    ]


def _exact() -> list[Call]:
    x = floats(ROWS, COLUMNS)
    fits = exactly((), (1,), (COLUMNS,), (ROWS, 1), (1, COLUMNS), x.shape, (1,) * 9)
    operand = Tensor("float32", fits, "float32")
    any_float = Tensor("float32 float16 bfloat16", scalar="float32")
    only_float32 = Tensor("float32", scalar="float32")

    def of_two(a: Any, b: Any) -> Any:
        return S(np.broadcast_shapes(jnp.shape(a), jnp.shape(b)), "float32")

    def of_one(name: str, kind: Tensor, promise: Callable[..., Any], **others: Argument) -> Call:
        return Call(f"exact.{name}", {"x": Argument(x, kind, "x"), **others}, promise)

    return [
        *(
            Call(f"exact.{name}", {"a": Argument(x, operand, "a"), "b": Argument(x, operand, "b")}, of_two)
            for name in ("product", "sum", "difference", "quotient")
        ),
        *(
            of_one(name, only_float32, lambda x: S(jnp.shape(x), "float32"))
            for name in ("reciprocal", "round_half_even", "round_half_away", "round_half_up")
        ),
        of_one("seal", any_float, lambda x: S(jnp.shape(x), dtype_of(x, "float32"))),
        of_one("widen", any_float, lambda x: S(jnp.shape(x), "float32")),
        of_one(
            "narrow",
            only_float32,
            lambda x, dtype: S(jnp.shape(x), dtype),
            dtype=data_type("dtype", "FLOAT16", "float32 float16 bfloat16"),
        ),
    ]


def _levels() -> list[Call]:
    def inside(level: Any) -> Any:
        with jquant.feature_level(level) as entered:
            return entered

    levels = Argument("6_2", Level("1_0", optional=False), "feature_level level")
    return [Call("feature_level", {"level": levels}, lambda level: jquant.FeatureLevel(level), inside)]


def _calibration() -> list[Call]:
    batch = floats(ROWS, COLUMNS)

    def ranged(axis: Any = None, **_: Any) -> Any:
        return calibration.Range(*[S(() if axis is None else (batch.shape[axis],), "float32")] * 2)

    def of_batches(batches: Any, **_: Any) -> Any:
        return jax.tree.map(lambda _: ranged(), batches[0])

    def uses(name: str, make: Callable[[], calibration.Observer], axis: int | None) -> list[Call]:
        """The functions of an observer."""
        observer = make()
        first, state = observer.init(batch), observer.update(observer.init(batch), batch)
        kind = FLOAT_BATCH if axis is None else PER_COLUMN

        def call(argument: Argument, function: Callable[[Any], Any], promise: Callable[..., Any]) -> Call:
            return Call(name, {"given": argument}, promise, lambda given: function(given))

        return [
            call(Argument(batch, kind, "batch input"), lambda given: observer.update(first, given), lambda given: first),
            call(Argument(state, State(), "state"), lambda given: observer.update(given, batch), lambda given: first),
            call(Argument(state, State(), "state"), observer.compute_range, lambda given: ranged(axis)),
            call(Argument(batch, FirstBatch(), "batch input"), observer.init, lambda given: first),
        ]

    bins = integer("num_bins", 128, [2**bits for bits in range(2, 17)])
    axis_name = Argument(None, AxisNames(), "axis_name")
    axis = {"axis": integer("axis", None, range(-(2**30), 2**30), optional=True)}
    makers = {
        "entropy": {"num_bins": bins, "num_quantized_bins": integer("num_quantized_bins", 2, range(2, 129, 2))},
        "mean_squared_error": {
            "dtype": data_type("dtype", "INT8", "int8 uint8 int16 uint16 int4 uint4 int2 uint2"),
            "symmetric": boolean("symmetric"),
            "narrow_range": boolean("narrow_range"),
            "num_bins": bins,
        },
        "percentile": {
            "percentile": Argument(99.9, Number(0, 100), "percentile"),
            "symmetric": boolean("symmetric"),
            "num_bins": bins,
        },
        "min_max": axis,
        "moving_average": {"averaging_constant": Argument(0.01, Number(0, 1), "averaging_constant"), **axis},
    }
    found = []
    for short, arguments in makers.items():
        name = f"calibration.{short}"
        made = Call(name, {**arguments, "axis_name": axis_name}, lambda **_: calibration.Observer)
        found += [made, *uses(name, made, None)]
        if "axis" in arguments:
            found += uses(name, functools.partial(made, axis=1), 1)
    return [
        *found,
        Call(
            "calibration.calibrate",
            {
                "observer": Argument(calibration.min_max(), AnObserver(), "observer"),
                "batches": Argument([batch], Batches(), "batches batch"),
                "activations": Argument(lambda x: x, Function(), "activations"),
                "progress": Argument(False, Progress(), "progress"),
            },
            of_batches,
        ),
    ]


@functools.cache
def calls() -> tuple[Call, ...]:
    groups = _clips, _linear, _elementwise, _matmuls, _packed, _blocks, _windows, _tensorflow, _exact, _levels, _calibration
    return tuple(itertools.chain.from_iterable(group() for group in groups))
