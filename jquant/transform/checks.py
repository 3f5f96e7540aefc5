"""Checks that `jquant.transform` shares with the operators and the observers."""

import contextlib
from collections.abc import Iterator

from jquant.errors import DescriptorError, DescriptorTypeError, TransformError, TransformTypeError


@contextlib.contextmanager
def as_transform_errors() -> Iterator[None]:
    """Raises a `DescriptorError` as a `TransformError`, and a `DescriptorTypeError` as a `TransformTypeError`."""
    try:
        yield
    except DescriptorTypeError as error:
        raise TransformTypeError(str(error)) from None
    except DescriptorError as error:
        raise TransformError(str(error)) from None
