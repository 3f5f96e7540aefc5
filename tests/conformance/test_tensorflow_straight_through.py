"""`quantize_and_dequantize`, `fake_quantize` and their gradients compared with TensorFlow's, bit for bit."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.sampling import one_in

import jquant
from jquant.cases import samples

from . import raw_ops
from .raw_ops import tensorflow

ranges = functools.partial(raw_ops.ranges, others=[(1e-17, 1e-12), (-1e30, 2e30), (-1e-18, 0), (3, 3), (-3, -3)])
ROUND_MODES = "HALF_TO_EVEN", "HALF_UP"
# signed_input and narrow_range, which has no effect on unsigned integers.
INTEGERS = [(True, False), (True, True), (False, True)]


def inputs(rng: np.random.Generator, low: float, high: float, num_bits: int, count: int) -> np.ndarray:
    """Values in and around the range, half of which are ties of its steps or next to one."""
    num_bits = min(num_bits, 24)  # float32 has no ties of finer steps
    width = float(max(high, 0)) - float(min(low, 0)) or 1.0
    quarter = count // 4
    affine = samples.near_ties(rng, quarter, width / (2**num_bits - 1), 0, 2**num_bits).astype(np.float64) + min(low, 0)
    largest = max(2 ** (num_bits - 1) - 1, 1)
    step = max(abs(low) / 2 ** (num_bits - 1), abs(high) / largest) or 1.0
    symmetric = samples.near_ties(rng, quarter, step, -largest - 1, largest + 1)
    around = rng.uniform(min(low, 0) - 0.1 * width, max(high, 0) + 0.1 * width, count - 2 * quarter)
    x = np.concatenate([affine, symmetric, around]).astype(np.float32)
    bounds = np.float32([low, high])
    neighbours = [np.nextafter(bounds, np.float32(side)) for side in (-np.inf, np.inf)]
    x[-11:] = [np.inf, -np.inf, 0, -0.0, np.nan, *bounds, *np.ravel(neighbours)]
    return samples.without_subnormals(rng.permutation(x))


def assert_same(ours, theirs) -> int:
    """Asserts equality of every bit, where all NaN are equal; returns the number of elements."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert ours.dtype == theirs.dtype == np.float32
    np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(np.signbit(ours) & ~np.isnan(ours), np.signbit(theirs) & ~np.isnan(theirs))
    return ours.size


def their_qdq(x, low, high, *, axis=None, range_given=True, num_bits=8, round_mode="HALF_TO_EVEN", **attributes):
    """TensorFlow's operator. Versions 2 and 4 do not accept an axis with a range, and version 3 only rounds half to even."""
    operands = {"input": x, "input_min": low, "input_max": high}
    attributes = {**attributes, "range_given": range_given}
    if axis is None or not range_given:
        attributes |= {"num_bits": num_bits, "round_mode": round_mode, "axis": -1 if axis is None else axis}
        return tensorflow.raw_ops.QuantizeAndDequantizeV4(**operands, **attributes).numpy()
    if round_mode == "HALF_TO_EVEN":
        return tensorflow.raw_ops.QuantizeAndDequantizeV3(**operands, num_bits=num_bits, axis=axis, **attributes).numpy()
    attributes |= {"num_bits": num_bits, "round_mode": round_mode}
    slices = zip(np.moveaxis(x, axis, 0), low, high, strict=True)
    return np.stack([their_qdq(*operands, **attributes) for operands in slices], axis)


def their_fake(x, low, high, *, axis=None, **attributes):
    if axis is None:
        return tensorflow.raw_ops.FakeQuantWithMinMaxVars(inputs=x, min=low, max=high, **attributes).numpy()
    last = np.moveaxis(x, axis, -1)
    output = tensorflow.raw_ops.FakeQuantWithMinMaxVarsPerChannel(inputs=last, min=low, max=high, **attributes)
    return np.moveaxis(output.numpy(), -1, axis)


def draw_slices(rng: np.random.Generator, count: int, num_bits: int, axis: int):
    """An array with a range for each slice along `axis`, and the bounds."""
    low, high = ranges(rng, count).T
    x = np.stack([inputs(rng, *bounds, num_bits, 500) for bounds in zip(low, high, strict=True)])
    return np.moveaxis(x.reshape(low.size, 10, -1), 0, axis), low, high


