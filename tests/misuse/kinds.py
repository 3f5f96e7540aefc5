"""Kinds of arguments: each maps a value to the canonical spelling of the same argument, or finds it wrong."""

import dataclasses
import enum
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

import jquant
from jquant import calibration

from .values import Wrapped


class Verdict(enum.Enum):
    WRONG = enum.auto()
    UNSPECIFIED = enum.auto()


WRONG, UNSPECIFIED = Verdict


class Kind:
    """The values that an argument may have."""

    def canonical(self, value: object) -> object:
        """The canonical spelling of the argument `value`, or `WRONG`; `UNSPECIFIED` where nothing is promised."""
        raise NotImplementedError

    def canonical_traced(self, value: object) -> object:
        """The same for the tracer that a `jax.jit` around the call makes of `value`."""
        return self.canonical(value)


def anything(_: object) -> bool:
    return True


def one_element(shape: tuple[int, ...]) -> bool:
    """Whether an array of the shape has one element."""
    return all(size == 1 for size in shape)


def ranks(low: int, high: int) -> Callable[[tuple[int, ...]], bool]:
    return lambda shape: low <= len(shape) <= high


def exactly(*shapes: tuple[int, ...]) -> Callable[[tuple[int, ...]], bool]:
    return lambda shape: shape in shapes


def one_element_or(*shapes: tuple[int, ...]) -> Callable[[tuple[int, ...]], bool]:
    """One element, or one of these shapes."""
    return lambda shape: one_element(shape) or shape in shapes


@dataclasses.dataclass(frozen=True)
class Tensor(Kind):
    """An array.

    Attributes:
      data_types: the names of its allowed dtypes.
      shapes: whether a shape is allowed.
      scalar: the data type that a Python scalar becomes; None where only arrays are allowed.
      optional: whether None is allowed.
      values: whether an element is allowed; checked for Python scalars and NumPy arrays only.
    """

    data_types: str
    shapes: Callable[[tuple[int, ...]], bool] = anything
    scalar: str | None = None
    optional: bool = False
    values: Callable[[Any], bool] = anything

    def canonical(self, value: object) -> object:
        if value is None:
            return None if self.optional else WRONG
        if type(value) is Wrapped:
            return self.canonical(jnp.asarray(value)) if isinstance(value.value, jax.Array | float) else WRONG
        if isinstance(value, int | float) and not isinstance(value, bool | enum.Enum | np.generic):
            return self._python_scalar(value)
        if isinstance(value, jax.Array):
            return self._jax_array(value)
        is_array = isinstance(value, np.ndarray | np.generic) and not isinstance(value, np.ma.MaskedArray)
        if not is_array or not value.dtype.isnative or not self._allows(value.dtype):
            return WRONG
        plain = np.array(value)
        return plain if self.shapes(plain.shape) and all(map(self.values, plain.flat)) else WRONG

    def _jax_array(self, value: jax.Array) -> object:
        if not isinstance(value.dtype, np.dtype):
            return WRONG
        weak_scalar = value.weak_type and value.shape == ()
        if weak_scalar and self.scalar == "float32" and value.dtype in (np.int32, np.int64, np.float32, np.float64):
            return value.astype(np.float32) if self.shapes(()) else WRONG
        allowed = self._allows(value.dtype) and self.shapes(value.shape)
        return jnp.array(value, value.dtype) if allowed else WRONG

    def _python_scalar(self, value: float) -> object:
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


class Mask(Tensor):
    """An array of booleans, or True or False."""

    def canonical(self, value: object) -> object:
        return np.bool(value) if isinstance(value, bool) else super().canonical(value)


FLOAT_BATCH = Tensor("float32 float16 bfloat16", scalar="float32")


class MatrixOrPacked(Kind):
    """A matrix of one shape: an array, or packed weights."""

    def __init__(self, data_types: str, shape: tuple[int, ...]):
        self.tensor, self.shape = Tensor(data_types, exactly(shape)), shape

    def canonical(self, value: object) -> object:
        if not isinstance(value, jquant.PackedMatrix):
            return self.tensor.canonical(value)
        arrays = value.data, value.block_sums
        intact = all(isinstance(x, jax.Array) for x in arrays) and [x.dtype for x in arrays] == [np.int8, np.int32]
        return value if intact and value.shape == self.shape else WRONG


