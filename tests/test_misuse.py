"""Wrong arguments: what is none of those that a docstring has raises a `DescriptorError`, the text of which names it.

Every argument of every public function is replaced by every one of many wrong things. Those that are right after all, as 1
is for a scale, give what the canonical spelling of the same argument gives, in the promised shapes and dtypes.
"""

import collections
import functools
import inspect
import itertools
import random
from collections.abc import Callable, Iterable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from misuse import UNSPECIFIED, WRONG, Argument, Call, Like, calls, public_functions, things
from support.comparison import assert_equal

import jquant
from jquant.cases import samples

pytestmark = pytest.mark.filterwarnings("ignore:.*the bins are .* wide")  # of observers with few of them

_FUNCTIONS = sorted(public_functions())
_SAMPLED, _WRONG = 1, 3  # of the things, for each argument of each call; and of those that are none


class Cell:
    """An argument of a call, and what is put in its place."""

    def __init__(self, call: Call, name: str, thing: str, *, traced: Callable[[object], object]):
        self.call, self.name, self.thing, self.traced = call, name, thing, traced
        self.make = call.arguments[name].things()[thing]

    @property
    def argument(self) -> Argument:
        return self.call.arguments[self.name]

    def means(self) -> object:
        """What the thing means in the place of the argument."""
        return self.argument.kind.means(self.make())

    def __str__(self) -> str:
        return f"{self.call.name}: {self.name} = {self.thing}"


@functools.cache
def _cells(full: bool) -> dict[str, list[Cell]]:
    """By function: all, or for each argument the next ones of a shuffled deck of things, so that each has its turns."""
    found = collections.defaultdict(list)
    deck = _shuffled(things(Like((1,), np.dtype(np.float32))), "")
    for call in calls():
        for name, argument in call.arguments.items():
            traced = jax.jit(lambda value, call=call, name=name: call(**{name: value}))  # a program for each type of value
            make = functools.partial(Cell, call, name, traced=traced)
            if full:
                found[call.name] += map(make, argument.things())
            else:
                dealt = itertools.islice(deck, _SAMPLED + _WRONG)
                own = itertools.islice(_shuffled(argument.also, f"{call.name}: {name}"), _SAMPLED + _WRONG)
                found[call.name] += [*_few_right(map(make, dealt)), *_few_right(map(make, own))]
    return found


def _shuffled(names: Iterable[str], seed: str) -> Iterator[str]:
    """Endless, in another order each time."""
    order, names = random.Random(seed), list(names)
    while names:
        yield from order.sample(names, len(names))


def _few_right(cells: Iterable[Cell]) -> Iterator[Cell]:
    """Those that are wrong, and the first ones whether they are or not: what is right takes a program."""
    return (cell for index, cell in enumerate(cells) if index < _SAMPLED or cell.means() is WRONG)


def _outcome(
    cell: Cell, meant: object, call: Callable[[], object], canonical: Callable[[], object] | None
) -> tuple[str, str]:
    """How the call ended, and what is wrong with that, if anything is: beside another call, or by the promise alone."""
    try:
        result = jax.block_until_ready(call())
    except jquant.DescriptorError as error:
        if meant is not WRONG:
            return "refused", f"is refused: {error}"
        named = cell.argument.is_named_in(str(error))
        return ("raised", "") if named else ("unnamed", f"the error names something else: {error}")
    except Exception as error:
        return "raw", f"{type(error).__module__}.{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    if meant is WRONG:
        return "nonsense", f"is accepted: {' '.join(repr(result).split())[:300]}"
    try:
        _assert_promised(result, cell.call.promised(**{cell.name: meant}))
        if canonical is not None:
            _assert_same(result, canonical())
    except Exception as error:
        return "different", f"gives something else: {type(error).__name__}: {' '.join(str(error).split())[:600]}"
    return "results", ""


def _assert_promised(result: object, promise: object) -> None:
    """That the arrays have the shapes and dtypes, in the tree, that the docstring says."""
    if isinstance(promise, type):
        assert isinstance(result, promise)
        return

    def described(x: object) -> object:
        return (x.shape, x.dtype, x.weak_type) if isinstance(x, jax.Array | jax.ShapeDtypeStruct) else x

    given, wanted = (jax.tree.map(described, tree) for tree in (result, promise))
    is_packed = isinstance(result, jquant.PackedMatrix | jquant.PackedBlockMatrix)
    assert repr(given) == repr(wanted) if is_packed else given == wanted, (given, wanted)


