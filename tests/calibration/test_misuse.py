"""Wrong arguments of observers: the errors, and their messages."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.histograms import observe
from support.observers import BINS, CHANNELS, PERCENTILE

from jquant import DescriptorError, DescriptorTypeError, calibration


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: calibration.moving_average(1.5), DescriptorError, "averaging_constant is 1.5; it must be from 0 to 1"),
        (lambda: calibration.percentile(101), DescriptorError, "percentile is 101; it must be from 0 to 100"),
        (
            lambda: calibration.percentile(num_bins=100),
            DescriptorError,
            "percentile: num_bins is 100; it must be a power of two from 4 to 65536",
        ),
        (
            lambda: calibration.mean_squared_error("INT8", num_bins=2**17),
            DescriptorError,
            "mean_squared_error: num_bins is 131072; it must be a power of two from 4 to 65536",
        ),
        (
            lambda: calibration.mean_squared_error("INT32"),
            DescriptorTypeError,
            "mean_squared_error: dtype is INT32; it must",
        ),
        (lambda: calibration.entropy(num_bins=2), DescriptorError, "entropy: num_bins is 2; it must be a power of two"),
        (
            lambda: calibration.entropy(num_quantized_bins=33),
            DescriptorError,
            "entropy: num_quantized_bins is 33; it must be even, from 2 to num_bins, 2048",
        ),
        (
            lambda: calibration.min_max(axis=1).init(),
            DescriptorError,
            r"min_max: with axis=1, init needs a batch or a jax.ShapeDtypeStruct, for its shape",
        ),
        (lambda: calibration.min_max(axis=2).init(np.ones((2, 3))), DescriptorError, "min_max: axis is 2; it must be"),
        (
            lambda: calibration.min_max(axis=-3).update(calibration.min_max().init(), np.ones((2, 3), np.float32)),
            DescriptorError,
            "min_max: axis is -3; it must be a dimension of the input, from -2 to 1",
        ),
        (
            lambda: calibration.min_max(axis=99).init(np.ones((2, 3))),
            DescriptorError,
            "min_max: axis is 99; it must be a dimension of the input, from -2 to 1",
        ),
        (lambda: calibration.moving_average(np.nan), DescriptorError, "averaging_constant is nan; it must be from 0 to 1"),
        (lambda: calibration.percentile(np.float32(np.nan)), DescriptorError, "percentile is np.float32.nan.; it must"),
        (
            lambda: observe(calibration.moving_average(axis=1), [np.ones((2, n), np.float32) for n in (3, 4)]),
            DescriptorError,
            r"moving_average: state has ranges of shape \(3,\); with axis=1, a batch of shape \(2, 4\) needs \(4,\)",
        ),
        (
            lambda: calibration.min_max().update(calibration.min_max(axis=0).init(np.ones(3)), np.ones(3, np.float32)),
            DescriptorError,
            r"min_max: state has ranges of shape \(3,\); with axis=None, a batch of shape \(3,\) needs \(\)",
        ),
        (
            lambda: observe(calibration.min_max(), [np.ones(3, np.int32)]),
            DescriptorTypeError,
            "min_max: batch has data type INT32; it must be one of FLOAT32, FLOAT16, BFLOAT16",
        ),
        (
            lambda: observe(PERCENTILE, [np.ones(3)]),
            DescriptorTypeError,
            "percentile: batch has data type FLOAT64, which",
        ),
        (
            lambda: jax.eval_shape(PERCENTILE.update, PERCENTILE.init(), jax.ShapeDtypeStruct((2**16, 2**16), np.float32)),
            DescriptorError,
            r"percentile: a batch has 4294967296 elements; it must have fewer than 2\*\*32",
        ),
    ],
)
def test_wrong_value(call, error, message):
    with pytest.raises(error, match=message) as raised:
        call()
    assert type(raised.value) is error


X = np.ones((2, CHANNELS), np.float32)
NOT_INTEGERS = (64.0, True, "64", None, np.array(64), jnp.int32(64), (64,))
NOT_NUMBERS = ("0.5", True, np.True_, None, np.array(0.5), jnp.float32(0.5), 0.5j)
NOT_BOOLEANS = ("no", 1, 0.0, None, np.array(True))
NOT_AXIS_NAMES = (1, ["x"], ("x", 1), {"x"}, np.array("x"))
# For each argument: a function of it, a valid value (which a cache then holds), and values of other types.
ARGUMENTS = {
    "min_max: axis": (lambda value: calibration.min_max(axis=value), 1, (True, 1.0, "1", jnp.array(1), np.array(1), [1])),
    "min_max: axis_name": (lambda value: calibration.min_max(axis_name=value), "x", NOT_AXIS_NAMES),
    "moving_average: averaging_constant": (calibration.moving_average, 1, NOT_NUMBERS),
    "moving_average: axis": (lambda value: calibration.moving_average(axis=value), 0, (False, 0.0, "0", jnp.array(0))),
    "moving_average: axis_name": (lambda value: calibration.moving_average(axis_name=value), None, NOT_AXIS_NAMES),
    "percentile: percentile": (calibration.percentile, 1, NOT_NUMBERS),
    "percentile: symmetric": (lambda value: calibration.percentile(symmetric=value), True, NOT_BOOLEANS),
    "percentile: num_bins": (lambda value: calibration.percentile(num_bins=value), 64, NOT_INTEGERS),
    "percentile: axis_name": (lambda value: calibration.percentile(axis_name=value), ("x", "y"), NOT_AXIS_NAMES),
    "entropy: num_bins": (lambda value: calibration.entropy(num_bins=value, num_quantized_bins=8), 64, NOT_INTEGERS),
    "entropy: num_quantized_bins": (lambda value: calibration.entropy(num_quantized_bins=value), 64, NOT_INTEGERS),
    "entropy: axis_name": (lambda value: calibration.entropy(axis_name=value), "x", NOT_AXIS_NAMES),
    "dtype": (calibration.mean_squared_error, "INT8", (None, 3, "text", np.ones(2, np.int8))),
    "mean_squared_error: symmetric": (
        lambda value: calibration.mean_squared_error("INT8", symmetric=value),
        True,
        NOT_BOOLEANS,
    ),
    "mean_squared_error: narrow_range": (
        lambda value: calibration.mean_squared_error("INT8", narrow_range=value),
        True,
        NOT_BOOLEANS,
    ),
    "mean_squared_error: num_bins": (
        lambda value: calibration.mean_squared_error("INT8", num_bins=value),
        64,
        NOT_INTEGERS,
    ),
    "mean_squared_error: axis_name": (
        lambda value: calibration.mean_squared_error("INT8", axis_name=value),
        "x",
        NOT_AXIS_NAMES,
    ),
    **{
        f"{name}: batch": (constructor().init, X, (3, 1.0, "text", [1.0], X.shape))
        for name, constructor in (("min_max", calibration.min_max), ("percentile", calibration.percentile))
    },
    "moving_average: state": (
        lambda value: calibration.moving_average().update(value, X),
        calibration.moving_average().init(),
        (
            None,
            3,
            (x for x in X),
            (0.0, 1.0),
            calibration.Range(0.0, 1.0),
            calibration.Range(*np.zeros(2)),
            PERCENTILE.init(),
        ),
    ),
    "min_max: state": (
        calibration.min_max(axis=0).compute_range,
        calibration.min_max(axis=0).init(X),
        (None, {}, calibration.Range(X[0], None), calibration.Range(X[0], X[0, :2]), PERCENTILE.init()),
    ),
    **{
        f"percentile: state, {name}": (
            function,
            PERCENTILE.init(),
            (
                *(None, 3, calibration.min_max().init(), tuple(PERCENTILE.init())),
                calibration.percentile(num_bins=BINS // 2).init(),
                PERCENTILE.init()._replace(counts=(np.zeros(BINS, np.int32),) * 2),
                PERCENTILE.init()._replace(counts=list(PERCENTILE.init().counts)),
                jax.tree.map(lambda leaf: leaf[None], PERCENTILE.init()),
            ),
        )
        for name, function in (
            ("update", lambda state: PERCENTILE.update(state, X)),
            ("range", PERCENTILE.compute_range),
        )
    },
}


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_wrong_type(argument):
    function, valid, invalid = ARGUMENTS[argument]
    function(valid)
    for value in invalid:
        with pytest.raises(DescriptorTypeError, match=f"^{argument.split(',')[0]} is "):
            function(value)
