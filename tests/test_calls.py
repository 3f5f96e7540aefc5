"""How operators are called: keywords, levels, ranks, and the words of each specification for one thing."""

import functools
import inspect
import itertools
import threading

import jax
import jax.numpy as jnp
import misuse
import numpy as np
import pytest
from support.documents import OPERATORS
from support.sampling import one_in

import jquant
from jquant import DescriptorError, DescriptorTypeError, FeatureLevel, reference
from jquant.arguments import call
from jquant.cases import samples

RNG = np.random.default_rng(0)
A, B = samples.integers(RNG, np.uint8, 4, 3), samples.integers(RNG, np.int8, 3, 5)
IMAGE, FILTERS = samples.integers(RNG, np.uint8, 2, 3, 6, 5), samples.integers(RNG, np.int8, 4, 3, 2, 2)
X = RNG.normal(size=(4, 3)).astype(np.float32)
ACCUMULATORS = samples.integers(RNG, np.int32, 4, 3)

ALL = [getattr(jquant, name) for name in OPERATORS]


# Keywords.


@pytest.mark.parametrize("function", ALL, ids=OPERATORS)
def test_every_parameter_but_the_first_has_a_name(function):
    first, *others = inspect.signature(function).parameters.values()
    assert first.kind is first.POSITIONAL_ONLY
    assert {parameter.kind for parameter in others} <= {first.POSITIONAL_OR_KEYWORD, first.KEYWORD_ONLY}


@pytest.mark.parametrize("function", ALL, ids=OPERATORS)
def test_an_output_is_called_output(function):
    names = inspect.signature(function).parameters
    assert not {"y_scale", "y_zero_point", "c_scale", "c_zero_point"} & names.keys()
    assert "zero_point" not in names or function in (jquant.quantize_linear, jquant.dequantize_linear, jquant.pack_matrix)


@pytest.mark.parametrize("function", ALL, ids=OPERATORS)
def test_a_zero_point_is_none_by_default_where_its_place_allows_it(function):
    parameters = list(inspect.signature(function).parameters.values())
    positional = [parameter for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY]
    for place, parameter in enumerate(positional):
        rest = positional[place + 1 :]
        if parameter.name.endswith("zero_point") and all(other.default is None for other in rest):
            assert parameter.default is None


def test_keywords_and_positions_are_alike():
    added = jquant.quantized_linear_add(
        *(A,), a_scale=0.5, a_zero_point=None, b=A, b_scale=0.25, b_zero_point=3, output_scale=2.0, output_zero_point=7
    )
    np.testing.assert_array_equal(added, jquant.quantized_linear_add(A, 0.5, None, A, 0.25, 3, 2.0, 7), strict=True)
    np.testing.assert_array_equal(
        jquant.matmul_integer(A, B, b_zero_point=1, a_zero_point=12), jquant.matmul_integer(A, B, 12, 1), strict=True
    )
    np.testing.assert_array_equal(jquant.quantize_linear(X, scale=0.1), jquant.quantize_linear(X, 0.1), strict=True)
    np.testing.assert_array_equal(
        jquant.quantized_linear_softmax(A, 0.1, None, output_zero_point=9, output_scale=0.01, axis=1),
        jquant.quantized_linear_softmax(A, 0.1, None, 0.01, 9, axis=1),
        strict=True,
    )


# One element is one element: of a scale or zero point per tensor, whatever its rank.


def _of_one_element() -> dict[str, dict[str, misuse.Call]]:
    """By operator, and by the parameter that is a scale or zero point: a call in which it may have one element."""
    found = {operator: {} for operator in OPERATORS}
    for right in misuse.calls():
        for name, argument in right.arguments.items() if right.name in found else ():
            is_parameter = name.endswith(("scale", "zero_point")) and isinstance(argument.kind, misuse.Tensor)
            if is_parameter and argument.kind.scalar and argument.kind.shapes((1,)):
                found[right.name].setdefault(name, right)
    return {operator: parameters for operator, parameters in found.items() if parameters}


