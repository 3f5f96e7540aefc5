"""Data sets, read batch by batch."""

import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jquant.errors import DescriptorTypeError, shown


def each_batch(name: str, batches: Iterable[Any], progress: bool) -> Iterator[Any]:
    """An iterator over the batches, with a progress bar if `progress` is set."""
    try:  # iterating over these types would give integers, or keys, as batches
        iterator = None if isinstance(batches, bytes | bytearray | memoryview | Mapping) else iter(batches)
    except TypeError:
        iterator = None
    if iterator is None:
        raise DescriptorTypeError(f"{name}: batches is {shown(batches)}; it must be an iterable of batches")
    return (
        iter(with_progress(name, iterator, "calibrating", "batch", operator.length_hint(batches))) if progress else iterator
    )


def with_progress(name: str, steps: Iterable[Any], what: str, unit: str, count: int = 0) -> Iterable[Any]:
    """The steps of the function `name`, with a progress bar; `count`, their number, or 0 if only their own length tells."""
    try:
        from tqdm import tqdm
    except ImportError as error:
        message = f"{name}: progress=True needs tqdm: pip install tqdm"
        raise ImportError(message) from error
    return tqdm(steps, desc=what, unit=unit, total=count or None)