@one_in(4, ("round_mode", "signed_input", "narrow_range"), [(mode, *x) for mode in ROUND_MODES for x in INTEGERS])
class TestQuantizeAndDequantize:
    def test_per_tensor(self, signed_input, narrow_range, round_mode, full):
        rng = np.random.default_rng(0)
        options = {"signed_input": signed_input, "narrow_range": narrow_range, "round_mode": round_mode}
        compared = 0
        for num_bits in (1, 2, 4, 8, 16, 31, 61):
            options["num_bits"] = num_bits
            for low, high in ranges(rng, 120 if full else 40):
                x = inputs(rng, low, high, num_bits, 5000 if full else 500)
                theirs = their_qdq(x, low, high, **options)
                compared += assert_same(jquant.quantize_and_dequantize(x, low, high, **options), theirs)
        assert compared == (7 * 140 * 5000 if full else 7 * 60 * 500)

    def test_per_axis(self, signed_input, narrow_range, round_mode):
        rng = np.random.default_rng(1)
        compared = 0
        for num_bits, axis in ((1, 0), (4, 1), (8, 2), (16, 0), (61, 1)):
            x, low, high = draw_slices(rng, 40, num_bits, axis)
            options = {"signed_input": signed_input, "narrow_range": narrow_range, "round_mode": round_mode}
            options |= {"num_bits": num_bits, "axis": axis}
            theirs = their_qdq(x, low, high, **options)
            compared += assert_same(jquant.quantize_and_dequantize(x, low, high, **options), theirs)
        assert compared == 5 * 60 * 500

    def test_without_a_range(self, signed_input, narrow_range, round_mode):
        """The range is that of the values, with and without infinities."""
        rng = np.random.default_rng(2)
        compared = 0
        for num_bits, axis in ((1, 0), (4, None), (8, 1), (8, None), (16, 2), (31, None)):
            options = {"signed_input": signed_input, "narrow_range": narrow_range, "round_mode": round_mode}
            options |= {"num_bits": num_bits, "axis": axis}
            with_infinities, low, high = draw_slices(rng, 40, num_bits, axis or 0)
            with_infinities[np.isnan(with_infinities)] = 0
            for x in (with_infinities, np.where(np.isinf(with_infinities), np.float32(0), with_infinities)):
                bounds = (np.float32(0), np.float32(0)) if axis is None else (low, high)
                theirs = their_qdq(x, *bounds, range_given=False, **options)
                compared += assert_same(jquant.quantize_and_dequantize(x, **options), theirs)
        assert compared == 2 * 6 * 60 * 500


@pytest.mark.parametrize("narrow_range", [False, True])
class TestFakeQuantize:
    def test_per_tensor(self, narrow_range, full):
        rng = np.random.default_rng(3)
        compared = 0
        for num_bits in (2, 3, 4, 8, 12, 16):
            options = {"num_bits": num_bits, "narrow_range": narrow_range}
            for low, high in ranges(rng, 220 if full else 80):
                x = inputs(rng, low, high, num_bits, 10_000 if full else 1000)
                compared += assert_same(jquant.fake_quantize(x, low, high, **options), their_fake(x, low, high, **options))
        assert compared == (6 * 240 * 10_000 if full else 6 * 100 * 1000)

    def test_per_axis(self, narrow_range):
        rng = np.random.default_rng(4)
        compared = 0
        for num_bits, axis in ((2, 0), (3, 1), (4, 2), (8, 0), (12, 1), (16, 2)):
            x, low, high = draw_slices(rng, 160, num_bits, axis)
            options = {"num_bits": num_bits, "narrow_range": narrow_range, "axis": axis}
            compared += assert_same(jquant.fake_quantize(x, low, high, **options), their_fake(x, low, high, **options))
        assert compared == 6 * 180 * 500


def their_qdq_gradients(cotangent, x, low, high, *, axis):
    axis = -1 if axis is None else axis
    gradients = tensorflow.raw_ops.QuantizeAndDequantizeV4Grad(
        gradients=cotangent, input=x, input_min=low, input_max=high, axis=axis
    )
    return [gradient.numpy() for gradient in gradients]


