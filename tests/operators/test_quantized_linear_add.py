"""`quantized_linear_add`: all 65,536 pairs of operands, special scales, broadcasting, and errors."""

import jax.numpy as jnp
import numpy as np
import pytest
from support.comparison import assert_equal
from support.sampling import one_in
from support.signatures import MAIN, OPERATORS, of, outcome, parameter, told, u8, valid

import jquant
from jquant import DescriptorError, FeatureLevel

from . import binary


@one_in(3, ("program", "count"), [("traced", 500), ("constant", 100), ("computed", 500)])
def test_all_pairs(program, count):
    binary.assert_all_pairs("quantized_linear_add", program, count)


def test_broadcast_and_defaults():
    binary.assert_broadcast_and_defaults("quantized_linear_add")


def test_the_zero_point_decides_no_tie():
    binary.assert_the_zero_point_decides_no_tie("quantized_linear_add", 0)


@pytest.mark.parametrize(
    ("scales", "expected"),
    [
        ((1.0, 1.0, 0.0), [0, 127, -128]),  # 0/0, and infinities
        ((0.0, 0.0, 1.0), [3, 3, 3]),
        ((np.inf, 1.0, 1.0), [0, 127, -128]),  # 0 * inf is NaN
        ((np.inf, -np.inf, 1.0), [0, 0, 0]),
        ((1.0, 1.0, np.inf), [3, 3, 3]),
        ((np.nan, 1.0, 1.0), [0, 0, 0]),
        ((-1.0, 1.0, 1.0), [3, 3, 3]),
        ((-1.0, -1.0, 1.0), [3, -7, 13]),
    ],
)
def test_scales_that_the_document_leaves_undefined(scales, expected):
    a = np.array([0, 5, -5], np.int8)
    actual = jquant.quantized_linear_add(a, scales[0], 0, a, scales[1], 0, scales[2], 3)
    np.testing.assert_array_equal(actual, np.array(expected, np.int8))


@pytest.mark.parametrize("shape", [(0,), (3, 0), (2, 0, 4)])
def test_empty_arrays(shape):
    x = np.zeros(shape, np.int8)
    assert jquant.quantized_linear_add(x, 1.0, None, x, 1.0, None, 1.0).shape == shape


def test_ranks_0_to_8():
    for rank in range(9):
        x = np.arange(2**rank, dtype=np.uint8).reshape((2,) * rank)
        assert_equal(jquant.quantized_linear_add(x, 1.0, 0, x, 1.0, 0, 2.0), x)


def test_python_scalars():
    a, b = np.uint8([1]), np.int8([-1])
    assert jquant.quantized_linear_add(a, 1, 255, b, 1, -128, 1, 255).tolist() == [128]
    for position, name, value, text in [
        (1, "a_scale", 1e39, "outside the range of FLOAT32"),
        (2, "a_zero_point", -1, "outside the range of UINT8"),
        (4, "b_scale", -1e39, "outside the range of FLOAT32"),
        (5, "b_zero_point", 128, "outside the range of INT8"),
        (6, "output_scale", 1e39, "outside the range of FLOAT32"),
        (7, "output_zero_point", 256, "outside the range of UINT8"),  # the output takes the dtype of a
    ]:
        arguments = [a, 1, 0, b, 1, 0, 1, 0]
        arguments[position] = value
        with pytest.raises(DescriptorError, match=f"{name} is {value}, {text}".replace("+", r"\+")):
            jquant.quantized_linear_add(*arguments)


def test_output_data_type():
    a, b = np.int8([1]), np.uint8([1])
    assert jquant.quantized_linear_add(a, 1, 0, b, 1, 0, 1).dtype == jnp.int8
    assert jquant.quantized_linear_add(b, 1, 0, a, 1, 0, 1, 3).dtype == jnp.uint8
    assert jquant.quantized_linear_add(a, 1, 0, b, 1, 0, 1, jnp.uint8(3)).dtype == jnp.uint8
    assert jquant.quantized_linear_add(a, 1, 0, b, 1, 0, 1, 200, output_dtype="quint8").dtype == jnp.uint8


def outcome_for(level=FeatureLevel.LATEST, **shapes):
    """The outcome with these shapes, by the tensors' names, and scalars for all others."""
    tensors = valid("quantized_linear_add", FeatureLevel.LATEST)
    tensors = {name: of(*shapes.get(name, ()), dtype=tensor.dtype) for name, tensor in tensors.items()}
    return outcome("quantized_linear_add", level, tensors)


