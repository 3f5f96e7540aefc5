"""Wrong arguments: whatever a docstring does not allow raises a `DescriptorError` that names the argument.

Each of many substitutes takes the place of every argument of every public function. Substitutes that are valid after all,
as 1 is for a scale, give the results of the canonical spelling of the same argument, in the promised shapes and dtypes.
"""

import collections
import functools
import itertools
import random
from collections.abc import Callable, Iterable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from misuse import UNSPECIFIED, WRONG, Argument, Call, Like, calls, public_functions, substitutes
from support.comparison import assert_equal

import jquant
from jquant.cases import samples

pytestmark = pytest.mark.filterwarnings("ignore:.*the bins are .* wide")  # observers have few bins here

_FUNCTIONS = sorted(public_functions())
_ANY, _WRONG = 1, 3  # substitutes in the sample for each argument of each call: any, and only wrong ones


class Cell:
    """An argument of a call, and a substitute for it."""

    def __init__(self, call: Call, name: str, substitute: str, *, traced: Callable[[object], object]):
        self.call, self.name, self.substitute, self.traced = call, name, substitute, traced
        self.make = call.arguments[name].substitutes()[substitute]

    @property
    def argument(self) -> Argument:
        return self.call.arguments[self.name]

    def canonical(self) -> object:
        """The canonical spelling of the substitute as this argument, or `WRONG` or `UNSPECIFIED`."""
        return self.argument.kind.canonical(self.make())

    def __str__(self) -> str:
        return f"{self.call.name}: {self.name} = {self.substitute}"


@functools.cache
def _cells(full: bool) -> dict[str, list[Cell]]:
    """By function, all cells, or a sample: for each argument the next substitutes of a shuffled deck, so that all occur."""
    cells = collections.defaultdict(list)
    deck = _shuffled(substitutes(Like((1,), np.dtype(np.float32))), "")
    for call in calls():
        for name, argument in call.arguments.items():
            traced = jax.jit(lambda value, call=call, name=name: call(**{name: value}))  # a program for each type of value
            make = functools.partial(Cell, call, name, traced=traced)
            if full:
                cells[call.name] += map(make, argument.substitutes())
            else:
                dealt = itertools.islice(deck, _ANY + _WRONG)
                own = itertools.islice(_shuffled(argument.also, f"{call.name}: {name}"), _ANY + _WRONG)
                cells[call.name] += [*_mostly_wrong(map(make, dealt)), *_mostly_wrong(map(make, own))]
    return cells


def _shuffled(names: Iterable[str], seed: str) -> Iterator[str]:
    """The names again and again without end, in another order each time."""
    order, names = random.Random(seed), list(names)
    while names:
        yield from order.sample(names, len(names))


def _mostly_wrong(cells: Iterable[Cell]) -> Iterator[Cell]:
    """The first cells, and of the others those that are wrong, because each valid one compiles a program."""
    return (cell for index, cell in enumerate(cells) if index < _ANY or cell.canonical() is WRONG)


def _outcome(
    cell: Cell, canonical: object, call: Callable[[], object], expected: Callable[[], object] | None
) -> tuple[str, str]:
    """How the call ended, and what is wrong with that, or an empty text; results may have to equal `expected`, too."""
    try:
        result = jax.block_until_ready(call())
    except jquant.DescriptorError as error:
        if canonical is not WRONG:
            return "refused", f"is refused: {error}"
        named = cell.argument.is_named_in(str(error))
        return ("raised", "") if named else ("unnamed", f"the error names something else: {error}")
    except Exception as error:
        return "raw", f"{type(error).__module__}.{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    if canonical is WRONG:
        return "nonsense", f"is accepted: {' '.join(repr(result).split())[:300]}"
    try:
        _assert_promised(result, cell.call.promised(**{cell.name: canonical}))
        if expected is not None:
            _assert_same(result, expected())
    except Exception as error:
        return "different", f"gives something else: {type(error).__name__}: {' '.join(str(error).split())[:600]}"
    return "results", ""


def _assert_promised(result: object, promise: object) -> None:
    """Asserts that the result has the structure, shapes and dtypes that the docstring promises."""
    if isinstance(promise, type):
        assert isinstance(result, promise)
        return

    def described(x: object) -> object:
        return (x.shape, x.dtype, x.weak_type) if isinstance(x, jax.Array | jax.ShapeDtypeStruct) else x

    actual, expected = (jax.tree.map(described, tree) for tree in (result, promise))
    is_packed = isinstance(result, jquant.PackedMatrix | jquant.PackedBlockMatrix)
    assert repr(actual) == repr(expected) if is_packed else actual == expected, (actual, expected)


