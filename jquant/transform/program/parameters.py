"""The parameters of a function: a tree of arrays, each named by its path."""

import contextlib
import math
from collections import Counter
from typing import Any, NamedTuple

import jax
import jax.core
from jax.tree_util import GetAttrKey, keystr, tree_flatten_with_path, tree_leaves_with_path

from jquant.errors import TransformError, TransformTypeError, shown


class Parameters(NamedTuple):
    """The leaves of a tree, their names, and the tree."""

    names: list[str]
    leaves: list[Any]
    structure: Any


def flattened(function: str, params: Any, *, allow_types: bool = False, allow_traced: bool = True) -> Parameters:
    """The parameters by name: the path to each, as ``"layers/0/kernel"``.

    Asserts that all of them are arrays, with values or with `allow_traced`, or, with `allow_types`, `jax.ShapeDtypeStruct`.
    """
    try:
        paths_and_leaves, structure = tree_flatten_with_path(params)
    except (TypeError, ValueError) as error:
        raise TransformTypeError(f"{function}: params is {described(params)}, which is no tree: {shown(error)}") from error
    names, leaves = _names([path for path, _ in paths_and_leaves]), [leaf for _, leaf in paths_and_leaves]
    for name, leaf in zip(names, leaves, strict=True):
        if not _is_array(leaf) or (isinstance(leaf, jax.ShapeDtypeStruct) and not allow_types):
            where = f"{function}: params holds {shown(leaf)} at {name!r}"
            raise TransformTypeError(f"{where}, which is not an array: {_advice(leaf)}")
        if isinstance(leaf, jax.core.Tracer) and not allow_traced:
            raise TransformTypeError(f"{function}: params holds {shown(leaf)} at {name!r}, {_TRACED}")
    if not leaves:
        raise TransformError(f"{function}: params is {described(params)}, which holds no arrays")
    return Parameters(names, leaves, structure)


_TRACED = "which has no values under jax.jit and other transformations: call the function outside of these"


def _names(paths: list[Any]) -> list[str]:
    """The paths as text, all different. A box around a single array, as in Flax, adds nothing to the name."""
    leaves_below = Counter(path[:length] for path in paths for length in range(len(path)))
    unboxed = [path[:-1] if path[-1:] == (_IN_BOX,) and leaves_below[path[:-1]] == 1 else path for path in paths]
    names = [keystr(path, simple=True, separator="/") for path in unboxed]
    return names if len(set(names)) == len(names) else [keystr(path) for path in paths]


_IN_BOX = GetAttrKey("value")


def _advice(leaf: object) -> str:
    """What to do with a leaf that is not an array."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return "it has no values"
    if isinstance(leaf, bool | int | float | complex):
        return f"pass jax.numpy.asarray({leaf!r}), or close over it"
    equinox, flax = _SPLIT["equinox"], _SPLIT["flax"]
    return f"keep only the arrays in params, and close over the rest. With Equinox: {equinox}. With Flax NNX: {flax}"


_SPLIT = {
    "equinox": "params, rest = equinox.partition(model, equinox.is_array), and equinox.combine(params, rest) in apply",
    "flax": "graph, params = flax.nnx.split(model), and flax.nnx.merge(graph, params) in apply",
}


def module_advice(apply: object) -> str:
    """How to split a module of Flax NNX or Equinox in the place of a function of parameters; "" for anything else."""
    packages = [base.__module__.partition(".")[0] for base in type(apply).__mro__]
    advice = next((text for package, text in _SPLIT.items() if package in packages), "")
    return f"; a module holds its parameters, which apply takes as an argument: {advice}" if advice else ""


def _is_array(leaf: Any) -> bool:
    """Whether `leaf` is an array, or a type of one, that JAX accepts. NumPy also has arrays of strings and of dates."""
    if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
        return False
    return getattr(leaf.dtype, "kind", "") not in tuple("OSUmM") and getattr(leaf.dtype, "isnative", True)


def is_array(leaf: Any) -> bool:
    """Whether JAX takes `leaf` as an array: a number, too, but no bytes in another order than those of the machine."""
    try:
        jax.typeof(leaf)
    except (TypeError, ValueError, OverflowError):
        return False
    return getattr(getattr(leaf, "dtype", None), "isnative", True)


def require_arrays(where: str, tree: Any, *, allow_types: bool = False, allow_traced: bool = True) -> None:
    """Asserts that each leaf of a tree, which errors call `where`, is an array or a number.

    With `allow_types`, a `jax.ShapeDtypeStruct` will do. Without `allow_traced`, arrays have values.
    """
    try:
        leaves = tree_leaves_with_path(tree)
    except (TypeError, ValueError) as error:
        raise TransformTypeError(f"{where} is {described(tree)}, which is no tree: {shown(error)}") from error
    for path, leaf in leaves:
        if isinstance(leaf, jax.ShapeDtypeStruct) and not allow_types:
            raise TransformTypeError(f"{where}{keystr(path)} is {shown(leaf)}, which has no values; pass an array")
        if isinstance(leaf, jax.core.Tracer) and not allow_traced:
            raise TransformTypeError(f"{where}{keystr(path)} is {shown(leaf)}, {_TRACED}")
        if not is_array(leaf):
            raise TransformTypeError(f"{where}{keystr(path)} is {shown(leaf)}; it must be an array")


def described(value: Any) -> str:
    """`value` as a message shows it, with the types of arrays in place of their elements."""
    with contextlib.suppress(Exception):  # it may be anything
        value = jax.tree.map(lambda leaf: _Type(jax.typeof(leaf).str_short()) if _is_array(leaf) else leaf, value)
    return shown(value)


class _Type(str):
    __repr__ = str.__str__


def size_in_bytes(tree: Any) -> int:
    """The bytes of all arrays of a tree."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    """The shape and dtype of an array, wherever it is stored; float64 of NumPy becomes what JAX makes of it."""
    dtype = jax.dtypes.canonicalize_dtype(leaf.dtype, allow_extended_dtype=True)
    return jax.ShapeDtypeStruct(leaf.shape, dtype, weak_type=getattr(leaf, "weak_type", False))
