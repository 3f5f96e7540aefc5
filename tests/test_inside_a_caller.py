"""Every operator inside a caller's jit: alone, and between the caller's own constant product and sum.

Parameters are traced, and constants folded into the caller's program: XLA rewrites the two differently.
The formula is NumPy's, one float32 rounding a step.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparison import assert_equal

from jquant.cases import CASES, VARIANTS, Case, on_first_floats

FLOAT32 = np.float32
BEFORE, AFTER, FACTOR = FLOAT32(0.1), FLOAT32(0.7), FLOAT32(1.3)


@pytest.fixture(scope="module")
def elements(full) -> int:
    """About how many values each operator sees in each of its programs."""
    return 10_000_000 if full else 250_000


def is_float(x) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


def unchanged(x):
    return x


def added(constant: np.float32) -> Callable:
    """What a caller does to float arrays; integers pass."""
    return lambda x: x + constant.astype(x.dtype) if is_float(x) else x


def multiplied(constant: np.float32) -> Callable:
    return lambda x: x * constant.astype(x.dtype) if is_float(x) else x


def divided(constant: np.float32) -> Callable:
    """What the multiplication takes back to nearly the same, so that near ties are near ties to the operator."""
    return lambda x: (x / constant.astype(x.dtype)).astype(x.dtype)


def befores(arguments: tuple) -> list[tuple[tuple, Callable]]:
    """What the program gets, and what it does to the first floats before they are the operator's: nothing, or a product."""
    with np.errstate(all="ignore"):
        larger = on_first_floats(divided(BEFORE), arguments)
    return [(arguments, unchanged)] + ([] if larger is arguments else [(larger, multiplied(BEFORE))])


AFTERS = unchanged, added(AFTER), multiplied(FACTOR)


@pytest.mark.parametrize("name", CASES)
def test_equals_the_formula(name, elements, full):
    """In the programs that a caller may put the operator in: in every second one, or in all."""
    compare(CASES[name], elements, lambda first, last, constant: full or constant == ((first + last) % 2 == 0))


@pytest.mark.gate
@pytest.mark.parametrize("name", VARIANTS)
def test_variant_equals_the_formula(name, elements, full):
    """In every fourth program, by turns, so that four variants have them all; or in all."""
    turn = [*VARIANTS].index(name)

    def is_chosen(first, last, constant):
        return full or (first == (last // 2 + turn) % 2 and constant == ((first + last + turn // 2) % 2 == 0))

    compare(VARIANTS[name], elements, is_chosen)


def compare(case: Case, elements: int, is_chosen: Callable[[int, int, bool], bool]) -> None:
    """The case in the chosen ones of its programs, which have a number for what the caller does before, and after."""
    drawn = case.arguments(rows=case.rows_of(elements))
    for first, (arguments, before) in enumerate(befores(drawn)):
        with np.errstate(all="ignore"):
            result = case.formula(*on_first_floats(before, arguments))
        results_are_floats = any(map(is_float, jax.tree.leaves(result)))
        for last, after in enumerate(AFTERS if results_are_floats else AFTERS[:1]):
            with np.errstate(all="ignore"):
                expected = jax.tree.map(after, result)
            if is_chosen(first, last, False):
                traced = jax.jit(program(case, before, after))(*arguments)
                assert_equal(traced, expected, "parameters traced", subnormals=False)
            if is_chosen(first, last, True):  # with both of the caller's constants, too
                tensors = [value for index, value in enumerate(arguments) if index in case.rows]
                constant = jax.jit(with_constants(case, arguments, program(case, before, after)))(*tensors)
                assert_equal(constant, expected, "parameters constant", subnormals=False)


def program(case: Case, before: Callable, after: Callable) -> Callable:
    return lambda *arguments: jax.tree.map(after, case.function(*on_first_floats(before, arguments)))


def with_constants(case: Case, arguments: tuple, function: Callable) -> Callable:
    """A function of the arguments that have rows."""

    def of_tensors(*tensors):
        given = iter(tensors)
        return function(*(next(given) if index in case.rows else value for index, value in enumerate(arguments)))

    return of_tensors