class ZeroPointOfPacked(Kind):
    """The zero point that packed weights hold, or None. A tracer is wrong, because it cannot be compared."""

    def __init__(self, value: int, *shapes: tuple[int, ...]):
        self.tensor = Tensor("int8", one_element_or(*shapes), "int8", optional=True, values=lambda x: x == value)

    def canonical(self, value: object) -> object:
        return self.tensor.canonical(value)

    def canonical_traced(self, value: object) -> object:
        return None if value is None else WRONG


@dataclasses.dataclass(frozen=True)
class Boolean(Kind):
    allowed: Sequence[bool] = (True, False)

    def canonical(self, value: object) -> object:
        return bool(value) if isinstance(value, bool | np.bool_) and bool(value) in self.allowed else WRONG


def is_integer(value: object) -> bool:
    return isinstance(value, np.integer) or (isinstance(value, int) and not isinstance(value, bool | enum.Enum))


@dataclasses.dataclass(frozen=True)
class Integer(Kind):
    allowed: range | Sequence[int]
    optional: bool = False

    def canonical(self, value: object) -> object:
        if value is None:
            return None if self.optional else WRONG
        return int(value) if is_integer(value) and int(value) in self.allowed else WRONG


@dataclasses.dataclass(frozen=True)
class Number(Kind):
    low: float
    high: float

    def canonical(self, value: object) -> object:
        is_number = is_integer(value) or isinstance(value, float | np.floating)
        return float(value) if is_number and self.low <= value <= self.high else WRONG


def is_list(value: object) -> bool:
    """Whether a value is a sequence or an array, but no text."""
    is_sequence = isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)
    return is_sequence or (isinstance(value, np.ndarray) and value.ndim > 0)


@dataclasses.dataclass(frozen=True)
class Integers(Kind):
    """`count` integers from 1 to `largest`, or None for the default."""

    count: int
    largest: int = 2**31 - 1
    optional: bool = True

    def canonical(self, value: object) -> object:
        if value is None:
            return None if self.optional else WRONG
        valid = is_list(value) and len(value) == self.count and all(is_integer(x) and 0 < x <= self.largest for x in value)
        return tuple(map(int, value)) if valid else WRONG


@dataclasses.dataclass(frozen=True)
class Padding(Kind):
    rank: int

    def canonical(self, value: object) -> object:
        if isinstance(value, str):
            return value if value in ("VALID", "SAME", "SAME_UPPER", "SAME_LOWER") else WRONG
        if not is_list(value):
            return WRONG
        if all(map(is_integer, value)):
            valid = len(value) == 2 * self.rank and min(value) >= 0 and max(value) < 2**31
            return [*zip(value[: self.rank], value[self.rank :], strict=True)] if valid else WRONG
        pairs = [is_list(pair) and len(pair) == 2 and all(is_integer(x) and 0 <= x < 2**31 for x in pair) for pair in value]
        return [tuple(map(int, pair)) for pair in value] if len(pairs) == self.rank and all(pairs) else WRONG


class Nothing(Kind):
    """Only None, because of the other arguments."""

    def canonical(self, value: object) -> object:
        return None if value is None else WRONG


class DimensionNumbers(Kind):
    """The specification's layout in any spelling, the only one that fits the tensors."""

    def canonical(self, value: object) -> object:
        if value is None:
            return None
        if isinstance(value, lax.ConvDimensionNumbers):
            are_numbers = all(type(spec) is tuple and all(map(is_integer, spec)) for spec in value)
            return None if are_numbers and tuple(value) == ((0, 1, 2, 3),) * 3 else WRONG
        is_text = is_list(value) and all(isinstance(order, str) for order in value)
        return None if is_text and tuple(value) == ("NCHW", "OIHW", "NCHW") else WRONG


class DotNumbers(Kind):
    """The dimension numbers of a product of two matrices, in any spelling."""

    def canonical(self, value: object) -> object:
        pairs = is_list(value) and len(value) == 2 and all(is_list(pair) and len(pair) == 2 for pair in value)
        if not pairs or not all(is_list(axes) and all(map(is_integer, axes)) for pair in value for axes in pair):
            return WRONG
        numbers = tuple(tuple(tuple(map(int, axes)) for axes in pair) for pair in value)
        return numbers if numbers == (((1,), (0,)), ((), ())) else WRONG


