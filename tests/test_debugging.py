"""Every operator and every observer in JAX's debugging modes: the bits of the formula, and no error."""

import functools
import gc
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify
from support.comparison import assert_equal
from support.sampling import one_in

import jquant
from jquant import calibration, cases
from jquant.kernels.integer_dot import integer_dot

ROWS, BINS = 4, 8  # few, because programs are tested here, not values
OBSERVERS = {
    "min_max": calibration.min_max(),
    "min_max, axis": calibration.min_max(axis=1),
    "moving_average": calibration.moving_average(0.1),
    "moving_average, axis": calibration.moving_average(0.1, axis=-1),
    "percentile": calibration.percentile(90, num_bins=BINS),
    "percentile, symmetric": calibration.percentile(90, symmetric=True, num_bins=BINS),
    "entropy": calibration.entropy(num_bins=BINS, num_quantized_bins=4),
    "mean_squared_error": calibration.mean_squared_error("INT2", num_bins=BINS),
    "mean_squared_error, symmetric": calibration.mean_squared_error("UINT2", symmetric=True, num_bins=BINS),
}


def without_leaks(function, *arguments):
    """Leaks of tracers are found while tracing, so this mode comes before those that would find the program cached."""
    gc.freeze()  # JAX collects garbage after each trace, which then has little to look at
    with jax.checking_leaks():
        return function(*arguments)


def without_jit(function, *arguments):
    with jax.disable_jit():
        return function(*arguments)


def without_nans(function, *arguments):
    with jax.debug_nans(True):
        return function(*arguments)


def without_transfers(function, *arguments):
    """The arguments are on the device; the operator transfers no constants of its own to it."""
    arguments = jax.device_put(arguments)
    with jax.transfer_guard("disallow"):
        return function(*arguments)


def checked(function, *arguments):
    """No operation divides by 0, makes a NaN or reads outside of an array, not even where the result is discarded."""
    error, outputs = checked_program(function)(*arguments)
    error.throw()
    return outputs


@functools.cache
def checked_program(function):
    unoptimized = {"xla_backend_optimization_level": 0}  # half the time to compile
    return jax.jit(checkify.checkify(function, errors=checkify.all_checks), compiler_options=unoptimized)


# The first mode traces and compiles the programs that the next two run.
MODES = {mode.__name__: mode for mode in (without_leaks, without_nans, without_transfers, without_jit, checked)}
FINITE_MODES = (without_nans, checked)  # which take finite arguments only
every_mode = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)


@pytest.fixture(scope="module", autouse=True)
def nothing_traced():
    jax.clear_caches()


def finite(x):
    return np.nan_to_num(x, nan=0.5, posinf=7, neginf=-5) if jnp.issubdtype(x.dtype, jnp.floating) else x


@pytest.mark.gate
@one_in(13, ("name", "mode"), itertools.product(cases.CASES, MODES), others="full")
def test_operators(name, mode):
    mode = MODES[mode]
    case = cases.CASES[name]
    arguments = case.first(ROWS, case.arguments())
    if mode in FINITE_MODES:
        arguments = jax.tree.map(finite, arguments)
    assert_equal(mode(case.function, *arguments), case.formula(*arguments))


# Calls that omit optional numbers, and the defaults of those.
DEFAULTS = {
    "clip": (jquant.clip, cases.CASES["clip"].arguments()[:1], {"min": -np.inf, "max": np.inf}),
    "quantize": (
        functools.partial(jquant.quantize, dtype="qint8"),
        cases.CASES["quantize, MIN_COMBINED"].arguments(),
        {"ensure_minimum_range": 0.01},
    ),
    "quantized_linear_leaky_relu": (
        jquant.quantized_linear_leaky_relu,
        (np.int8([-128, 3]), np.float32(1), None, np.float32(0.05)),
        {"alpha": 0.01},
    ),
    "requantization_range_per_channel": (
        jquant.requantization_range_per_channel,
        cases.CASES["requantization_range_per_channel"].arguments(),
        {"clip_value_max": np.inf},
    ),
}


@pytest.mark.gate
@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_are_not_transferred(name):
    """Defaults are constants of the compiled program."""
    function, arguments, defaults = DEFAULTS[name]
    assert_equal(without_transfers(function, *arguments), function(*arguments, **defaults))


@pytest.mark.gate
def test_an_unsigned_range_is_divided_by_no_0():
    """The smallest unsigned integer is 0, by which the lower bound must not be divided."""
    function = functools.partial(jquant.quantize_and_dequantize, signed_input=False)
    arguments = np.float32([-1, 0.3, 7]), np.float32(0), np.float32(6)
    assert_equal(checked(function, *arguments), function(*arguments))


@pytest.mark.gate
@pytest.mark.filterwarnings("ignore:.*the bins are .* wide")  # there are few of them here
@one_in(3, "name", OBSERVERS, first=2, others="full")
@every_mode
def test_observers(name, mode):
    """The range of no batch, and that of two batches, the second with larger values than the first."""
    observer = OBSERVERS[name]
    batches = np.random.default_rng(0).standard_t(3, (2, ROWS, 5)).astype(np.float32)
    batches[1] *= 10

    def states_and_ranges(run):
        empty = run(observer.init, batches[0])
        first = run(observer.update, empty, batches[0])
        second = run(observer.update, first, batches[1])
        return (empty, first, second), [run(observer.compute_range, state) for state in (empty, second)]

    assert_equal(states_and_ranges(mode), states_and_ranges(lambda function, *arguments: function(*arguments)))


@pytest.mark.gate
@pytest.mark.parametrize("k", [2, 2**16 + 3])
def test_products_without_jit(k):
    """Long sums as well, where one primitive binds another."""
    a, b = jnp.ones((2, k), jnp.int8), jnp.ones((k, 3), jnp.int8)
    np.testing.assert_array_equal(without_jit(integer_dot, a, b), np.full((2, 3), k, np.int32), strict=True)


@pytest.mark.gate
@pytest.mark.parametrize(
    "function",
    [
        *(functools.partial(jquant.mx_quantize, element_type=element) for element in ("INT8", "FLOAT8E4M3FN")),
        lambda x: jquant.mx_dequantize(x.astype(np.int8), np.ones((2, 1), jnp.float8_e8m0fnu)),
        *(jquant.nvfp4_quantize, lambda x: jquant.quantize_linear(x, jnp.float8_e8m0fnu(1), feature_level="EXTENDED")),
        lambda x: jquant.quantized_linear_softmax(x.astype(np.uint8), x[0, 0], None, x[0, 0], axis=-1),
    ],
)
def test_no_constant_is_nan(function):
    """Without `jax.jit`, `jax.debug_nans` checks every constant."""
    x = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    with jax.debug_nans(True):
        assert_equal(without_jit(function, x), function(x))


def test_a_nan_of_a_product_is_found():
    """For ``0 * inf``, JAX runs the program again one operation at a time, and names the one that made the NaN."""
    zeros = np.zeros((2, 3), np.int8), np.float32(np.inf), None
    ones = np.ones((3, 2), np.int8), np.float32(1), None
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="encountered in integer_dot"):
        jquant.matmul_integer_to_float(*zeros, *ones)
