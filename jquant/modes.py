"""The static arguments, and the spellings that each of them accepts."""

import enum
import functools
from typing import Self

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jquant.errors import DescriptorError, DescriptorTypeError


class FeatureLevel(enum.IntEnum):
    """The DirectML feature level whose descriptor tables apply.

    The values are those of ``DML_FEATURE_LEVEL``. Wherever a level is expected, its string will do:

    >>> import jquant
    >>> jquant.FeatureLevel("6_2") is jquant.FeatureLevel("DML_FEATURE_LEVEL_6_2")
    True

    ``LATEST`` is 6_4. ``EXTENDED`` lies above every level of DirectML and is jquant's own: it allows
    bfloat16 wherever the tables allow FLOAT16 (computed in float32, rounded once), the types that only ONNX has, and
    convolutions in three dimensions.
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
        raise _unknown("feature level", value, [str(level) for level in cls])

    def __str__(self) -> str:
        return self.name.removeprefix("LEVEL_")


class QuantizeMode(enum.StrEnum):
    """How TensorFlow's Quantize maps the range to integers. Its strings will do as well."""

    MIN_COMBINED = "MIN_COMBINED"
    MIN_FIRST = "MIN_FIRST"
    SCALED = "SCALED"

    @classmethod
    def _missing_(cls, value: object) -> Self:
        raise _unknown("mode", value, list(cls))


class RoundMode(enum.StrEnum):
    """How TensorFlow's operators round ties, each operator in two of these ways. Its strings will do as well."""

    HALF_AWAY_FROM_ZERO = "HALF_AWAY_FROM_ZERO"
    HALF_TO_EVEN = "HALF_TO_EVEN"
    HALF_UP = "HALF_UP"

    @classmethod
    def _missing_(cls, value: object) -> Self:
        raise _unknown("round_mode", value, list(cls))


class Implementation(enum.StrEnum):
    """What multiplies integers. Its strings will do as well."""

    XLA = "xla"
    MOSAIC_TPU = "mosaic_tpu"
    MOSAIC_GPU = "mosaic_gpu"

    @classmethod
    def _missing_(cls, value: object) -> Self:
        raise _unknown("implementation", value, list(cls))


def optional_implementation(spelling: Implementation | str | None) -> Implementation | None:
    """The implementation that is named; None stays the best one that is right."""
    return None if spelling is None else Implementation(spelling)


# The documents' names. TensorFlow's quantized types are stored in the plain type of the same width.
_DML_NAMES = (
    *("FLOAT32", "FLOAT16", "BFLOAT16"),
    *("INT64", "INT32", "INT16", "INT8", "INT4", "INT2"),
    *("UINT64", "UINT32", "UINT16", "UINT8", "UINT4", "UINT2"),
)
_TENSORFLOW_NAMES = ("qint32", "qint16", "qint8", "quint16", "quint8")


def data_type(spelling: DTypeLike | str) -> np.dtype:
    """The dtype that a spelling means: anything NumPy takes, ``"INT8"`` (DirectML), ``"qint8"`` (TensorFlow)."""
    try:
        if isinstance(spelling, str):
            if spelling in _DML_NAMES:
                return jnp.dtype(spelling.lower())
            if spelling in _TENSORFLOW_NAMES:
                return jnp.dtype(spelling.removeprefix("q"))
        return jnp.dtype(spelling)
    except TypeError:
        known = ", ".join((*_DML_NAMES, *_TENSORFLOW_NAMES))
        raise DescriptorTypeError(f"{spelling!r} is no data type; dtypes and these names are: {known}") from None


@functools.cache
def data_type_name(dtype: np.dtype) -> str:
    """The name of a dtype in DirectML's tables: ``"INT8"``."""
    return dtype.name.upper()


def _unknown(argument: str, value: object, choices: list[str]) -> DescriptorError:
    return DescriptorError(f"{value!r} is no {argument}; it is one of {', '.join(choices)}")
