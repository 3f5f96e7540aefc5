"""Exports a model with `jax.export`, as a serialized program whose sizes may be symbolic."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax import export as jax_export

from jquant.errors import ModelError
from jquant.onnx.graphs.values import jax_dtype
from jquant.onnx.model import Model
from jquant.onnx.running.open_sizes import undecided

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
_FUNCTIONS = frozenset({"max", "min", "mod", "floordiv"})  # those that a constraint may call


def exported(model: Model, sizes: Mapping[str, int], platforms: Sequence[str], constraints: Sequence[str] = ()) -> bytes:
    """The model as a function of its inputs alone, with its parameters inside.

    ``jax.export.deserialize(data).call(inputs)`` runs it, without onnx and without jquant.

    Args:
      sizes: the sizes to fix, by the names of dimensions, or by ``input[0]`` for a dimension without a name. The others stay
        open: they may differ from call to call.
      platforms: some of `PLATFORMS`.
      constraints: what holds for the open sizes, as in `jax.export.symbolic_shape`, such as ``sequence <= 512``. A call with
        sizes that violate a constraint raises an error.

    Raises:
      ModelError: a graph that does not work with a symbolic size; an input that is not a tensor of known rank; a constraint
        that is not valid, or is about a size that is not open.
    """
    shapes = {
        name: [sizes.get(size, size) if isinstance(size, str) else size for size in shape]
        for name, shape in dimensions(model).items()
    }
    open_sizes = list(dict.fromkeys(size for shape in shapes.values() for size in shape if isinstance(size, str)))
    scope = _scope(constraints, open_sizes)
    inputs = {name: _abstract(model, name, shape, scope) for name, shape in shapes.items()}

    def program(inputs: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        return model(model.params, inputs)

    try:
        return bytes(jax_export.export(jax.jit(program), platforms=list(platforms))(inputs).serialize())
    except Exception as error:  # JAX has many types of errors about sizes that it cannot compare
        if not open_sizes:
            raise
        raise ModelError(f"{error}\n{_advice(open_sizes, str(error))}") from error


def _scope(constraints: Sequence[str], open_sizes: Sequence[str]) -> Any:
    """The scope of the constraints, in which a size may have its name in the file or its name in JAX."""
    symbols = {size: _symbol(size) for size in open_sizes}
    symbolic = []
    for constraint in constraints:
        text = constraint
        for size, symbol in symbols.items():
            text = re.sub(rf"(?<!\w){re.escape(size)}(?!\w)", symbol, text)
        unknown = set(re.findall(r"[A-Za-z_]\w*", text)) - {*symbols.values(), *_FUNCTIONS}
        if unknown:
            known = ", ".join(open_sizes) or "none"
            raise ModelError(f"the constraint {constraint!r} is about {min(unknown)}; the sizes left open are {known}")
        symbolic.append(text)
    try:
        return jax_export.SymbolicScope(symbolic)
    except ValueError as error:
        raise ModelError(f"constraints {', '.join(map(repr, constraints))}: {error}") from error


def _advice(open_sizes: Sequence[str], error: str) -> str:
    """What the caller can do about sizes that JAX cannot compare."""
    advice = f"the sizes {', '.join(open_sizes)} cannot all be left open"
    comparison = undecided(error)
    if comparison is not None:
        advice += f": JAX could not decide whether {comparison}; --constraint {comparison!r} (or its opposite) says so"
    else:
        advice += ": state what holds for them with --constraint, such as 'NAME <= NUMBER'"
    return f"{advice}; or fix some with --size NAME=NUMBER"


def dimensions(model: Model) -> dict[str, list[int | str]]:
    """The shape of each input, with a name for each size that is not fixed: ``input[0]`` if the file has no name for it.

    Raises:
      ModelError: an input that is not a tensor of known rank.
    """
    shapes = {}
    for name, value in model.inputs.items():
        if value.dtype is None or value.shape is None:
            raise ModelError(f"the input {name!r} is {value}; it must be a tensor of known rank")
        shapes[name] = [f"{name}[{axis}]" if size is None else size for axis, size in enumerate(value.shape)]
    return shapes


def _abstract(model: Model, name: str, shape: Sequence[int | str], scope: Any) -> jax.ShapeDtypeStruct:
    text = ", ".join(map(_symbol, shape))
    dtype = model.inputs[name].dtype
    assert dtype is not None
    return jax.ShapeDtypeStruct(jax_export.symbolic_shape(text, scope=scope), jax_dtype(dtype, repr(name)))


def _symbol(size: int | str) -> str:
    """A size as `jax.export` writes it. Its names have only letters, digits and underscores."""
    return str(size) if isinstance(size, int) else re.sub(r"^(?=\d)|\W+", "_", size).rstrip("_")
