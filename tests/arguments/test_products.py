"""The sizes of the scales, the zero points and the bias of a fused product."""

import itertools

import pytest
from support.signatures import MAIN, OPERATORS, f32, of, outcome, parameter, told, u8, valid

from jquant import DescriptorError, FeatureLevel


@pytest.mark.parametrize("operator", ["matmul_integer_to_float", "quantized_linear_matmul"])
class TestFusedSizes:
    def outcome(self, operator, **shapes):
        tensors = {name: of(dtype=tensor.dtype) for name, tensor in valid(operator, FeatureLevel.LATEST).items()}
        shapes = {"ATensor": (2, 3), "BTensor": (3, 4), **shapes}
        tensors |= {name: of(*sizes, dtype=tensors[name].dtype) for name, sizes in shapes.items()}
        return outcome(operator, FeatureLevel.LATEST, tensors)

    def dtype(self, operator):
        return f32 if operator == "matmul_integer_to_float" else u8

    def vectors(self, operator):
        """The scales and zero points, and the size that they may have besides 1."""
        names = [name for name in OPERATORS[operator] if name not in (*MAIN, "BiasTensor")]
        return [(name, 4 if name.startswith("B") else 2) for name in names]

    def test_a_vector_is_per_row_of_a_and_of_the_output_and_per_column_of_b(self, operator):
        for name, size in self.vectors(operator):
            assert self.outcome(operator, **{name: (size,)}) == ((2, 4), self.dtype(operator))
            expected = f"{parameter(operator, name)} has shape ({6 - size},); dimension 0 must be 1 or {size}: "
            kind, message = self.outcome(operator, **{name: (6 - size,)})
            assert kind is DescriptorError
            assert message.startswith(f"{operator}: {expected}")

    def test_one_dimension_count(self, operator):
        """Scales and zero points have one dimension count, but for scalars."""
        names = [name for name, _ in self.vectors(operator)]
        for one, other in itertools.pairwise(names):
            for sizes in ((), (1,), (1, 1), (1, 1, 1, 1)):  # one element has no dimensions
                assert self.outcome(operator, **{one: (1,), other: sizes}) == ((2, 4), self.dtype(operator))
            sizes = (1, 4) if one.startswith("B") else (2, 1)
            vector = (4,) if other.startswith("B") else (2,)
            text = f"has shape {sizes}, {parameter(operator, other)} has {vector}: the dimension counts must be the same"
            expected = DescriptorError, told(operator, parameter(operator, one), text, one, other)
            assert self.outcome(operator, **{one: sizes, other: vector}) == expected


@pytest.mark.parametrize("sizes", [(), (1, 1), (2, 1), (1, 4), (2, 4)], ids=str)
def test_bias(sizes):
    assert TestFusedSizes().outcome("matmul_integer_to_float", BiasTensor=sizes) == ((2, 4), f32)


@pytest.mark.parametrize("sizes", [(4, 1), (1, 2), (3, 4), (1, 1, 4)], ids=str)
def test_wrong_bias(sizes):
    text = f"has shape {sizes}, the output has (2, 4): the dimension counts must be the same, and each size"
    text = f"{text} must be 1 or that of the output (a rank of 0 stands for one element)"
    expected = DescriptorError, told("matmul_integer_to_float", "bias", text, "BiasTensor", "OutputTensor")
    assert TestFusedSizes().outcome("matmul_integer_to_float", BiasTensor=sizes) == expected
