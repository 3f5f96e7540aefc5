"""Constraints on arguments as chex's assertions, whose failures speak in the words of the specification.

**What is an assertion.** Whatever a specification's table or a docstring demands of an argument: ``chex.disable_asserts()``
turns all of it off. What would corrupt a result or crash raises in any case: an array that JAX would narrow, a scalar out of
the range of its type, a packed matrix whose arrays were cast.

An assertion takes chex a few microseconds. So assertions run once for each signature, the shapes and types of a call;
afterwards, an eager call pays for a look-up in a dictionary. Nothing is remembered while assertions are disabled.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import chex
import jax
import numpy as np

from jquant.arguments.naming import argument, message
from jquant.errors import DescriptorError, DescriptorTypeError
from jquant.modes import data_type, data_type_name

_Check = TypeVar("_Check", bound=Callable[..., None])


class Constraint(NamedTuple):
    """An assertion of chex, and the error that its failure raises.

    Attributes:
      assertion: the name of the function in `chex`.
      arguments: what it is called with.
      message: makes the text of the error.
      error: its class.
    """

    assertion: str
    arguments: tuple[Any, ...]
    message: Callable[[], str]
    error: type[DescriptorError] = DescriptorError

    def check(self) -> None:
        try:
            getattr(chex, self.assertion)(*self.arguments)
        except AssertionError:
            raise self.error(self.message()) from None  # without chex's own text


def require(condition: bool | np.bool, text: str, error: type[DescriptorError] = DescriptorError) -> None:
    """Asserts what chex has no assertion of its own for."""
    Constraint("assert_equal", (bool(condition), True), lambda: text, error).check()


class _Disabled(Exception):
    """Assertions are disabled: there is nothing to remember."""


def _are_enabled() -> bool:
    """Whether chex's assertions are enabled, which it does not tell: one that fails is tried."""
    try:
        chex.assert_equal(False, True)
    except AssertionError:
        return True
    return False


_caches: list[Any] = []


def forget() -> None:
    """Forgets all signatures, as `jax.clear_caches` forgets all programs."""
    for cache in _caches:
        cache.cache_clear()


def once_for_each_signature(check: _Check) -> _Check:
    """Runs the assertions in `check` once for each combination of arguments that satisfies them.

    Not remembered are: failures; anything while assertions are disabled; arguments that cannot be hashed. Arguments of
    different types are different; for the elements of a tuple, pass their types as well where these matter.
    """

    @functools.lru_cache(maxsize=4096, typed=True)
    def remembered(*signature: Any) -> None:
        if not _are_enabled():
            raise _Disabled
        check(*signature)

    _caches.append(remembered)

    @functools.wraps(check)
    def checked(*signature: Any) -> None:
        try:
            remembered(*signature)
        except _Disabled:
            return
        except DescriptorTypeError:
            raise
        except TypeError:  # no key of a dictionary
            if _are_enabled():
                check(*signature)

    return cast(_Check, checked)


def typed_as(tensor: jax.ShapeDtypeStruct, allowed: tuple[str, ...]) -> tuple[jax.ShapeDtypeStruct, np.dtype]:
    """The arguments of ``chex.assert_type`` that assert one of several types, named as in the specification."""
    if data_type_name(tensor.dtype) in allowed:
        return tensor, tensor.dtype
    wanted = next(iter(allowed))
    return tensor, np.dtype(np.bool) if wanted == "BOOL" else data_type("dtype", wanted)  # which callers may not name


@once_for_each_signature
def require_data_type(operator: str, tensor: str, dtype: np.dtype, allowed: tuple[str, ...]) -> None:
    """Asserts that a tensor has one of the allowed types."""
    _require_one_of(operator, tensor, "has data type", dtype, allowed)


@once_for_each_signature
def require_named_type(operator: str, name: str, dtype: np.dtype, allowed: tuple[str, ...]) -> None:
    """Asserts that an argument names one of the allowed types."""
    _require_one_of(operator, name, "is", dtype, allowed)


def _require_one_of(operator: str, name: str, verb: str, dtype: np.dtype, allowed: tuple[str, ...]) -> None:
    choice = f"one of {', '.join(allowed)}" if len(allowed) > 1 else "".join(allowed)
    arguments = typed_as(jax.ShapeDtypeStruct((), dtype), allowed)
    text = f"{verb} {data_type_name(dtype)}; it must be {choice}"
    Constraint("assert_type", arguments, lambda: message(operator, name, text), DescriptorTypeError).check()


@once_for_each_signature
def require_same_data_type(operator: str, tensor: str, dtype: np.dtype, model: str, wanted: np.dtype) -> None:
    """Asserts that a tensor has the type of another one, the `model`."""
    must = f"it must match the data type of {argument(operator, model)}, {data_type_name(wanted)}"
    told = message(operator, tensor, f"has data type {data_type_name(dtype)}; {must}", model)
    Constraint("assert_type", (jax.ShapeDtypeStruct((), dtype), wanted), lambda: told, DescriptorTypeError).check()


@once_for_each_signature
def require_shape(operator: str, tensor: str, shape: tuple[int, ...], wanted: tuple[int, ...], reason: str) -> None:
    """Asserts the shape of a tensor, for a reason that the error gives."""
    told = message(operator, tensor, f"has shape {shape}, but must have {wanted}: {reason}")
    Constraint("assert_shape", (jax.ShapeDtypeStruct(shape, bool), wanted), lambda: told).check()


@once_for_each_signature
def require_one_element(operator: str, tensor: str, shape: tuple[int, ...]) -> None:
    told = message(operator, tensor, f"has shape {shape}, but must have 1 element")
    Constraint("assert_size", (jax.ShapeDtypeStruct(shape, bool), 1), lambda: told).check()


@once_for_each_signature
def require_dimensions(operator: str, tensor: str, shape: tuple[int, ...], purpose: str) -> None:
    """Asserts that a tensor is no scalar: its last dimension has a purpose."""
    told = message(operator, tensor, f"is a scalar; it must have {purpose}")
    Constraint("assert_scalar_positive", (len(shape),), lambda: told).check()