ONE_ELEMENT = _of_one_element()


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_scale_and_zero_point_is_here(operator):
    names = inspect.signature(getattr(jquant, operator)).parameters
    of_blocks = {
        "mx_dequantize": {"scale"},
        "nvfp4_dequantize": {"scale"},
        "block_scaled_matmul": {"b_scale"},
        "pack_matrix": {"scale"},
    }
    found = {name for name in names if name.endswith(("scale", "zero_point"))}
    assert found - of_blocks.get(operator, set()) <= set(ONE_ELEMENT.get(operator, ()))


@one_in(3, "operator", ONE_ELEMENT)
def test_the_rank_of_one_element_makes_no_difference(operator):
    for name, right in ONE_ELEMENT[operator].items():
        argument = right.arguments[name]
        value = np.dtype(argument.kind.scalar).type(1 if argument.value is None else argument.value)
        expected = jax.tree.leaves(right(**{name: value}))
        for shape in ((1,), (1, 1), (1,) * 5):
            for module in (np, jnp):
                actual = jax.tree.leaves(right(**{name: module.asarray(np.reshape(value, shape))}))
                for one, other in zip(actual, expected, strict=True):
                    np.testing.assert_array_equal(one, other, err_msg=name, strict=True)


# Ranks, as NumPy and ONNX have them.


RANKS = [
    ((5, 4, 3), (3, 2)),
    ((4, 3), (5, 3, 2)),
    ((2, 5, 4, 3), (5, 3, 2)),
    ((5, 4, 3), (2, 1, 3, 2)),
    ((1,) * 6 + (4, 3), (3, 2)),
]


@one_in(3, ("packed", "ranks"), itertools.product([False, True], RANKS), ids=str)
def test_products_of_different_ranks(packed, ranks):
    rng, (a, b) = np.random.default_rng(1), ranks
    a, b = samples.integers(rng, np.uint8, *a), samples.integers(rng, np.int8, *b)
    row, column = samples.integers(rng, np.uint8, 4, 1), samples.integers(rng, np.int8, 2)
    expected = reference.matmul_integer(a, b, row, column)
    given = (jquant.pack_matrix(b, column), row) if packed else (b, row, column)
    for function in (jquant.matmul_integer, jax.jit(jquant.matmul_integer, static_argnames="feature_level")):
        np.testing.assert_array_equal(function(a, *given, feature_level="EXTENDED"), expected, strict=True)
    with pytest.raises(
        DescriptorError, match=r"the same; reshape [AB]Tensor to .*, or use FeatureLevel.EXTENDED|ATensor has rank 8"
    ):
        jquant.matmul_integer(a, *given)


@pytest.mark.parametrize("shape", [(), (2,), (1, 2), (4, 2), (5, 4, 2), (1, 4, 1)], ids=str)
def test_a_bias_of_a_lower_rank(shape):
    rng = np.random.default_rng(2)
    a, b = samples.integers(rng, np.uint8, 5, 4, 3), samples.integers(rng, np.int8, 3, 2)
    bias = rng.normal(size=shape).astype(np.float32)
    operands = a, np.float32(0.5), np.uint8(3), b, np.float32(0.25), np.int8(1), bias
    actual = jquant.matmul_integer_to_float(*operands, feature_level="EXTENDED")
    np.testing.assert_array_equal(actual, reference.matmul_integer_to_float(*operands), strict=True)


