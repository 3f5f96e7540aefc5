"""`dequantize` and requantization compared with TensorFlow, bit for bit, and each deviation in a test of its own."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.comparison import assert_equal

import jquant
from jquant.cases import samples

from . import raw_ops
from .raw_ops import TYPES, tensorflow

ranges = functools.partial(raw_ops.ranges, others=[(1e-17, 1e-12), (-1e20, 2e20), (-1e-18, 0), (3, 3), (-3, -3)])
ROUNDS_TO_2_31 = 2**31 - 64  # the smallest integer that float32 rounds to 2**31


def quantized(x, dtype: str):
    """Integers as a tensor of a quantized type."""
    return tensorflow.bitcast(tensorflow.constant(x), getattr(tensorflow, dtype))


def plain(tensors) -> list[np.ndarray]:
    return [raw_ops.plain(tensor) for tensor in tensors]


def accumulators(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """32-bit integers of every magnitude, including the extreme ones."""
    x = samples.integers(rng, np.int32, *shape) >> rng.integers(0, 31, shape, np.int32)
    x.flat[:6] = -(2**31), 2**31 - 1, 0, 1, -1, ROUNDS_TO_2_31
    return x


def their_dequantize(x, low, high, dtype, *, axis=None, output_dtype="float32", **attributes):
    axis = -1 if axis is None else axis
    output_dtype = getattr(tensorflow, output_dtype)
    output = tensorflow.raw_ops.Dequantize(
        input=quantized(x, dtype), min_range=low, max_range=high, axis=axis, dtype=output_dtype, **attributes
    )
    return output.numpy()


class TestDequantize:
    @pytest.mark.parametrize("narrow_range", [False, True])
    @pytest.mark.parametrize("mode", ["MIN_COMBINED", "MIN_FIRST", "SCALED"])
    @pytest.mark.parametrize("dtype", TYPES)
    def test_per_tensor(self, dtype, mode, narrow_range):
        rng = np.random.default_rng(0)
        attributes = {"mode": mode, "narrow_range": narrow_range}
        x = samples.integers(rng, TYPES[dtype], 5000)
        x[:4] = np.iinfo(x.dtype).min, np.iinfo(x.dtype).max, 0, 1
        if dtype == "qint32":
            x[4:2500] >>= rng.integers(0, 31, 2496, np.int32)
        compared = 0
        for low, high in ranges(rng, 20):
            theirs = their_dequantize(x, low, high, dtype, **attributes)
            kept = np.full(x.shape, True)
            if (dtype, mode) == ("qint32", "SCALED"):  # larger integers are a deviation, tested below
                kept = x < ROUNDS_TO_2_31
            assert_equal(np.asarray(jquant.dequantize(x, low, high, **attributes))[kept], theirs[kept])
            compared += np.count_nonzero(kept)
        assert compared >= 40 * 4990

    @pytest.mark.parametrize("mode", ["MIN_COMBINED", "SCALED"])
    @pytest.mark.parametrize("dtype", TYPES)
    def test_per_axis(self, dtype, mode):
        rng = np.random.default_rng(1)
        low, high = ranges(rng, 20).T
        for axis, narrow_range in ((0, False), (1, True), (2, False)):
            x = np.moveaxis(samples.integers(rng, TYPES[dtype], 40, 10, 50), 0, axis)
            attributes = {"mode": mode, "narrow_range": narrow_range, "axis": axis}
            theirs = their_dequantize(x, low, high, dtype, **attributes)
            assert_equal(jquant.dequantize(x, low, high, **attributes), theirs)

    @pytest.mark.parametrize("dtype", TYPES)
    def test_bfloat16(self, dtype):
        rng = np.random.default_rng(2)
        x = samples.integers(rng, TYPES[dtype], 5000)
        for low, high in ranges(rng, 20):
            theirs = their_dequantize(x, low, high, dtype, output_dtype="bfloat16")
            assert_equal(jquant.dequantize(x, low, high, dtype="bfloat16"), theirs)

    def test_axis_of_size_1(self):
        x, low, high = np.int8([[-128], [5]]), np.float32([-1.3]), np.float32([2.9])
        for mode in ("MIN_COMBINED", "MIN_FIRST", "SCALED"):
            theirs = their_dequantize(x, low, high, "qint8", mode=mode, axis=1)
            assert_equal(jquant.dequantize(x, low, high, mode=mode, axis=1), theirs)

    @pytest.mark.parametrize(
        ("message", "arguments"),
        [
            ("unknown mode", {"mode": "MIN_LAST"}),
            ("axis is 2", {"axis": 2, "bounds": ([0.0, 0], [1.0, 1])}),
            ("min_range has shape", {"bounds": ([0.0, 0], 1.0)}),
            ("max_range has shape", {"bounds": (0.0, [1.0, 1])}),
            ("min_range has shape", {"axis": 1, "bounds": (0.0, 1.0)}),
            ("MIN_FIRST", {"mode": "MIN_FIRST", "axis": 1, "bounds": ([0.0, 0], [1.0, 1])}),
            ("BFLOAT16", {"mode": "SCALED", "dtype": "bfloat16"}),
            ("FLOAT16", {"dtype": "float16"}),
        ],
    )
    def test_errors_are_shared(self, message, arguments):
        low, high = map(np.float32, arguments.pop("bounds", (0.0, 1.0)))
        x = np.zeros((3, 2), np.uint8)
        with pytest.raises(jquant.DescriptorError, match=message):
            jquant.dequantize(x, low, high, **arguments)
        arguments["output_dtype"] = arguments.pop("dtype", "float32")
        errors = tensorflow.errors
        with pytest.raises((errors.InvalidArgumentError, errors.UnimplementedError, ValueError)):
            their_dequantize(x, low, high, "quint8", **arguments)


def their_requantize(x, *bounds, dtype):
    names = "input_min", "input_max", "requested_output_min", "requested_output_max"
    operands = dict(zip(names, bounds, strict=True))
    return plain(
        tensorflow.raw_ops.Requantize(input=quantized(x, "qint32"), out_type=getattr(tensorflow, dtype), **operands)
    )


def wraps(x, low, high, new_low, new_high):
    """Whether TensorFlow's product needs more than 64 bits, for each integer."""
    scale = 255.0 * 2**16 * np.float64(high - low) / (np.float64(new_high - new_low) or np.inf)
    return abs(x.astype(np.float32)) * scale >= 2.0**63


