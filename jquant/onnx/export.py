"""Writes a model as a serialised program of `jax.export`, sizes that have names included."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax import export as jax_export

from jquant.onnx.errors import ModelError
from jquant.onnx.model import Model
from jquant.onnx.values import jax_dtype


def exported(model: Model, sizes: Mapping[str, int], platforms: Sequence[str]) -> bytes:
    """The model as a function of its inputs alone, with its parameters inside.

    ``jax.export.deserialize(data).call(inputs)`` runs it, without onnx and without jquant.

    Args:
      sizes: what to fix: by the names of dimensions, or as ``input[0]`` for one that has none. The others may differ from
        call to call.
      platforms: of "cpu", "cuda", "rocm" and "tpu".

    Raises:
      ModelError: a graph that a size with a name does not go through, or an input of another kind than a tensor.
    """
    scope = jax_export.SymbolicScope()
    shapes = {
        name: [sizes.get(size, size) if isinstance(size, str) else size for size in shape]
        for name, shape in dimensions(model).items()
    }
    inputs = {name: _abstract(model, name, shape, scope) for name, shape in shapes.items()}
    free = [size for shape in shapes.values() for size in shape if isinstance(size, str)]

    def program(inputs: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        return model(model.params, inputs)

    try:
        return bytes(jax_export.export(jax.jit(program), platforms=list(platforms))(inputs).serialize())
    except Exception as error:  # of the many kinds that JAX has for a size that it cannot decide about
        if not free:
            raise
        names = ", ".join(dict.fromkeys(free))
        raise ModelError(f"{error}\nthe sizes {names} cannot all be left open: fix some by --size NAME=NUMBER") from error


def dimensions(model: Model) -> dict[str, list[int | str]]:
    """Of each input, the sizes, and the names of those that are not fixed: ``input[0]``, where the file has none."""
    found = {}
    for name, value in model.inputs.items():
        if value.dtype is None or value.shape is None:
            raise ModelError(f"the input {name!r} is {value}: of such a one, nothing can be made here")
        found[name] = [f"{name}[{place}]" if size is None else size for place, size in enumerate(value.shape)]
    return found


def _abstract(model: Model, name: str, shape: Sequence[int | str], scope: Any) -> jax.ShapeDtypeStruct:
    text = ", ".join(map(_symbol, shape))
    dtype = model.inputs[name].dtype
    assert dtype is not None
    return jax.ShapeDtypeStruct(jax_export.symbolic_shape(text, scope=scope), jax_dtype(dtype, repr(name)))


def _symbol(size: int | str) -> str:
    """A size as `jax.export` writes it: a name has letters, digits and underscores only."""
    return str(size) if isinstance(size, int) else re.sub(r"^(?=\d)|\W+", "_", size).rstrip("_")
