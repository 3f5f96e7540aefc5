"""`quantize`: against its formula, TensorFlow's examples, peculiarities of its kernel, and its validation of arguments."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.comparison import assert_equal
from support.sampling import one_in
from support.signatures import DATA_TYPES, f32, i8, of, raises
from support.signatures import x64 as x64

import jquant
from jquant import DescriptorError, DescriptorTypeError
from jquant.cases import samples
from jquant.reference import tensorflow as reference

INTEGERS = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32]
FLOAT32 = np.float32


@one_in(2, ("mode", "dtype"), itertools.product(["MIN_COMBINED", "MIN_FIRST", "SCALED"], INTEGERS[:5]))
def test_equals_the_model(mode, dtype):
    """The reference stands for TensorFlow where that is not installed."""
    rng = np.random.default_rng(0)
    step = 11.7 / (2.0 ** np.iinfo(dtype).bits - 1)
    x = np.concatenate([samples.near_ties(rng, 50_000, step, -300, 300), samples.wide_floats(rng, 50_000)])
    for low, high in [(-5.7, 6.0), (2, 4), (-4, -2), (0, 1 / 255), (-1e30, 2e30), (1e-30, 1e-25)]:
        for least in (0.01, 0.0, 1.5):
            expected = reference.quantize(x, low, high, dtype, mode, ensure_minimum_range=least)
            actual = jquant.quantize(x, low, high, dtype, mode=mode, ensure_minimum_range=least)
            for actual_part, expected_part in zip(actual, expected, strict=True):
                assert_equal(actual_part, expected_part)


def test_the_documents_examples():
    output, *_ = jquant.quantize(FLOAT32([0, 1, 6]), 0, 6, "quint8")
    assert_equal(output, np.uint8([0, 43, 255]))  # times 255 / 6, rounded
    output, *_ = jquant.quantize(FLOAT32([0, 1, 6]), 0, 6, "qint8")
    assert_equal(output, np.int8([-128, -86, 127]))  # less 128: -85.5 is rounded away from zero
    _, output_min, output_max = jquant.quantize(FLOAT32([0]), -10, 9, "qint8", mode="SCALED", ensure_minimum_range=0)
    assert (output_min, output_max) == (-10, 9.921875)


def test_surprises_of_the_kernel():
    assert jquant.quantize(FLOAT32(0), -6, 6, "qint8").output == -1
    assert jquant.quantize(FLOAT32(0.49999997), 0, 255, "quint8").output == 1
    narrow = jquant.quantize(FLOAT32(0), 0, 6, "quint8", mode="SCALED", narrow_range=True)
    assert narrow.output == 1
    negative = jquant.quantize(FLOAT32([-3, -1]), -4, -2, "quint8", mode="SCALED", ensure_minimum_range=0)
    assert_equal(negative.output, np.uint8([0, 0]))


@pytest.mark.parametrize("shape", [(0,), (3, 0), (2, 0, 4)])
def test_empty_arrays(shape):
    x = np.zeros(shape, FLOAT32)
    for axis in range(len(shape)):
        bounds = np.zeros(shape[axis], FLOAT32)
        output = jquant.quantize(x, bounds, bounds + 1, "qint8", axis=axis)
        assert output.output.shape == shape
        assert output.output_min.shape == output.output_max.shape == (shape[axis],)


@pytest.mark.parametrize("name", ["min_range", "max_range", "ensure_minimum_range"])
def test_python_scalars(name):
    floats = {"min_range": 0, "max_range": 1, name: 1e39}
    with pytest.raises(DescriptorError, match=rf"quantize: {name} is 1e\+39, outside the range of FLOAT32, "):
        jquant.quantize(jnp.ones(2), dtype="qint8", **floats)


def wrong_axis(axis, rank):
    """The message of TensorFlow's operators about an axis that is no dimension."""
    return (
        f"axis is {axis}; it must be a dimension of the input, from 0 to {rank - 1}, or None (a negative axis means no axis "
        "in TensorFlow, and counts from the end elsewhere; here it is refused)"
    )


