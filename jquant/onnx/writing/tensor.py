"""The values of a function while it is written as a graph."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Size = Any  # an integer, or a symbolic size of `jax.export`


@dataclasses.dataclass(frozen=True, eq=False)
class Tensor:
    """An array of the function: known, or computed by the graph.

    Attributes:
      dtype, shape: those in JAX.
      name: that of the value in the graph; None if it has none yet.
      known: its elements, if they follow from parameters and constants alone. Keys of random numbers are an array of JAX.
      label: what a known value is called in the graph, such as the path of a parameter; "" if nothing suggests a name.
      small: for a value that is broadcast from another of the same rank, this other one.
    """

    dtype: np.dtype
    shape: tuple[Size, ...]
    name: str | None = None
    known: np.ndarray | None = None
    label: str = ""
    small: "Tensor | None" = None

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def is_known(self) -> bool:
        return self.known is not None

    @property
    def type(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self.shape, self.dtype)

    def item(self) -> Any:
        """The element of a known value that has one."""
        assert self.known is not None
        return self.known.item()


def is_key(value: Any) -> bool:
    """Whether an array, or a type, consists of keys of random numbers."""
    return jnp.issubdtype(getattr(value, "dtype", np.float32), jax.dtypes.extended)


def known(array: Any, label: str = "") -> Tensor:
    """A value whose elements are known."""
    array = array if is_key(array) else np.asarray(array)
    return Tensor(array.dtype, array.shape, known=array, label=label)


def all_known(*trees: Any) -> bool:
    """Whether all values in some trees are known, so that what follows from them is computed while the graph is written."""
    leaves = jax.tree.leaves(trees, is_leaf=lambda leaf: isinstance(leaf, Tensor))
    return all(leaf.is_known for leaf in leaves if isinstance(leaf, Tensor))


def sizes_equal(a: Size | Sequence[Size], b: Size | Sequence[Size]) -> bool:
    """Whether two sizes, or two shapes, are the same.

    Dynamic sizes are compared as text: JAX's `==` calls those of two scopes different, even if they have one name.
    """
    return _text(a) == _text(b)


def _text(sizes: Size | Sequence[Size]) -> str:
    return str(tuple(sizes) if isinstance(sizes, Sequence) else sizes)


def is_one(size: Size) -> bool:
    return sizes_equal(size, 1)


def size_difference(a: Size, b: Size) -> Size:
    difference = a - b
    return int(difference) if isinstance(difference, int | np.integer) else difference


def is_static(shape: Sequence[Size]) -> bool:
    """Whether no size is left open."""
    return all(isinstance(size, int) for size in shape)
