"""Validates the arguments of a model's call against what its file declares."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jquant.errors import ModelError
from jquant.onnx.graphs.graph import Value
from jquant.onnx.graphs.values import fitted, jax_dtype, to_jax

Where = ArrayLike | tuple[ArrayLike, ...]
_MAX_LISTED = 5  # missing parameters that an error names
_PLACEHOLDERS = frozenset({"?", "None"})  # names that some exporters write for every dimension of unknown size


def inputs(declared: Mapping[str, Value], arrays: Mapping[str, ArrayLike]) -> dict[str, Any]:
    """The inputs as JAX arrays.

    Raises:
      ModelError: inputs that are missing, unknown, or not as declared.
    """
    if not isinstance(arrays, Mapping):
        actual = "an array" if hasattr(arrays, "dtype") else f"a {type(arrays).__name__}"
        raise ModelError(f"inputs is {actual}; it must be a mapping with the names {listed(declared)}")
    missing = [name for name in declared if name not in arrays]
    unknown = [name for name in arrays if name not in declared]
    if missing or unknown:
        difference = f"lacks {listed(missing)}" if missing else f"has {listed(unknown)}"
        raise ModelError(f"inputs {difference}; the model takes {listed(declared)}")
    converted = {name: _converted(value, arrays[name]) for name, value in declared.items()}
    _check_named_sizes(declared, converted)
    return converted


def check_params(expected: Iterable[str], params: Mapping[str, Any], declared: Collection[str]) -> None:
    """Checks that no parameter is missing.

    Args:
      declared: the names of the model's inputs.

    Raises:
      ModelError: parameters that are missing.
    """
    missing = [name for name in expected if name not in params]
    if missing:
        more = f" and {len(missing) - _MAX_LISTED} more" if len(missing) > _MAX_LISTED else ""
        swapped = "; params and inputs may be swapped" if declared and all(name in params for name in declared) else ""
        raise ModelError(f"params lacks {listed(missing[:_MAX_LISTED])}{more}{swapped}")


def _check_named_sizes(declared: Mapping[str, Value], arrays: Mapping[str, Any]) -> None:
    """Checks that dimensions of the same name have the same size. A size of 1 may broadcast.

    Raises:
      ModelError: inputs that differ in the size of such a dimension.
    """
    sizes: dict[str, dict[str, Any]] = {}  # by the name of a dimension: its size in each input
    for name, value in declared.items():
        shape = value.shape if value.dtype is not None else None
        for axis, dimension in enumerate(shape or ()):
            if isinstance(dimension, str) and dimension not in _PLACEHOLDERS:
                sizes.setdefault(dimension, {}).setdefault(name, arrays[name].shape[axis])
    for dimension, by_input in sizes.items():
        larger = [size for size in by_input.values() if not (isinstance(size, int) and size == 1)]
        if any(_differ(larger[0], other) for other in larger[1:]):
            actual = ", ".join(f"{size} in {name!r}" for name, size in by_input.items())
            raise ModelError(f"{dimension!r} must be one size, but is {actual}")


def _differ(a: Any, b: Any) -> bool:
    """Whether two sizes are known to differ."""
    try:
        return a < b or a > b
    except jax.errors.InconclusiveDimensionOperation:  # raised for symbolic sizes
        return False


def _converted(declared: Value, value: ArrayLike) -> Any:
    """An input as a JAX array of the declared dtype and shape."""
    label = f"the input {declared.name!r}"
    if declared.dtype is None and (value is None or isinstance(value, list)):  # an optional value or a sequence
        return jax.tree.map(lambda leaf: _converted(Value(name=declared.name, dtype=None, shape=None), leaf), value)
    if isinstance(value, list | tuple):  # `jax.jit` would make several arrays of it
        raise ModelError(f"{label} is a {type(value).__name__}; the model takes an array, {declared}")
    array: Any = value if hasattr(value, "dtype") else np.asarray(value)
    if declared.dtype is None:
        return to_jax(array, label)
    dtype = jax_dtype(declared.dtype, label)
    if isinstance(array, np.ndarray | np.generic) and array.dtype.kind in "iu" and dtype.kind in "iu":
        array = fitted(np.asarray(array), dtype, label) if array.dtype in (declared.dtype, dtype) else array
    if array.dtype != dtype:
        raise ModelError(f"{label} has dtype {array.dtype}; the model takes {declared}")
    shape = declared.shape
    if shape is not None and not _matches(array.shape, shape):
        raise ModelError(f"{label} has shape {tuple(array.shape)}; the model takes {declared}")
    return jnp.asarray(array)


def _matches(shape: tuple[Any, ...], declared: tuple[int | str | None, ...]) -> bool:
    if len(shape) != len(declared):
        return False
    return all(
        not isinstance(expected, int) or jax.export.is_symbolic_dim(size) or size == expected
        for size, expected in zip(shape, declared, strict=True)
    )


def masks(where: Where | None) -> tuple[jax.Array, ...]:
    """The masks in `where`.

    Raises:
      ModelError: a mask that is not boolean, or two masks of one shape.
    """
    if where is None:
        return ()
    arrays = tuple(map(jnp.asarray, where if isinstance(where, tuple) else (where,)))
    for mask in arrays:
        if mask.dtype != bool:
            raise ModelError(f"where has dtype {mask.dtype}; a mask must be boolean, such as mask != 0")
    shapes = [mask.shape for mask in arrays]
    if len(set(shapes)) < len(shapes):
        raise ModelError(
            f"where has masks of shapes {shapes}; the shapes must differ, because nodes find their masks by shape"
        )
    return arrays


def listed(names: Iterable[str]) -> str:
    """The names as messages quote them."""
    return ", ".join(map(repr, names)) or "none"
