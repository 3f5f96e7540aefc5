"""Checks that operators and observers have as well, whose errors become those of this package."""

import contextlib
from collections.abc import Iterator

from jquant.errors import DescriptorError, DescriptorTypeError, TransformError, TransformTypeError


@contextlib.contextmanager
def shared_checks() -> Iterator[None]:
    try:
        yield
    except DescriptorTypeError as error:
        raise TransformTypeError(str(error)) from None
    except DescriptorError as error:
        raise TransformError(str(error)) from None
