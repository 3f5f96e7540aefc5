"""The observers of ranges beside NumPy: exact, whatever the order, the split and the program."""

import fractions
import functools
import itertools
import sys
import types
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import samples
from cases import assert_equal
from histograms import all_edges, close_to_least, divergences, observed, of_counts, wide_counts
from jax import export, lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from layouts import collectives

from jquant import DescriptorError, DescriptorTypeError, calibration, reference
from jquant.calibration import arithmetic
from jquant.calibration.histogram import edges

BINS = 256
BATCHES, ROWS, CHANNELS = 4, 16, 5
OBSERVERS = {
    "min_max": calibration.min_max(),
    "min_max, axis": calibration.min_max(axis=1),
    "moving_average": calibration.moving_average(0.1),
    "percentile": calibration.percentile(99, num_bins=BINS),
    "percentile, symmetric": calibration.percentile(99, symmetric=True, num_bins=BINS),
    "entropy": calibration.entropy(num_bins=BINS, num_quantized_bins=32),
    "mean_squared_error": calibration.mean_squared_error("INT4", num_bins=BINS),
    "mean_squared_error, symmetric": calibration.mean_squared_error("UINT4", symmetric=True, num_bins=BINS),
}
OF_HISTOGRAM = OBSERVERS["percentile"]
every_observer = pytest.mark.parametrize("name", OBSERVERS)


def activations(seed: int = 0) -> np.ndarray:
    """Batches of growing magnitude, the last but one of which is small again."""
    rng = np.random.default_rng(seed)
    x = rng.standard_t(3, (BATCHES, ROWS, CHANNELS)) * np.array([0.01, 1, 0.1, 3]).reshape(-1, 1, 1)
    x = x.astype(np.float32)
    x[:, 0, :4] = 0, -0.0, 1e-40, -1e-40
    return x


def with_special_values(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x[:, 1, :3] = np.nan, np.inf, -np.inf
    return x


def finite(x: np.ndarray) -> np.ndarray:
    return x[np.isfinite(x)]


# The extreme values.


def test_min_max():
    x = with_special_values(activations())
    for observer, axis in ((OBSERVERS["min_max"], None), (OBSERVERS["min_max, axis"], 1)):
        actual = observer.compute_range(observed(observer, x))
        values = np.where(np.isfinite(x), x, np.nan).reshape(-1, CHANNELS)
        dimensions = None if axis is None else 0
        assert_equal(actual, calibration.Range(np.nanmin(values, dimensions), np.nanmax(values, dimensions)))


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16])
def test_16_bits(dtype):
    x = activations()[3].astype(dtype)
    for observer in (OBSERVERS["min_max"], OF_HISTOGRAM):
        assert_equal(observed(observer, [x]), observed(observer, [x.astype(np.float32)]))


def test_zeros_have_an_order():
    """What a maximum of floats makes of two zeros depends on which comes first; of subnormal numbers, on the platform."""
    observer = OBSERVERS["min_max"]
    x = np.float32([0, -0.0, 1e-40, -1e-40])
    for values in itertools.permutations(x, 2):
        state = observed(observer, [np.float32(values)])
        low, high = sorted(values, key=lambda value: (value, not np.signbit(value)))
        assert_bits(state, (np.float32(low), np.float32(high)))
        assert_bits(observed(observer, [np.float32([value]) for value in values]), state)


def assert_bits(actual, expected):
    """Without a comparison of floats, to which subnormal numbers may be zeros."""
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(one).view(np.int32), np.asarray(other).view(np.int32))


def test_moving_average():
    constant, x = np.float32(0.1), with_special_values(activations())
    x[1] = np.nan  # passed over
    low, high = None, None
    for batch in x:
        values = finite(batch)
        if low is None:
            low, high = values.min(), values.max()
        elif values.size:
            low, high = low + constant * (values.min() - low), high + constant * (values.max() - high)
    observer = OBSERVERS["moving_average"]
    assert_equal(observer.compute_range(observed(observer, x)), calibration.Range(low, high))


