"""`jquant.feature_level`: the level of calls that name none, by block, by thread and while tracing."""

import inspect
import threading

import jax
import jax.numpy as jnp
import pytest
from support.documents import OPERATORS

import jquant
from jquant import DescriptorError, DescriptorTypeError, FeatureLevel
from jquant.arguments import call

from .operands import FILTERS, IMAGE, A, B, X

BFLOAT16 = jnp.array([-1.0, 7.0], jnp.bfloat16)


def is_extended() -> bool:
    """Whether a call that names no level runs at `FeatureLevel.EXTENDED`, the only level that takes bfloat16."""
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
            jquant.clip(BFLOAT16, 0, 6, feature_level="6_4")  # the call's own level takes precedence
    assert not is_extended()


def test_a_level_ends_with_an_exception():
    with pytest.raises(ZeroDivisionError), jquant.feature_level("EXTENDED"):
        raise ZeroDivisionError
    assert not is_extended()


def test_a_level_as_a_decorator():
    decorated = jquant.feature_level("EXTENDED")(is_extended)
    assert [decorated(), decorated(), is_extended()] == [True, True, False]


def test_a_level_is_that_of_a_thread():
    """Another thread does not see it."""
    results = []
    with jquant.feature_level("EXTENDED"):
        thread = threading.Thread(target=lambda: results.append(is_extended()))
        thread.start()
        thread.join()
    assert results == [False]


def test_a_program_keeps_its_level():
    """The level acts while tracing, and is no part of the key under which `jax.jit` caches a program."""
    program = jax.jit(lambda x: jquant.clip(x, 0, 6))
    with pytest.raises(DescriptorTypeError):
        program(BFLOAT16)
    with jquant.feature_level("EXTENDED"):
        assert program(BFLOAT16).tolist() == [0, 6]
    assert program(BFLOAT16).tolist() == [0, 6]
    with pytest.raises(DescriptorTypeError):
        program(BFLOAT16[:1])


ARGUMENTS = {  # by parameter, for every operator; the first argument is positional
    **{"scale": 0.5, "zero_point": 1, "a_scale": 0.5, "a_zero_point": 1, "b": B, "b_scale": 0.5, "b_zero_point": 1},
    **{"input_scale": 0.5, "input_zero_point": 1, "filter": FILTERS, "filter_scale": 0.5, "filter_zero_point": 1},
    **{"output_scale": 0.5, "output_zero_point": 1, "min": 0, "max": 1, "input_gradient": X, "window_sizes": (1, 1)},
}
FLOAT_INPUTS = ("clip", "clip1", "clip_gradient", "clip_gradient1", "quantize_linear", "dynamic_quantize_linear")


@pytest.mark.parametrize(
    "operator", [name for name in OPERATORS if "feature_level" in inspect.signature(getattr(jquant, name)).parameters]
)
def test_every_operator_with_a_level_asks_for_it(operator, monkeypatch):
    """An operator that is called without a level looks up the surrounding one, once."""
    requests = []
    monkeypatch.setattr(call, "resolved_level", lambda level: requests.append(level) or FeatureLevel.LEVEL_1_0)
    function = getattr(jquant, operator)
    arguments = {name: value for name, value in ARGUMENTS.items() if name in inspect.signature(function).parameters}
    is_windowed = "input_scale" in arguments or "filter" in arguments
    first = X if operator in FLOAT_INPUTS else IMAGE if is_windowed else A
    with pytest.raises(DescriptorError, match="1_0"):
        function(first, **arguments)
    assert requests == [None]
