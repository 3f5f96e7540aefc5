"""Checks what a model is called with against what its file declares."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jquant.errors import ModelError
from jquant.onnx.graph import Value
from jquant.onnx.values import fitted, jax_dtype, to_jax

Where = ArrayLike | tuple[ArrayLike, ...]
_SHOWN = 5  # of the missing parameters
_NO_NAMES = frozenset({"?", "None"})  # some exporters write these for every size that they do not know


def inputs(declared: Mapping[str, Value], given: Mapping[str, ArrayLike]) -> dict[str, Any]:
    """The inputs as JAX arrays.

    Raises:
      ModelError: inputs that are missing, unknown, or not as declared.
    """
    if not isinstance(given, Mapping):
        kind = "an array" if hasattr(given, "dtype") else f"a {type(given).__name__}"
        raise ModelError(f"inputs is {kind}; it must be a mapping with the names {listed(declared)}")
    missing = [name for name in declared if name not in given]
    unknown = [name for name in given if name not in declared]
    if missing or unknown:
        what = f"lacks {listed(missing)}" if missing else f"has {listed(unknown)}"
        raise ModelError(f"inputs {what}; the model takes {listed(declared)}")
    found = {name: _checked(value, given[name]) for name, value in declared.items()}
    _check_names(declared, found)
    return found


def check_params(expected: Iterable[str], given: Mapping[str, Any], declared: Collection[str]) -> None:
    """
    Args:
      declared: the inputs of the model.

    Raises:
      ModelError: parameters that are missing.
    """
    missing = [name for name in expected if name not in given]
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        swapped = "; params and inputs may be swapped" if declared and all(name in given for name in declared) else ""
        raise ModelError(f"params lacks {listed(missing[:_SHOWN])}{more}{swapped}")


def _check_names(declared: Mapping[str, Value], given: Mapping[str, Any]) -> None:
    """
    Raises:
      ModelError: inputs that declare the same name for a size, but differ in it. A size of 1 may broadcast.
    """
    sizes: dict[str, dict[str, Any]] = {}  # by the name of a dimension, its size in each input
    for name, value in declared.items():
        shape = value.shape if value.dtype is not None else None
        for place, dimension in enumerate(shape or ()):
            if isinstance(dimension, str) and dimension not in _NO_NAMES:
                sizes.setdefault(dimension, {}).setdefault(name, given[name].shape[place])
    for dimension, found in sizes.items():
        larger = [size for size in found.values() if not (isinstance(size, int) and size == 1)]
        if any(_differ(larger[0], other) for other in larger[1:]):
            raise ModelError(
                f"{dimension!r} must be one size, but is {', '.join(f'{size} in {name!r}' for name, size in found.items())}"
            )


def _differ(a: Any, b: Any) -> bool:
    """Whether two sizes certainly differ."""
    try:
        return a < b or a > b
    except jax.errors.InconclusiveDimensionOperation:  # raised for symbolic sizes
        return False


def _checked(declared: Value, given: ArrayLike) -> Any:
    """An input as a JAX array of the declared dtype and shape."""
    what = f"the input {declared.name!r}"
    if declared.dtype is None and (given is None or isinstance(given, list)):  # an optional value, a sequence
        return jax.tree.map(lambda each: _checked(Value(declared.name, None, None), each), given)
    if isinstance(given, list | tuple):  # of which `jax.jit` would make several arrays
        raise ModelError(f"{what} is a {type(given).__name__}; the model takes an array, {declared}")
    array: Any = given if hasattr(given, "dtype") else np.asarray(given)
    if declared.dtype is None:
        return to_jax(array, what)
    dtype = jax_dtype(declared.dtype, what)
    if isinstance(array, np.ndarray | np.generic) and array.dtype.kind in "iu" and dtype.kind in "iu":
        array = fitted(np.asarray(array), dtype, what) if array.dtype in (declared.dtype, dtype) else array
    if array.dtype != dtype:
        raise ModelError(f"{what} has dtype {array.dtype}; the model takes {declared}")
    shape = declared.shape
    if shape is not None and not _fits(array.shape, shape):
        raise ModelError(f"{what} has shape {tuple(array.shape)}; the model takes {declared}")
    return jnp.asarray(array)


def _fits(shape: tuple[Any, ...], declared: tuple[int | str | None, ...]) -> bool:
    if len(shape) != len(declared):
        return False
    return all(
        not isinstance(size, int) or jax.export.is_symbolic_dim(n) or n == size
        for n, size in zip(shape, declared, strict=True)
    )


def masks(where: Where | None) -> tuple[jax.Array, ...]:
    """The masks in `where`.

    Raises:
      ModelError: a mask that is not boolean, or two masks of one shape.
    """
    if where is None:
        return ()
    found = tuple(map(jnp.asarray, where if isinstance(where, tuple) else (where,)))
    for mask in found:
        if mask.dtype != bool:
            raise ModelError(f"where has dtype {mask.dtype}; a mask must be boolean, such as mask != 0")
    shapes = [mask.shape for mask in found]
    if len(set(shapes)) < len(shapes):
        raise ModelError(
            f"where has masks of shapes {shapes}; the shapes must differ, because nodes find their masks by shape"
        )
    return found


def listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
