"""Kernels by their names in programs for a CPU, where Pallas interprets them."""

import contextlib
import functools
import importlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from jquant.kernels import block_dot, implementations, integer_dot
from jquant.modes import Implementation


@contextlib.contextmanager
def interpreted(implementation: Implementation, interpret: Any = True) -> Iterator[None]:
    """Lets programs for a CPU have a kernel by its name. What is lowered inside stays in JAX's caches."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(implementations._PLATFORMS, {implementation: "cpu"}))
        for modules, name in ((integer_dot._MODULES, "integer_dot"), (block_dot._MODULES, "block_dot")):
            module = importlib.import_module(modules[implementation])
            function = functools.partial(getattr(module, name), interpret=interpret)
            stack.enter_context(mock.patch.object(module, name, function))
        yield
