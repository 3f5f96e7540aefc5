"""Every operator inside a caller's jit: alone, and between the caller's own constant product and sum.

Parameters are traced, and constants folded into the caller's program: XLA rewrites the two differently.
The formula is NumPy's, one float32 rounding a step.
"""

import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.comparison import assert_equal

from jquant.cases import CASES, VARIANTS, Case, on_first_floats

FLOAT32 = np.float32
BEFORE, AFTER, FACTOR = FLOAT32(0.1), FLOAT32(0.7), FLOAT32(1.3)


@pytest.fixture(scope="module")
def elements(full) -> int:
    """About how many values a case sees in each of its programs, and a variant a quarter of them."""
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


def names() -> list:
    """One case of five; in the gate all, and two variants of five, of which the full run has all.

    Types and options alternate by two and by three, so that a sample by five has each of them.
    """
    gate, full = pytest.mark.gate, pytest.mark.full
    cases, variants = itertools.cycle((gate, gate, (), gate, gate)), itertools.cycle((gate, full, full, gate, full))
    marked = [*zip(CASES, cases, strict=False), *zip(VARIANTS, variants, strict=False)]
    return [pytest.param(name, marks=marks) for name, marks in marked]


@pytest.mark.parametrize("name", names())
def test_equals_the_formula(name, elements, count, gate, full):
    """In the program with a product before and one after it; in the gate, a case in every second program; at last in all."""
    case, all_programs = (CASES | VARIANTS)[name], full or (gate and name in CASES)
    programs = 0
    all_befores = befores(case.arguments(rows=case.rows_of(elements if name in CASES else elements // 4)))
    for first, (arguments, before) in enumerate(all_befores if all_programs else all_befores[-1:]):
        with np.errstate(all="ignore"):
            result = case.formula(*on_first_floats(before, arguments))
        results_are_floats = any(map(is_float, jax.tree.leaves(result)))
        afters = AFTERS if results_are_floats else AFTERS[:1]
        for last, after in enumerate(afters if all_programs else afters[-1:]):
            with np.errstate(all="ignore"):
                expected = jax.tree.map(after, result)
            if full or not all_programs or (first + last) % 2:
                traced = jax.jit(program(case, before, after))(*arguments)
                assert_equal(traced, expected, "parameters traced", subnormals=False)
                programs += 1
            if full or not all_programs or (first + last) % 2 == 0:  # with both of the caller's constants, too
                tensors = [value for index, value in enumerate(arguments) if index in case.rows]
                constant = jax.jit(with_constants(case, arguments, program(case, before, after)))(*tensors)
                assert_equal(constant, expected, "parameters constant", subnormals=False)
                programs += 1
    count("programs of callers", programs)


def program(case: Case, before: Callable, after: Callable) -> Callable:
    return lambda *arguments: jax.tree.map(after, case.function(*on_first_floats(before, arguments)))


def with_constants(case: Case, arguments: tuple, function: Callable) -> Callable:
    """A function of the arguments that have rows."""

    def of_tensors(*tensors):
        given = iter(tensors)
        return function(*(next(given) if index in case.rows else value for index, value in enumerate(arguments)))

    return of_tensors
