"""Errors about deleted arrays, and arrays on different devices, that name the arguments of the function that was called."""

import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax
import jax.core
from jax.tree_util import keystr, tree_leaves_with_path

from jquant.errors import DescriptorError, Error, TransformError, TransformTypeError

_Function = TypeVar("_Function", bound=Callable[..., Any])


def explain_array_errors(
    function: _Function, name: str | None = None, error_class: type[Error] = DescriptorError
) -> _Function:
    """Decorates a function so that its errors name the arguments that hold deleted arrays or arrays on different devices.

    JAX's own error names an argument of a compiled program, or none. The arguments are searched only after a call has
    failed, because a search before would slow down every eager call.
    """

    def explain_call(args: tuple[Any, ...], kwargs: Mapping[str, Any], error: Exception) -> None:
        arguments = inspect.signature(function).bind(*args, **kwargs).arguments
        raise_explained(name or function.__qualname__, arguments, error, error_class)

    def explain_keywords(kwargs: Mapping[str, Any]) -> None:
        _require_known_keywords(function, name, kwargs, error_class)

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (RuntimeError, ValueError) as error:
            explain_call(args, kwargs, error)
            raise
        except TypeError:
            explain_keywords(kwargs)
            raise

    # doctest finds a function only if its globals are those of the tested module; `call` itself needs no globals.
    wrapper: Any = types.FunctionType(call.__code__, getattr(function, "__globals__", {}), closure=call.__closure__)
    functools.update_wrapper(wrapper, function)
    return wrapper


def _require_known_keywords(
    function: Callable[..., Any], name: str | None, kwargs: Mapping[str, Any], error_class: type[Error]
) -> None:
    """Asserts that a function of `jquant.transform` knows the keywords: inputs of `apply` may have been passed so."""
    unknown = sorted(kwargs.keys() - inspect.signature(function).parameters.keys())
    if unknown and issubclass(error_class, TransformError):
        message = f"{name}: there is no argument {', '.join(unknown)}. The inputs of apply are passed by position"
        raise TransformTypeError(f"{message}; functools.partial binds others to apply") from None


def explain_array_errors_as(name: str, error_class: type[Error] = DescriptorError) -> Callable[[_Function], _Function]:
    """`explain_array_errors` with the function's name in error messages, and their class."""
    return functools.partial(explain_array_errors, name=name, error_class=error_class)


def raise_explained(
    name: str, arguments: Mapping[str, Any], error: Exception, error_class: type[Error] = DescriptorError
) -> None:
    """Raises an error that names the arrays at fault, if there are any, after the function `name` has raised `error`."""
    if isinstance(error, Error):
        return
    arrays = list(_arrays(arguments))
    deleted = [path for path, array in arrays if array.is_deleted()]
    if deleted:
        has, them = ("has", "it was") if len(deleted) == 1 else ("have", "they were")
        message = f"{_shown_list(deleted)} {has} been deleted, for instance because {them} donated to an earlier call"
        raise error_class(f"{name}: {message}") from error
    devices: dict[frozenset[Any], str] = {}
    for path, array in arrays:
        if array.committed:
            devices.setdefault(frozenset(array.sharding.device_set), path)
    if len(devices) > 1:
        places = ", ".join(f"{path} on {_shown_devices(device_set)}" for device_set, path in devices.items())
        message = f"the arrays are on different devices: {places}; jax.device_put moves an array"
        raise error_class(f"{name}: {message}") from error


def _arrays(arguments: Mapping[str, Any]) -> Iterator[tuple[str, jax.Array]]:
    """The arrays in the arguments that are not traced, with their paths, such as ``b.data``."""
    for argument, value in arguments.items():
        for path, leaf in tree_leaves_with_path(value):
            array = _converted(leaf)
            if isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer):
                yield f"{argument}{keystr(path)}".removeprefix("self."), array


def _converted(leaf: Any) -> Any:
    """The result of an object's `__jax_array__`, or the object if it has none."""
    try:
        return leaf.__jax_array__() if hasattr(leaf, "__jax_array__") else leaf
    except Exception:  # a foreign class may raise anything
        return leaf


def _shown_list(names: list[str]) -> str:
    """A list of names in a message: at most three, and the number of the others."""
    few = names[:3] + ([f"{len(names) - 3} more"] if len(names) > 3 else [])
    return " and ".join(filter(None, (", ".join(few[:-1]), few[-1])))


def _shown_devices(devices: frozenset[Any]) -> str:
    first = min(devices, key=lambda device: device.id)
    return str(first) if len(devices) == 1 else f"{len(devices)} devices from {first} on"
