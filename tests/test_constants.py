"""Every operator on constants that the caller computes and rearranges, and that XLA folds while compiling the program."""

import itertools
from pathlib import Path

import jax
import numpy as np
import pytest
from support.comparison import assert_equal
from support.constants import REARRANGED, rearranged

import jquant
from jquant.cases import CASES, VARIANTS, Case

ALL = CASES | VARIANTS


def programs(name: str, gate: bool, full: bool) -> list[tuple[str, int | None]]:
    """For each program, the rearrangement, and the index of the constant argument; None makes all of them constant."""
    arguments = ALL[name].arguments()
    arrays = [index for index, value in enumerate(arguments) if any(x.ndim > 1 for x in jax.tree.leaves(value))]
    constants = itertools.cycle([None, *arrays])
    pairs = list(zip(REARRANGED, constants, strict=False))
    if full:
        return pairs + list(zip(REARRANGED, itertools.islice(constants, 1, None), strict=False))
    return pairs[1:2] if gate else [("transposed and changed", arrays[-1] if arrays else None)]


def names() -> list:
    """One operator in three; all of them in the gate, and their variants in the full run.

    In `mx_quantize`, XLA moves transpositions past a bitcast of floats that nothing guards.
    """
    gate, full = pytest.mark.gate, pytest.mark.full
    marked = [*zip(CASES, itertools.cycle((gate, (), gate)), strict=False), *((name, full) for name in VARIANTS)]
    return [pytest.param(name, marks=pytest.mark.suite if name == "mx_quantize" else marks) for name, marks in marked]


@pytest.mark.parametrize("name", names())
def test_equals_the_formula(name, gate, full, count):
    """Exactly as on arrays of the same values that are no constants."""
    case = ALL[name]
    for seed, (arrangement, constant) in enumerate(programs(name, gate, full)):
        arguments = arguments_of_equal_rows(case, seed) if arrangement == "broadcast" else case.arguments(seed, rows=6)
        with np.errstate(all="ignore"):
            expected = case.formula(*arguments)
        names, function = with_constants(case, arguments, arrangement, constant, None if full else 2)
        traced = None if constant is None else [value for index, value in enumerate(arguments) if index != constant]
        for name, result in zip(names, jax.jit(function)(traced), strict=True):
            assert_equal(result, expected, f"{arrangement}, {name}, argument {constant}", subnormals=False)
        count("programs of computed constants", len(names))


def arguments_of_equal_rows(case: Case, seed: int) -> tuple:
    """Arguments in which all rows of an array are equal, except in packed matrices, whose arrays depend on each other."""

    def first_row(x):
        return np.ascontiguousarray(np.broadcast_to(x[:1], x.shape)) if isinstance(x, np.ndarray) and x.ndim else x

    return tuple(map(first_row, case.arguments(seed, rows=6)))


def with_constants(case: Case, arguments: tuple, arrangement: str, constant: int | None, most: int | None):
    """The names of up to `most` computations of the constants, and a function from the other arguments to their results."""
    rng = np.random.default_rng(0)
    leaves, tree = jax.tree.flatten(arguments if constant is None else arguments[constant])
    thunks = [rearranged(arrangement, x, rng) if x.ndim and x.size else None for x in leaves]
    names = sorted({name for computations in thunks if computations for name in computations})[:most]

    def function(traced):
        results = []
        for name in names:
            computed = (
                computations[name]() if computations and name in computations else x
                for computations, x in zip(thunks, leaves, strict=True)
            )
            value = jax.tree.unflatten(tree, computed)
            operands = value if constant is None else (*traced[:constant], value, *traced[constant:])
            results.append(case.function(*operands))
        return results

    return names, function


def test_only_one_module_reads_bits():
    """Every other module uses its functions, which keep XLA from folding bit casts of constants wrongly."""
    folder = Path(jquant.__file__).parent
    paths = (path for path in folder.rglob("*.py") if "lax.bitcast_convert_type" in path.read_text())
    assert [str(path.relative_to(folder)) for path in paths] == ["lowering/bitcast.py"]
