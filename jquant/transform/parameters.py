"""The parameters of a function: a tree of arrays, each of which has a name that a person recognises."""

from collections import Counter
from typing import Any, NamedTuple

import jax
from jax.tree_util import keystr, tree_flatten_with_path

from jquant.errors import DescriptorError, DescriptorTypeError, shown


class Parameters(NamedTuple):
    """The leaves of a tree, their names, and the tree."""

    names: list[str]
    leaves: list[Any]
    structure: Any


def flattened(function: str, params: Any) -> Parameters:
    """The parameters by name: the path to each, as ``"layers/0/kernel"``."""
    found, structure = tree_flatten_with_path(params)
    names = [keystr(path, simple=True, separator="/") for path, _ in found]
    if any(count > 1 for count in Counter(names).values()):
        names = [keystr(path) for path, _ in found]
    for name, (_, leaf) in zip(names, found, strict=True):
        if not _is_array(leaf):
            raise DescriptorTypeError(
                f"{function}: params holds {shown(leaf)} at {name!r}, which is no array; keep arrays alone in params, and "
                "close over the rest: equinox.partition(model, equinox.is_array), flax.nnx.split(model, flax.nnx.Param, ...)"
            )
    if not found:
        raise DescriptorError(f"{function}: params is {shown(params)}, which has no array")
    return Parameters(names, [leaf for _, leaf in found], structure)


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    """The type of an array, where it lies aside."""
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=getattr(leaf, "weak_type", False))
