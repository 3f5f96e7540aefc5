"""Fixtures that several operators' tests share."""

from collections.abc import Callable, Iterator

import jax
import pytest

from jquant.lowering import by_platform


@pytest.fixture
def as_on_a_tpu(monkeypatch) -> Iterator[Callable[[Callable], Callable]]:
    """A function that jits for the CPU what TPUs compute, without LLVM's optimizations, which would take minutes."""
    monkeypatch.setattr(by_platform, "like_first", lambda otherwise, x, *parameters, tpu: tpu(x, *parameters))
    jax.clear_caches()
    yield lambda function: jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})
    jax.clear_caches()
