"""8-, 6- and 4-bit floats, by a search among all of their numbers."""

import functools
from typing import NamedTuple

import jax.numpy as jnp  # its dtypes are those of ml_dtypes
import numpy as np

NAMES = "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float4_e2m1fn"


class Table(NamedTuple):
    """The numbers of a type from 0 up, and the meaning of the codes after them.

    Attributes:
      numbers: those of the codes 0, 1, and so on, in float64, followed by the number that would come next on the grid.
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
    """For a type by JAX's name, such as "float8_e4m3fn", which contains the widths of its exponent and its fraction."""
    bits, exponent_bits, fraction_bits = int(name[5]), int(name[8]), int(name[10])
    bias = 2 ** (exponent_bits - 1) - (0 if name.endswith("fnuz") else 1)
    numbers = []
    for code in range(2 ** (bits - 1) + 1):
        exponent, fraction = divmod(code, 2**fraction_bits)
        whole = 2**fraction_bits if exponent else 0
        numbers.append((whole + fraction) * 2.0 ** (max(exponent, 1) - bias - fraction_bits))
    if name.endswith("fnuz"):  # the code of -0 is NaN
        return Table(np.array(numbers), None, 2 ** (bits - 1), bits)
    if name.endswith("fn") and bits < 8:  # every code is a number
        return Table(np.array(numbers), None, None, bits)
    if name.endswith("fn"):  # the last code is NaN
        return Table(np.array(numbers[:-1]), None, 2 ** (bits - 1) - 1, bits)
    # The last exponent, as in IEEE 754: infinity, and the quiet NaN.
    infinity = 2 ** (bits - 1) - 2**fraction_bits
    return Table(np.array(numbers[: infinity + 1]), infinity, infinity + 2 ** (fraction_bits - 1), bits)


def encode(x, name: str, *, saturate=True):
    """The codes of the nearest numbers, ties to even; then ONNX's tables of Cast. Without NaN, the largest number."""
    of = table(name)
    with np.errstate(invalid="ignore"):  # for signalling NaN
        x = np.asarray(x).astype(np.float64)
    magnitude = abs(x)
    between = (of.numbers[:-1] + of.numbers[1:]) / 2
    nearest = np.searchsorted(between, np.nan_to_num(magnitude, nan=0, posinf=np.inf))
    tie = magnitude == between[np.minimum(nearest, between.size - 1)]
    nearest = np.where(tie & (nearest % 2 == 1), nearest + 1, nearest)
    largest = of.numbers.size - 2
    beyond = next(code for code in (of.infinity, of.nan, largest) if code is not None)
    code = np.where(nearest > largest, largest if saturate else beyond, nearest)
    code = np.where(np.isnan(x), largest if of.nan is None else of.nan, code)
    negative = np.signbit(x) & (~np.isnan(x) if of.nan is None else True)
    if name.endswith("fnuz"):
        negative &= (code != 0) & (code != of.nan)
    return (code + negative * 2 ** (of.bits - 1)).astype(np.uint8)


def decode(code, name: str):
    """The number of each code, in float32."""
    of = table(name)
    half = 2 ** (of.bits - 1)
    numbers = np.full(half, np.nan)
    numbers[: of.numbers.size - 1] = of.numbers[:-1]
    if of.infinity is not None:
        numbers[of.infinity] = np.inf
    both = np.concatenate([numbers, -numbers]).astype(np.float32)
    if name.endswith("fnuz"):
        both[half] = np.nan
    return both[np.asarray(code).astype(np.int64)]


def is_narrow(dtype) -> bool:
    """Whether it is one of the 8- and 4-bit types."""
    return jnp.dtype(dtype).name in NAMES


def narrow(x, dtype, *, saturate=True):
    """The nearest numbers of a narrow type, as an array of that type."""
    dtype = jnp.dtype(dtype)
    return encode(x, dtype.name, saturate=saturate).view(dtype)


def widen(x):
    """The float32 of each number of a narrow type."""
    return decode(np.asarray(x).view(np.uint8), np.asarray(x).dtype.name)
