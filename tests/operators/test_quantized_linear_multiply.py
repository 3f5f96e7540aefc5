"""`quantized_linear_multiply`: all 65,536 pairs of operands, special scales, and the validation of each operand."""

import inspect

import jax
import numpy as np
import pytest
from support.sampling import one_in

import jquant
from jquant import DescriptorError, DescriptorTypeError
from jquant.cases import samples
from jquant.reference import elementwise as reference

from . import binary
from .binary import TYPES, applied, parameter_sets


@one_in(3, ("program", "count"), [("traced", 1000), ("constant", 48), ("computed", 1000)])
def test_all_pairs(program, count):
    binary.assert_all_pairs("quantized_linear_multiply", program, count)


def test_broadcast_and_defaults():
    binary.assert_broadcast_and_defaults("quantized_linear_multiply")


def test_the_zero_point_decides_no_tie():
    binary.assert_the_zero_point_decides_no_tie("quantized_linear_multiply", 1)


def test_a_constant_factor():
    """One operand is a constant scalar, which XLA would first multiply with the scales."""
    sets = [parameters for types, parameters in parameter_sets("quantized_linear_multiply", 256) if types == TYPES[-1]]
    a, factors = np.arange(256).astype(np.uint8), samples.integers(np.random.default_rng(0), np.uint8, len(sets))
    calls = list(zip(factors, sets, strict=True))
    program = jax.jit(lambda a: [applied("quantized_linear_multiply", a, *call) for call in calls])
    for actual, (factor, (a_parameters, b_parameters, output_parameters)) in zip(program(a), calls, strict=True):
        operands = a, *a_parameters, factor, *b_parameters, *output_parameters
        np.testing.assert_array_equal(actual, reference.quantized_linear_multiply(*operands, np.uint8))


@pytest.mark.parametrize(
    ("scales", "expected"),
    [
        ((1.0, 1.0, 0.0), [0, 127, 127]),  # 0/0, and infinities
        ((0.0, 1.0, 1.0), [3, 3, 3]),
        ((0.0, np.inf, 1.0), [0, 0, 0]),  # the scales are multiplied first: 0 * inf is NaN
        ((np.inf, 1.0, 1.0), [0, 127, 127]),
        ((3e38, 3e38, 1.0), [0, 127, 127]),  # and may overflow: 0 * inf
        ((1.0, 1.0, np.inf), [3, 3, 3]),
        ((np.nan, 1.0, 1.0), [0, 0, 0]),
        ((-1.0, 1.0, 1.0), [3, -22, -22]),
    ],
)
def test_scales_that_the_document_leaves_undefined(scales, expected):
    a = np.array([0, 5, -5], np.int8)
    actual = jquant.quantized_linear_multiply(a, scales[0], 0, a, scales[1], 0, scales[2], 3)
    np.testing.assert_array_equal(actual, np.array(expected, np.int8))


OPERANDS = ("A", "A_scale", "A_zero_point", "B", "B_scale", "B_zero_point", "C_scale", "C_zero_point")
PARAMETERS = tuple(inspect.signature(jquant.quantized_linear_multiply).parameters)
CALLED = dict(zip(OPERANDS, PARAMETERS, strict=False))


@pytest.mark.parametrize("name", OPERANDS)
class TestOperands:
    """Values of each operand that are just valid and just invalid."""

    def call(self, name, value):
        valid = [np.ones((2, 3), np.uint8), 1.0, 3, np.ones((2, 3), np.uint8), 1.0, 3, 1.0, 3]
        operands = dict(zip(OPERANDS, valid, strict=True)) | {name: value}
        return jax.eval_shape(lambda: jquant.quantized_linear_multiply(*operands.values()))

    def test_data_types(self, name):
        shape = (2, 3) if name in ("A", "B") else ()
        allowed = (
            ["float32"] if "scale" in name else ["uint8"] if name in ("A_zero_point", "B_zero_point") else ["int8", "uint8"]
        )
        for dtype in ("int8", "uint8", "int16", "int32", "float16", "float32"):
            if dtype in allowed:
                zeros = np.zeros(shape, dtype)
                assert self.call(name, zeros).shape == (2, 3)
            else:
                names = rf"(output_zero_point|output_dtype|{CALLED[name]})"
                text = rf"quantized_linear_multiply: {names} (has data type|is) {dtype.upper()}[;,] "
                with pytest.raises(DescriptorTypeError, match=text):
                    self.call(name, np.zeros(shape, dtype))

    def test_sizes(self, name):
        if name in ("A", "B"):
            for sizes in ((), (1, 3), (2, 1), (1, 1), (2, 3), (3,), (1,)):
                assert self.call(name, np.ones(sizes, np.uint8)).shape == (2, 3)
            assert self.call(name, np.ones((5, 1, 3), np.uint8)).shape == (5, 2, 3)
            text = "the dimension counts must be the same, and each size must be 1 or that of the output"
            for sizes in ((2,), (3, 3), (2, 2)):
                with pytest.raises(DescriptorError, match=text):
                    self.call(name, np.ones(sizes, np.uint8))
        else:
            dtype = np.float32 if "scale" in name else np.uint8
            for sizes in ((1,), (1, 1), (1, 1, 1)):
                assert self.call(name, np.ones(sizes, dtype)).shape == (2, 3)
            for sizes in ((2, 3), (1, 3), (0,)):
                with pytest.raises(
                    DescriptorError,
                    match=rf"quantized_linear_multiply: {CALLED[name]} has shape .*, but must have 1 element",
                ):
                    self.call(name, np.ones(sizes, dtype))

    def test_python_scalars(self, name):
        if name in ("A", "B"):
            with pytest.raises(
                DescriptorTypeError,
                match=f"quantized_linear_multiply: {CALLED[name]} is the Python scalar 1; it must be an array",
            ):
                self.call(name, 1)
        else:
            beyond = "1e39" if "scale" in name else "256"
            with pytest.raises(
                DescriptorError,
                match=f"quantized_linear_multiply: {CALLED[name]} is {beyond.replace('e', r'e.')}, outside the range of",
            ):
                self.call(name, float(beyond) if "scale" in name else int(beyond))
        if "zero_point" in name:
            assert self.call(name, None).shape == (2, 3)
        else:
            with pytest.raises(
                DescriptorTypeError,
                match=f"quantized_linear_multiply: {CALLED[name]} must be an array or a Python int or float",
            ):
                self.call(name, None)