class Precision(Kind):
    """What lax takes as a precision, which does not change the result."""

    def canonical(self, value: object) -> object:
        is_pair = isinstance(value, list) and value == ["highest", "high"]
        return value if value is None or isinstance(value, lax.Precision) or is_pair else WRONG


@dataclasses.dataclass(frozen=True)
class DataType(Kind):
    data_types: str
    optional: bool = False

    def canonical(self, value: object) -> object:
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
    """A feature level from the first on that allows the call; None for the surrounding level."""

    first: str
    optional: bool = True

    def canonical(self, value: object) -> object:
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

    def canonical(self, value: object) -> object:
        if value is None:
            return None if self.optional else WRONG
        return str(value) if isinstance(value, str) and value in self.names.split() else WRONG


class ScaleAndBias(Kind):
    """Two float32 scalars, or None."""

    def canonical(self, value: object) -> object:
        if value is None:
            return None
        scalar = Tensor("float32", one_element, "float32")
        if not isinstance(value, tuple | list) or isinstance(value, PartitionSpec) or len(value) != 2:
            return WRONG
        parts = [scalar.canonical(part) for part in value]
        return WRONG if any(part is None or part is WRONG for part in parts) else jquant.ScaleBias(*parts)


class Field(Kind):
    """An array of packed weights, of the type and shape that packing gave it, in no other spelling."""

    def __init__(self, data_type: str, shape: tuple[int, ...], *, optional: bool = False):
        self.tensor = Tensor(data_type, exactly(shape), optional=optional)

    def canonical(self, value: object) -> object:
        return WRONG if isinstance(value, Wrapped) else self.tensor.canonical(value)


class PackedDataType(Kind):
    """The dtype of a packed matrix, in no other spelling."""

    def canonical(self, value: object) -> object:
        return value if isinstance(value, np.dtype) and value == np.int8 else WRONG


class Sharding(Kind):
    """The sharding of a matrix on a mesh of one device."""

    def canonical(self, value: object) -> object:
        spec = value.spec if isinstance(value, NamedSharding) else value
        return value if isinstance(spec, PartitionSpec) and len(spec) <= 2 else WRONG


class AxisNames(Kind):
    """The names of axes of a mesh, or None."""

    def canonical(self, value: object) -> object:
        if value is None or isinstance(value, str):
            return value
        return value if isinstance(value, tuple) and all(isinstance(name, str) for name in value) else WRONG


class Observer(Kind):
    def canonical(self, value: object) -> object:
        return value if isinstance(value, calibration.Observer) else WRONG


class Batches(Kind):
    """An iterable of batches: of float arrays or Python scalars, or of lists and tuples of them."""

    def canonical(self, value: object) -> object:
        if isinstance(value, str | bytes | bytearray | memoryview | Mapping | type):
            return WRONG
        try:
            batches = [jax.tree.map(self._batch, batch) for batch in value]
        except TypeError:  # not iterable
            return WRONG
        except Exception:  # raised by the iterable
            return UNSPECIFIED
        leaves = [jax.tree.leaves(batch) for batch in batches]
        return batches if all(leaves) and batches and WRONG not in itertools.chain(*leaves) else WRONG

    def _batch(self, leaf: object) -> object:
        """Without `jax_enable_x64`, a jitted program narrows float64 to float32."""
        narrows = isinstance(leaf, np.ndarray | np.float64) and leaf.dtype == np.float64 and not jax.config.jax_enable_x64
        return FLOAT_BATCH.canonical(leaf.astype(np.float32) if narrows else leaf)


class Progress(Boolean):
    """Whether to show a progress bar, which needs tqdm, so that True is unspecified."""

    def canonical(self, value: object) -> object:
        return UNSPECIFIED if super().canonical(value) is True else super().canonical(value)


class FirstBatch(Kind):
    """A batch from which an observer takes only the shape."""

    def canonical(self, value: object) -> object:
        return UNSPECIFIED if value is None or isinstance(getattr(value, "shape", None), tuple) else WRONG


class State(Kind):
    """The state of an observer, which no substitute is."""

    def canonical(self, value: object) -> object:
        return WRONG


class Function(Kind):
    """A pure function of a batch; other functions are unspecified."""

    def canonical(self, value: object) -> object:
        return UNSPECIFIED if callable(value) else WRONG
