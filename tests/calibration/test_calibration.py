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
from jax import export, lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.comparison import assert_equal
from support.histograms import all_edges, close_to_least, divergences, observed, of_counts, wide_counts
from support.layouts import collectives, kinds
from support.sampling import one_in

from jquant import DescriptorError, DescriptorTypeError, calibration, reference
from jquant.calibration import arithmetic
from jquant.calibration.histogram import edges
from jquant.cases import samples

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


def test_axis_from_the_end():
    x = activations()
    for constructor in (calibration.min_max, calibration.moving_average):
        for axis in (0, 1):
            expected = observed(constructor(axis=axis), x)
            assert_bits(observed(constructor(axis=axis - 2), x), expected)
    observer = calibration.min_max(axis=-1)  # the last one, whatever the rank
    assert_bits(observed(observer, [x]), observed(observer, x))


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
    zeros = np.float32([-0.0, -0.0])
    assert_bits(observed(observer, [zeros]), calibration.Range(*zeros))  # not averaged with anything


@one_in(4, "name", OBSERVERS)
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


@pytest.mark.filterwarnings("ignore:.*the bins are .* wide")  # of percentile(0), which leaves one bin
@one_in(3, "magnitude", [10, 2**31, 2**50], first=1)
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


@one_in(
    4,
    ("kind", "integers"),
    itertools.product(["both", "positive", "lopsided"], [("int4", False), ("uint4", True), ("int8", False)]),
)
def test_mean_squared_error(kind, integers):
    """No range of a search in NumPy is better: of the histogram's bins at all, of the numbers by more than 1 per cent."""
    (dtype, symmetric), x, bins = integers, skewed(kind), 4096
    dtype = jnp.dtype(dtype)
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


@one_in(5, ("kind", "quantized"), itertools.product(["both", "positive", "lopsided"], [32, 100, BINS]), first=1)
def test_entropy(kind, quantized):
    """The least divergence, but for what float32 cannot tell apart."""
    observer = calibration.entropy(num_bins=BINS, num_quantized_bins=quantized)
    state = observed(observer, [skewed(kind)])
    assert tuple(observer.compute_range(state)) in map(tuple, close_to_least(divergences(state, quantized)))


@pytest.mark.gate
def test_entropy_of_few_numbers():
    """Where ranges hold none, or no quantized bin is left of them."""
    rng, bins, count = np.random.default_rng(0), 16, 100
    counts = rng.integers(0, 50, (count, bins)) ** rng.integers(0, 4, (count, 1))
    counts[rng.random(counts.shape) < rng.random((count, 1))] = 0
    counts[:, 0] += 1
    states = [of_counts(each.tolist(), -3.9, 3.9) for each in counts]
    compute_range = jax.jit(jax.vmap(calibration.entropy(num_bins=bins, num_quantized_bins=2).compute_range))
    ranges = compute_range(jax.tree.map(lambda *leaves: jnp.stack(leaves), *states))
    for state, *bounds in zip(states, *map(np.asarray, ranges), strict=True):
        assert tuple(bounds) in map(tuple, close_to_least(divergences(state, 2)))


@pytest.mark.gate
@pytest.mark.parametrize(("bins", "quantized"), [(4096, 66), (8192, 62), (8192, 200)])
def test_entropy_of_many_bins(bins, quantized):
    """The search in two steps, in NumPy: every n-th range, and those around the best of them."""
    step, least, zero = bins // 2048, quantized // 2, bins // 2
    observer = calibration.entropy(num_bins=bins, num_quantized_bins=quantized)
    state = observed(observer, [skewed("both")])

    def best(reaches):
        tried = divergences(state, quantized, reaches)
        index = np.argmin([divergence for divergence, _ in tried])
        return reaches[index], tried[index][1]

    coarse, _ = best(range(least + (zero - least) % step, zero + 1, step))
    fine, expected = best(range(max(least, coarse - step + 1), min(zero, coarse + step - 1) + 1))
    assert fine != coarse  # or else nothing would be seen of the second step
    assert_equal(tuple(observer.compute_range(state)), tuple(expected))


@pytest.mark.parametrize(
    ("bins", "quantized", "tried"),
    [(256, 128, [65]), (2048, 128, [961]), (4096, 128, [993, 3]), (65536, 128, [1023, 63]), (65536, 65536, [1, 63])],
)
def test_entropy_tries_about_a_thousand_ranges(bins, quantized, tried):
    """However many bins there are: a try takes as many steps as there are bins."""
    observer = calibration.entropy(num_bins=bins, num_quantized_bins=quantized)
    program = jax.make_jaxpr(observer.compute_range)(observer.init())
    assert list(trips(program.jaxpr)) == [bins, *tried]  # the first one adds the counts up


