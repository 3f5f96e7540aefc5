"""Every operator on constants that its caller computes and rearranges, which XLA folds while it compiles the program."""

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
    """How the constants are rearranged, and which of the arguments is one; None stands for all of them."""
    arguments = ALL[name].arguments()
    arrays = [index for index, value in enumerate(arguments) if any(x.ndim > 1 for x in jax.tree.leaves(value))]
    chosen = itertools.cycle([None, *arrays])
    found = list(zip(REARRANGED, chosen, strict=False))
    if full:
        return found + list(zip(REARRANGED, itertools.islice(chosen, 1, None), strict=False))
    return found[1:2] if gate else [("transposed and changed", arrays[-1] if arrays else None)]


def names() -> list:
    """One operator of three; in the gate all, and in the full run their variants."""
    gate, full = pytest.mark.gate, pytest.mark.full
    marked = [*zip(CASES, itertools.cycle((gate, (), gate)), strict=False), *((name, full) for name in VARIANTS)]
    return [pytest.param(name, marks=marks) for name, marks in marked]


@pytest.mark.parametrize("name", names())
def test_equals_the_formula(name, gate, full, count):
    """As for arrays of the same values."""
    case = ALL[name]
    for seed, (arrangement, constant) in enumerate(programs(name, gate, full)):
        arguments = of_equal_rows(case, seed) if arrangement == "broadcast" else case.arguments(seed, rows=6)
        with np.errstate(all="ignore"):
            expected = case.formula(*arguments)
        ways, function = with_constants(case, arguments, arrangement, constant, None if full else 2)
        traced = None if constant is None else [value for index, value in enumerate(arguments) if index != constant]
        for way, result in zip(ways, jax.jit(function)(traced), strict=True):
            assert_equal(result, expected, f"{arrangement}, {way}, argument {constant}", subnormals=False)
        count("programs of computed constants", len(ways))


def of_equal_rows(case: Case, seed: int) -> tuple:
    """Arguments of which every array has equal rows; not those of packed matrices, which would no longer fit together."""

    def first_row(x):
        return np.ascontiguousarray(np.broadcast_to(x[:1], x.shape)) if isinstance(x, np.ndarray) and x.ndim else x

    return tuple(map(first_row, case.arguments(seed, rows=6)))


def with_constants(case: Case, arguments: tuple, arrangement: str, constant: int | None, most: int | None):
    """The ways in which the constants are computed, and a function of the other arguments: the results for each way."""
    rng = np.random.default_rng(0)
    leaves, tree = jax.tree.flatten(arguments if constant is None else arguments[constant])
    thunks = [rearranged(arrangement, x, rng) if x.ndim and x.size else None for x in leaves]
    ways = sorted({way for one in thunks if one for way in one})[:most]

    def function(traced):
        results = []
        for way in ways:
            computed = (one[way]() if one and way in one else x for one, x in zip(thunks, leaves, strict=True))
            value = jax.tree.unflatten(tree, computed)
            operands = value if constant is None else (*traced[:constant], value, *traced[constant:])
            results.append(case.function(*operands))
        return results

    return ways, function


def test_only_one_module_reads_bits():
    """The others read them with its functions, which keep XLA from folding them wrongly."""
    folder = Path(jquant.__file__).parent
    paths = (path for path in folder.rglob("*.py") if "lax.bitcast_convert_type" in path.read_text())
    assert [str(path.relative_to(folder)) for path in paths] == ["arithmetic/bitcast.py"]