class TestArguments:
    """What TensorFlow validates."""

    def quantize(self, low, high, dtype="qint8", input=(2, 3), **options):
        x = jnp.zeros(input, f32) if isinstance(input, tuple) else input
        return jquant.quantize(x, low, high, dtype, **options)

    def shapes(self, low, high, **options):
        """The shapes of the outputs, for ranges of these shapes."""

        def function(low, high):
            return self.quantize(low, high, **options)

        return jax.tree.map(lambda x: x.shape, tuple(jax.eval_shape(function, of(*low, dtype=f32), of(*high, dtype=f32))))

    def raises(self, text, error=DescriptorError):
        return raises(f"quantize: {text} (QuantizeV2)", error)

    @pytest.mark.parametrize(
        ("t", "stored"),
        [("qint8", "int8"), ("quint8", "uint8"), ("qint16", "int16"), ("quint16", "uint16"), ("qint32", "int32")],
    )
    def test_data_types(self, t, stored):
        for dtype in (t, stored, stored.upper(), jnp.dtype(stored), getattr(jnp, stored)):
            result = jax.eval_shape(functools.partial(self.quantize, 0, 1, dtype))
            assert [x.dtype for x in result] == [stored, f32, f32]

    @pytest.mark.usefixtures("x64")
    @pytest.mark.parametrize("dtype", [t for t in DATA_TYPES if t not in ("int8", "uint8", "int16", "uint16", "int32")])
    def test_other_data_types(self, dtype):
        types = "qint8 (INT8), quint8 (UINT8), qint32 (INT32), qint16 (INT16), quint16 (UINT16)"
        with self.raises(f"dtype is {dtype.upper()}; the operator allows {types}", DescriptorTypeError):
            self.quantize(0, 1, jnp.dtype(dtype))

    @pytest.mark.usefixtures("x64")
    @pytest.mark.parametrize("dtype", [t for t in DATA_TYPES if t != "float32"])
    @pytest.mark.parametrize("name", ["input", "low", "high", "ensure_minimum_range"])
    def test_floats_only(self, name, dtype):
        document_name = {"low": "min_range", "high": "max_range"}.get(name, name)
        operands = {"input": jnp.zeros((), f32), "low": 0, "high": 1, name: jnp.zeros((), dtype)}
        with self.raises(f"{document_name} has data type {dtype.upper()}; it must be FLOAT32", DescriptorTypeError):
            self.quantize(**operands)

    def test_ensure_minimum_range_is_one_element(self):
        assert self.quantize(0, 1, ensure_minimum_range=np.zeros(1, np.float32)).output.dtype == i8
        with self.raises("ensure_minimum_range has shape (2,), but must have 1 element"):
            self.quantize(0, 1, ensure_minimum_range=np.zeros(2, np.float32))

    @pytest.mark.parametrize("mode", ["MIN_COMBINED", "MIN_FIRST"])
    def test_half_to_even_is_for_scaled(self, mode):
        self.shapes((), (), mode="SCALED", round_mode="HALF_TO_EVEN")
        self.shapes((), (), mode=mode, round_mode="HALF_AWAY_FROM_ZERO")
        with self.raises(f"round_mode is HALF_TO_EVEN, which is for mode SCALED only, not {mode}"):
            self.shapes((), (), mode=mode, round_mode="HALF_TO_EVEN")

    @pytest.mark.parametrize("axis", [-1, -2, -3, 2, 3])
    def test_axis_is_a_dimension(self, axis):
        with self.raises(wrong_axis(axis, 2)):
            self.shapes((3,), (3,), axis=axis)

    def test_a_scalar_has_no_axis(self):
        assert self.shapes((), (), input=()) == ((), (), ())
        with pytest.raises(DescriptorError, match="quantize: axis is 0"):
            self.shapes((1,), (1,), input=(), axis=0)

    @pytest.mark.parametrize("low", [(), (1,), (1, 1)], ids=str)
    @pytest.mark.parametrize("high", [(), (1,), (1, 1)], ids=str)
    @pytest.mark.parametrize("mode", ["MIN_COMBINED", "MIN_FIRST", "SCALED"])
    def test_one_range(self, low, high, mode):
        assert self.shapes(low, high, mode=mode) == ((2, 3), (), ())

    @pytest.mark.parametrize("sizes", [(2,), (3,), (0,), (1, 2), (2, 3)], ids=str)
    def test_one_range_only(self, sizes):
        with self.raises(f"min_range has shape {sizes}; without axis it must have 1 element"):
            self.shapes(sizes, ())
        with self.raises(f"max_range has shape {sizes}; without axis it must have 1 element"):
            self.shapes((), sizes)

    @pytest.mark.parametrize("mode", ["MIN_COMBINED", "SCALED"])
    @pytest.mark.parametrize(("axis", "size"), [(0, 2), (1, 3), (2, 1), (3, 0)])
    def test_ranges_along_an_axis(self, mode, axis, size):
        assert self.shapes((size,), (size,), axis=axis, mode=mode, input=(2, 3, 1, 0)) == ((2, 3, 1, 0), (size,), (size,))

    @pytest.mark.parametrize("sizes", [(), (1,), (2,), (3, 1), (1, 3), (0,)], ids=str)
    def test_one_range_for_each_slice(self, sizes):
        with self.raises(f"min_range has shape {sizes}; with axis=1 it must be (3,): input has shape (2, 3)"):
            self.shapes(sizes, (3,), axis=1)
        with self.raises(f"max_range has shape {sizes}; with axis=1 it must be (3,): input has shape (2, 3)"):
            self.shapes((3,), sizes, axis=1)

    def test_a_slice_of_size_1_needs_a_vector(self):
        with self.raises("min_range has shape (); with axis=0 it must be (1,): input has shape (1, 3)"):
            self.shapes((), (1,), axis=0, input=(1, 3))

    @pytest.mark.parametrize(("axis", "size"), [(0, 2), (1, 3), (3, 0)])
    def test_min_first_has_one_range(self, axis, size):
        with self.raises(f"axis is {axis}; MIN_FIRST has a single range: it must be None or a dimension of size 1"):
            self.shapes((size,), (size,), axis=axis, mode="MIN_FIRST", input=(2, 3, 1, 0))

    def test_min_first_along_a_size_of_1(self):
        assert self.shapes((1,), (1,), axis=1, mode="MIN_FIRST", input=(2, 1)) == ((2, 1), (1,), (1,))

    @pytest.mark.parametrize(
        ("low", "high"),
        [(2, 1), (2.0, 1), (0.0, -1e-30), (np.float32(2), 1), (2, np.float32([1])), (np.float32([[2]]), np.float32(1))],
        ids=repr,
    )
    def test_a_range_that_ends_before_it_begins(self, low, high):
        low_text, high_text = (value if isinstance(value, np.ndarray) else np.float32(value) for value in (low, high))
        with self.raises(f"max_range is {high_text}, which is less than min_range, {low_text}"):
            self.quantize(low, high)

    def test_one_slice_that_ends_before_it_begins(self):
        with self.raises("max_range is [1. 1. 0.], which is less than min_range, [0. 1. 1.]"):
            self.quantize(np.float32([0, 1, 1]), np.float32([1, 1, 0]), axis=1)

    @pytest.mark.parametrize(
        ("low", "high"), [(1, 1), (0, 0), (np.nan, 1), (1, np.nan), (np.nan, np.nan), (-np.inf, np.inf)]
    )
    def test_ranges_of_python_numbers(self, low, high):
        assert jax.eval_shape(functools.partial(self.quantize, low, high)).output.dtype == i8

    def test_arrays_of_jax_are_not_read_back(self):
        two, one = jnp.float32(2), jnp.float32(1)
        for low, high in ((two, one), (two, 1), (2, one), (two, np.float32(1))):
            assert self.quantize(low, high).output.dtype == i8

    def test_traced_ranges_are_not_read_back(self):
        assert self.shapes((), ()) == ((2, 3), (), ())
        result = jax.jit(lambda low, high: self.quantize(low, high))(2.0, 1.0)
        assert result.output_min.item() == 0  # the range is widened to include 0

    def test_a_constant_range_is_read_while_tracing(self):
        with self.raises("max_range is 1.0, which is less than min_range, 2.0"):
            jax.jit(lambda x: self.quantize(2, 1, input=x))(jnp.zeros(2))

    @pytest.mark.parametrize("input", [(0,), (2, 0), (0, 3)], ids=str)
    @pytest.mark.parametrize("mode", ["MIN_COMBINED", "MIN_FIRST", "SCALED"])
    def test_empty_inputs(self, input, mode):
        assert self.shapes((), (), mode=mode, input=input) == (input, (), ())

    @pytest.mark.parametrize("rank", [0, 1, 8, 9])
    def test_any_rank(self, rank):
        assert self.shapes((), (), input=(1,) * rank) == ((1,) * rank, (), ())
