"""Writes the parameters of a quantized function to a file."""

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jquant.arguments.statics import boolean
from jquant.calibration.batches import with_progress
from jquant.errors import TransformError, TransformTypeError, shown
from jquant.files import safetensors
from jquant.files.safetensors import NewTensor
from jquant.packed import on_host
from jquant.packed.block_matrix import PackedBlockMatrix
from jquant.packed.matrix import PackedMatrix
from jquant.placement import explain_array_errors_as
from jquant.transform.observations.statistics import range_of, real_numbers
from jquant.transform.program.parameters import described, require_arrays
from jquant.transform.quantize import QuantizedFunction
from jquant.transform.recipes.checks import as_transform_errors
from jquant.transform.saving import file_arrays, metadata

_NAME = "transform.save"


@explain_array_errors_as(_NAME, TransformError)
def save(
    path: str | os.PathLike[str],
    quantized_apply: QuantizedFunction,
    quantized_params: Mapping[str, Mapping[str, Any]],
    *,
    calibration: Mapping[str, Any] | None = None,
    progress: bool = False,
) -> None:
    """Writes the parameters of a quantized function to one safetensors file, which `load` reads.

    Each matrix is written in its own number of bits and in no layout: as the integers that were packed, with two of 4 bits
    in a byte, or as the codes of narrow floats. So the file is the same with jquant-native and without, and is packed anew
    where it is loaded. The recipe, the ranges of `calibration` and the versions of the packages are JSON in its metadata,
    under the keys ``"recipe"`` (for `Recipe.from_json`), ``"calibration"`` and ``"versions"``.

    The file appears whole or not at all: it is written beside its place, to the disk, and then renamed. If the process is
    killed on the way, the old file is there as it was, and a hidden one beside it, ``.name.….tmp``, which can be deleted.

    Args:
      path: the file, by convention ``*.safetensors``. One that is there is replaced, and keeps its permissions.
      quantized_apply, quantized_params: what `quantize` returned, or parameters that took the place of those. Parameters on
        several devices of one process are written as a whole, one matrix after the other.
      calibration: what `calibrate` returned, to keep its ranges with the parameters. They are not needed for `load`.
      progress: whether to show a progress bar, which needs tqdm.

    Raises:
      TransformError: parameters that are not those of the function, or not all on devices of this process.
      TransformTypeError: an argument of the wrong type, or parameters without values.
      OSError: the file cannot be written: no such folder, no permission, no space.

    Example:
      >>> import pathlib, tempfile
      >>> import jax, jax.numpy as jnp, numpy as np
      >>> from jquant import transform
      >>> apply = lambda params, x: x @ params["kernel"]
      >>> params, x = {"kernel": jnp.linspace(-1, 1, 1024).reshape(32, 32)}, jnp.ones((4, 32))
      >>> quantized_apply, quantized_params = transform.quantize(apply, params, transform.dynamic_int8_rows, x)
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = pathlib.Path(folder, "model.safetensors")
      ...     transform.save(path, quantized_apply, quantized_params)
      ...     types = jax.eval_shape(lambda: params)
      ...     loaded_apply, loaded_params = transform.load(path, apply, types, x)
      >>> bool((loaded_apply(loaded_params, x) == quantized_apply(quantized_params, x)).all())
      True
    """
    path = as_path(_NAME, path)
    require_quantized(_NAME, quantized_apply)
    with as_transform_errors():
        progress = boolean(_NAME, "progress", progress)
    ranges = _ranges({} if calibration is None else calibration)
    require_arrays(f"{_NAME}: quantized_params", quantized_params, allow_traced=False)
    quantized_apply._require_parameters(_NAME, quantized_params)
    _require_addressable(quantized_params)
    recipe = quantized_apply._function.recipe
    strings = metadata.written(recipe, quantized_params["sites"], ranges)
    each: Callable = functools.partial(with_progress, _NAME, what="saving", unit="tensor") if progress else iter
    safetensors.write(path, list(_tensors(quantized_params)), strings, each)


def _ranges(calibration: Any) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The ranges of a calibration, by the names of their sites, asserting that they are some."""
    wanted = "it must be what transform.calibrate returned, a mapping from site names to ranges"
    if not isinstance(calibration, Mapping):
        raise TransformTypeError(f"{_NAME}: calibration is {described(calibration)}; {wanted}")
    found = {}
    for name, entry in calibration.items():
        observed = range_of(entry)
        try:
            if not isinstance(name, str):
                raise TypeError
            if observed is not None:
                low, high = map(real_numbers, observed)
                found[name] = low, high
        except (TypeError, ValueError):
            where = f"{_NAME}: calibration has {described(entry)} for {shown(name)}"
            raise TransformTypeError(f"{where}; {wanted}") from None
        if not np.isfinite(found.get(name, 0)).all():
            raise TransformError(f"{_NAME}: calibration[{name!r}] has a range that is not finite: {shown(observed)}")
    return found


def as_path(name: str, path: Any) -> Path:
    """A path, asserting that it is one."""
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise TransformTypeError(f"{name}: path is {shown(path)}; it must be a path: a string or a pathlib.Path")
    if "\0" in os.fspath(path):
        raise TransformError(f"{name}: path is {shown(path)}, which has a null character; no file has one in its name")
    return Path(path)


def require_quantized(name: str, quantized_apply: Any) -> None:
    """Asserts that a function is one that `quantize` returned."""
    if not isinstance(quantized_apply, QuantizedFunction):
        wanted = "it must be the function that transform.quantize returned"
        raise TransformTypeError(f"{name}: quantized_apply is {described(quantized_apply)}; {wanted}")


def _require_addressable(params: Any) -> None:
    for path, leaf in jax.tree.leaves_with_path(params):
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            where = f"{_NAME}: quantized_params{jax.tree_util.keystr(path)}"
            raise TransformError(
                f"{where} has parts on devices of other processes; gather it: jax.experimental.multihost_utils has functions"
            )


def _tensors(params: Mapping[str, Mapping[str, Any]]) -> Iterator[NewTensor]:
    """The tensors of a file, which read their elements when they are written."""
    for name, stored in params["sites"].items():
        for field, value in stored.items():
            if isinstance(value, PackedMatrix | PackedBlockMatrix):
                yield from _matrix(f"sites/{name}", value)
            else:
                yield _array(f"sites/{name}/{field}", value)
    for name, (scale, zero_point) in params["inputs"].items():
        yield _array(f"inputs/{name}/scale", scale)
        yield _array(f"inputs/{name}/zero_point", zero_point)
    for name, value in params["float"].items():
        yield _array(f"float/{name}", value)


def _matrix(where: str, matrix: PackedMatrix | PackedBlockMatrix) -> Iterator[NewTensor]:
    *batch, rows, columns = matrix.shape
    stored = matrix.stored_type if isinstance(matrix, PackedBlockMatrix) else matrix.dtype
    sizes = (*batch, on_host.rows_in_file(stored, rows), columns)
    dtype = stored if stored.name in ("int8", "uint8") else np.dtype(np.uint8)
    read = on_host.of_matrix if isinstance(matrix, PackedMatrix) else on_host.of_block_matrix
    yield NewTensor(f"{where}/values", dtype, sizes, functools.partial(read, matrix))
    for field in ("scale", "zero_point", "minimum"):
        array = getattr(matrix, field, None)
        if array is not None:
            yield _array(f"{where}/{field}", array)


def _array(where: str, array: Any) -> NewTensor:
    dtype, shape = file_arrays.file_type(array)
    return NewTensor(where, dtype, shape, functools.partial(file_arrays.to_file, array))
