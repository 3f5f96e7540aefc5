"""`requantize`: 32-bit integers and ranges of every form against the formula, and errors."""

import jax.numpy as jnp
import numpy as np
import pytest
from support.comparison import assert_equal, assert_refused, refusals

import jquant
from jquant.cases import samples
from jquant.reference import requantization as reference

FLOAT32 = np.float32


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_requantize(dtype):
    rng = np.random.default_rng(1)
    x = samples.integers(rng, np.int32, 20_000) >> rng.integers(0, 31, 20_000, np.int32)
    x[:3] = -(2**31), 2**31 - 1, 0
    for bounds in ((-6, 6, -1, 1), (0, 6, 0, 6), (-1e9, 3e9, -0.01, 0.01), (-1, 7, 0, 0), (3, 3, -1, 1), (-1e-12, 1, -5, 0)):
        bounds = tuple(map(FLOAT32, bounds))
        assert_equal(tuple(jquant.requantize(x, *bounds, dtype=dtype)), reference.requantize(x, *bounds, dtype))


X, ACCUMULATORS = np.zeros((3, 2), np.int8), np.zeros((3, 2), np.int32)
PAIR = FLOAT32([1, 1])
REFUSED = [
    (
        lambda: jquant.requantize(ACCUMULATORS, 1, 0, -1, 1, dtype="quint8"),
        "input_max is 0.0, which is less than input_min, 1.0",
    ),
    (
        lambda: jquant.requantize(ACCUMULATORS, 0, 1, 1, 2, dtype="quint8"),
        "requested_output_min is 1.0; it must be 0 or less",
    ),
    (lambda: jquant.requantize(ACCUMULATORS, PAIR, 1, -1, 2, dtype="quint8"), "input_min has shape (2,); without axis"),
]
REFUSED_TYPES = [
    (
        lambda: jquant.requantize(X, 0, 1, 0, 1, dtype="quint8"),
        "requantize: input has data type INT8; the operator allows qint32 (INT32)",
    ),
    (
        lambda: jquant.requantize(ACCUMULATORS, 0, 1, 0, 1, dtype="qint16"),
        "requantize: dtype is INT16; the operator allows quint8 (UINT8), qint8 (INT8)",
    ),
]


@refusals(REFUSED, REFUSED_TYPES)
def test_refuses(call, message, error):
    assert_refused(call, message, error)


def test_arrays_are_not_read_back():
    low, high = jnp.float32(1), jnp.float32(-1)
    assert jquant.requantize(ACCUMULATORS, 0, 1, low, high, dtype="quint8").output.shape == X.shape
