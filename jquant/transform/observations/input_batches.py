"""Data sets whose batches are the inputs of a function."""

from collections.abc import Iterable, Iterator
from typing import Any

from jquant.calibration.batches import each_batch
from jquant.errors import TransformTypeError
from jquant.transform.program.parameters import described, require_arrays
from jquant.transform.recipes.checks import as_transform_errors


def each_inputs(name: str, batches: Iterable[Any], progress: bool) -> Iterator[tuple[Any, ...]]:
    """The inputs of the function in each batch, with a progress bar if `progress` is set. Errors begin with `name`."""
    if hasattr(batches, "shape"):
        message = f"{name}: batches is an array, {described(batches)}, whose rows would be the batches"
        raise TransformTypeError(f"{message}: pass [x] for a single batch x, or a list of batches")
    with as_transform_errors():
        return (_inputs(name, batch) for batch in each_batch(name, batches, progress))


def _inputs(name: str, batch: Any) -> tuple[Any, ...]:
    inputs = batch if isinstance(batch, tuple) else (batch,)
    require_arrays(f"{name}: inputs", inputs, allow_traced=False)
    return inputs