@every_observer
def test_nothing(name):
    """As onnxruntime has it of an empty array: [0, 0]; and a batch without a number changes nothing."""
    observer, x = OBSERVERS[name], activations()
    shape = (CHANNELS,) if "axis" in name else ()
    for bound in observer.compute_range(observer.init(x[0])):
        np.testing.assert_array_equal(bound, np.zeros(shape, np.float32), strict=True)
    state = observer.update(observer.init(x[0]), x[0])
    assert_equal(observer.update(state, np.full_like(x[0], np.nan)), state)
    assert_equal(observer.update(state, x[0][:0]), state)


# The histogram.


def test_bins_are_numpys():
    """At the final exponent, of all numbers: with powers of two, which open a bin, and the numbers next to them."""
    rng = np.random.default_rng(0)
    powers = np.ldexp(np.float32(1), np.arange(-140, 6)).astype(np.float32)
    for exponent in (-130, -100, -3, 0, 5, 127):
        near = np.concatenate([powers, np.nextafter(powers, np.float32(0)), np.nextafter(powers, np.float32(np.inf))])
        near = np.concatenate([near, -near])
        x = np.ldexp(rng.uniform(-1, 1, 400), exponent).astype(np.float32)
        x = np.append(x, near[abs(near) < np.ldexp(1.0, exponent)])
        x = np.concatenate([x, np.float32([0, -0.0]), np.ldexp(np.float32([1, -1]), exponent)]).astype(np.float32)
        x = np.where(samples.is_subnormal(x), 0, x)
        state = observed(OF_HISTOGRAM, [np.resize(x, 2000)])
        k = max(np.frexp(abs(x).max() or 1e-38)[1], -126 + 8)
        expected, at = np.histogram(np.resize(x, 2000).astype(np.float64), BINS, (-np.ldexp(1.0, k), np.ldexp(1.0, k)))
        assert wide_counts(state) == expected.tolist()
        with np.errstate(over="ignore"):  # of the ends, 2.0**128
            np.testing.assert_array_equal(all_edges(state), at.astype(np.float32))


@pytest.mark.parametrize("name", ["min_max", "min_max, axis", "percentile"])
def test_order_and_split_do_not_matter(name):
    """Not a bit: subnormal numbers, zeros of both signs and special values among them."""
    observer, x = OBSERVERS[name], with_special_values(activations()).reshape(-1, CHANNELS)
    expected = observed(observer, [x])
    rng = np.random.default_rng(0)
    for parts in (4, 16):
        for _ in range(5):
            assert_bits(observed(observer, np.split(rng.permutation(x), parts)), expected)
    if name == "percentile":
        assert sum(wide_counts(expected)) == finite(x).size


def test_bins_join_from_one_end_of_float32_to_the_other():
    x = np.float32([[2e-38, 0], [-1, 1], [3e38, -2e38], [0, 1e-20]])
    expected, _ = np.histogram(x.astype(np.float64), BINS, (-(2.0**128), 2.0**128))
    for batches in itertools.permutations(x):
        assert wide_counts(observed(OF_HISTOGRAM, batches)) == expected.tolist()


def test_counts_of_64_bits():
    counts = [7 * 2**30 + index**5 for index in range(BINS)]
    index = int((0.9 + 1) * BINS / 2)
    counts[index] = 2**32 - 8
    state = of_counts(counts, -0.9, 0.9)
    same = OF_HISTOGRAM.update(state, np.full(16, 0.9, np.float32))
    assert wide_counts(same) == [count + 16 * (place == index) for place, count in enumerate(counts)]
    grown = OF_HISTOGRAM.update(state, np.full(16, 3.9, np.float32))
    joined = [0] * 96 + [sum(counts[place : place + 4]) for place in range(0, BINS, 4)] + [0] * 96
    joined[int((3.9 + 4) * BINS / 8)] += 16
    assert wide_counts(grown) == joined
    assert max(joined) > 2**34


# What is made of it.