def _assert_same(result: object, canonical: object) -> None:
    arrays = jax.tree.leaves(canonical)
    if all(isinstance(x, jax.Array) for x in arrays):
        assert_equal(*(jax.tree.map(_plain, tree) for tree in (result, canonical)))
    else:
        assert result == canonical or repr(result) == repr(canonical)


def _plain(x: jax.Array) -> np.ndarray:
    """As an array that NumPy can compare; subnormal numbers, which are outside of the promise, as 0."""
    array = np.asarray(x)
    if array.dtype == np.float32:
        array = np.where(samples.is_subnormal(array), np.float32(0), array)
    return (
        array
        if array.dtype.kind in "biuf"
        else array.astype(np.float32 if jnp.issubdtype(x.dtype, jnp.floating) else np.int8)
    )


def _swept(cell: Cell) -> tuple[str, str]:
    meant, thing = cell.means(), cell.make()
    if meant is UNSPECIFIED:
        return "unspecified", ""
    return _outcome(cell, meant, lambda: cell.call(**{cell.name: thing}), lambda: cell.call(**{cell.name: meant}))


_seen = jax.jit(lambda x: x)


def _swept_traced(cell: Cell, *, compiled: bool) -> tuple[str, str]:
    """The same, where the call is inside a `jax.jit` to which the thing is passed, if it can be; or traced only."""
    try:
        seen = _seen(cell.make())
    except Exception:  # JAX refuses it, before anything else sees it
        return "untraceable", ""
    if not jax.tree.leaves(seen):
        return "untraceable", ""
    meant = cell.argument.kind.means_traced(seen)
    if meant is UNSPECIFIED:
        return "unspecified", ""
    if not compiled:
        return _outcome(cell, meant, lambda: jax.eval_shape(cell.traced, seen), None)
    return _outcome(cell, meant, lambda: cell.traced(seen), lambda: cell.call(**{cell.name: meant}))


def _sweep(cells: list[Cell], sweep: Callable[[Cell], tuple[str, str]], count: Callable[[str, int], None]) -> None:
    """Asserts of all that nothing is wrong with how they ended, and counts how they did."""
    wrong, tally = [], collections.Counter()
    for cell in cells:
        ended, message = sweep(cell)
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
    _sweep(_cells(full)[function], _swept, count)


@pytest.mark.gate
@pytest.mark.parametrize("function", _FUNCTIONS)
def test_wrong_arguments_through_a_callers_jit(function, full, count):
    _sweep(_cells(full)[function], functools.partial(_swept_traced, compiled=full), count)


@pytest.mark.gate
@pytest.mark.parametrize("function", _FUNCTIONS)
def test_wrong_arguments_with_64_bits(function, full, count):
    """Where JAX narrows nothing. In the normal run, what of it is no argument all the same."""
    with jax.enable_x64(True):
        _sweep([cell for cell in _cells(full)[function] if full or cell.means() is WRONG], _swept, count)


def test_every_argument_of_every_function_is_swept():
    swept = collections.defaultdict(set)
    for call in calls():
        swept[call.name] |= set(call.arguments)
    assert set(swept) == set(_FUNCTIONS)
    for name, function in public_functions().items():
        parameters = set(inspect.signature(function).parameters) - {"self"}
        missing = parameters - swept[name]
        assert not missing, f"{name}: {missing}"


@pytest.mark.gate
def test_the_calls_are_right():
    """Those of the table, before anything is replaced."""
    for call in calls():
        _assert_promised(call(), call.promised())


def test_the_sample_has_every_thing_and_every_argument():
    cells = list(itertools.chain(*_cells(False).values()))
    assert {cell.thing for cell in cells} >= set(things(Like((1,), np.dtype(np.float32))))
    assert len({(id(cell.call), cell.name) for cell in cells}) == sum(len(call.arguments) for call in calls())