@pytest.mark.parametrize("shape", [(4,), (1, 4), (1, 4, 1), (1, 4, 1, 1)], ids=str)
def test_a_bias_of_a_convolution(shape):
    bias = np.array([1000, -2000, 30000, -400000], np.int32)
    convolve = functools.partial(jquant.quantized_linear_convolution, IMAGE, 0.5, 3, FILTERS, 0.25, None, 50.0, 7)
    expected = convolve(bias.reshape(1, 4, 1, 1))
    np.testing.assert_array_equal(convolve(bias.reshape(shape), feature_level="EXTENDED"), expected, strict=True)
    if len(shape) == 1:
        text = r"6_4 allows 3 to 4; 1 is allowed from FeatureLevel.EXTENDED on; reshape it to \(1, -1, 1, 1\)$"
        with pytest.raises(DescriptorError, match=text):
            convolve(bias)
    with pytest.raises(DescriptorError, match="dimension 0 of BiasTensor, of shape \\(3,\\), must be 4"):
        convolve(bias[:3], feature_level="EXTENDED")


def test_a_bias_of_one_spatial_dimension():
    with pytest.raises(DescriptorError, match=r"reshape it to \(1, -1, 1\)$"):
        jquant.quantized_linear_convolution(
            IMAGE[..., 0], 0.5, None, FILTERS[..., 0], 0.25, None, 50.0, None, np.zeros(4, np.int32)
        )


def test_elements_of_different_ranks():
    short, long = A[0], np.stack([A, A[::-1]])
    operands = long, np.float32(0.5), np.uint8(3), short, np.float32(0.25), np.uint8(1), np.float32(0.7), np.uint8(9)
    actual = jquant.quantized_linear_add(*operands, feature_level="EXTENDED")
    np.testing.assert_array_equal(actual, reference.quantized_linear_add(*operands, np.uint8), strict=True)
    actual = jquant.quantized_linear_multiply(*operands)
    np.testing.assert_array_equal(actual, reference.quantized_linear_multiply(*operands, np.uint8), strict=True)
    for function in (jquant.clip_gradient, jquant.clip_gradient1):
        actual = function(X, X[0], -0.5, 0.5, feature_level="EXTENDED")
        np.testing.assert_array_equal(actual, np.where((X <= -0.5) | (X >= 0.5), 0, X[0]))
        with pytest.raises(DescriptorError, match=r"InputGradientTensor has shape \(3,\).*; reshape it to \(1, 3\)"):
            function(X, X[0], -0.5, 0.5)


# The level of the surroundings.

BFLOAT16 = jnp.array([-1.0, 7.0], jnp.bfloat16)


def is_extended() -> bool:
    """Whether a call that names no level has jquant's own, which alone takes bfloat16."""
    try:
        jquant.clip(BFLOAT16, 0, 6)
    except DescriptorTypeError:
        return False
    return True


def test_a_level_holds_inside():
    assert not is_extended()
    with jquant.feature_level("EXTENDED") as level:
        assert level is FeatureLevel.EXTENDED
        assert is_extended()
        with jquant.feature_level(FeatureLevel.LATEST):
            assert not is_extended()
        assert is_extended()
        with pytest.raises(DescriptorTypeError, match="DML_FEATURE_LEVEL_6_4 allows"):
            jquant.clip(BFLOAT16, 0, 6, feature_level="6_4")  # a call's own comes first
    assert not is_extended()


def test_a_level_ends_with_an_exception():
    with pytest.raises(ZeroDivisionError), jquant.feature_level("EXTENDED"):
        raise ZeroDivisionError
    assert not is_extended()


def test_a_level_as_a_decorator():
    inside = jquant.feature_level("EXTENDED")(is_extended)
    assert [inside(), inside(), is_extended()] == [True, True, False]


def test_a_level_is_that_of_a_thread():
    found = []
    with jquant.feature_level("EXTENDED"):
        thread = threading.Thread(target=lambda: found.append(is_extended()))
        thread.start()
        thread.join()
    assert found == [False]


def test_a_program_keeps_its_level():
    """It acts while tracing: the level is no part of the key under which `jax.jit` keeps a program."""
    program = jax.jit(lambda x: jquant.clip(x, 0, 6))
    with pytest.raises(DescriptorTypeError):
        program(BFLOAT16)
    with jquant.feature_level("EXTENDED"):
        assert program(BFLOAT16).tolist() == [0, 6]
    assert program(BFLOAT16).tolist() == [0, 6]
    with pytest.raises(DescriptorTypeError):
        program(BFLOAT16[:1])