@pytest.mark.parametrize("magnitude", [10, 2**31, 2**50])
def test_percentile(magnitude):
    """The definition in fractions; some shares are met exactly."""
    rng = np.random.default_rng(0)
    states = [of_counts([int(count) * magnitude for count in rng.integers(0, 3, BINS)], -3.75, 3.9) for _ in range(3)]
    states.append(of_counts([magnitude] * BINS, -3.999, 3.999))
    few = min(magnitude, 2**31)  # of the last bin, of which 99.99999 per cent leave none
    states.append(of_counts([0] * 10 + [99_999_995 * few] + [0] * 9 + [5 * few] + [0] * (BINS - 21), -3.75, 3.9))
    for given in ("0", "50", "90", "99", "99.9", "99.99999", "100"):
        percentile, share = float(given), fractions.Fraction(given) / 100
        for symmetric in (False, True):
            observer = calibration.percentile(percentile, symmetric=symmetric, num_bins=BINS)
            for state in states:
                counts, bounds = wide_counts(state), [float(bound) for bound in state.range]
                if symmetric:
                    half = BINS // 2
                    folded = [one + other for one, other in zip(counts[half:], counts[half - 1 :: -1], strict=True)]
                    high = first_reaching(share, folded) / 32
                    low = -high
                else:
                    low, high = (first_reaching(part, counts) / 32 - 4 for part in ((1 - share) / 2, (1 + share) / 2))
                low = max(low, bounds[0])
                expected = np.float32([low, max(low, min(high, bounds[1]))])
                np.testing.assert_array_equal(observer.compute_range(state), expected)


def first_reaching(share: fractions.Fraction, counts: list[int]) -> int:
    sums = list(itertools.accumulate(counts))
    return next(index for index, total in enumerate(sums) if total >= share * sums[-1])


def test_percentile_of_numbers():
    """The true one lies in the bin that begins there."""
    x = np.random.default_rng(0).standard_t(3, 10_000).astype(np.float32)
    for bins in (256, 4096):
        observer = calibration.percentile(99, num_bins=bins)
        width = 2 * 2.0 ** np.frexp(abs(x).max())[1] / bins
        actual = observer.compute_range(observed(observer, [x]))
        for bound, percentile in zip(actual, (0.5, 99.5), strict=True):
            assert bound <= np.percentile(x, percentile, method="inverted_cdf") < bound + width


def test_of_one_bin():
    """Where the edge lies below the smallest number, the range is that number: no range is turned round."""
    x = np.full(7, 5.01, np.float32)
    for name in ("percentile", "percentile, symmetric"):
        assert_equal(tuple(OBSERVERS[name].compute_range(observed(OBSERVERS[name], [x]))), (x[0], x[0]))


def error(x, weight, low, high, dtype, symmetric=False):
    scale, zero_point = reference.scale_and_zero_point(low, high, dtype, symmetric=symmetric)
    values = reference.dequantize_linear(reference.quantize_linear(x, scale, zero_point, dtype), scale, zero_point)
    return np.sum(weight * (values.astype(np.float64) - x) ** 2)


def skewed(kind: str) -> np.ndarray:
    x = np.random.default_rng(0).standard_t(3, 3000)
    return {"both": x, "positive": abs(x), "lopsided": np.where(x > 0, x, x / 8)}[kind].astype(np.float32)