def requested_ranges(low, high) -> list[tuple[np.float32, np.float32]]:
    """Ranges that include 0, from a thousandth of a range to twice its width, and empty ones."""
    low, high = np.minimum(low, np.float32(0)), abs(high)
    fractions = [(1, 1), (0.3, 0.7), (0, 0.01), (1e-3, 2e-3), (0, 1e-3), (2, 1.5), (1, 0), (0, 0)]
    return [(-np.float32(abs(low) * a), np.float32(high * b)) for a, b in fractions]


class TestRequantize:
    @pytest.mark.parametrize("dtype", ["quint8", "qint8"])
    def test_values(self, dtype):
        rng = np.random.default_rng(3)
        compared = 0
        for low, high in ranges(rng, 30):
            x = accumulators(rng, 2600)
            for bounds in requested_ranges(low, high):
                ours = jquant.requantize(x, low, high, *bounds, dtype=dtype)
                theirs = their_requantize(x, low, high, *bounds, dtype=dtype)
                assert_equal(list(ours[1:]), theirs[1:])
                kept = ~wraps(x, low, high, *bounds) if dtype == "quint8" else np.full(x.shape, True)
                np.testing.assert_array_equal(np.asarray(ours.output)[kept], theirs[0][kept])
                compared += np.count_nonzero(kept)
        assert compared >= 1_000_000

    def test_rounding(self):
        """Ties of the fixed-point arithmetic and their neighbours."""
        rng = np.random.default_rng(4)
        for low, high in ranges(rng, 60):
            new_low, new_high = -np.float32(abs(low) * 1e-3), np.float32(abs(high) * 1e-3)
            if new_high == new_low or low == high:
                continue
            step = np.float64(new_high - new_low) / 255 * 2**32 / np.float64(high - low)
            center = np.float64(-(low + high)) / 2 / np.float64(high - low) * 2**32
            near = center + (np.arange(256) - 0.5) * step + np.float64(new_low) * 2**32 / np.float64(high - low)
            near = np.clip(near[:, None] + np.arange(-3, 4), -(2**31), 2**31 - 1).astype(np.int32)
            kept = ~wraps(near, low, high, new_low, new_high)
            theirs, *_ = their_requantize(near, low, high, new_low, new_high, dtype="quint8")
            ours = np.asarray(jquant.requantize(near, low, high, new_low, new_high, dtype="quint8").output)
            np.testing.assert_array_equal(ours[kept], theirs[kept])

    def test_scales_that_float64_rounds(self):
        """Widths that are as different as they can be without wrapping, so that float64 rounds the quotients."""
        rng = np.random.default_rng(5)
        compared = 0
        for exponent in np.linspace(1, 36, 200):
            new_low, new_high = np.float32(rng.uniform([-1, 0.1], [0, 1]))
            low, high = np.float32(2.0**exponent * rng.uniform([-1, 0.1], [0, 1]))
            x = np.arange(-30, 31, dtype=np.int32) + np.int32(rng.integers(-5, 5))
            center = np.float64(low + high) / 2 / np.float64(high - low) * 2.0**32
            x = np.concatenate([x, np.clip(x - center, -(2**31), 2**31 - 1).astype(np.int32)])
            kept = ~wraps(x, low, high, new_low, new_high)
            ours = np.asarray(jquant.requantize(x, low, high, new_low, new_high, dtype="quint8").output)
            theirs, *_ = their_requantize(x, low, high, new_low, new_high, dtype="quint8")
            np.testing.assert_array_equal(ours[kept], theirs[kept])
            compared += np.count_nonzero(kept)
        assert compared > 12_000

    @pytest.mark.parametrize(
        ("message", "bounds"),
        [
            ("requested_output_min is 0.5", (0.0, 1.0, 0.5, 1.0)),
            ("requested_output_min is nan", (0.0, 1.0, np.nan, 1.0)),
            ("requested_output_max, -2.0, is less than requested_output_min, -1.0", (0.0, 1.0, -1.0, -2.0)),
            ("requested_output_max has shape", (0.0, 1.0, -1.0, [1.0, 1])),
            ("input_min has shape", ([0.0, 1], 1.0, -1.0, 1.0)),
        ],
    )
    def test_errors_are_shared(self, message, bounds):
        bounds = tuple(map(np.float32, bounds))
        with pytest.raises(jquant.DescriptorError, match=message):
            jquant.requantize(np.zeros(3, np.int32), *bounds, dtype="quint8")
        with pytest.raises(tensorflow.errors.InvalidArgumentError):
            their_requantize(np.zeros(3, np.int32), *bounds, dtype="quint8")