@pytest.mark.parametrize(
    "operator", [name for name in OPERATORS if "feature_level" in inspect.signature(getattr(jquant, name)).parameters]
)
def test_every_operator_with_a_level_asks_for_it(operator, monkeypatch):
    asked = []
    monkeypatch.setattr(call, "resolved_level", lambda level: asked.append(level) or FeatureLevel.LEVEL_1_0)
    main = {
        "clip": X,
        "clip1": X,
        "clip_gradient": X,
        "clip_gradient1": X,
        "quantize_linear": X,
        "dynamic_quantize_linear": X,
    }
    arguments = {
        name: value for name, value in BASELINE.items() if name in inspect.signature(getattr(jquant, operator)).parameters
    }
    with pytest.raises(DescriptorError, match="1_0"):
        getattr(jquant, operator)(
            main.get(operator, IMAGE if "input_scale" in arguments or "filter" in arguments else A), **arguments
        )
    assert asked == [None]


BASELINE = {
    **{"scale": 0.5, "zero_point": 1, "a_scale": 0.5, "a_zero_point": 1, "b": B, "b_scale": 0.5, "b_zero_point": 1},
    **{"input_scale": 0.5, "input_zero_point": 1, "filter": FILTERS, "filter_scale": 0.5, "filter_zero_point": 1},
    **{"output_scale": 0.5, "output_zero_point": 1, "min": 0, "max": 1, "input_gradient": X, "window_sizes": (1, 1)},
}


# Padding and axes.


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_padding_in_onnx_words(rank):
    rng = np.random.default_rng(3)
    x, w = (
        samples.integers(rng, np.uint8, 1, 2, 7, 6, 5)[..., 0, 0],
        samples.integers(rng, np.int8, 3, 2, 2, 3, 2)[..., 0, 0],
    )
    if rank > 1:
        x = samples.integers(rng, np.uint8, 1, 2, *(7, 6, 5)[:rank])
        w = samples.integers(rng, np.int8, 3, 2, *(2, 3, 2)[:rank])
    convolve = functools.partial(jquant.convolution_integer, x, w, 5, 3, feature_level="EXTENDED")
    before, after = [1, 0, 2][:rank], [0, 3, 1][:rank]
    expected = convolve(padding=tuple(zip(before, after, strict=True)))
    for flat in ([*before, *after], (*before, *after), np.array([*before, *after])):
        np.testing.assert_array_equal(convolve(padding=flat), expected, strict=True)
    assert not np.array_equal(convolve(padding="SAME_UPPER"), convolve(padding="SAME_LOWER"))
    np.testing.assert_array_equal(convolve(padding="SAME_UPPER"), convolve(padding="SAME"), strict=True)


def test_padding_of_a_pool_in_onnx_words():
    pool = functools.partial(jquant.quantized_linear_average_pool, IMAGE, 0.5, 3, 0.5, 3, window_sizes=(3, 2))
    np.testing.assert_array_equal(pool(padding=[1, 0, 2, 1]), pool(padding=((1, 2), (0, 1))), strict=True)
    np.testing.assert_array_equal(pool(padding="SAME_UPPER"), pool(padding="SAME"), strict=True)
    with pytest.raises(DescriptorError, match=r"padding is \[1, 0, 2\]; .* or 4 nonnegative integers as in ONNX"):
        pool(padding=[1, 0, 2])