def their_fake_gradients(cotangent, x, low, high, *, axis, **attributes):
    if axis is None:
        gradients = tensorflow.raw_ops.FakeQuantWithMinMaxVarsGradient(
            gradients=cotangent, inputs=x, min=low, max=high, **attributes
        )
        return [gradient.numpy() for gradient in gradients]
    cotangent, x = np.moveaxis(cotangent, axis, -1), np.moveaxis(x, axis, -1)
    gradients = tensorflow.raw_ops.FakeQuantWithMinMaxVarsPerChannelGradient(
        gradients=cotangent, inputs=x, min=low, max=high, **attributes
    )
    for_input, *for_range = (gradient.numpy() for gradient in gradients)
    return [np.moveaxis(for_input, -1, axis), *for_range]


def jitted_gradients(function):
    """The gradients for an input and its bounds, as a function of the cotangent and these."""
    return jax.jit(lambda cotangent, *operands: jax.vjp(function, *operands)[1](cotangent))


def gradient_cases(rng: np.random.Generator, num_bits: int, axis: int | None):
    """Cotangents, inputs and bounds. The cotangents are integers, whose sums are exact in any order."""
    if axis is None:
        for low, high in ranges(rng, 40):
            x = inputs(rng, low, high, num_bits, 500)
            yield rng.integers(-9, 10, x.shape).astype(np.float32), x, low, high
    else:
        x, low, high = draw_slices(rng, 40, num_bits, axis)
        yield rng.integers(-9, 10, x.shape).astype(np.float32), x, low, high


@pytest.mark.parametrize("axis", [None, 0, 1])
class TestGradients:
    @pytest.mark.parametrize(("signed_input", "narrow_range"), INTEGERS)
    def test_quantize_and_dequantize(self, signed_input, narrow_range, axis):
        """Inputs within the original bounds, not the adjusted ones, or equal to one have a gradient; bounds have none."""
        options = {"signed_input": signed_input, "narrow_range": narrow_range, "axis": axis, "num_bits": 4}
        gradients = jitted_gradients(functools.partial(jquant.quantize_and_dequantize, **options))
        compared = 0
        for operands in gradient_cases(np.random.default_rng(5), 4, axis):
            ours, theirs = gradients(*operands), their_qdq_gradients(*operands, axis=axis)
            for our, their in zip(ours, theirs, strict=True):
                np.testing.assert_array_equal(our, their)
                compared += our.size
            assert not np.any(ours[1:])
        assert compared == 60 * 500 + 2 * 60

    @pytest.mark.parametrize(("num_bits", "narrow_range"), [(2, False), (8, True), (16, False)])
    def test_fake_quantize(self, num_bits, narrow_range, axis):
        """The nudged bounds decide what passes; they and their neighbours are among the inputs."""
        options = {"num_bits": num_bits, "narrow_range": narrow_range, "axis": axis}
        gradients = jitted_gradients(functools.partial(jquant.fake_quantize, **options))
        compared, learned = 0, 0
        for cotangent, x, low, high in gradient_cases(np.random.default_rng(6), num_bits, axis):
            nudged = np.nan_to_num(
                their_fake(np.where(x < 0, np.float32(-np.inf), np.float32(np.inf)), low, high, **options)
            )
            choice = np.random.default_rng(7).integers(-1, 5, x.shape)
            neighbours = [np.nextafter(nudged, target) for target in np.float32([-3e38, 3e38])]
            for index, bound in enumerate([nudged, *neighbours]):
                x = np.where(choice == index, samples.without_subnormals(bound), x)
            operands = cotangent, x, low, high
            ours, theirs = gradients(*operands), their_fake_gradients(*operands, **options)
            for our, their in zip(ours, theirs, strict=True):
                np.testing.assert_array_equal(our, their)
                compared += our.size
            learned += np.count_nonzero(ours[1]) + np.count_nonzero(ours[2])
        assert compared == 60 * 500 + 2 * 60
        assert learned > 80


