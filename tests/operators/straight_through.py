"""Tests that `quantize_and_dequantize` and `fake_quantize` share: values, straight-through derivatives, `vmap`, shapes."""

import functools
import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.sampling import one_in

import jquant
from jquant.cases import samples

LOW, HIGH = np.float32([-1.3, 2.9])
LOWS, HIGHS = np.float32([[-1, -2.3, 0, -1e-3, 2], [1, 7, 3.3, 1e3, 4]])  # the last range excludes 0

NO_AXIS = (
    "it must be a dimension of the input, from 0 to 1, or None (a negative axis means no axis in TensorFlow, and counts "
    "from the end elsewhere; here it is refused)"
)


def values(*shape: int) -> np.ndarray:
    """Values inside and outside of the range, on its bounds, infinities, zeros and NaN."""
    x = np.random.default_rng(0).uniform(-4, 8, shape).astype(np.float32)
    special = np.float32([LOW, HIGH, np.inf, -np.inf, 0, -0.0, np.nan])
    x.flat[: min(x.size, special.size)] = special[: x.size]
    return x


def cases(operator):
    """Static arguments of the operator."""
    for axis, narrow_range in itertools.product((None, 1), (False, True)):
        options = {"axis": axis, "narrow_range": narrow_range}
        if operator is jquant.fake_quantize:
            yield from (options | {"num_bits": num_bits} for num_bits in (2, 8, 16))
        else:
            for num_bits, round_mode, signed_input in (
                (1, "HALF_UP", True),
                (4, "HALF_TO_EVEN", False),
                (31, "HALF_UP", True),
            ):
                yield options | {"num_bits": num_bits, "round_mode": round_mode, "signed_input": signed_input}


def bounds(axis) -> tuple[np.ndarray, np.ndarray]:
    return (LOW, HIGH) if axis is None else (LOWS, HIGHS)


