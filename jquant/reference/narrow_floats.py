"""8-, 6- and 4-bit floats: encoding by a search among all numbers of a type, and decoding."""

import functools
from typing import NamedTuple

import jax.numpy as jnp  # for the dtypes of ml_dtypes
import numpy as np

NAMES = "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float4_e2m1fn"


class Table(NamedTuple):
    """The numbers of a type that are not negative, in the order of their codes, and its special codes.

    Attributes:
      numbers: the numbers of the codes 0, 1, and so on, in float64, followed by the next one if the type went on.
      infinity: the code of infinity, if there is one.
      nan: the code of NaN, if there is one.
      bits: the bits of the type.
    """

    numbers: np.ndarray
    infinity: int | None
    nan: int | None
    bits: int


@functools.cache
def table(name: str) -> Table:
    """The table of a type by its JAX name, such as "float8_e4m3fn", which has the widths of exponent and fraction."""
    bits, exponent_bits, fraction_bits = int(name[5]), int(name[8]), int(name[10])
    bias = 2 ** (exponent_bits - 1) - (0 if name.endswith("fnuz") else 1)
    numbers = []
    for code in range(2 ** (bits - 1) + 1):
        exponent, fraction = divmod(code, 2**fraction_bits)
        implicit_bit = 2**fraction_bits if exponent else 0
        numbers.append((implicit_bit + fraction) * 2.0 ** (max(exponent, 1) - bias - fraction_bits))
    if name.endswith("fnuz"):  # the code of -0 is NaN
        return Table(np.array(numbers), None, 2 ** (bits - 1), bits)
    if name.endswith("fn") and bits < 8:  # every code is a number
        return Table(np.array(numbers), None, None, bits)
    if name.endswith("fn"):  # the last code is NaN
        return Table(np.array(numbers[:-1]), None, 2 ** (bits - 1) - 1, bits)
    # As in IEEE 754, the last exponent has infinity and NaN; the code of NaN is the quiet one.
    infinity = 2 ** (bits - 1) - 2**fraction_bits
    return Table(np.array(numbers[: infinity + 1]), infinity, infinity + 2 ** (fraction_bits - 1), bits)


def encode(x, name: str, *, saturate=True):
    """The codes of the nearest numbers, ties to even; overflow and NaN as in ONNX's tables for Cast.

    In a type without NaN, NaN becomes the largest number.
    """
    codes = table(name)
    with np.errstate(invalid="ignore"):  # for signalling NaN
        x = np.asarray(x).astype(np.float64)
    magnitude = abs(x)
    midpoints = (codes.numbers[:-1] + codes.numbers[1:]) / 2
    nearest = np.searchsorted(midpoints, np.nan_to_num(magnitude, nan=0, posinf=np.inf))
    tie = magnitude == midpoints[np.minimum(nearest, midpoints.size - 1)]
    nearest = np.where(tie & (nearest % 2 == 1), nearest + 1, nearest)
    largest = codes.numbers.size - 2
    overflow = next(code for code in (codes.infinity, codes.nan, largest) if code is not None)
    code = np.where(nearest > largest, largest if saturate else overflow, nearest)
    code = np.where(np.isnan(x), largest if codes.nan is None else codes.nan, code)
    negative = np.signbit(x) & (~np.isnan(x) if codes.nan is None else True)
    if name.endswith("fnuz"):
        negative &= (code != 0) & (code != codes.nan)
    return (code + negative * 2 ** (codes.bits - 1)).astype(np.uint8)


def decode(code, name: str):
    """The number of each code, in float32."""
    codes = table(name)
    half = 2 ** (codes.bits - 1)
    positive = np.full(half, np.nan)
    positive[: codes.numbers.size - 1] = codes.numbers[:-1]
    if codes.infinity is not None:
        positive[codes.infinity] = np.inf
    numbers = np.concatenate([positive, -positive]).astype(np.float32)
    if name.endswith("fnuz"):
        numbers[half] = np.nan
    return numbers[np.asarray(code).astype(np.int64)]


def is_narrow(dtype) -> bool:
    """Whether it is one of the 8- and 4-bit types."""
    return jnp.dtype(dtype).name in NAMES


def narrow(x, dtype, *, saturate=True):
    """Rounds to the nearest numbers of a narrow type, as an array of that type."""
    dtype = jnp.dtype(dtype)
    return encode(x, dtype.name, saturate=saturate).view(dtype)


def widen(x):
    """Converts an array of a narrow type to float32."""
    return decode(np.asarray(x).view(np.uint8), np.asarray(x).dtype.name)
