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
    return iter(_with_progress(name, iterator, operator.length_hint(batches) or None)) if progress else iterator


def _with_progress(name: str, batches: Iterator[Any], count: int | None) -> Iterable[Any]:
    try:
        from tqdm import tqdm
    except ImportError as error:
        message = f"{name}: progress=True needs tqdm: pip install tqdm"
        raise ImportError(message) from error
    return tqdm(batches, desc="calibrating", unit="batch", total=count)