class TestActualRange:
    """RequantizationRange, and QuantizeDownAndShrinkRange, which combines it with Requantize."""

    def test_values(self):
        rng = np.random.default_rng(6)
        compared = 0
        for low, high in ranges(rng, 40):
            x = accumulators(rng, 5600)
            for index, values in enumerate((x, x >> 9, abs(x >> 1), -abs(x >> 3) - 77, x[:0])):
                operands = {"input": quantized(values, "qint32"), "input_min": low, "input_max": high}
                theirs = plain(tensorflow.raw_ops.RequantizationRange(**operands))
                assert_equal(list(jquant.requantization_range(values, low, high)), theirs)
                if index != 1:
                    theirs = plain(tensorflow.raw_ops.QuantizeDownAndShrinkRange(**operands, out_type=tensorflow.quint8))
                    assert_equal(list(jquant.quantize_down_and_shrink_range(values, low, high)), theirs)
                    compared += values.size
        assert compared == 60 * 5600 * 3

    def test_many_ranges(self):
        """Ranges far from 0 and around it, each with one integer, some of which represent nearly 0."""
        rng = np.random.default_rng(7)
        ours = jax.jit(jax.vmap(jquant.requantization_range))
        count = 4000
        bounds = rng.normal(size=(2, count)) * 10.0 ** rng.integers(-9, 10, (2, count))
        low, high = np.sort(bounds.astype(np.float32), axis=0)
        high[::7] = np.nextafter(low[::7], np.float32(np.inf))  # as narrow as can be
        high[::5] = -low[::5]
        low, high = np.minimum(low, high), np.maximum(low, high)
        x = accumulators(rng, count, 1)
        x[::3, 0] = rng.integers(-99, 99, x[::3, 0].shape)
        with np.errstate(all="ignore"):
            zeros = np.nan_to_num(-(np.float64(low) + high) / 2 / (np.float64(high) - low) * 2**32)
        x[::4, 0] = np.clip(zeros, -(2**31), 2**31 - 1).astype(np.int32)[::4]
        few_bits = slice(1, None, 6)  # integers of few bits that represent nearly 0: ties in float64
        low[few_bits] = -abs(low[few_bits])
        high[few_bits], x[few_bits] = -low[few_bits] / 3, 2**30
        operator = tensorflow.raw_ops.RequantizationRange
        theirs = [
            plain(operator(input=quantized(integer, "qint32"), input_min=input_min, input_max=input_max))
            for integer, input_min, input_max in zip(x, low, high, strict=True)
        ]
        their_min, their_max = map(np.stack, zip(*theirs, strict=True))
        our_min, our_max = map(np.asarray, ours(x, low, high))
        np.testing.assert_array_equal(our_min, their_min)
        np.testing.assert_array_equal(our_max, their_max)