@pytest.mark.parametrize(
    ("a", "b", "output"),
    [
        ((2, 3), (2, 3), (2, 3)),
        ((2, 1), (1, 3), (2, 3)),
        ((2, 3), (1, 1), (2, 3)),
        ((1, 3), (2, 3), (2, 3)),
        ((2, 3), (), (2, 3)),
        ((), (2, 3), (2, 3)),
        ((), (), ()),
        ((1,), (0,), (0,)),
        ((2, 1, 2, 1, 2, 1, 2, 1), (1, 3, 1, 3, 1, 3, 1, 3), (2, 3, 2, 3, 2, 3, 2, 3)),
    ],
    ids=str,
)
def test_sizes_of_1_broadcast(a, b, output):
    assert outcome_for(ATensor=a, BTensor=b) == (output, u8)


@pytest.mark.parametrize(
    ("a", "b", "named", "output"),
    [
        ((3,), (2,), "BTensor", (3,)),
        ((2, 3), (2,), "BTensor", (2, 3)),
        ((2, 3), (3, 3), "BTensor", (2, 3)),
        ((2,), (0,), "BTensor", (2,)),
    ],
    ids=str,
)
def test_nothing_else_broadcasts(a, b, named, output):
    sizes, other, to = (a, "BTensor", b) if named == "ATensor" else (b, "ATensor", a)
    text = f"has shape {sizes}, {parameter('quantized_linear_add', other)} has {to}: the dimension counts must be"
    text = f"{text} the same, and each size must be 1 or that of the output (a rank of 0 stands for one element)"
    subject = parameter("quantized_linear_add", named)
    expected = DescriptorError, told("quantized_linear_add", subject, text, named, other)
    assert outcome_for(ATensor=a, BTensor=b) == expected
    assert outcome_for("EXTENDED", ATensor=a, BTensor=b) == expected


@pytest.mark.parametrize(
    ("a", "b", "output", "aligned"),
    [
        ((2, 3), (3,), (2, 3), "b has shape (3,), a has (2, 3)"),
        ((3,), (2, 3), (2, 3), "a has shape (3,), b has (2, 3)"),
        ((1,), (2, 3), (2, 3), "a has shape (1,), b has (2, 3)"),
        ((2, 3), (5, 1, 3), (5, 2, 3), "a has shape (2, 3), the output has (5, 2, 3)"),
    ],
    ids=str,
)
def test_ranks_align_at_jquants_own_level(a, b, output, aligned):
    assert outcome_for("EXTENDED", ATensor=a, BTensor=b) == (output, u8)
    shorter = min(a, b, key=len)
    text = f"{aligned}: the dimension counts must be the same, and each size must be 1 or that of the output (a rank of"
    remedy = f"reshape it to {(1,) * (len(output) - len(shorter)) + shorter}, or use FeatureLevel.EXTENDED, which aligns"
    text, tensors = f"{text} 0 stands for one element); {remedy} ranks as NumPy does", {"a": "ATensor", "b": "BTensor"}
    subject, other = aligned[0], "OutputTensor" if "output" in aligned else tensors["ba"["ab".index(aligned[0])]]
    expected = told("quantized_linear_add", subject, text.removeprefix(f"{subject} "), tensors[subject], other)
    assert outcome_for(ATensor=a, BTensor=b) == (DescriptorError, expected)


@pytest.mark.parametrize("tensor", [name for name in OPERATORS["quantized_linear_add"] if name not in MAIN])
class TestScalesAndZeroPoints:
    @pytest.mark.parametrize("sizes", [(), (1,), (1, 1), (1, 1, 1)], ids=str)
    def test_one_element(self, tensor, sizes):
        assert outcome_for(ATensor=(2, 3), BTensor=(2, 3), **{tensor: sizes}) == ((2, 3), u8)

    @pytest.mark.parametrize("sizes", [(3,), (2,), (1, 3), (2, 1), (2, 3), (1, 0)], ids=str)
    def test_more_or_fewer(self, tensor, sizes):
        subject = parameter("quantized_linear_add", tensor)
        expected = told("quantized_linear_add", subject, f"has shape {sizes}, but must have 1 element", tensor)
        assert outcome_for(ATensor=(2, 3), BTensor=(2, 3), **{tensor: sizes}) == (DescriptorError, expected)
