"""The sizes that a scale and a zero point may have, beside an axis, beside blocks, and without either."""

import functools

import jax
import pytest
from support.signatures import f32, of, outcome, parameter, told, u8, valid

import jquant
from jquant import DescriptorError, FeatureLevel


@pytest.mark.parametrize("tensor", ["ScaleTensor", "ZeroPointTensor"])
@pytest.mark.parametrize("operator", ["dequantize_linear", "quantize_linear"])
class TestAffineSizes:
    def outcome(self, operator, tensor, input, other):
        tensors = valid(operator, FeatureLevel.LATEST)
        tensors = {name: of(dtype=t.dtype) for name, t in tensors.items()}
        tensors["InputTensor"] = of(*input, dtype=tensors["InputTensor"].dtype)
        tensors[tensor] = of(*other, dtype=tensors[tensor].dtype)
        return outcome(operator, FeatureLevel.LATEST, tensors)

    @pytest.mark.parametrize(
        ("input", "other"),
        [
            ((2, 3), ()),
            ((2, 3), (1,)),
            ((2, 3), (1, 1)),
            ((2, 3), (1, 1, 1)),
            ((), (1,)),
            ((2, 3), (1, 3)),
            ((2, 3), (2, 1)),
            ((2, 3), (2, 3)),
            ((1, 3), (1, 1)),
            ((0, 3), (0, 3)),
            ((0, 3), (1, 3)),
            ((), ()),
            ((3,), (1,)),
            ((2, 1, 3, 1, 2, 1, 3, 1), (1, 1, 3, 1, 1, 1, 1, 1)),
        ],
        ids=str,
    )
    def test_accepted(self, operator, tensor, input, other):
        shape, dtype = self.outcome(operator, tensor, input, other)
        assert shape == input
        assert dtype == (f32 if operator == "dequantize_linear" else u8)

    @pytest.mark.parametrize(
        ("input", "other"),
        [
            ((2, 3), (4,)),
            ((3,), (1, 3)),
            ((2, 3), (1, 1, 3)),
            ((), (2,)),
            ((1, 3), (2, 3)),  # above the input's
            ((2, 1), (2, 3)),
            ((2, 3), (3, 3)),
            ((2, 3), (2, 2)),
            ((4, 3), (2, 3)),  # a divisor is no broadcast
            ((1, 3), (0, 3)),
            ((0, 3), (2, 3)),
        ],
        ids=str,
    )
    def test_rejected(self, operator, tensor, input, other):
        text = (
            f"has shape {other}, input has {input}: the dimension counts must be the same, and each size must be 1 or that"
        )
        text = f"{text} of the output (a rank of 0 stands for one element)"
        expected = told(operator, parameter(operator, tensor), text, tensor, "InputTensor")
        assert self.outcome(operator, tensor, input, other) == (DescriptorError, expected)

    @pytest.mark.parametrize(
        ("input", "size", "ways"),
        [
            ((2, 3), 2, "dimension 0, pass axis=0, or shape (2, 1)"),
            ((2, 3), 3, "dimension 1, pass axis=1, or shape (1, 3)"),
            ((3, 3), 3, "dimension 0, pass axis=0, or shape (3, 1); for dimension 1, pass axis=1, or shape (1, 3)"),
        ],
    )
    def test_no_guess_at_an_axis(self, operator, tensor, input, size, ways):
        text = f"has shape ({size},), input has {input}: for one value per index of {ways}"
        expected = DescriptorError, told(operator, parameter(operator, tensor), text, tensor)
        assert self.outcome(operator, tensor, input, (size,)) == expected