def channel_ranges(rng: np.random.Generator, count: int):
    bounds = ranges(rng, 100)
    return bounds[rng.integers(0, len(bounds), count)].T


class TestPerChannel:
    def test_range(self):
        rng = np.random.default_rng(8)
        for count, clip in itertools.product((1, 3, 16), (np.inf, 6.0, 1e-3, 0.0, -1.0)):
            for shift in range(12):
                low, high = channel_ranges(rng, count)
                x = accumulators(rng, 2, 3, 7, count)
                x = np.clip(x, -ROUNDS_TO_2_31 + 1, ROUNDS_TO_2_31 - 1) >> shift  # others are a deviation, tested below
                x = abs(x) if shift % 3 == 0 else x
                operands = {"input": quantized(x, "qint32"), "input_min": low, "input_max": high}
                theirs = plain(tensorflow.raw_ops.RequantizationRangePerChannel(**operands, clip_value_max=clip))
                assert_equal(list(jquant.requantization_range_per_channel(x, low, high, clip_value_max=clip)), theirs)

    @pytest.mark.parametrize("dtype", ["quint8", "qint8"])
    def test_values(self, dtype):
        rng = np.random.default_rng(9)
        compared = 0
        for new_low, new_high in ranges(rng, 30):
            for count in (1, 3, 16):
                low, high = channel_ranges(rng, count)
                bounds = (np.float32(-abs(new_low) - 1e-30), abs(new_high))
                x = accumulators(rng, 5, 10, 35, count)
                theirs = their_requantize_per_channel(x, low, high, *bounds, dtype=dtype)
                assert_equal(list(jquant.requantize_per_channel(x, low, high, *bounds, dtype=dtype)), theirs)
                compared += x.size
        assert compared == 50 * 1750 * 20

    def test_errors_are_shared(self):
        x, bounds = np.zeros((1, 1, 2, 3), np.int32), np.float32([1, 1, 1])
        for message, arguments in (
            ("input_min has shape", (bounds[:2], bounds, -1.0, 1.0)),
            ("input_max has shape", (-bounds, bounds[:2], -1.0, 1.0)),
            ("requested_output_min is 0.0; for out_type INT8 it must be less than 0", (-bounds, bounds, 0.0, 1.0)),
        ):
            with pytest.raises(jquant.DescriptorError, match=message):
                jquant.requantize_per_channel(x, *arguments, dtype="qint8")
            with pytest.raises(tensorflow.errors.InvalidArgumentError):
                their_requantize_per_channel(x, *arguments, dtype="qint8")


