"""Every operator inside a caller's jit: alone, and between operations of the caller's own, which XLA may merge with it.

Parameters are traced in one program and constants in another, because XLA rewrites the two differently. The expected
values are the formula's in NumPy, with one float32 rounding per step.
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
    """About how many values each program of a case gets; programs of a variant get a quarter."""
    return 10_000_000 if full else 250_000


def is_float(x) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


def unchanged(x):
    return x


def added(constant: np.float32) -> Callable:
    """A caller's addition, to float arrays only."""
    return lambda x: x + constant.astype(x.dtype) if is_float(x) else x


def multiplied(constant: np.float32) -> Callable:
    return lambda x: x * constant.astype(x.dtype) if is_float(x) else x


def divided(constant: np.float32) -> Callable:
    """Undone by the caller's multiplication up to rounding, so that the operator still sees values near ties."""
    return lambda x: (x / constant.astype(x.dtype)).astype(x.dtype)


def befores(arguments: tuple) -> list[tuple[tuple, Callable]]:
    """Pairs of the program's arguments and what it does to the first floats before the operator: nothing, or a product."""
    with np.errstate(all="ignore"):
        larger = on_first_floats(divided(BEFORE), arguments)
    return [(arguments, unchanged)] + ([] if larger is arguments else [(larger, multiplied(BEFORE))])


AFTERS = unchanged, added(AFTER), multiplied(FACTOR)


def names() -> list:
    """One case in five; the gate has all cases and two variants in five, and the full run has everything.

    Types and options alternate with periods of two and three, so that one in five is a sample of all of them.
    """
    gate, full = pytest.mark.gate, pytest.mark.full
    cases, variants = itertools.cycle((gate, gate, (), gate, gate)), itertools.cycle((gate, full, full, gate, full))
    marked = [*zip(CASES, cases, strict=False), *zip(VARIANTS, variants, strict=False)]
    return [pytest.param(name, marks=marks) for name, marks in marked]


@pytest.mark.parametrize("name", names())
def test_equals_the_formula(name, elements, count, gate, full):
    """All programs in the full run.

    In the gate, a case is between a product, or nothing, and a sum: once its parameters are traced, and once constant. Other
    cases and variants are between two products, in both ways.
    """
    case, in_gate = (CASES | VARIANTS)[name], gate and name in CASES and not full
    programs = 0
    all_befores = befores(case.arguments(rows=case.rows_of(elements if name in CASES else elements // 4)))
    for number, (arguments, before) in enumerate(all_befores if full or in_gate else all_befores[-1:]):
        with np.errstate(all="ignore"):
            result = case.formula(*on_first_floats(before, arguments))
        afters = AFTERS if any(map(is_float, jax.tree.leaves(result))) else AFTERS[:1]
        for after in afters if full else afters[:2][-1:] if in_gate else afters[-1:]:
            with np.errstate(all="ignore"):
                expected = jax.tree.map(after, result)
            alternates = in_gate and len(all_befores) > 1
            if not alternates or number == 0:
                traced = jax.jit(program(case, before, after))(*arguments)
                assert_equal(traced, expected, "parameters traced", subnormals=False)
                programs += 1
            if not alternates or number == 1:
                tensors = [value for index, value in enumerate(arguments) if index in case.rows]
                constant = jax.jit(with_constants(case, arguments, program(case, before, after)))(*tensors)
                assert_equal(constant, expected, "parameters constant", subnormals=False)
                programs += 1
    count("programs of callers", programs)


def program(case: Case, before: Callable, after: Callable) -> Callable:
    return lambda *arguments: jax.tree.map(after, case.function(*on_first_floats(before, arguments)))


def with_constants(case: Case, arguments: tuple, function: Callable) -> Callable:
    """A function of the arguments that have rows, in which all others are constants."""

    def function_of_rows(*tensors):
        remaining = iter(tensors)
        return function(*(next(remaining) if index in case.rows else value for index, value in enumerate(arguments)))

    return function_of_rows