def region(operator, x, low, high) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Masks of the elements whose derivative is in the input, in the lower bound, and in the upper bound."""
    if operator is jquant.quantize_and_dequantize:
        inside = (x >= low) & (x <= high)
        return inside, np.zeros_like(inside), np.zeros_like(inside)
    scale = (high - low) / np.float32(255)
    zero_point = np.clip(np.round(-low / scale), 0, 255)
    low, high = -zero_point * scale, (np.float32(255) - zero_point) * scale
    return (x >= low) & (x <= high), x < low, x > high


class StraightThrough:
    """A subclass has the operator and its formula."""

    operator: Callable
    formula: Callable
    names: tuple[str, str, str]  # the operands' names in messages

    def test_values(self):
        compared = 0
        for options in cases(self.operator):
            rng = np.random.default_rng(1)
            steps = 2 ** min(options["num_bits"], 24) - 1
            x = samples.near_ties(rng, 10_000, float(HIGH - LOW) / steps, 0, steps).reshape(-1, 5) + LOW
            x = samples.without_subnormals(np.concatenate([x, values(2000, 5)]))
            operands = x, *bounds(options["axis"])
            np.testing.assert_array_equal(self.operator(*operands, **options), self.formula(*operands, **options))
            compared += x.size
        assert compared >= 12 * 20_000

    def test_bounds_of_one_element_have_any_shape(self):
        x = values(4, 5)
        expected = self.operator(x, LOW, HIGH)

        @jax.jit
        def value_and_gradients(*operands):
            value, pull_back = jax.vjp(self.operator, *operands)
            return value, pull_back(value)

        for shape in ((1,), (1, 1, 1)):
            value, (_, *gradients) = value_and_gradients(x, np.full(shape, LOW), np.full(shape, HIGH))
            np.testing.assert_array_equal(value, expected)
            assert [gradient.shape for gradient in gradients] == [shape, shape]

    def prepared(self, axis):
        """The function, its operands, the regions of its derivatives, tangents of the operands, and the result's tangent.

        Operands and tangents are integers, so that sums over them are exact.
        """
        x = values(5, 6, 7) if axis is None else np.moveaxis(values(5, 6, 7), 0, axis)
        low, high = bounds(axis)
        sizes = [1 if axis is None or dimension != axis else 5 for dimension in range(3)]
        x[..., -2], x[..., -1] = (np.broadcast_to(bound.reshape(sizes), x.shape)[..., 0] for bound in (low, high))
        regions = region(self.operator, x, low.reshape(sizes), high.reshape(sizes))
        rng = np.random.default_rng(2)
        tangents = [rng.integers(-9, 10, operand.shape).astype(np.float32) for operand in (x, low, high)]
        candidates = tangents[0], *(np.broadcast_to(tangent.reshape(sizes), x.shape) for tangent in tangents[1:])
        return functools.partial(self.operator, axis=axis), (x, low, high), regions, tangents, np.select(regions, candidates)

    @one_in(3, "axis", [None, 0, 1], first=1)
    def test_forward_derivatives(self, axis):
        function, operands, _, tangents, expected = self.prepared(axis)
        value, tangent = jax.jvp(function, operands, tuple(tangents))
        np.testing.assert_array_equal(value, function(*operands))
        np.testing.assert_array_equal(tangent, expected)

    @one_in(3, "axis", [None, 0, 1], first=1)
    def test_reverse_derivatives(self, axis):
        function, operands, regions, (cotangent, *_), _ = self.prepared(axis)
        value, pull_back = jax.vjp(function, *operands)
        np.testing.assert_array_equal(value, function(*operands))
        others = tuple(dimension for dimension in range(3) if dimension != axis)
        expected = [np.where(regions[0], cotangent, 0), *(np.sum(cotangent * part, others) for part in regions[1:])]
        for actual, gradient in zip(pull_back(cotangent), expected, strict=True):
            np.testing.assert_array_equal(actual, gradient)

    @one_in(3, "axis", [None, 0, 1], first=1)
    def test_second_derivatives(self, axis):
        """Those of the operator are 0, and those of its square are products of its first derivatives."""
        function, operands, regions, tangents, tangent = self.prepared(axis)

        def gradients(power):
            return jax.grad(lambda *operands: jnp.sum(jnp.nan_to_num(function(*operands)) ** power), (0, 1, 2))

        for second in jax.jvp(gradients(1), operands, tuple(tangents))[1]:
            np.testing.assert_array_equal(second, 0)
        _, (second, *_) = jax.jvp(gradients(2), operands, tuple(tangents))
        np.testing.assert_array_equal(second, np.where(regions[0], 2 * tangent, 0))

    def test_zero_derivatives_stay_zero(self):
        x = np.float32([-50, np.nan, 50])
        for_input, for_low, for_high = jax.vjp(self.operator, x, LOW, HIGH)[1](np.full(3, np.inf, np.float32))
        np.testing.assert_array_equal(for_input, 0)
        np.testing.assert_array_equal([for_low, for_high], np.inf if self.operator is jquant.fake_quantize else 0)

    @pytest.mark.gate
    @pytest.mark.parametrize("axis", [None, 1])
    def test_vmap_over_every_argument(self, axis):
        rng = np.random.default_rng(4)
        x, (low, high) = values(3, 4, 5), bounds(axis)
        mapped = [x, *(bound * rng.uniform(0.5, 2, (3, *bound.shape)).astype(np.float32) for bound in (low, high))]
        fixed = x[1], low, high

        def value_and_gradients(*operands):
            value, pull_back = jax.vjp(functools.partial(self.operator, axis=axis), *operands)
            return value, pull_back(jnp.ones_like(value))

        single = jax.jit(value_and_gradients)
        for choice in [*np.eye(3, dtype=bool), (True, True, True)]:
            operands = [many if is_mapped else one for many, one, is_mapped in zip(mapped, fixed, choice, strict=True)]
            results = jax.vmap(value_and_gradients, [0 if is_mapped else None for is_mapped in choice])(*operands)
            for index in range(3):
                call = (x[index] if is_mapped else x for x, is_mapped in zip(operands, choice, strict=True))
                actual = jax.tree.map(lambda result, index=index: result[index], results)
                jax.tree.map(np.testing.assert_array_equal, actual, single(*call))

    def test_inside_jit(self):
        x = values(50)
        np.testing.assert_array_equal(jax.jit(self.operator)(x, LOW, HIGH), self.operator(x, LOW, HIGH))
        traced = jax.jit(lambda x, low: self.operator(x, low, 2.9))(x, -1.3)  # a weak float
        np.testing.assert_array_equal(traced, self.operator(x, LOW, HIGH))

    @one_in(3, "shape", [*(((1, 2) * 4)[:rank] for rank in range(9)), (0,), (3, 0), (0,) * 8], ids=str)
    def test_every_rank(self, shape):
        """Also of empty arrays, whose gradients are 0."""
        x = np.linspace(-2, 4, np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)

        @jax.jit
        def value_and_gradients(x):
            value, pull_back = jax.vjp(self.operator, x, LOW, HIGH)
            return value, pull_back(jnp.ones_like(value))

        value, (_, *gradients) = value_and_gradients(x)
        np.testing.assert_array_equal(value, self.formula(x, LOW, HIGH))
        assert value.shape == shape
        _, *outside = region(self.operator, x, LOW, HIGH)
        np.testing.assert_array_equal(gradients, [np.sum(part) for part in outside])

    def test_empty_axis(self):
        empty = np.ones(0, np.float32)
        assert self.operator(np.ones((3, 0), np.float32), empty, empty, axis=1).shape == (3, 0)

    @pytest.mark.parametrize("position", [0, 1, 2])
    @pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16, np.int8, np.bool_])
    def test_data_types(self, position, dtype):
        operands = [np.ones((3, 2), np.float32), LOW, HIGH]
        operands[position] = np.ones(operands[position].shape, dtype)
        with pytest.raises(jquant.DescriptorTypeError) as raised:
            self.operator(*operands)
        message = f"{self.names[position]} has data type {np.dtype(dtype).name.upper()}; it must be FLOAT32"
        assert f": {message} (" in str(raised.value)

    def test_traced_ranges_are_not_read_back(self):
        """Inverted ranges follow the formulas."""
        x = values(20)
        actual = self.operator(x, jnp.asarray(HIGH), jnp.asarray(LOW))
        np.testing.assert_array_equal(actual, self.formula(x, HIGH, LOW))
