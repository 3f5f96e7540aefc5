"""Static arguments: feature levels, modes, implementations and data types, and the spellings that they accept."""

import contextlib
import contextvars
import enum
import functools
from collections.abc import Iterator
from typing import Self

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jquant.errors import DescriptorError, DescriptorTypeError, shown


class FeatureLevel(enum.IntEnum):
    """The DirectML feature level whose descriptor tables apply.

    The values are those of ``DML_FEATURE_LEVEL``. Wherever a level is expected, its name is accepted as a string:

    >>> import jquant
    >>> jquant.FeatureLevel("6_2") is jquant.FeatureLevel("DML_FEATURE_LEVEL_6_2")
    True

    ``LATEST`` is 6_4. ``EXTENDED`` is jquant's own level, above all of DirectML's: it allows bfloat16 wherever the tables
    allow FLOAT16 (computed in float32, rounded once), the types that only ONNX has, and convolutions in three dimensions.
    """

    LEVEL_1_0 = 0x1000
    LEVEL_2_0 = 0x2000
    LEVEL_2_1 = 0x2100
    LEVEL_3_0 = 0x3000
    LEVEL_3_1 = 0x3100
    LEVEL_4_0 = 0x4000
    LEVEL_4_1 = 0x4100
    LEVEL_5_0 = 0x5000
    LEVEL_5_1 = 0x5100
    LEVEL_5_2 = 0x5200
    LEVEL_6_0 = 0x6000
    LEVEL_6_1 = 0x6100
    LEVEL_6_2 = 0x6200
    LEVEL_6_3 = 0x6300
    LEVEL_6_4 = 0x6400
    LATEST = LEVEL_6_4
    EXTENDED = 0xFFFF

    @classmethod
    def _missing_(cls, value: object) -> Self:
        if isinstance(value, str):
            name = value.removeprefix("DML_FEATURE_LEVEL_")
            for candidate in (f"LEVEL_{name}", name):
                if candidate in cls.__members__:
                    return cls[candidate]
        raise _unknown("feature_level", value, [str(level) for level in cls])

    def __str__(self) -> str:
        return self.name.removeprefix("LEVEL_")


class QuantizeMode(enum.StrEnum):
    """How TensorFlow's Quantize maps the range to integers. The strings are accepted as well."""

    MIN_COMBINED = "MIN_COMBINED"
    MIN_FIRST = "MIN_FIRST"
    SCALED = "SCALED"

    @classmethod
    def _missing_(cls, value: object) -> Self:
        raise _unknown("mode", value, list(cls))


class RoundMode(enum.StrEnum):
    """How TensorFlow's operators round ties; each operator accepts two of these. The strings are accepted as well."""

    HALF_AWAY_FROM_ZERO = "HALF_AWAY_FROM_ZERO"
    HALF_TO_EVEN = "HALF_TO_EVEN"
    HALF_UP = "HALF_UP"

    @classmethod
    def _missing_(cls, value: object) -> Self:
        raise _unknown("round_mode", value, list(cls))


class Implementation(enum.StrEnum):
    """The implementations of the integer products. The strings are accepted as well."""

    XLA = "xla"
    NATIVE = "native"
    MOSAIC_TPU = "mosaic_tpu"
    MOSAIC_GPU = "mosaic_gpu"

    @classmethod
    def _missing_(cls, value: object) -> Self:
        raise _unknown("implementation", value, list(cls))


class ScaleGranularity(enum.StrEnum):
    """The granularity of scales in `dot_general`, and of weights in `transform.Scheme`. The strings are accepted as well."""

    PER_CHANNEL = "PER_CHANNEL"
    PER_TENSOR = "PER_TENSOR"

    @classmethod
    def _missing_(cls, value: object) -> Self:
        raise _unknown("granularity", value, list(cls))


def quantize_mode(spelling: QuantizeMode | str) -> QuantizeMode:
    """The mode that a caller passes, as a member."""
    return QuantizeMode(_string("mode", spelling, QuantizeMode))


def rounding_mode(spelling: RoundMode | str) -> RoundMode:
    """The rounding mode that a caller passes, as a member."""
    return RoundMode(_string("round_mode", spelling, RoundMode))


def optional_implementation(spelling: Implementation | str | None) -> Implementation | None:
    """The implementation that a caller passes, as a member; `None` lets the library choose."""
    return None if spelling is None else Implementation(_string("implementation", spelling, Implementation))


def scale_granularity(argument: str, spelling: ScaleGranularity | str) -> ScaleGranularity:
    """The granularity that a caller passes, as a member; `argument` is its name in error messages."""
    if _string(argument, spelling, ScaleGranularity) not in list(ScaleGranularity):
        raise _unknown(argument, spelling, list(ScaleGranularity))
    return ScaleGranularity(spelling)


def _string(argument: str, spelling: object, choices: type[enum.StrEnum]) -> str:
    if isinstance(spelling, str):
        return spelling
    raise _unknown(argument, spelling, list(choices), DescriptorTypeError)


_feature_level = contextvars.ContextVar("feature_level", default=FeatureLevel.LATEST)


def resolved_level(spelling: FeatureLevel | str | None) -> FeatureLevel:
    """The level that a caller passes; for None, the level of the surrounding `feature_level`, or else the latest."""
    return _feature_level.get() if spelling is None else _level(spelling)


def _level(spelling: FeatureLevel | str) -> FeatureLevel:
    if isinstance(spelling, FeatureLevel | str):
        return FeatureLevel(spelling)
    is_value = isinstance(spelling, int) and not isinstance(spelling, bool | enum.Enum)
    if is_value and spelling in [level.value for level in FeatureLevel]:  # Enum's error would print an integer of any length
        return FeatureLevel(spelling)
    error_class = DescriptorError if is_value else DescriptorTypeError
    raise _unknown("feature_level", spelling, [str(level) for level in FeatureLevel], error_class)