def test_axes_from_the_end():
    scale, zero_point = np.float32([0.5, 0.25, 2]), np.uint8([1, 2, 3])
    blocks = np.float32([[0.5, 0.25], [2, 1], [0.1, 0.3], [0.7, 0.9]])
    for function in (
        lambda axis: jquant.quantize_linear(X, scale, zero_point, axis=axis),
        lambda axis: jquant.dequantize_linear(A, scale, zero_point, axis=axis),
        lambda axis: jquant.quantize_linear(X, blocks, axis=axis, block_size=2),
        lambda axis: jquant.quantized_linear_softmax(A, 0.1, None, 0.01, axis=axis),
        lambda axis: jquant.quantized_linear_concat([(A, 0.5, None), (A, 0.25, 3)], 0.5, axis=axis),
        lambda axis: jquant.quantize_linear(X, scale, zero_point, axis=np.int64(axis)),
    ):
        np.testing.assert_array_equal(function(-1), function(1), strict=True)


# The mask of a dynamic range.


def test_what_is_masked_does_not_count():
    x = np.float32([[-1, 2, 0.5], [np.nan, np.inf, -np.inf]])
    for mask in ([[True], [False]], [[True] * 3, [False] * 3]):
        output, scale, zero_point = jquant.dynamic_quantize_linear(x, where=np.array(mask))
        alone = jquant.dynamic_quantize_linear(x[:1])
        assert (scale, zero_point) == (alone.scale, alone.zero_point)
        np.testing.assert_array_equal(output, jquant.quantize_linear(x, scale, zero_point), strict=True)
    nothing = jquant.dynamic_quantize_linear(x, where=np.zeros((2, 3), np.bool))
    assert (nothing.scale, nothing.zero_point) == (1, 0)
    one = functools.partial(jquant.dynamic_quantize_linear, x[:1])
    for single, same in ((True, None), (np.array(True), None), (jnp.array([[True]]), None), (False, np.zeros((1, 3), bool))):
        jax.tree.map(functools.partial(np.testing.assert_array_equal, strict=True), one(where=single), one(where=same))


def test_the_derivative_of_a_masked_range():
    x, mask = jnp.array([-1.0, 2.0, 9.0]), jnp.array([True, True, False])
    found = jax.grad(lambda x: jquant.dynamic_quantize_linear(x, where=mask).scale * 255)(x)
    np.testing.assert_array_equal(found, [-1, 1, 0])


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (np.ones((2, 3), np.uint8), "where has data type UINT8; it must be BOOL"),
        (np.ones(3, np.bool), "where has shape (3,), InputTensor has (2, 3): the dimension counts must be the same"),
        (np.ones((2, 2), np.bool), "where has shape (2, 2), InputTensor has (2, 3)"),
        (np.ones((3, 2, 3), np.bool), "where has shape (3, 2, 3), InputTensor has (2, 3)"),
        ([True], "where must be an array of booleans, True or False, not list"),
        (1, "where must be an array of booleans, True or False, not int"),
    ],
    ids=repr,
)
def test_masks_that_do_not_fit(mask, text):
    with pytest.raises(DescriptorError) as raised:
        jquant.dynamic_quantize_linear(np.ones((2, 3), np.float32), where=mask)
    assert str(raised.value).startswith(f"DML_DYNAMIC_QUANTIZE_LINEAR: {text}")


# What a default is, is no matter of values.


def test_defaults():
    clip, relu = jquant.clip, functools.partial(jquant.quantized_linear_leaky_relu, A, 0.5, 3, 0.01, 9)
    quantize = functools.partial(jquant.quantize, X, -1, 1, "quint8")
    limit = functools.partial(
        jquant.requantization_range_per_channel, ACCUMULATORS, -np.ones(3, np.float32), np.ones(3, np.float32)
    )
    for default, given in (
        (clip(X), clip(X, -np.inf, np.inf)),
        (clip(X, max=0), clip(X, -np.inf, 0)),
        (clip(A), A),
        (relu(), relu(alpha=0.01)),
        (quantize(), quantize(ensure_minimum_range=0.01)),
        (limit(), limit(clip_value_max=np.inf)),
    ):
        jax.tree.map(functools.partial(np.testing.assert_array_equal, strict=True), default, given)
