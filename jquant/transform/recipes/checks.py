"""Checks that `jquant.transform` shares with the operators and the observers."""

import contextlib
import os
from collections.abc import Iterator

from jquant.errors import DescriptorError, DescriptorTypeError, TransformError, TransformTypeError, shown


@contextlib.contextmanager
def as_transform_errors() -> Iterator[None]:
    """Raises a `DescriptorError` as a `TransformError`, and a `DescriptorTypeError` as a `TransformTypeError`."""
    try:
        yield
    except DescriptorTypeError as error:
        raise TransformTypeError(str(error)) from None
    except DescriptorError as error:
        raise TransformError(str(error)) from None


def require_file(name: str, path: object) -> None:
    """Asserts that a plot can be written to `path`. Errors begin with `name`."""
    if not (isinstance(path, str | os.PathLike) or hasattr(path, "write")):
        raise TransformTypeError(f"{name}: path is {shown(path)}; it must be the name of a file")
