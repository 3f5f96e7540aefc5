"""A call of a public function, and its arguments."""

import dataclasses
import functools
import inspect
import itertools
import re
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jquant
from jquant import calibration

from .kinds import DataType, Kind, Tensor
from .values import Like, things


@dataclasses.dataclass(frozen=True)
class Argument:
    """An argument of a call.

    Attributes:
      value: a right one.
      kind: what it may be.
      names: what an error may call it, separated by spaces.
      also: further things to put in its place, by name.
      like: what arrays are like that are put in its place, where `value` is no array.
    """

    value: Any
    kind: Kind
    names: str
    also: Mapping[str, Callable[[], object]] = dataclasses.field(default_factory=dict)
    like: Like | None = None

    def things(self) -> dict[str, Callable[[], object]]:
        return {**things(self._like()), **self.also}

    def _like(self) -> Like:
        if self.like is not None:
            return self.like
        if isinstance(self.value, np.ndarray | jax.Array):
            return Like(self.value.shape, np.dtype(self.value.dtype))
        if isinstance(self.kind, Tensor):
            return Like((1,), jnp.dtype(self.kind.scalar or self.kind.data_types.split()[0]))
        return Like((2,), np.dtype(np.int32))

    def is_named_in(self, message: str) -> bool:
        return any(re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", message) for name in self.names.split())


@dataclasses.dataclass(frozen=True)
class Call:
    """A right call of a public function.

    Attributes:
      name: the function's, as an attribute of `jquant`.
      arguments: by the names of its parameters, or of those of `function`.
      promise: from all arguments, in canonical spelling, the tree of shapes and dtypes that the docstring promises.
      function: what is called instead, to put something in the place of a part of an argument.
    """

    name: str
    arguments: Mapping[str, Argument]
    promise: Callable[..., Any]
    function: Callable[..., Any] | None = None

    def __call__(self, **changed: object) -> Any:
        function = public(self.name) if self.function is None else self.function
        values = self._values(changed)
        parameters = inspect.signature(function).parameters.values()
        first = [values.pop(p.name) for p in parameters if p.kind == p.POSITIONAL_ONLY]
        return function(*first, **values)

    def promised(self, **changed: object) -> Any:
        """What comes out of the call with the arguments changed to those, in canonical spelling."""
        values = self._values(changed)
        for name, argument in self.arguments.items():
            if isinstance(argument.kind, DataType) and isinstance(values[name], str):
                values[name] = argument.kind.means(values[name])
        return self.promise(**values)

    def _values(self, changed: Mapping[str, object]) -> dict[str, object]:
        return {**{name: argument.value for name, argument in self.arguments.items()}, **changed}


def public(name: str) -> Callable[..., Any]:
    return functools.reduce(getattr, name.split("."), jquant)


def public_functions() -> dict[str, Callable[..., Any]]:
    """Every function that a user may call, by its name as an attribute of `jquant`."""
    found = {
        f"{prefix}{name}": value
        for prefix, module in {"": jquant, "calibration.": calibration, "exact.": jquant.exact}.items()
        for name, value in vars(module).items()
        if name.islower() and not name.startswith("_") and callable(value) and _is_of(module, value)
    }
    methods = itertools.product((jquant.PackedMatrix, jquant.PackedBlockMatrix), ("sharding_for", "unpack"))
    return {**found, **{f"{matrix.__name__}.{name}": getattr(matrix, name) for matrix, name in methods}}


def _is_of(module: ModuleType, function: Callable[..., Any]) -> bool:
    """Whether a module exports a function: one of its own, or of a module in its package, and none that it uses."""
    return f"{function.__module__}.".startswith(f"{module.__name__}.")