def their_requantize_per_channel(x, low, high, new_low, new_high, *, dtype):
    return plain(
        tensorflow.raw_ops.RequantizePerChannel(
            input=quantized(x, "qint32"),
            input_min=low,
            input_max=high,
            requested_output_min=new_low,
            requested_output_max=new_high,
            out_type=getattr(tensorflow, dtype),
        )
    )


def test_every_rank():
    """Ranks 0 to 8, and empty arrays."""
    for shape in [*(((1, 2) * 4)[:rank] for rank in (0, 1, 4, 8)), (2, 0)]:
        x = np.arange(np.prod(shape, dtype=int), dtype=np.int32).reshape(shape) * 99_999_999
        low, high = np.float32([-0.7, 6])
        assert_equal(jquant.dequantize(x, low, high), their_dequantize(x, low, high, "qint32"))
        theirs = their_requantize(x, low, high, low / 3, high / 3, dtype="quint8")
        assert_equal(list(jquant.requantize(x, low, high, low / 3, high / 3, dtype="quint8")), theirs)


class TestDeviations:
    """Where results differ: TensorFlow's value, and jquant's."""

    EXTREMES = np.int32([ROUNDS_TO_2_31 - 1, ROUNDS_TO_2_31, 2**31 - 1, -(2**31)])

    def test_the_top_of_qint32_in_scaled(self):
        """Without an axis, TensorFlow converts it to float32 and back to an integer, which wraps."""
        x, low, high = self.EXTREMES, np.float32(-6), np.float32(6)
        theirs = their_dequantize(x, low, high, "qint32", mode="SCALED")
        ours = np.asarray(jquant.dequantize(x, low, high, mode="SCALED"))
        np.testing.assert_array_equal(theirs[1:], [-6, -6, -6])
        np.testing.assert_array_equal(ours[1:], [6, 6, -6])
        assert ours[0] == theirs[0] < 6
        per_axis = their_dequantize(x[:, None].repeat(2, 1), [low] * 2, [high] * 2, "qint32", mode="SCALED", axis=1)
        np.testing.assert_array_equal(per_axis[:, 0], ours)

    def test_fixed_point_saturates(self):
        """Real numbers of up to 128 widths of the requested range, and of more, for which TensorFlow's product wraps."""
        x = np.int32([63, 65, 127, 128, 129, -63, -65, -129]) << 18  # 2**18 is about one width
        low, high, bounds = np.float32(-(2**13)), np.float32(2**13), np.float32([-0.5, 0.5])
        theirs, *_ = their_requantize(x, low, high, *bounds, dtype="quint8")
        ours = jquant.requantize(x, low, high, *bounds, dtype="quint8").output
        np.testing.assert_array_equal(ours, [255, 255, 255, 255, 255, 0, 0, 0])
        np.testing.assert_array_equal(wraps(x, low, high, *bounds), [False] * 4 + [True, False, False, True])
        np.testing.assert_array_equal(theirs, [255, 255, 255, 255, 0, 0, 0, 255])

    def test_tiny_requested_range(self):
        """255 / width is infinite, and the input offset is NaN, which TensorFlow converts to the lowest integer."""
        x, bounds = np.int32([-(2**30), 0, 2**30]), np.float32([-1e-37, 1e-37])
        theirs, *_ = their_requantize(x, *bounds, *bounds, dtype="quint8")
        np.testing.assert_array_equal(theirs, [0, 0, 0])
        np.testing.assert_array_equal(jquant.requantize(x, *bounds, *bounds, dtype="quint8").output, [64, 128, 191])

    def test_integers_that_round_to_the_top_in_the_range_per_channel(self):
        """TensorFlow converts integers that round to 2**31 to -2**31, whose absolute value it takes to be negative."""
        for value in (*self.EXTREMES[1:], -ROUNDS_TO_2_31 - 1):
            x, ones = np.full((1, 1, 1, 1), value, np.int32), np.ones(1, np.float32)
            operands = {"input": quantized(x, "qint32"), "input_min": -ones, "input_max": ones, "clip_value_max": 6.0}
            _, their_max = plain(tensorflow.raw_ops.RequantizationRangePerChannel(**operands))
            assert their_max == np.finfo(np.float32).tiny
            assert jquant.requantization_range_per_channel(x, -ones, ones, clip_value_max=6).output_max == 1

    def test_nan_per_channel_is_0(self):
        """0 * infinity, for a requested range of width 0. TensorFlow's result is the same."""
        x, ones, zero = np.int32([[[[0, 5, -5]]]]), np.ones(3, np.float32), np.float32(0)
        theirs, *_ = their_requantize_per_channel(x, -ones, ones, zero, zero, dtype="quint8")
        np.testing.assert_array_equal(theirs.ravel(), [0, 255, 0])
        assert_equal(jquant.requantize_per_channel(x, -ones, ones, zero, zero).output, theirs)

    def test_ranks_per_channel(self):
        x, ones = np.int32([[-7, 7]]) << 25, np.ones(2, np.float32)
        operands = {"input": quantized(x, "qint32"), "input_min": -ones, "input_max": ones}
        with pytest.raises(tensorflow.errors.InvalidArgumentError, match="NHWC"):
            tensorflow.raw_ops.RequantizationRangePerChannel(**operands, clip_value_max=6.0)
        assert jquant.requantization_range_per_channel(x, -ones, ones).output_max == 7 / 64
        empty = jquant.requantization_range_per_channel(x[:0], -ones, ones)
        assert_equal(list(empty), [np.float32(0), np.finfo(np.float32).tiny])

    def test_inverted_ranges(self):
        """TensorFlow accepts them; jquant only in `dequantize`, and only traced ones."""
        x, low, high = np.int8([-128, 0, 127]), np.float32(6), np.float32(-6)
        for mode in ("MIN_COMBINED", "MIN_FIRST", "SCALED"):
            with pytest.raises(jquant.DescriptorError, match="is less than"):
                jquant.dequantize(x, low, high, mode=mode)
            ours = jquant.dequantize(x, jnp.asarray(low), jnp.asarray(high), mode=mode)
            assert_equal(ours, their_dequantize(x, low, high, "qint8", mode=mode))
        for operator in (jquant.requantization_range, jquant.quantize_down_and_shrink_range):
            with pytest.raises(jquant.DescriptorError, match=r"input_max is -6\.0, which is less than input_min, 6\.0"):
                operator(x.astype(np.int32), low, high)

    def test_axis_minus_1(self):
        """TensorFlow's operator takes it to mean no axis."""
        x, low, high = np.int8([[-128, 127]]), np.float32(-6), np.float32(6)
        theirs = tensorflow.raw_ops.Dequantize(input=quantized(x, "qint8"), min_range=low, max_range=high, axis=-1)
        assert_equal(jquant.dequantize(x, low, high), theirs.numpy())
        with pytest.raises(jquant.DescriptorError, match="axis is -1"):
            jquant.dequantize(x, low, high, axis=-1)