def _assert_same(result: object, expected: object) -> None:
    arrays = jax.tree.leaves(expected)
    if all(isinstance(x, jax.Array) for x in arrays):
        assert_equal(*(jax.tree.map(_comparable, tree) for tree in (result, expected)))
    else:
        assert result == expected or repr(result) == repr(expected)


def _comparable(x: jax.Array) -> np.ndarray:
    """An array of a type that NumPy can compare, with 0 for subnormal numbers, for which nothing is promised."""
    array = np.asarray(x)
    if array.dtype == np.float32:
        array = np.where(samples.is_subnormal(array), np.float32(0), array)
    return (
        array
        if array.dtype.kind in "biuf"
        else array.astype(np.float32 if jnp.issubdtype(x.dtype, jnp.floating) else np.int8)
    )


def _called(cell: Cell) -> tuple[str, str]:
    """The outcome of the call with the substitute."""
    canonical, substitute = cell.canonical(), cell.make()
    if canonical is UNSPECIFIED:
        return "unspecified", ""
    return _outcome(
        cell, canonical, lambda: cell.call(**{cell.name: substitute}), lambda: cell.call(**{cell.name: canonical})
    )


_identity = jax.jit(lambda x: x)


def _called_in_jit(cell: Cell, *, compiled: bool) -> tuple[str, str]:
    """The outcome of the call inside a `jax.jit` whose argument is the substitute; compiled and run, or only traced."""
    try:
        array = _identity(cell.make())
    except Exception:  # raised by JAX, before the call
        return "untraceable", ""
    if not jax.tree.leaves(array):
        return "untraceable", ""
    canonical = cell.argument.kind.canonical_traced(array)
    if canonical is UNSPECIFIED:
        return "unspecified", ""
    if not compiled:
        return _outcome(cell, canonical, lambda: jax.eval_shape(cell.traced, array), None)
    return _outcome(cell, canonical, lambda: cell.traced(array), lambda: cell.call(**{cell.name: canonical}))


def _sweep(cells: list[Cell], outcome: Callable[[Cell], tuple[str, str]], count: Callable[[str, int], None]) -> None:
    """Counts the outcomes of all cells, and asserts that nothing is wrong with any."""
    wrong, tally = [], collections.Counter()
    for cell in cells:
        ended, message = outcome(cell)
        if ended in ("unspecified", "untraceable"):
            continue
        tally[ended] += 1
        if message:
            wrong.append(f"{cell} {message}")
    for ended, number in tally.items():
        count(f"misuse, {ended}", number)
    assert not wrong, f"{len(wrong)} of {len(cells)}:\n" + "\n".join(wrong)


@pytest.mark.gate
@pytest.mark.parametrize("function", _FUNCTIONS)
def test_wrong_arguments(function, full, count):
    _sweep(_cells(full)[function], _called, count)


@pytest.mark.gate
@pytest.mark.parametrize("function", _FUNCTIONS)
def test_wrong_arguments_through_a_callers_jit(function, full, count):
    _sweep(_cells(full)[function], functools.partial(_called_in_jit, compiled=full), count)


@pytest.mark.gate
@pytest.mark.parametrize("function", _FUNCTIONS)
def test_wrong_arguments_with_64_bits(function, full, count):
    """With `jax_enable_x64`, where JAX narrows nothing; except in the full run, only what is wrong there, too."""
    with jax.enable_x64(True):
        _sweep([cell for cell in _cells(full)[function] if full or cell.canonical() is WRONG], _called, count)


@pytest.mark.gate
def test_the_calls_are_right():
    """The calls are valid before anything is substituted."""
    for call in calls():
        _assert_promised(call(), call.promised())


def test_the_sample_has_every_thing_and_every_argument():
    cells = list(itertools.chain(*_cells(False).values()))
    assert {cell.substitute for cell in cells} >= set(substitutes(Like((1,), np.dtype(np.float32))))
    assert len({(id(cell.call), cell.name) for cell in cells}) == sum(len(call.arguments) for call in calls())