def trips(jaxpr):
    """How often each loop runs, of those that are in no other loop."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            yield equation.params["length"]
        elif "jaxpr" in equation.params:
            yield from trips(equation.params["jaxpr"])


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
    assert_equal(jax.jit(arithmetic.pairwise_sum)(x), expected[0])


# Programs.


@one_in(8, "name", OBSERVERS, first=1)
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
@kinds
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


@one_in(
    2,
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


@pytest.mark.gate
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


@pytest.mark.gate
@one_in(4, "name", ["min_max, axis", "percentile, symmetric", "entropy", "mean_squared_error"], first=2)
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


def test_numbers_of_numpy():
    """They are the same arguments as Python's."""
    assert calibration.min_max(axis=np.int64(-1), axis_name=()) == calibration.min_max(axis=-1)
    assert calibration.moving_average(np.float32(0.5)) == calibration.moving_average(0.5)
    assert calibration.moving_average(np.int8(1)) == calibration.moving_average(1.0)
    given = calibration.percentile(np.float64(90), symmetric=np.True_, num_bins=np.uint16(64))
    assert given == calibration.percentile(90, symmetric=True, num_bins=64)
    given = calibration.entropy(num_bins=np.int32(64), num_quantized_bins=np.int8(8))
    assert given == calibration.entropy(num_bins=64, num_quantized_bins=8)
    given = calibration.mean_squared_error("INT8", symmetric=np.True_, narrow_range=np.False_)
    assert given == calibration.mean_squared_error("INT8", symmetric=True)


# Errors.


class Unhashable:
    """A network that `jax.jit` cannot tell from another one."""

    __hash__ = None

    def __call__(self, x):
        return x


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
            lambda: observed(calibration.moving_average(axis=1), [np.ones((2, n), np.float32) for n in (3, 4)]),
            DescriptorError,
            r"moving_average: state has ranges of shape \(3,\); with axis=1, a batch of shape \(2, 4\) needs \(4,\)",
        ),
        (
            lambda: calibration.min_max().update(calibration.min_max(axis=0).init(np.ones(3)), np.ones(3, np.float32)),
            DescriptorError,
            r"min_max: state has ranges of shape \(3,\); with axis=None, a batch of shape \(3,\) needs \(\)",
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
            r"percentile: a batch has 4294967296 elements; it must have fewer than 2\*\*32",
        ),
        (lambda: calibrated([]), DescriptorError, "calibrate: batches is empty"),
        (lambda: calibrated([None]), DescriptorError, "calibrate: batches contains None, which holds no arrays"),
        (lambda: calibrated([{"a": []}]), DescriptorError, "calibrate: batches contains {'a': ..}, which holds no arrays"),
        (
            lambda: calibrated(["text"]),
            DescriptorTypeError,
            "whose batch is .text.; it must be an array",
        ),
        (
            lambda: calibrated([np.ones(3, np.float32), {"a": ["text"]}]),
            DescriptorTypeError,
            r"calibrate: batches contains a batch whose batch\['a'\]\[0\] is 'text'; it must be an array",
        ),
        (lambda: calibrated([np.ma.masked_array(np.ones(3))]), DescriptorTypeError, "whose batch is masked_array"),
        (
            lambda: calibrated([jax.ShapeDtypeStruct((3,), np.float32)]),
            DescriptorTypeError,
            "batch is ShapeDtypeStruct",
        ),
        (
            lambda: calibrated([np.ones(3, np.int32)]),
            DescriptorTypeError,
            r"calibrate: activations\(batch\) has data type INT32; it must be one of FLOAT32, FLOAT16, BFLOAT16",
        ),
        (
            lambda: calibrated([np.ones(3, np.float32)], lambda x: {"a": [x, x > 0]}),
            DescriptorTypeError,
            r"calibrate: activations\(batch\)\['a'\]\[1\] has data type BOOL; it must be one of FLOAT32",
        ),
        (
            lambda: calibrated([np.ones(3, np.float32)], lambda x: [x, "text"]),
            DescriptorTypeError,
            r"calibrate: activations\(batch\)\[1\] must be an array or a Python int or float, not str",
        ),
        (
            lambda: calibrated([np.ones(3, np.float32)], lambda x: None),
            DescriptorError,
            r"calibrate: activations\(batch\) is a PyTreeDef\(None\), which holds no arrays",
        ),
        (
            lambda: calibrated([{"a": np.ones(3, np.float32)}, {"b": np.ones(3, np.float32)}]),
            DescriptorError,
            r"calibrate: activations\(batch\) has structure PyTreeDef\({'b': \*}\); for the first batch it was .*'a'",
        ),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message) as raised:
        call()
    assert type(raised.value) is error


def calibrated(batches, *activations):
    return calibration.calibrate(calibration.min_max(), batches, *activations)