@pytest.mark.parametrize("shape", [*(((1, 2) * 4)[:rank] for rank in range(9)), (0,), (2, 0), (0,) * 8], ids=str)
def test_every_rank(shape):
    """Ranks 0 to 8, and empty arrays."""
    x = np.linspace(-1, 7, np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    low, high = np.float32([-0.7, 6])

    @jax.jit
    def operators(x, low, high):
        return (
            jquant.quantize_and_dequantize(x, low, high),
            jquant.fake_quantize(x, low, high),
            jquant.quantize_and_dequantize(x),
        )

    theirs = their_qdq(x, low, high), their_fake(x, low, high), their_qdq(x, low, high, range_given=False)
    for our, their in zip(operators(x, low, high), theirs, strict=True):
        assert our.shape == their.shape
        assert_same(our, their)


def test_invalid_ranges():
    """NaN, infinite and inverted ranges, which TensorFlow does not check if there is more than one."""
    x = np.float32([-np.inf, -3e38, -7, -2, -0.5, 0, 0.3, 5, 1e30, np.inf, np.nan])
    bounds = list(itertools.product(np.float32([-np.inf, -6, 0, 3, np.inf, np.nan]), repeat=2))
    low, high = map(np.stack, zip(*bounds, strict=True))
    x = np.broadcast_to(x, (len(bounds), x.size))
    for signed_input, narrow_range in INTEGERS:
        options = {"signed_input": signed_input, "narrow_range": narrow_range, "axis": 0}
        ours = jquant.quantize_and_dequantize(x, jnp.asarray(low), jnp.asarray(high), **options)
        assert_same(ours, their_qdq(x, low, high, **options))
    low, high = (bound[np.isfinite(low) & np.isfinite(high)] for bound in (low, high))
    assert np.any(high < low)
    for narrow_range in (False, True):
        options = {"narrow_range": narrow_range, "axis": 0}
        ours = jquant.fake_quantize(x[: low.size], jnp.asarray(low), jnp.asarray(high), **options)
        assert_same(ours, their_fake(x[: low.size], low, high, **options))


ERRORS = tensorflow.errors.InvalidArgumentError, ValueError


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("num_bits is 0", {"num_bits": 0}),
        ("num_bits is 62", {"num_bits": 62}),
        ("num_bits is 63", {"num_bits": 63, "signed_input": False}),
        ("unknown round_mode", {"round_mode": "HALF_DOWN"}),
        ("round_mode is HALF_AWAY_FROM_ZERO", {"round_mode": "HALF_AWAY_FROM_ZERO"}),
        ("input_max, 0.0, is less than input_min", {"input_min": 1.0, "input_max": 0.0}),
        ("axis is 2", {"axis": 2, "range_given": False}),
        ("axis is -2", {"axis": -2, "range_given": False}),
        ("input_min has shape", {"axis": 1, "input_min": [0.0] * 3, "input_max": [1.0, 1]}),
        ("input_max has shape", {"axis": 1, "input_min": [0.0, 0], "input_max": [1.0] * 3}),
    ],
)
def test_errors_of_quantize_and_dequantize_are_shared(message, arguments):
    arguments = {"input_min": -1.0, "input_max": 1.0} | arguments
    x, low, high = np.zeros((3, 2), np.float32), *(np.float32(arguments.pop(f"input_{end}")) for end in ("min", "max"))
    range_given = arguments.pop("range_given", True)
    with pytest.raises(jquant.DescriptorError, match=message):
        jquant.quantize_and_dequantize(x, *(low, high) * range_given, **arguments)
    with pytest.raises(ERRORS):
        their_qdq(x, low, high, range_given=range_given, **arguments)


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("num_bits is 1;", {"num_bits": 1}),
        ("num_bits is 17;", {"num_bits": 17}),
        ("min has shape", {"axis": 1, "min": [0.0] * 3, "max": [1.0, 1]}),
        ("max has shape", {"axis": 1, "min": [0.0, 0], "max": [1.0] * 3}),
        ("min has shape", {"min": [0.0, 0]}),
        ("max has shape", {"max": [0.0, 0]}),
    ],
)
def test_errors_of_fake_quantize_are_shared(message, arguments):
    arguments = {"min": -1.0, "max": 1.0} | arguments
    x, low, high = np.zeros((3, 2), np.float32), np.float32(arguments.pop("min")), np.float32(arguments.pop("max"))
    with pytest.raises(jquant.DescriptorError, match=message):
        jquant.fake_quantize(x, low, high, **arguments)
    with pytest.raises(ERRORS):
        their_fake(x, low, high, **arguments)