def feature_level(level: FeatureLevel | str, /) -> contextlib.AbstractContextManager[FeatureLevel]:
    """Sets the feature level of calls in the context that do not pass one.

    The level holds for the thread, or the asynchronous task, that entered the context. Contexts nest, and a call's own
    `feature_level` takes precedence.

    The level takes effect while a function is traced, and is not part of the key under which `jax.jit` caches a program: a
    program that was traced at a level keeps it, inside and outside of the context. So set the level around the calls in the
    function, or for the whole program, but not around calls of a jitted function that is called elsewhere as well.

    Args:
      level: a `FeatureLevel` or its name.

    Returns:
      A context manager, which also works as a decorator.

    Raises:
      DescriptorError: an unknown level.

    Example:
      >>> import jax, jax.numpy as jnp, jquant
      >>> x = jnp.array([-1.0, 7.0], jnp.bfloat16)
      >>> with jquant.feature_level("EXTENDED"):
      ...     print(jquant.clip(x, 0, 6))
      [0 6]
      >>> @jquant.feature_level("EXTENDED")
      ... def relu6(x):
      ...     return jquant.clip(x, 0, 6)
      >>> print(relu6(x))
      [0 6]

      Beware: a jitted function that was traced inside the context also runs outside, where it could not be traced.

      >>> clip = jax.jit(lambda x: jquant.clip(x, 0, 6))
      >>> with jquant.feature_level("EXTENDED"):
      ...     print(clip(x))
      [0 6]
      >>> print(clip(x))  # the same program; for another shape it would be traced anew, and raise
      [0 6]
    """
    return _with_level(_level(level))


@contextlib.contextmanager
def _with_level(level: FeatureLevel) -> Iterator[FeatureLevel]:
    token = _feature_level.set(level)
    try:
        yield level
    finally:
        _feature_level.reset(token)


# The names of data types in the specifications. TensorFlow's quantized types are stored as plain integers of the same width.
_DML_NAMES = (
    *("FLOAT32", "FLOAT16", "BFLOAT16"),
    *("INT64", "INT32", "INT16", "INT8", "INT4", "INT2"),
    *("UINT64", "UINT32", "UINT16", "UINT8", "UINT4", "UINT2"),
)
NARROW_FLOATS = {  # types of tensors that DirectML lacks
    "FLOAT8E4M3FN": "float8_e4m3fn",
    "FLOAT8E4M3FNUZ": "float8_e4m3fnuz",
    "FLOAT8E5M2": "float8_e5m2",
    "FLOAT8E5M2FNUZ": "float8_e5m2fnuz",
    "FLOAT4E2M1": "float4_e2m1fn",
}
POWERS_OF_TWO = "FLOAT8E8M0"  # a type of scales only
_OTHER_FLOATS = {POWERS_OF_TWO: "float8_e8m0fnu", "FLOAT6E2M3": "float6_e2m3fn", "FLOAT6E3M2": "float6_e3m2fn"}
_ONNX_NAMES = NARROW_FLOATS | _OTHER_FLOATS
_ONNX_NAME_OF_DTYPE = {dtype_name: name for name, dtype_name in _ONNX_NAMES.items()}
_TENSORFLOW_NAMES = ("qint32", "qint16", "qint8", "quint16", "quint8")


def data_type(argument: str, spelling: DTypeLike | str) -> np.dtype:
    """The dtype that a caller passes: a type, a dtype, its name, or its name in DirectML (``"INT8"``), ONNX
    (``"FLOAT8E5M2"``) or TensorFlow (``"qint8"``).

    `argument` is the name of the argument in error messages.
    """
    if isinstance(spelling, str | type | np.dtype):
        try:
            dtype = _as_dtype(spelling)
        except (TypeError, ValueError, SyntaxError):  # NumPy raises any of these for strings
            dtype = None
        if dtype is not None and is_numeric(dtype):
            return dtype
    known = ", ".join((*_DML_NAMES, *_ONNX_NAMES, *_TENSORFLOW_NAMES))
    raise DescriptorTypeError(f"{argument} is {shown(spelling)}; it must be a dtype or one of the names {known}")


@functools.lru_cache
def _as_dtype(spelling: np.dtype | type | str) -> np.dtype:
    if isinstance(spelling, str) and spelling in _DML_NAMES:
        return jnp.dtype(spelling.lower())
    if isinstance(spelling, str) and spelling in _ONNX_NAMES:
        return jnp.dtype(_ONNX_NAMES[spelling])
    if isinstance(spelling, str) and spelling in _TENSORFLOW_NAMES:
        return jnp.dtype(spelling.removeprefix("q"))
    return jnp.dtype(spelling).newbyteorder("=")


@functools.cache
def is_numeric(dtype: np.dtype) -> bool:
    """Whether a dtype is of numbers or booleans, not of dates, strings, records or objects."""
    return jnp.issubdtype(dtype, np.number) or dtype == np.bool


@functools.cache
def data_type_name(dtype: np.dtype) -> str:
    """The name of a dtype in DirectML, ``"INT8"``; if DirectML lacks it, its name in ONNX, ``"FLOAT8E5M2"``."""
    return _ONNX_NAME_OF_DTYPE.get(dtype.name, dtype.name.upper())


def _unknown(
    argument: str, value: object, choices: list[str], error_class: type[DescriptorError] = DescriptorError
) -> DescriptorError:
    return error_class(f"unknown {argument} {shown(value)}; choose one of {', '.join(choices)}")