X = np.ones((2, CHANNELS), np.float32)
NO_INTEGERS = (64.0, True, "64", None, np.array(64), jnp.int32(64), (64,))
NO_NUMBERS = ("0.5", True, np.True_, None, np.array(0.5), jnp.float32(0.5), 0.5j)
NO_BOOLEANS = ("no", 1, 0.0, None, np.array(True))
NO_AXIS_NAMES = (1, ["x"], ("x", 1), {"x"}, np.array("x"))
# Of each argument, a value that is right (which a cache then holds), and some of other types.
ARGUMENTS = {
    "min_max: axis": (lambda value: calibration.min_max(axis=value), 1, (True, 1.0, "1", jnp.array(1), np.array(1), [1])),
    "min_max: axis_name": (lambda value: calibration.min_max(axis_name=value), "x", NO_AXIS_NAMES),
    "moving_average: averaging_constant": (calibration.moving_average, 1, NO_NUMBERS),
    "moving_average: axis": (lambda value: calibration.moving_average(axis=value), 0, (False, 0.0, "0", jnp.array(0))),
    "moving_average: axis_name": (lambda value: calibration.moving_average(axis_name=value), None, NO_AXIS_NAMES),
    "percentile: percentile": (calibration.percentile, 1, NO_NUMBERS),
    "percentile: symmetric": (lambda value: calibration.percentile(symmetric=value), True, NO_BOOLEANS),
    "percentile: num_bins": (lambda value: calibration.percentile(num_bins=value), 64, NO_INTEGERS),
    "percentile: axis_name": (lambda value: calibration.percentile(axis_name=value), ("x", "y"), NO_AXIS_NAMES),
    "entropy: num_bins": (lambda value: calibration.entropy(num_bins=value, num_quantized_bins=8), 64, NO_INTEGERS),
    "entropy: num_quantized_bins": (lambda value: calibration.entropy(num_quantized_bins=value), 64, NO_INTEGERS),
    "entropy: axis_name": (lambda value: calibration.entropy(axis_name=value), "x", NO_AXIS_NAMES),
    "dtype": (calibration.mean_squared_error, "INT8", (None, 3, "text", np.ones(2, np.int8))),
    "mean_squared_error: symmetric": (
        lambda value: calibration.mean_squared_error("INT8", symmetric=value),
        True,
        NO_BOOLEANS,
    ),
    "mean_squared_error: narrow_range": (
        lambda value: calibration.mean_squared_error("INT8", narrow_range=value),
        True,
        NO_BOOLEANS,
    ),
    "mean_squared_error: num_bins": (
        lambda value: calibration.mean_squared_error("INT8", num_bins=value),
        64,
        NO_INTEGERS,
    ),
    "mean_squared_error: axis_name": (
        lambda value: calibration.mean_squared_error("INT8", axis_name=value),
        "x",
        NO_AXIS_NAMES,
    ),
    "calibrate: observer": (
        lambda value: calibration.calibrate(value, [X]),
        calibration.min_max(),
        (None, "min_max", calibration.min_max, calibration.Range(0, 1)),
    ),
    "calibrate: batches": (calibrated, [X], (None, 3, np.float32(3), jnp.float32(3), lambda: [X])),
    "calibrate: activations": (lambda value: calibrated([X], value), abs, (None, 3, "text", Unhashable())),
    "calibrate: progress": (
        lambda value: calibration.calibrate(calibration.min_max(), [X], progress=value),
        False,
        NO_BOOLEANS,
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
            OF_HISTOGRAM.init(),
        ),
    ),
    "min_max: state": (
        calibration.min_max(axis=0).compute_range,
        calibration.min_max(axis=0).init(X),
        (None, {}, calibration.Range(X[0], None), calibration.Range(X[0], X[0, :2]), OF_HISTOGRAM.init()),
    ),
    **{
        f"percentile: state, {name}": (
            function,
            OF_HISTOGRAM.init(),
            (
                *(None, 3, calibration.min_max().init(), tuple(OF_HISTOGRAM.init())),
                calibration.percentile(num_bins=BINS // 2).init(),
                OF_HISTOGRAM.init()._replace(counts=(np.zeros(BINS, np.int32),) * 2),
                OF_HISTOGRAM.init()._replace(counts=list(OF_HISTOGRAM.init().counts)),
                jax.tree.map(lambda leaf: leaf[None], OF_HISTOGRAM.init()),
            ),
        )
        for name, function in (
            ("update", lambda state: OF_HISTOGRAM.update(state, X)),
            ("range", OF_HISTOGRAM.compute_range),
        )
    },
}


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_types_of_arguments(argument):
    function, right, others = ARGUMENTS[argument]
    function(right)
    for other in others:
        with pytest.raises(DescriptorTypeError, match=f"^{argument.split(',')[0]} is "):
            function(other)


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
    assert_equal(calibration.calibrate(calibration.min_max(), iter(activations()), progress=True), expected)
    given = {"desc": "calibrating", "unit": "batch"}
    assert shown == [given | {"total": BATCHES}, given | {"total": BATCHES}]  # an iterator of an array knows its length
    assert_equal(calibration.calibrate(calibration.min_max(), (x for x in activations()), progress=True), expected)
    assert shown[2:] == [given | {"total": None}]
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(ImportError, match="progress=True needs tqdm: pip install tqdm"):
        calibration.calibrate(calibration.min_max(), activations(), progress=True)