@pytest.mark.parametrize("kind", ["both", "positive", "lopsided"])
@pytest.mark.parametrize(("dtype", "symmetric"), [("int4", False), ("uint4", True), ("int8", False)])
def test_mean_squared_error(kind, dtype, symmetric):
    """No range of a search in NumPy is better: of the histogram's bins at all, of the numbers by more than 1 per cent."""
    x, dtype, bins = skewed(kind), jnp.dtype(dtype), 4096
    observer = calibration.mean_squared_error(dtype, symmetric=symmetric, num_bins=bins)
    state = observed(observer, [x])
    low, high = map(np.asarray, observer.compute_range(state))
    middles = np.asarray(edges(state.range, bins, np.arange(bins) + 0.5))
    lowest, highest = np.minimum(x.min(), 0), np.maximum(x.max(), 0)
    tried = [(lowest * i, highest * j) for i in np.linspace(0, 1, 33) for j in np.linspace(0, 1, 33)[1:]]
    if symmetric:
        tried = [(-max(-lowest, highest) * i, max(-lowest, highest) * i) for i in np.linspace(0, 1, 1025)[1:]]
    for numbers, weight, tolerance in ((middles, np.array(wide_counts(state)), 1e-5), (x, 1, 0.01)):  # float32's; the bins'
        kept = np.broadcast_to(weight, numbers.shape) != 0
        numbers, weight = numbers[kept], np.broadcast_to(weight, numbers.shape)[kept]
        least = min(error(numbers, weight, *map(np.float32, bounds), dtype, symmetric) for bounds in tried)
        assert error(numbers, weight, low, high, dtype, symmetric) <= least * (1 + tolerance)
        if symmetric:
            assert low == -high
        elif tolerance == 1e-5:  # the second search found a better one
            assert error(numbers, weight, low, high, dtype) < least * (1 - tolerance)


@pytest.mark.parametrize("exponent", [-100, 120])
def test_mean_squared_error_has_no_magnitude(exponent):
    """Squares would leave float32."""
    observer, x = OBSERVERS["mean_squared_error"], skewed("lopsided")
    expected = observer.compute_range(observed(observer, [x]))
    actual = observer.compute_range(observed(observer, [np.ldexp(x, exponent).astype(np.float32)]))
    assert_equal(tuple(actual), tuple(np.ldexp(np.asarray(bound), exponent) for bound in expected))


@pytest.mark.parametrize("quantized", [32, 100, BINS])
@pytest.mark.parametrize("kind", ["both", "positive", "lopsided"])
def test_entropy(kind, quantized):
    """The least divergence, but for what float32 cannot tell apart."""
    observer = calibration.entropy(num_bins=BINS, num_quantized_bins=quantized)
    state = observed(observer, [skewed(kind)])
    assert tuple(observer.compute_range(state)) in map(tuple, close_to_least(divergences(state, quantized)))


def test_entropy_of_many_numbers():
    """The counts are halved, all alike."""
    state = observed(OBSERVERS["entropy"], [skewed("both")])
    many = of_counts([count << 40 for count in wide_counts(state)], *map(float, state.range))
    few = of_counts([count << 19 for count in wide_counts(state)], *map(float, state.range))
    assert sum(wide_counts(few)) < 2**31 <= 2 * sum(wide_counts(few))
    compute_range = OBSERVERS["entropy"].compute_range
    assert_equal(compute_range(many), compute_range(few))


def test_arithmetic():
    x = abs(samples.any_floats(np.random.default_rng(0), 100_000))
    x = np.concatenate([x[np.isfinite(x) & (x > 0)], np.linspace(0.5, 2, 10_001)]).astype(np.float32)
    near_one = np.nextafter(np.float32(1), np.float32([0, 2]))
    x = np.concatenate([x, near_one])
    actual, expected = np.asarray(jax.jit(arithmetic.logarithm)(x), np.float64), np.log(x.astype(np.float64))
    assert np.max(abs(actual - expected) / np.spacing(abs(expected).astype(np.float32))) < 2
    x = np.random.default_rng(0).normal(size=64).astype(np.float32)
    expected = x
    while expected.size > 1:
        expected = np.add(*np.split(expected, 2))
    assert_equal(jax.jit(arithmetic.tree_sum)(x), expected[0])


# Programs.


