"""JAX's errors about deleted arrays, and about arrays on different devices, in terms of the function that a user called."""

import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax
import jax.core
from jax.tree_util import keystr, tree_leaves_with_path

from jquant.errors import DescriptorError, Error

_Function = TypeVar("_Function", bound=Callable[..., Any])


def names_arrays(function: _Function, name: str | None = None, kind: type[Error] = DescriptorError) -> _Function:
    """`function`, whose errors name the arguments that hold a deleted array, or arrays on different devices.

    Only JAX knows of these, when it runs a program, and it names an argument of that program, or none. To look for them
    before would cost every eager call; so they are looked for once a call has failed.
    """

    def explain_call(args: tuple[Any, ...], kwargs: Mapping[str, Any], error: Exception) -> None:
        explain(name or function.__qualname__, inspect.signature(function).bind(*args, **kwargs).arguments, error, kind)

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (RuntimeError, ValueError) as error:
            explain_call(args, kwargs, error)
            raise

    # With the globals of the function's module: doctest takes no others for that module's own. `call` needs no others.
    found: Any = types.FunctionType(call.__code__, getattr(function, "__globals__", {}), closure=call.__closure__)
    functools.update_wrapper(found, function)
    return found


def names_arrays_as(name: str, kind: type[Error] = DescriptorError) -> Callable[[_Function], _Function]:
    """`names_arrays` for a function that its errors, of the class `kind`, call `name`."""
    return functools.partial(names_arrays, name=name, kind=kind)


def explain(name: str, arguments: Mapping[str, Any], error: Exception, kind: type[Error] = DescriptorError) -> None:
    """Raises a `kind` of the function `name` that names the arrays at fault, if there are any, where JAX raised `error`."""
    if isinstance(error, Error):
        return
    arrays = list(_arrays(arguments))
    deleted = [where for where, array in arrays if array.is_deleted()]
    if deleted:
        has, them = ("has", "it was") if len(deleted) == 1 else ("have", "they were")
        message = f"{_shown_list(deleted)} {has} been deleted, for instance because {them} donated to an earlier call"
        raise kind(f"{name}: {message}") from error
    devices: dict[frozenset[Any], str] = {}
    for where, array in arrays:
        if array.committed:
            devices.setdefault(frozenset(array.sharding.device_set), where)
    if len(devices) > 1:
        places = ", ".join(f"{where} on {_shown_devices(those)}" for those, where in devices.items())
        message = f"the arrays are on different devices: {places}; jax.device_put moves an array"
        raise kind(f"{name}: {message}") from error


def _arrays(arguments: Mapping[str, Any]) -> Iterator[tuple[str, jax.Array]]:
    """The arrays in the arguments that are not traced, each with where it is: ``b.data``."""
    for argument, value in arguments.items():
        for path, leaf in tree_leaves_with_path(value):
            held = _held(leaf)
            if isinstance(held, jax.Array) and not isinstance(held, jax.core.Tracer):
                yield f"{argument}{keystr(path)}".removeprefix("self."), held


def _held(leaf: Any) -> Any:
    """The array that an object offers to JAX, or the object."""
    try:
        return leaf.__jax_array__() if hasattr(leaf, "__jax_array__") else leaf
    except Exception:  # a foreign class may raise anything
        return leaf


def _shown_list(names: list[str]) -> str:
    """The names as a message lists them, the first few of many."""
    few = names[:3] + ([f"{len(names) - 3} more"] if len(names) > 3 else [])
    return " and ".join(filter(None, (", ".join(few[:-1]), few[-1])))


def _shown_devices(devices: frozenset[Any]) -> str:
    first = min(devices, key=lambda device: device.id)
    return str(first) if len(devices) == 1 else f"{len(devices)} devices from {first} on"
