"""`jquant.arithmetic.narrow_floats` against a search among all numbers of a type, for all inputs of 16 and 32 bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.comparison import assert_equal
from support.narrow_samples import FLOATS_OF_8_BITS, every, ties
from support.sampling import one_in

from jquant.arithmetic import narrow_floats
from jquant.arithmetic.narrow_floats import decode, encode
from jquant.reference import narrow_floats as reference

FLOAT32 = np.float32
NAMES = [*FLOATS_OF_8_BITS, "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"]
DTYPES = [jnp.dtype(name) for name in NAMES if not name.startswith("float6")]


def format_named(name: str) -> narrow_floats.NarrowFloat:
    return getattr(narrow_floats, name.upper())


def every_code(name: str) -> np.ndarray:
    return np.arange(2 ** format_named(name).bits, dtype=np.uint8)


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_all_numbers_of_16_bits(name, saturate):
    """All numbers of float16 and bfloat16; and the ties of the type, with the float32 numbers next to them."""
    with np.errstate(invalid="ignore"):  # at signalling NaN
        x = np.concatenate([*(every(dtype).astype(FLOAT32) for dtype in (np.float16, jnp.bfloat16)), ties(name)])
    actual = jax.jit(lambda x: encode(x, format_named(name), saturate=saturate))(x)
    assert_equal(actual, reference.encode(x, name, saturate=saturate))


def runs(name: str, saturate: bool) -> tuple[np.ndarray, np.ndarray]:
    """The bits of the float32 numbers from which on the reference has another code, in order, and these codes.

    Found by bisection of the finite numbers of each sign, among which codes do not decrease.
    """

    def codes(bits):
        return reference.encode(bits.astype(np.uint32).view(FLOAT32), name, saturate=saturate)

    infinity = np.int64(0x7F800000)
    targets = np.arange(2 ** (format_named(name).bits - 1) + 1)
    low, high = np.zeros(targets.size, np.int64), np.full(targets.size, infinity + 1)
    while np.any(low < high):
        middle = (low + high) // 2
        is_reached = codes(middle) >= targets
        low, high = np.where(is_reached, low, middle + 1), np.where(is_reached, middle, high)
    starts = np.unique([0, *low, infinity, infinity + 1])
    starts = np.concatenate([starts, starts + 2**31])
    ends = np.append(starts[1:], 2**32)
    np.testing.assert_array_equal(codes(starts), codes(ends - 1))
    return starts, codes(starts)


@pytest.mark.full
@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_all_numbers_of_32_bits(name, saturate):
    program = jax.jit(
        lambda bits: encode(jax.lax.bitcast_convert_type(bits, jnp.float32), format_named(name), saturate=saturate)
    )
    starts, codes = runs(name, saturate)
    chunk = 2**24
    for first in range(0, 2**32, chunk):
        inside = starts[(starts > first) & (starts < first + chunk)]
        lengths = np.diff([first, *inside, first + chunk])
        first_run = np.searchsorted(starts, first, side="right") - 1
        expected = np.repeat(codes[first_run : first_run + lengths.size], lengths)
        actual = program(np.arange(first, first + chunk, dtype=np.int64).astype(np.uint32))
        np.testing.assert_array_equal(actual, expected, f"of the bits from {first:#x} on")


@one_in(3, "name", NAMES)
def test_every_code_and_back(name):
    """A number of the type becomes itself, and is a number of float32, bfloat16 and float16, too."""
    codes = every_code(name)
    numbers = jax.jit(lambda code: decode(code, format_named(name)))(codes)
    assert_equal(numbers, reference.decode(codes, name))
    is_number = ~np.isnan(np.asarray(numbers))
    for saturate in (True, False):
        finite_or_kept = is_number & (np.isfinite(numbers) | (not saturate))
        again = np.asarray(encode(numbers, format_named(name), saturate=saturate))
        np.testing.assert_array_equal(again[finite_or_kept], codes[finite_or_kept])
    for dtype in (jnp.bfloat16, np.float16):
        assert_equal(np.asarray(numbers).astype(dtype).astype(FLOAT32), np.asarray(numbers))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_arrays_of_the_type(dtype):
    """An array holds the codes, and is widened to the float32 numbers that NumPy makes of it."""
    codes = every_code(dtype.name)
    x = codes.view(dtype)
    widened = jax.jit(narrow_floats.widen)(x)
    assert_equal(widened, x.astype(FLOAT32))
    narrowed = jax.jit(lambda x: narrow_floats.narrow(x, dtype, saturate=False))(widened)
    assert narrowed.dtype == dtype
    assert_equal(np.asarray(narrowed).astype(FLOAT32), x.astype(FLOAT32))


@pytest.mark.parametrize("name", NAMES)
def test_as_ml_dtypes_without_saturation(name):
    """ml_dtypes saturates to types without NaN only. NaN becomes 0 there, of the other sign; in ONNX, the largest number."""
    dtype = np.dtype(name)
    for source in (np.float16, jnp.bfloat16):
        with np.errstate(invalid="ignore"):
            x = every(source).astype(FLOAT32)
            theirs = x.astype(dtype)
        ours = reference.encode(x, name, saturate=False)
        is_nan = np.isnan(x)
        np.testing.assert_array_equal(ours[~is_nan], theirs.view(np.uint8)[~is_nan])
        if format_named(name).saturates:
            assert set(ours[is_nan]) == {format_named(name).largest}
            zeros = np.where(np.signbit(x[is_nan]), 0, format_named(name).sign_bit)
            np.testing.assert_array_equal(theirs.view(np.uint8)[is_nan], zeros)
        else:
            assert np.isnan(theirs.astype(FLOAT32)[is_nan]).all()
            assert np.isnan(reference.decode(ours, name)[is_nan]).all()


@pytest.mark.parametrize(
    ("name", "x", "saturated", "unsaturated"),
    [
        ("float8_e4m3fn", 464, 448, 448),  # halfway to 480, which would be odd
        ("float8_e4m3fn", 464.00003, 448, np.nan),
        ("float8_e4m3fn", 480, 448, np.nan),
        ("float8_e4m3fn", np.inf, 448, np.nan),
        ("float8_e4m3fnuz", 248, 240, np.nan),  # halfway to 256, which would be even
        ("float8_e4m3fnuz", 247.99998, 240, 240),
        ("float8_e5m2", 61440, 57344, np.inf),
        ("float8_e5m2", 61439.996, 57344, 57344),
        ("float8_e5m2", -np.inf, -57344, -np.inf),
        ("float8_e5m2fnuz", 61440, 57344, np.nan),
        ("float8_e5m2fnuz", -0.0, 0.0, 0.0),
        ("float8_e4m3fn", -0.0, -0.0, -0.0),
        ("float8_e4m3fn", 2.0**-10, 0.0, 0.0),  # half of the smallest
        ("float8_e4m3fn", -(2.0**-10), -0.0, -0.0),
        ("float8_e4m3fnuz", -(2.0**-11), 0.0, 0.0),
        ("float8_e5m2", 1.5 * 2.0**-16, 2.0**-15, 2.0**-15),
        ("float6_e2m3fn", -9, -7.5, -7.5),
        ("float6_e3m2fn", np.nan, 28, 28),
        ("float4_e2m1fn", 5, 4, 4),
        ("float4_e2m1fn", np.inf, 6, 6),
        ("float4_e2m1fn", -np.nan, 6, 6),
        ("float4_e2m1fn", -0.25, -0.0, -0.0),
    ],
)
def test_values_of_the_tables(name, x, saturated, unsaturated):
    for saturate, expected in ((True, saturated), (False, unsaturated)):
        code = encode(jnp.float32(x), format_named(name), saturate=saturate)
        assert_equal(decode(code, format_named(name)), FLOAT32(expected))
        assert_equal(reference.decode(reference.encode(FLOAT32(x), name, saturate=saturate), name), FLOAT32(expected))