@every_observer
def test_transformations(name):
    """jit, scan, and vmap: for each channel by itself."""
    observer, x = OBSERVERS[name], activations()
    expected = observed(observer, x)
    chex.clear_trace_counter()
    update = jax.jit(chex.assert_max_traces(lambda state, batch: observer.update(state, batch), n=1))
    state = observer.init(x[0])
    for batch in x:
        state = update(state, batch)
    assert_bits(state, expected)
    state, _ = jax.jit(lambda x: lax.scan(lambda state, x: (observer.update(state, x), None), observer.init(x[0]), x))(x)
    assert_bits(state, expected)
    if "axis" in name:
        return

    def of_channel(x):
        state, _ = lax.scan(lambda state, x: (observer.update(state, x), None), observer.init(), x)
        return observer.compute_range(state)

    each = jax.jit(jax.vmap(of_channel, in_axes=-1))(x)
    alone = [observer.compute_range(observed(observer, x[..., channel])) for channel in range(2)]
    assert_equal(jax.tree.map(lambda bound: bound[:2], each), jax.tree.map(lambda *bounds: np.stack(bounds), *alone))


@every_observer
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_mesh(name, kind):
    """Nothing moves but the extreme values and the counts."""
    observer, x = OBSERVERS[name], activations()
    mesh = jax.make_mesh((8,), ("x",), axis_types=(kind,))
    expected = observed(observer, x)
    with jax.set_mesh(mesh):
        state = observer.init(x[0])
        split = [jax.device_put(batch, NamedSharding(mesh, P("x"))) for batch in x]
        program = jax.jit(observer.update).lower(state, split[0]).compile()
        for batch in split:
            state = program(state, batch)
        assert_bits(state, expected)
        if kind == AxisType.Explicit:  # where the types of the arrays are others
            assert_equal(observer.compute_range(state), observer.compute_range(expected))
    moved = [collective.elements for collective in collectives(program.as_text())]
    extremes = [CHANNELS if "axis" in name else 1] * 2
    assert moved == ([*extremes, BINS] if isinstance(state, calibration.Histogram) else extremes)


@pytest.mark.parametrize(
    ("constructor", "arguments", "axis_name"),
    [
        (calibration.min_max, {"axis": 1}, "x"),
        (calibration.moving_average, {}, "x"),
        (calibration.percentile, {"num_bins": BINS}, ("x", "y")),
        (calibration.entropy, {"num_bins": BINS}, "x"),
        (functools.partial(calibration.mean_squared_error, "INT8"), {"num_bins": BINS}, ("x", "y")),
    ],
)
def test_shard_map(constructor, arguments, axis_name):
    x, alone, together = activations(), constructor(**arguments), constructor(**arguments, axis_name=axis_name)
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)

    def of_shard(state, x):
        return lax.scan(lambda state, batch: (together.update(state, batch), None), state, x)[0]

    update = jax.shard_map(of_shard, mesh=mesh, in_specs=(P(), P(None, axis_name)), out_specs=P())
    state = jax.jit(update)(together.init(x[0]), x)
    assert_bits(state, observed(alone, x))


@every_observer
def test_export(name):
    """For three platforms and batches of any number of rows; the states are types that an export can store."""
    observer, x = OBSERVERS[name], activations()
    (rows,) = export.symbolic_shape("b")
    state = observer.init(x[0])
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
    batch = jax.ShapeDtypeStruct((rows, CHANNELS), np.float32)
    platforms = ("cpu", "cuda", "tpu")
    update = export.export(jax.jit(observer.update), platforms=platforms)(shapes, batch).serialize()
    compute_range = export.export(jax.jit(observer.compute_range), platforms=platforms)(shapes).serialize()
    for part in (x[0], x[1], x[2][:3]):
        state = export.deserialize(update).call(state, part)
    expected = observed(observer, [x[0], x[1], x[2][:3]])
    assert_bits(state, expected)
    assert_equal(export.deserialize(compute_range).call(state), observer.compute_range(expected))


@pytest.mark.parametrize("name", ["min_max, axis", "percentile, symmetric", "entropy", "mean_squared_error"])
def test_x64(name):
    observer, x = OBSERVERS[name], activations()
    expected = observer.compute_range(observed(observer, x))
    with jax.enable_x64(True):
        assert_equal(observer.compute_range(observed(observer, x)), expected)