class TestDeviations:
    """Where results differ: TensorFlow's value, and jquant's."""

    LOW, HIGH = np.float32([-6, 6])

    def test_nan_without_a_range(self):
        """Whether TensorFlow's minimum and maximum ignore a NaN depends on its position."""
        theirs = []
        for position in range(40):
            x = np.linspace(-3, 5, 40, dtype=np.float32)
            x[position] = np.nan
            np.testing.assert_array_equal(jquant.quantize_and_dequantize(x), np.nan)
            theirs.append(np.isnan(their_qdq(x, self.LOW, self.HIGH, range_given=False)).sum())
        assert 1 in theirs

    def test_gradient_without_a_range(self):
        """TensorFlow's gradient uses the bounds, which its operator ignored."""
        x, ones = np.float32([-7, 1, 9]), np.ones(3, np.float32)
        with tensorflow.GradientTape() as tape:
            tensor = tensorflow.constant(x)
            tape.watch(tensor)
            output = tensorflow.raw_ops.QuantizeAndDequantizeV4(
                input=tensor, input_min=self.LOW, input_max=self.HIGH, range_given=False
            )
        np.testing.assert_array_equal(tape.gradient(output, tensor), [0, 1, 0])
        np.testing.assert_array_equal(jax.vjp(jquant.quantize_and_dequantize, x)[1](ones)[0], [1, 1, 1])

    @pytest.mark.parametrize("cotangent", [np.nan, np.inf])
    def test_zero_gradients(self, cotangent):
        """TensorFlow multiplies by 0, with NaN for a cotangent that is not finite; jquant selects 0."""
        x, cotangent = np.float32([-7, 7]), np.full(2, cotangent, np.float32)
        operands = cotangent, x, self.LOW, self.HIGH
        for_input, for_low, for_high = their_fake_gradients(*operands, axis=None)
        np.testing.assert_array_equal([*for_input, for_low, for_high], np.nan)
        for_input, for_low, for_high = jitted_gradients(jquant.fake_quantize)(*operands)
        np.testing.assert_array_equal([*for_input, for_low, for_high], [0, 0, cotangent[0], cotangent[1]])
        np.testing.assert_array_equal(their_qdq_gradients(*operands, axis=None)[0], np.nan)
        np.testing.assert_array_equal(jitted_gradients(jquant.quantize_and_dequantize)(*operands)[0], 0)

    def test_inverted_ranges(self):
        """TensorFlow accepts them, except for a single one of QuantizeAndDequantizeV4; jquant does so if they are traced."""
        x, low, high = np.float32([[-7], [0], [7]]), np.float32([6]), np.float32([-6])
        for ours, theirs in (
            (functools.partial(jquant.quantize_and_dequantize, axis=1), functools.partial(their_qdq, axis=1)),
            (functools.partial(jquant.fake_quantize, axis=1), functools.partial(their_fake, axis=1)),
            (jquant.fake_quantize, lambda x, low, high: their_fake(x, low[0], high[0])),
        ):
            with pytest.raises(jquant.DescriptorError, match="is less than"):
                ours(x, low, high)
            assert_same(jax.jit(ours)(x, low, high), theirs(x, low, high))

    def test_axis_with_a_range(self):
        """QuantizeAndDequantizeV4 requires scalar bounds then, and its shape function requires vectors."""
        x, low, high = np.float32([[-7, 0], [0.3, 7]]), np.float32([-6, -1]), np.float32([6, 7])
        for bounds, message in (((low, high), "must be a scalar"), ((low[0], high[0]), "must be rank 1")):
            with pytest.raises(tensorflow.errors.InvalidArgumentError, match=message):
                tensorflow.raw_ops.QuantizeAndDequantizeV4(
                    input=x, input_min=bounds[0], input_max=bounds[1], axis=1, range_given=True
                )
        slices = [their_qdq(*operands) for operands in zip(x.T, low, high, strict=True)]
        assert_same(jquant.quantize_and_dequantize(x, low, high, axis=1), np.stack(slices, axis=1))

    def test_axis_minus_1(self):
        """TensorFlow's operator takes it to mean no axis; jquant does not accept it."""
        x, low, high = np.float32([[-7, 0, 1]]), np.float32(-6), np.float32(6)
        theirs = tensorflow.raw_ops.QuantizeAndDequantizeV4(
            input=x, input_min=low, input_max=high, range_given=True, axis=-1
        )
        assert_same(jquant.quantize_and_dequantize(x, low, high), theirs)
        for operator in (jquant.quantize_and_dequantize, jquant.fake_quantize):
            with pytest.raises(jquant.DescriptorError, match="axis is -1"):
                operator(x, low, high, axis=-1)

    def test_float64(self):
        x = np.float64([-7, 0.3, 1])
        assert their_qdq(x, np.float64(-6), np.float64(6)).dtype == np.float64
        with pytest.raises(jquant.DescriptorTypeError, match="FLOAT64"):
            jquant.quantize_and_dequantize(x, -6, 6)
