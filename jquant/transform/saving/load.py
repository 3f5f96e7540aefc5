"""Reads the parameters of a quantized function from a file, without the float ones."""

import os
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh
from jax.tree_util import keystr

from jquant.arguments.statics import boolean, is_sequence
from jquant.calibration.batches import with_progress
from jquant.errors import TransformError, TransformTypeError, shown
from jquant.files import safetensors
from jquant.files.diagnostics import refuse
from jquant.packed.block_matrix import PackedBlockMatrix
from jquant.packed.matrix import PackedMatrix
from jquant.placement import explain_array_errors_as
from jquant.transform.program import traced
from jquant.transform.program.parameters import abstract, flattened
from jquant.transform.quantize import QuantizedFunction, of_types
from jquant.transform.recipes.checks import as_transform_errors
from jquant.transform.rewriting import site_functions
from jquant.transform.saving import metadata
from jquant.transform.saving.file_types import FileTypes
from jquant.transform.saving.reading import Reading, read
from jquant.transform.saving.save import as_path
from jquant.transform.shardings import Rules, of_plan

_NAME = "transform.load"


@explain_array_errors_as(_NAME, TransformError)
def load(
    path: str | os.PathLike[str],
    apply: Callable[..., Any],
    params: Any,
    *inputs: Any,
    mesh: Mesh | None = None,
    rules: Rules = (),
    derivative: str | None = None,
    progress: bool = False,
) -> tuple[QuantizedFunction, dict[str, dict[str, Any]]]:
    """Reads what `save` wrote: the quantized function, from the float one and shapes alone, and its parameters.

    The recipe is in the file. The weights are packed for this machine as they are read, one matrix after the other: beside
    the parameters, no more than one matrix is in memory, and never a float one.

    Args:
      path: the file.
      apply: the float function that was quantized.
      params: the types of its parameters, `jax.ShapeDtypeStruct`, as ``jax.eval_shape(init, ...)`` returns. Of arrays, only
        the types are used.
      inputs: examples of its inputs, or their types, as for `quantize`.
      mesh: where the parameters go, as `rules` say; None: whole, to the default device. Each device reads its own part of
        the file, and processes with devices of a mesh only those of their own devices.
      rules: as for `shardings`; without any, each device has all parameters.
      derivative: as for `quantize`.
      progress: whether to show a progress bar, which needs tqdm.

    Returns:
      The quantized function and its parameters, as `quantize` returned them.

    Raises:
      CheckpointError: a file that is truncated or broken, that `save` did not write, or that a newer jquant wrote; tensors
        that are not those of the function. The message says which, and names file and tensor.
      TransformError: what the mesh cannot split, as for `shardings`; a function without the sites of the recipe.
      TransformTypeError: an argument of the wrong type.
      OSError: the file cannot be opened.

    Example:
      >>> import jax, jax.numpy as jnp, pathlib, tempfile
      >>> from jax.sharding import PartitionSpec as P
      >>> from jquant import transform
      >>> def apply(params, x):
      ...     return x @ params["kernel"]
      >>> params, x = {"kernel": jnp.linspace(-1, 1, 1024).reshape(32, 32)}, jnp.ones((4, 32))
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = pathlib.Path(folder, "model.safetensors")
      ...     transform.save(path, *transform.quantize(apply, params, transform.int4_by_rows, x))
      ...     types = {"kernel": jax.ShapeDtypeStruct((32, 32), jnp.float32)}
      ...     mesh = jax.make_mesh((1,), ("model",))
      ...     loaded, placed = transform.load(path, apply, types, x, mesh=mesh, rules=[("kernel", P(None, "model"))])
      >>> placed["sites"]["kernel"]["values"].data.sharding.spec
      P(None, 'model')
    """
    path = as_path(_NAME, path)
    if not isinstance(mesh, Mesh | None):
        kind = "an AbstractMesh, which has no devices" if isinstance(mesh, AbstractMesh) else shown(mesh)
        raise TransformTypeError(f"{_NAME}: mesh is {kind}; it must be a mesh, such as jax.make_mesh returns, or None")
    if not is_sequence(rules):
        raise TransformTypeError(f"{_NAME}: rules is {shown(rules)}; it must be a list of pairs, as for transform.shardings")
    if mesh is None and len(rules):
        raise TransformError(f"{_NAME}: rules are given without a mesh: pass mesh=, too")
    with as_transform_errors():
        progress = boolean(_NAME, "progress", progress)
    functions = site_functions.with_derivative(_NAME, derivative)
    parameters = flattened(_NAME, params, allow_types=True)
    parameters = parameters._replace(leaves=list(map(abstract, parameters.leaves)))
    if path.exists() and not path.is_file():
        refuse(path, None, "is not a file")
    metadata.require_whole_header(path)
    tensors, strings = safetensors.read_header(path)
    description = metadata.read(path, strings)
    function = traced.checked(_NAME, apply, description.recipe)
    try:
        quantized_apply, wanted = of_types(function, parameters, inputs, functions)
    except TransformTypeError:
        raise
    except TransformError as error:
        refuse(path, None, f"its recipe does not fit the function: {error}")
    types = FileTypes(path, tensors, description.blocks).parameters(wanted)
    try:
        quantized_apply._require_parameters(_NAME, types)
    except TransformError as error:
        refuse(path, None, f"does not fit the function: {error}")
    shardings = None if mesh is None else of_plan(_NAME, quantized_apply._plan, types, mesh, rules)
    leaves, structure = jax.tree.flatten_with_path(types, is_leaf=_is_matrix)
    places = [None] * len(leaves) if shardings is None else structure.flatten_up_to(shardings)
    readings = [Reading(_name(path), type, place) for (path, type), place in zip(leaves, places, strict=True)]
    steps = with_progress(_NAME, readings, "loading", "parameter") if progress else readings
    return quantized_apply, structure.unflatten([read(reading, tensors) for reading in steps])


def _is_matrix(node: Any) -> bool:
    return isinstance(node, PackedMatrix | PackedBlockMatrix)


def _name(path: Any) -> str:
    return keystr(path, simple=True, separator="/")