def test_observers_of_equal_arguments_are_equal():
    for name, arguments in (("min_max", {"axis": 1}), ("percentile", {"num_bins": 64}), ("entropy", {})):
        constructor = getattr(calibration, name)
        assert constructor(**arguments) == constructor(**arguments)
        assert hash(constructor(**arguments)) == hash(constructor(**arguments))
    assert calibration.mean_squared_error("INT8") == calibration.mean_squared_error(np.int8)
    assert calibration.min_max() != calibration.min_max(axis=1)


# Errors.


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
            lambda: calibration.min_max(axis=-1).update(calibration.min_max().init(), np.ones((2, 3), np.float32)),
            DescriptorError,
            "min_max: axis is -1; it must be a dimension of the input, from 0 to 1",
        ),
        (
            lambda: observed(calibration.moving_average(axis=1), [np.ones((2, n), np.float32) for n in (3, 4)]),
            DescriptorError,
            r"moving_average: axis=1 of the batch has sizes \(4,\), that of the first \(3,\)",
        ),
        (
            lambda: observed(calibration.min_max(), [np.ones(3, np.int32)]),
            DescriptorTypeError,
            "min_max: batch has data type INT32; it must be one of FLOAT32, FLOAT16, BFLOAT16",
        ),
        (
            lambda: observed(OF_HISTOGRAM, [np.ones(3)]),
            DescriptorTypeError,
            "percentile: batch has data type FLOAT64, which",
        ),
        (
            lambda: jax.eval_shape(
                OF_HISTOGRAM.update, OF_HISTOGRAM.init(), jax.ShapeDtypeStruct((2**16, 2**16), np.float32)
            ),
            DescriptorError,
            r"percentile: a batch has 4294967296 elements; it must have less than 2\*\*32",
        ),
        (lambda: calibration.calibrate(calibration.min_max(), []), DescriptorError, "calibrate: there is no batch"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message) as raised:
        call()
    assert type(raised.value) is error


# A data set.


class Activations(NamedTuple):
    image: jax.Array
    layers: list[jax.Array]


def test_calibrate():
    weights = np.random.default_rng(1).normal(size=(CHANNELS, 3)).astype(np.float32)
    chex.clear_trace_counter()

    @chex.assert_max_traces(n=2)  # for the shapes of the states, and for the program
    def network(image):
        hidden = jax.nn.relu(image @ weights)
        return Activations(image, [hidden, hidden.astype(jnp.float16)])

    x = activations()
    outputs = [jax.jit(lambda image: jax.nn.relu(image @ weights))(batch) for batch in x]
    for observer in (calibration.min_max(), calibration.percentile(90, num_bins=BINS)):
        chex.clear_trace_counter()
        ranges = calibration.calibrate(observer, iter(x), network)
        expected = [observed(observer, list(x)), observed(observer, outputs)]
        expected.append(observed(observer, [output.astype(jnp.float16) for output in outputs]))
        first, *rest = map(observer.compute_range, expected)
        assert_equal(ranges, Activations(first, rest))


def test_calibrate_batches():
    """Without a function: trees of batches, the last of which may be smaller."""
    x = activations()
    batches = [{"a": batch, "b": (-batch,)} for batch in (*x[:2], x[2, :3])]
    ranges = calibration.calibrate(calibration.min_max(axis=1), batches)
    together = np.concatenate([x[0], x[1], x[2, :3]])
    assert_equal(ranges["a"], calibration.Range(together.min(0), together.max(0)))
    assert_equal(ranges["b"][0], calibration.Range(-together.max(0), -together.min(0)))


def test_progress(monkeypatch):
    shown = []

    def tqdm(batches, **options):
        shown.append(options)
        return batches

    monkeypatch.setitem(sys.modules, "tqdm", types.SimpleNamespace(tqdm=tqdm))
    expected = calibration.calibrate(calibration.min_max(), activations())
    assert_equal(calibration.calibrate(calibration.min_max(), activations(), progress=True), expected)
    assert shown == [{"desc": "calibrating", "unit": "batch"}]
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(ImportError, match="progress=True needs tqdm: pip install tqdm"):
        calibration.calibrate(calibration.min_max(), activations(), progress=True)
