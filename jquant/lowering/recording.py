"""Programs that are traced to be written in another language, such as ONNX, in place of being compiled.

Such a program has one equation for each call of an operator, which says which operator it is, with which static arguments,
and holds its formula. A formula consists of the steps of the document alone, each of which rounds once: what keeps compilers
from merging steps, or makes their programs faster, is left out.
"""

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.core
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

_Result = TypeVar("_Result")

_active = jax.make_user_context(False)  # part of the keys under which JAX keeps what it has traced
_opened = jax.make_user_context(False)
_recorded_p = Primitive("recorded")
_recorded_p.multiple_results = True


def is_active() -> bool:
    """Whether the program that is being traced will be written in another language."""
    return _active.value


@contextlib.contextmanager
def active() -> Iterator[None]:
    """Calls of operators are recorded in what is traced inside."""
    with _active(True):
        yield


@contextlib.contextmanager
def inactive() -> Iterator[None]:
    """Calls of operators are what compilers get in what is traced inside."""
    with _active(False):
        yield


def keeps_nodes() -> bool:
    """Whether the nodes of a model that was read from a file are calls in what is traced, to be written as they were."""
    return _active.value and not _opened.value


@contextlib.contextmanager
def opened() -> Iterator[None]:
    """Inside, nodes of a file are traced as what they compute: their products may be replaced by others."""
    with _opened(True):
        yield


class RecordedCall(NamedTuple):
    """A call of an operator, as an equation holds it.

    Attributes:
      operator: its name.
      arguments: the arguments that are pytrees of arrays, by their names, with values of any kind in place of the arrays.
      static: the other arguments, by their names.
      outputs: the structure of the result.
      formula: the closed jaxpr that computes the leaves of the result from those of the arguments.
    """

    operator: str
    arguments: Mapping[str, Any]
    static: Mapping[str, Any]
    outputs: Any
    formula: Any


def call_of(equation: Any, operands: Sequence[Any]) -> RecordedCall | None:
    """The call that an equation of a jaxpr holds, with `operands` in place of the arrays; None for other equations."""
    if equation.primitive is not _recorded_p:
        return None
    parameters = equation.params
    arguments = jax.tree.unflatten(parameters["arguments"], operands)
    return RecordedCall(
        parameters["operator"], arguments, dict(parameters["static"]), parameters["outputs"], parameters["formula"]
    )


def recorded(
    operator: str, *, static: Sequence[str] = (), elementwise: bool = False, tables: Sequence[str] = ()
) -> Callable[[Callable[..., _Result]], Callable[..., _Result]]:
    """Makes each call of a function one equation of the programs that record calls.

    Args:
      static: the names of its static parameters.
      elementwise: whether its arrays broadcast, as do those of an element-wise function, which `jax.vmap` then calls again.
      tables: the names of parameters that do not, and that all elements share.
    """

    def decorate(function: Callable[..., _Result]) -> Callable[..., _Result]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*arguments: Any, **keywords: Any) -> _Result:
            if not is_active():
                return function(*arguments, **keywords)
            bound = signature.bind(*arguments, **keywords)
            bound.apply_defaults()
            constants = {name: value for name, value in bound.arguments.items() if name in static}
            others = {name: value for name, value in bound.arguments.items() if name not in static}
            mapped = _Elementwise(call, frozenset(tables)) if elementwise else None
            return record(operator, functools.partial(function, **constants), others, constants, mapped)

        return call

    return decorate


def record(
    operator: str,
    function: Callable[..., _Result],
    arguments: Mapping[str, Any],
    static: Mapping[str, Any],
    elementwise: "_Elementwise | None" = None,
) -> _Result:
    """``function(**arguments)`` as one equation: a call of `operator` with these arguments and `static` ones.

    There is no equation if the result has no arrays.

    Args:
      elementwise: how `jax.vmap` maps the call; None if it maps the formula.
    """
    leaves, structure = jax.tree.flatten(dict(arguments))

    def of_leaves(*leaves: Any) -> Any:
        return function(**jax.tree.unflatten(structure, leaves))

    formula, result = jax.make_jaxpr(of_leaves, return_shape=True)(*leaves)
    outputs = jax.tree.structure(result)
    if not outputs.num_leaves:
        return jax.tree.unflatten(outputs, ())
    parameters = {"operator": operator, "arguments": structure, "static": tuple(static.items()), "outputs": outputs}
    return jax.tree.unflatten(outputs, _recorded_p.bind(*leaves, formula=formula, elementwise=elementwise, **parameters))


@_recorded_p.def_impl
def _computed(*operands, formula, **_):
    return jax.core.eval_jaxpr(formula.jaxpr, formula.consts, *operands)


@_recorded_p.def_abstract_eval
def _abstract_values(*_, formula, **__):
    return formula.out_avals


@dataclasses.dataclass(frozen=True)
class _Mapped:
    """An operand and its mapped dimension, None if it has none."""

    x: Any
    dimension: int | None

    @property
    def rank(self) -> int:
        """The rank of one element, without the mapped dimension."""
        return self.x.ndim - (self.dimension is not None)

    def aligned(self, rank: int) -> Any:
        """The operand with the mapped dimension first, before those of operands of this rank."""
        if self.dimension is None:
            return self.x
        return lax.expand_dims(jnp.moveaxis(self.x, self.dimension, 0), range(1, 1 + rank - self.rank))


class _Elementwise(NamedTuple):
    """A function whose arrays broadcast, except for tables that all elements share: mapped, it is called once more.

    Attributes:
      call: the function, which records its calls.
      tables: the names of the parameters that are tables.
    """

    call: Callable[..., Any]
    tables: frozenset[str]

    def mapped(self, arguments: Mapping[str, Any], static: Mapping[str, Any]) -> Any:
        """The result for arguments with `_Mapped` in place of the arrays; None if a table is mapped."""
        tables = {name: tree for name, tree in arguments.items() if name in self.tables}
        others = {name: tree for name, tree in arguments.items() if name not in self.tables}
        if any(leaf.dimension is not None for leaf in jax.tree.leaves(tables)):
            return None
        rank = max(leaf.rank for leaf in jax.tree.leaves(others))
        arrays = jax.tree.map(lambda leaf: leaf.x, tables) | jax.tree.map(lambda leaf: leaf.aligned(rank), others)
        return self.call(**arrays, **static)


def _batch(operands, dimensions, *, formula, elementwise, arguments, static, **_):
    """What is mapped is no longer the operator, unless that is element-wise: its formula is recorded in its place."""
    results = None
    if elementwise is not None:
        mapped = jax.tree.unflatten(arguments, list(map(_Mapped, operands, dimensions)))
        results = elementwise.mapped(mapped, dict(static))
    if results is None:
        results = jax.vmap(jaxpr_as_fun(formula), tuple(dimensions))(*operands)
    leaves = jax.tree.leaves(results)
    return leaves, [0] * len(leaves)


def _differentiate(primals, tangents, *, formula, **_):
    """What is differentiated is the formula."""
    return jax.jvp(jaxpr_as_fun(formula), primals, tuple(map(ad.instantiate_zeros, tangents)))


batching.primitive_batchers[_recorded_p] = _batch
ad.primitive_jvps[_recorded_p] = _differentiate
mlir.register_lowering(_recorded_p, mlir.lower_fun(_computed, multiple_results=True))