@pytest.mark.parametrize("operator", ["dequantize_linear", "quantize_linear"])
class TestAxis:
    def outcome(self, operator, axis, scale=(), zero_point=None, block_size=None):
        input, output = (u8, f32) if operator == "dequantize_linear" else (f32, u8)
        tensors = [of(2, 3, 4, dtype=input), of(*scale, dtype=f32), None if zero_point is None else of(*zero_point)]
        function = functools.partial(getattr(jquant, operator), axis=axis, block_size=block_size)
        try:
            result = jax.eval_shape(function, *tensors)
        except DescriptorError as error:
            return type(error), str(error)
        assert (result.shape, result.dtype) == ((2, 3, 4), output)
        return "accepted"

    def error(self, operator, text, *tensors):
        subject, rest = text.split(" ", 1)
        return DescriptorError, told(operator, subject, rest, *tensors)

    @pytest.mark.parametrize(("axis", "size"), [(0, 2), (1, 3), (2, 4)])
    def test_accepted(self, operator, axis, size):
        for scale in ((), (1,), (size,)):
            for zero_point in (None, (), (1,), (size,)):
                assert self.outcome(operator, axis, scale, zero_point) == "accepted"
                assert self.outcome(operator, axis - 3, scale, zero_point) == "accepted"

    @pytest.mark.parametrize("axis", [-5, -4, 3, 4])
    def test_is_a_dimension(self, operator, axis):
        text = f"axis is {axis}; it must be a dimension of the input, from -3 to 2, or None"
        expected = self.error(operator, text)
        assert self.outcome(operator, axis) == self.outcome(operator, axis, block_size=2) == expected

    @pytest.mark.parametrize("sizes", [(1, 3), (1, 3, 1)], ids=str)
    def test_vectors_only(self, operator, sizes):
        text = f"has shape {sizes}; with axis=1 and no block_size it must be (3,): input has shape (2, 3, 4)"
        assert self.outcome(operator, 1, sizes) == self.error(operator, f"scale {text}", "ScaleTensor")
        assert self.outcome(operator, 1, (), sizes) == self.error(operator, f"zero_point {text}", "ZeroPointTensor")

    @pytest.mark.parametrize("axis", [0, 1])
    def test_size_along_the_axis(self, operator, axis):
        text = f"has shape (4,); with axis={axis} and no block_size it must be ({2 + axis},)"
        text = f"{text}: input has shape (2, 3, 4); axis=2 would fit"
        assert self.outcome(operator, axis, (4,)) == self.error(operator, f"scale {text}", "ScaleTensor")
        assert self.outcome(operator, axis, (), (4,)) == self.error(operator, f"zero_point {text}", "ZeroPointTensor")

    def test_none_is_none(self, operator):
        assert self.outcome(operator, None, (4,))[0] is DescriptorError
        assert self.outcome(operator, None, (1, 1, 4)) == "accepted"

    @pytest.mark.parametrize(
        ("axis", "block_size", "sizes"),
        [
            *((2, block_size, (2, 3, blocks)) for block_size, blocks in ((1, 4), (2, 2), (3, 2), (4, 1), (5, 1), (99, 1))),
            *((1, block_size, (2, blocks, 4)) for block_size, blocks in ((1, 3), (2, 2), (3, 1))),
            (0, 2, (1, 3, 4)),
            (1, 2, (1, 2, 4)),
            (1, 2, (1, 2, 1)),
        ],
    )
    def test_blocks(self, operator, axis, block_size, sizes):
        for scale, zero_point in ((sizes, None), (sizes, ()), (sizes, sizes), ((), sizes)):
            assert self.outcome(operator, axis, scale, zero_point, block_size) == "accepted"

    @pytest.mark.parametrize("sizes", [(2,), (3,), (2, 2), (2, 3), (2, 1, 4), (2, 3, 4), (2, 0, 4), (1, 2, 2, 4)], ids=str)
    def test_wrong_number_of_blocks(self, operator, sizes):
        text = f"has shape {sizes}; with axis=1 and block_size=2 it must have 3 dimensions, and size 2 along that axis"
        there = ": input has shape (2, 3, 4)"
        assert self.outcome(operator, 1, sizes, None, 2) == self.error(operator, f"scale {text}{there}", "ScaleTensor")
        assert self.outcome(operator, 1, (), sizes, 2) == self.error(
            operator, f"zero_point {text}{there}", "ZeroPointTensor"
        )

    @pytest.mark.parametrize("sizes", [(3, 2, 4), (2, 2, 3), (0, 2, 4), (2, 2, 2)], ids=str)
    def test_other_sizes_beside_blocks(self, operator, sizes):
        """The message names the sizes that are covered."""
        covered = sizes[0], 3, sizes[2]
        text = f"scale has shape {covered}, input has (2, 3, 4): the dimension counts must be the same, and each"
        text = f"{text} size must be 1 or that of the output (a rank of 0 stands for one element)"
        assert self.outcome(operator, 1, sizes, None, 2) == self.error(operator, text, "ScaleTensor", "InputTensor")

    @pytest.mark.parametrize("block_size", [0, -1])
    def test_block_size_is_positive(self, operator, block_size):
        text = f"block_size is {block_size}; it must be a positive integer, or None"
        assert self.outcome(operator, 1, (), None, block_size) == self.error(operator, text)

    def test_blocks_need_an_axis(self, operator):
        text = "block_size is 2, which needs the axis of the blocks"
        assert self.outcome(operator, None, (2, 2, 4), None, 2) == self.error(operator, text)
