"""Fixtures of several operators' tests."""

from collections.abc import Callable, Iterator

import jax
import pytest

from jquant.lowering import by_platform


@pytest.fixture
def as_on_a_tpu(monkeypatch) -> Iterator[Callable[[Callable], Callable]]:
    """Compiles a function for the CPU with the forms that TPUs have of it, which LLVM would take minutes to optimize."""
    monkeypatch.setattr(by_platform, "like_first", lambda otherwise, x, *parameters, tpu: tpu(x, *parameters))
    jax.clear_caches()
    yield lambda function: jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})
    jax.clear_caches()
