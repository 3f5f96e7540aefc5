"""A valid call of a public function, and its arguments."""

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
from .values import Like, substitutes


@dataclasses.dataclass(frozen=True)
class Argument:
    """An argument of a call.

    Attributes:
      value: a valid value.
      kind: the values that are valid.
      names: the names by which an error may call it, separated by spaces.
      also: further substitutes, by name.
      like: the shape and dtype of arrays that are substituted, where `value` is no array.
    """

    value: Any
    kind: Kind
    names: str
    also: Mapping[str, Callable[[], object]] = dataclasses.field(default_factory=dict)
    like: Like | None = None

    def substitutes(self) -> dict[str, Callable[[], object]]:
        return {**substitutes(self._like()), **self.also}

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
    """A valid call of a public function.

    Attributes:
      name: the function's name, as an attribute of `jquant`.
      arguments: by the names of the parameters of the public function, or of `function`.
      promise: a function from all arguments, in canonical spelling, to the shapes and dtypes of the documented result.
      function: called instead of the public function, to substitute a part of an argument.
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
        """The shapes and dtypes of the result, with arguments changed to these, in canonical spelling."""
        values = self._values(changed)
        for name, argument in self.arguments.items():
            if isinstance(argument.kind, DataType) and isinstance(values[name], str):
                values[name] = argument.kind.canonical(values[name])
        return self.promise(**values)

    def _values(self, changed: Mapping[str, object]) -> dict[str, object]:
        return {**{name: argument.value for name, argument in self.arguments.items()}, **changed}


def public(name: str) -> Callable[..., Any]:
    return functools.reduce(getattr, name.split("."), jquant)


def public_functions() -> dict[str, Callable[..., Any]]:
    """Every public function, by its name as an attribute of `jquant`."""
    functions = {
        f"{prefix}{name}": value
        for prefix, module in {"": jquant, "calibration.": calibration, "exact.": jquant.exact}.items()
        for name, value in vars(module).items()
        if name.islower() and not name.startswith("_") and callable(value) and _belongs_to(module, value)
    }
    methods = itertools.product((jquant.PackedMatrix, jquant.PackedBlockMatrix), ("sharding_for", "unpack"))
    return {**functions, **{f"{matrix.__name__}.{name}": getattr(matrix, name) for matrix, name in methods}}


def _belongs_to(module: ModuleType, function: Callable[..., Any]) -> bool:
    """Whether a module or its package defines a function, so that the module does not only import it."""
    return f"{function.__module__}.".startswith(f"{module.__name__}.")
