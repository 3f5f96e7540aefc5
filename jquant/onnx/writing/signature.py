"""The arguments and results of a function as the inputs and outputs of a model."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax.tree_util import tree_flatten_with_path

from jquant.onnx.graphs.graph import Value as Declared
from jquant.onnx.graphs.values import is_narrowed
from jquant.onnx.model import Model

_Any = TypeVar("_Any")


class Leaf(NamedTuple):
    """A leaf of the arguments or of the result.

    Attributes:
      name: its path.
      value: an array, or its type.
      dtype: that of the input or of the output, which may have 64 bits where JAX has 32; None for that in JAX.
      position: among the inputs or outputs of the file that declares it, whose name for it `name` is; -1 if none does.
    """

    name: str
    value: Any
    dtype: np.dtype | None
    position: int = -1


def of_arguments(function: Callable[..., Any], arguments: Sequence[Any]) -> list[Leaf]:
    """The leaves of all arguments. Those of a model of a file have the names that the file has."""
    file = _file(function)
    names = [""] * len(arguments) if file else _names_of_arguments(function, len(arguments))
    declared = file.inputs if file else {}
    return [leaf for name, argument in zip(names, arguments, strict=True) for leaf in _leaves(name, argument, declared)]


def of_result(function: Callable[..., Any], result: Any) -> list[Leaf]:
    """The leaves of what a function returns: those of a dict are called as its keys. Those of a model of a file have the
    names that the file has."""
    file = _file(function)
    if isinstance(result, Mapping):
        leaves = _leaves("", result, file.outputs if file else {})
        return [leaf._replace(name=leaf.name or "output") for leaf in leaves]
    leaves = _leaves("output", result, {}, separator="_")
    return [leaf._replace(name="output") for leaf in leaves] if len(leaves) == 1 else leaves


def name_of(function: Callable[..., Any]) -> str:
    """What a function is called."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__).strip("<>")


def _file(function: Callable[..., Any]) -> Model | None:
    """The model of a file that a function is, compiled or not."""
    inner = inspect.unwrap(function)
    return inner if isinstance(inner, Model) else None


def parameters(arguments: tuple[Any, ...]) -> int:
    """How many leaves are parameters; the others are inputs.

    The first of several arguments holds the parameters if it is a tree of arrays, rather than an array or types.
    """
    first = arguments[0] if len(arguments) > 1 else None
    leaves = jax.tree.leaves(first)
    is_tree = first is not None and not jax.tree_util.all_leaves([first])
    has_values = all(not isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
    return len(leaves) if is_tree and has_values else 0


def _names_of_arguments(function: Callable[..., Any], count: int) -> list[str]:
    """The names of the first parameters of a function, as far as it says them."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    single = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "input")
    return [single[index] if index < len(single) else f"{rest}_{index - len(single)}" for index in range(count)]


def _leaves(prefix: str, tree: Any, declared: Mapping[str, Declared], separator: str = ".") -> list[Leaf]:
    """The leaves of a tree, named by their paths.

    Args:
      declared: what a file declares about leaves, by name.
      separator: what stands before the first part of a path.
    """
    leaves = []
    for path, leaf in tree_flatten_with_path(tree)[0]:
        parts = ".".join(map(_part, path))
        name = f"{prefix}{separator}{parts}" if prefix and parts else prefix or parts
        if name in declared:
            leaves.append(Leaf(name, leaf, declared[name].dtype, list(declared).index(name)))
        else:
            dtype = leaf.dtype if isinstance(leaf, np.ndarray | np.generic | jax.ShapeDtypeStruct) else None
            leaves.append(Leaf(name, leaf, dtype))
    return leaves


def _part(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def full_type(leaf: Leaf, dtype: np.dtype) -> np.dtype:
    """The type in the model of a leaf that has this type in JAX."""
    has_full = leaf.dtype is not None and is_narrowed(leaf.dtype)
    return np.dtype(leaf.dtype) if has_full and jax.dtypes.canonicalize_dtype(leaf.dtype) == dtype else np.dtype(dtype)


def in_order(leaves: Sequence[Leaf], values: Sequence[_Any]) -> list[_Any]:
    """One value for each leaf, in the order of the file if one declares the leaves; JAX sorts names."""
    positions = sorted(range(len(leaves)), key=lambda index: leaves[index].position)
    return [values[position] for position in positions]
