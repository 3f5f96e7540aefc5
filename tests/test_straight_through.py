"""`quantize_and_dequantize` and `fake_quantize`: their values beside NumPy's, their derivatives, and what they refuse."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import samples

import jquant
from jquant import reference

LOW, HIGH = np.float32([-1.3, 2.9])
LOWS, HIGHS = np.float32([[-1, -2.3, 0, -1e-3, 2], [1, 7, 3.3, 1e3, 4]])  # the last one without 0
OPERATORS = {
    jquant.quantize_and_dequantize: reference.quantize_and_dequantize,
    jquant.fake_quantize: reference.fake_quantize,
}
both = pytest.mark.parametrize("operator", OPERATORS)


def values(*shape: int) -> np.ndarray:
    """In and around the range, on its bounds, and far away."""
    x = np.random.default_rng(0).uniform(-4, 8, shape).astype(np.float32)
    special = np.float32([LOW, HIGH, np.inf, -np.inf, 0, -0.0, np.nan])
    x.flat[: min(x.size, special.size)] = special[: x.size]
    return x


def cases(operator):
    """Static arguments."""
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
    """Where the derivative is that of the input, of the lower bound, of the upper one."""
    if operator is jquant.quantize_and_dequantize:
        inside = (x >= low) & (x <= high)
        return inside, np.zeros_like(inside), np.zeros_like(inside)
    scale = (high - low) / np.float32(255)
    zero_point = np.clip(np.round(-low / scale), 0, 255)
    low, high = -zero_point * scale, (np.float32(255) - zero_point) * scale
    return (x >= low) & (x <= high), x < low, x > high


@both
def test_values(operator):
    compared = 0
    for options in cases(operator):
        rng = np.random.default_rng(1)
        steps = 2 ** min(options["num_bits"], 24) - 1
        x = samples.near_ties(rng, 10_000, float(HIGH - LOW) / steps, 0, steps).reshape(-1, 5) + LOW
        x = samples.without_subnormals(np.concatenate([x, values(2000, 5)]))
        operands = x, *bounds(options["axis"])
        np.testing.assert_array_equal(operator(*operands, **options), OPERATORS[operator](*operands, **options))
        compared += x.size
    assert compared >= 12 * 20_000


def test_values_without_a_range():
    x = np.nan_to_num(values(200, 5), posinf=9)
    for axis, round_mode in itertools.product((None, 0, 1), ("HALF_TO_EVEN", "HALF_UP")):
        options = {"axis": axis, "round_mode": round_mode, "num_bits": 5}
        expected = reference.quantize_and_dequantize(x, **options)
        np.testing.assert_array_equal(jquant.quantize_and_dequantize(x, **options), expected)


def test_half_up():
    x = np.float32([-8, -7.5, -6.5, -0.5, np.nextafter(np.float32(0.5), 0), 0.5, 6.5, 7])
    assert jquant.quantize_and_dequantize(x, -8, 7, num_bits=4, round_mode="HALF_UP").tolist() == [-8, -7, -6, 0, 1, 1, 7, 7]
    assert jquant.quantize_and_dequantize(x, -8, 7, num_bits=4).tolist() == [-8, -8, -6, 0, 0, 0, 6, 7]


def test_both_bounds_0():
    x = np.float32([-1, 0, np.nan, np.inf])
    value, pull_back = jax.vjp(jquant.fake_quantize, x, np.float32(0), np.float32(0))
    np.testing.assert_array_equal(value, 0)
    np.testing.assert_array_equal(pull_back(np.arange(4, dtype=np.float32))[0], np.arange(4))
    np.testing.assert_array_equal(jquant.quantize_and_dequantize(x, 0, 0), [0, 0, np.nan, 0])


def test_nudged_range():
    """0 lies half a step above -0.5: the range becomes [-1, 2], whose bounds are inside of it."""
    x = np.float32([-9, np.nextafter(np.float32(-1), -9), -1, -0.5, 0, 1.5, 2, np.nextafter(np.float32(2), 9), 9])
    value, pull_back = jax.vjp(functools.partial(jquant.fake_quantize, num_bits=2), x, np.float32(-0.5), np.float32(2.5))
    np.testing.assert_array_equal(value, [-1, -1, -1, 0, 0, 2, 2, 2, 2])
    for_input, for_low, for_high = pull_back(np.ones_like(x))
    np.testing.assert_array_equal(for_input, [0, 0, 1, 1, 1, 1, 1, 0, 0])
    np.testing.assert_array_equal([for_low, for_high], [2, 2])


@both
def test_bounds_of_one_element_have_any_shape(operator):
    x = values(4, 5)
    expected = operator(x, LOW, HIGH)

    @jax.jit
    def value_and_gradients(*operands):
        value, pull_back = jax.vjp(operator, *operands)
        return value, pull_back(value)

    for shape in ((1,), (1, 1, 1)):
        value, (_, *gradients) = value_and_gradients(x, np.full(shape, LOW), np.full(shape, HIGH))
        np.testing.assert_array_equal(value, expected)
        assert [gradient.shape for gradient in gradients] == [shape, shape]


@both
@pytest.mark.parametrize("axis", [None, 0, 1])
class TestDerivatives:
    """Of operands, and along tangents, that are integers: the sums over them are exact."""

    def prepared(self, operator, axis):
        """The function, its operands, the regions of its derivative, tangents of the operands, and that of the result."""
        x = values(5, 6, 7) if axis is None else np.moveaxis(values(5, 6, 7), 0, axis)
        low, high = bounds(axis)
        sizes = [1 if axis is None or dimension != axis else 5 for dimension in range(3)]
        regions = region(operator, x, low.reshape(sizes), high.reshape(sizes))
        rng = np.random.default_rng(2)
        tangents = [rng.integers(-9, 10, operand.shape).astype(np.float32) for operand in (x, low, high)]
        candidates = tangents[0], *(np.broadcast_to(tangent.reshape(sizes), x.shape) for tangent in tangents[1:])
        return functools.partial(operator, axis=axis), (x, low, high), regions, tangents, np.select(regions, candidates)

    def test_forward(self, operator, axis):
        function, operands, _, tangents, expected = self.prepared(operator, axis)
        value, tangent = jax.jvp(function, operands, tuple(tangents))
        np.testing.assert_array_equal(value, function(*operands))
        np.testing.assert_array_equal(tangent, expected)

    def test_reverse(self, operator, axis):
        function, operands, regions, (cotangent, *_), _ = self.prepared(operator, axis)
        value, pull_back = jax.vjp(function, *operands)
        np.testing.assert_array_equal(value, function(*operands))
        others = tuple(dimension for dimension in range(3) if dimension != axis)
        expected = [np.where(regions[0], cotangent, 0), *(np.sum(cotangent * part, others) for part in regions[1:])]
        for actual, gradient in zip(pull_back(cotangent), expected, strict=True):
            np.testing.assert_array_equal(actual, gradient)

    def test_second(self, operator, axis):
        """0 of the operator itself, and what it must be of its square."""
        function, operands, regions, tangents, along = self.prepared(operator, axis)

        def gradients(power):
            return jax.grad(lambda *operands: jnp.sum(jnp.nan_to_num(function(*operands)) ** power), (0, 1, 2))

        for second in jax.jvp(gradients(1), operands, tuple(tangents))[1]:
            np.testing.assert_array_equal(second, 0)
        _, (second, *_) = jax.jvp(gradients(2), operands, tuple(tangents))
        np.testing.assert_array_equal(second, np.where(regions[0], 2 * along, 0))


def test_derivative_without_a_range_is_that_of_the_input():
    x, tangent = values(5, 6), np.random.default_rng(3).normal(size=(5, 6)).astype(np.float32)
    for axis in (None, 0):
        function = functools.partial(jquant.quantize_and_dequantize, axis=axis)
        np.testing.assert_array_equal(jax.jvp(function, (x,), (tangent,))[1], tangent)
        np.testing.assert_array_equal(jax.vjp(function, x)[1](tangent)[0], tangent)


@both
def test_zero_derivatives_stay_zero(operator):
    x = np.float32([-50, np.nan, 50])
    for_input, for_low, for_high = jax.vjp(operator, x, LOW, HIGH)[1](np.full(3, np.inf, np.float32))
    np.testing.assert_array_equal(for_input, 0)
    np.testing.assert_array_equal([for_low, for_high], np.inf if operator is jquant.fake_quantize else 0)


@both
@pytest.mark.parametrize("axis", [None, 1])
def test_vmap_over_every_argument(operator, axis):
    rng = np.random.default_rng(4)
    x, (low, high) = values(3, 4, 5), bounds(axis)
    mapped = [x, *(bound * rng.uniform(0.5, 2, (3, *bound.shape)).astype(np.float32) for bound in (low, high))]
    fixed = x[1], low, high

    def value_and_gradients(*operands):
        value, pull_back = jax.vjp(functools.partial(operator, axis=axis), *operands)
        return value, pull_back(jnp.ones_like(value))

    one = jax.jit(value_and_gradients)
    for over in [*np.eye(3, dtype=bool), (True, True, True)]:
        operands = [many if chosen else single for many, single, chosen in zip(mapped, fixed, over, strict=True)]
        results = jax.vmap(value_and_gradients, [0 if chosen else None for chosen in over])(*operands)
        for index in range(3):
            each = [operand[index] if chosen else operand for operand, chosen in zip(operands, over, strict=True)]
            actual = jax.tree.map(lambda result, index=index: result[index], results)
            jax.tree.map(np.testing.assert_array_equal, actual, one(*each))


def test_vmap_without_a_range():
    """Each has that of its own values."""
    x = np.nan_to_num(values(3, 4, 5), posinf=9)
    mapped = jax.vmap(jquant.quantize_and_dequantize)(x)
    np.testing.assert_array_equal(mapped, np.stack([reference.quantize_and_dequantize(each) for each in x]))


@both
def test_inside_jit(operator):
    x = values(50)
    np.testing.assert_array_equal(jax.jit(operator)(x, LOW, HIGH), operator(x, LOW, HIGH))
    traced = jax.jit(lambda x, low: operator(x, low, 2.9))(x, -1.3)  # a weak float
    np.testing.assert_array_equal(traced, operator(x, LOW, HIGH))


@pytest.mark.parametrize("shape", [*(((1, 2) * 4)[:rank] for rank in range(9)), (0,), (3, 0), (0,) * 8], ids=str)
def test_every_rank(shape):
    """And empty arrays, whose gradients are 0."""
    x = np.linspace(-2, 4, np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)

    @jax.jit
    def everything(x):
        results = [jquant.quantize_and_dequantize(x)]
        for operator in OPERATORS:
            value, pull_back = jax.vjp(operator, x, LOW, HIGH)
            results += [value, *pull_back(jnp.ones_like(value))]
        return results

    own, given, _, *zeros, fake, _, for_low, for_high = everything(x)
    np.testing.assert_array_equal(own, reference.quantize_and_dequantize(x))
    np.testing.assert_array_equal(given, reference.quantize_and_dequantize(x, LOW, HIGH))
    np.testing.assert_array_equal(fake, reference.fake_quantize(x, LOW, HIGH))
    assert own.shape == given.shape == fake.shape == shape
    _, below, above = region(jquant.fake_quantize, x, LOW, HIGH)
    np.testing.assert_array_equal([*zeros, for_low, for_high], [0, 0, np.sum(below), np.sum(above)])


def test_empty_axis():
    x, none = np.ones((3, 0), np.float32), np.ones(0, np.float32)
    for operator in OPERATORS:
        assert operator(x, none, none, axis=1).shape == (3, 0)
    assert jquant.quantize_and_dequantize(x, axis=1).shape == (3, 0)
    assert jquant.quantize_and_dequantize(x, axis=0).shape == (3, 0)


X = np.ones((3, 2), np.float32)
PAIR = np.ones(2, np.float32)
QDQ, FAKE = "QuantizeAndDequantizeV4", "FakeQuantWithMinMaxVars"
NO_AXIS = (
    "it must be a dimension of the input, from 0 to 1, or None (a negative axis means none to TensorFlow, and counts from "
    "the end elsewhere, so that it raises here)"
)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: jquant.quantize_and_dequantize(X, 1),
            f"{QDQ}: one of input_min and input_max is given; give both, or neither for the range of the input",
        ),
        (
            lambda: jquant.quantize_and_dequantize(X, None, 1),
            f"{QDQ}: one of input_min and input_max is given; give both, or neither for the range of the input",
        ),
        (
            lambda: jquant.quantize_and_dequantize(X, 1, 0),
            f"{QDQ}: input_max, 0.0, is less than input_min, 1.0",
        ),
        (lambda: jquant.quantize_and_dequantize(X, axis=2), f"{QDQ}: axis is 2; {NO_AXIS}"),
        (lambda: jquant.quantize_and_dequantize(X, axis=-1), f"{QDQ}: axis is -1; {NO_AXIS}"),
        (
            lambda: jquant.quantize_and_dequantize(X, PAIR, PAIR),
            f"{QDQ}: input_min has sizes (2,); without axis it must have 1 element",
        ),
        (
            lambda: jquant.quantize_and_dequantize(X, PAIR, 1, axis=1),
            f"{QDQ}: input_max has sizes (); with axis=1 they must be (2,): input has shape (3, 2)",
        ),
        (
            lambda: jquant.quantize_and_dequantize(X, num_bits=62),
            f"{QDQ}: num_bits is 62; it must be from 1 to 61, with signed_input=True",
        ),
        (
            lambda: jquant.quantize_and_dequantize(X, num_bits=7.5, signed_input=False),
            f"{QDQ}: num_bits is the float 7.5; it must be from 1 to 62, with signed_input=False",
        ),
        (
            lambda: jquant.quantize_and_dequantize(X, round_mode="HALF_AWAY_FROM_ZERO"),
            f"{QDQ}: round_mode is HALF_AWAY_FROM_ZERO; the document has HALF_TO_EVEN, HALF_UP",
        ),
        (lambda: jquant.fake_quantize(X, 1, 0), f"{FAKE}: max, 0.0, is less than min, 1.0"),
        (lambda: jquant.fake_quantize(X, PAIR, PAIR, axis=2), f"{FAKE}: axis is 2; {NO_AXIS}"),
        (lambda: jquant.fake_quantize(X, PAIR, PAIR, axis=-1), f"{FAKE}: axis is -1; {NO_AXIS}"),
        (lambda: jquant.fake_quantize(X, PAIR, 1), f"{FAKE}: min has sizes (2,); without axis it must have 1 element"),
        (
            lambda: jquant.fake_quantize(X, 0, PAIR, axis=0),
            f"{FAKE}: min has sizes (); with axis=0 they must be (3,): input has shape (3, 2)",
        ),
        (lambda: jquant.fake_quantize(X, 0, 1, num_bits=1), f"{FAKE}: num_bits is 1; it must be from 2 to 16"),
        (lambda: jquant.fake_quantize(X, 0, 1, num_bits="8"), f"{FAKE}: num_bits is the str '8'; it must be from 2 to 16"),
        (
            lambda: jquant.fake_quantize(X, 0, 1, num_bits=True),
            f"{FAKE}: num_bits is the bool True; it must be from 2 to 16",
        ),
        (
            lambda: jquant.fake_quantize(X, 0, 1, narrow_range="no"),
            f"{FAKE}: narrow_range is the str 'no'; it must be True or False",
        ),
        (lambda: jquant.fake_quantize(X, 0, 1, num_bits=17), f"{FAKE}: num_bits is 17; it must be from 2 to 16"),
    ],
)
def test_errors(call, message):
    with pytest.raises(jquant.DescriptorError) as raised:
        call()
    assert str(raised.value) == message


@both
@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16, np.int8, np.bool_])
def test_data_types(operator, position, dtype):
    operands = [X, LOW, HIGH]
    operands[position] = np.ones(operands[position].shape, dtype)
    names = ("input", "min", "max") if operator is jquant.fake_quantize else ("input", "input_min", "input_max")
    with pytest.raises(jquant.DescriptorTypeError) as raised:
        operator(*operands)
    message = f"{names[position]} has data type {np.dtype(dtype).name.upper()}, but is a FLOAT"
    assert str(raised.value).endswith(f": {message}")


def test_traced_ranges_are_not_read_back():
    """Inverted ones follow the formulas."""
    x = values(20)
    for operator, model in OPERATORS.items():
        np.testing.assert_array_equal(operator(x, jnp.asarray(HIGH), jnp.asarray(LOW)), model(x, HIGH, LOW))
