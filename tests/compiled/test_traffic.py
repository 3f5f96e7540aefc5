"""What the programs of the operators read and write, on this machine's CPU: each tensor once."""

import jax
import jax.numpy as jnp
import pytest

from benchmarks import traffic


def of(function, *arguments) -> traffic.Traffic:
    return traffic.of(jax.jit(function).lower(*arguments).compile().as_text())


FLOATS = jax.ShapeDtypeStruct((2**16,), jnp.float32)


def test_a_loop_moves_its_arguments_and_its_result():
    found = of(lambda x, y: ((x + y) * y).astype(jnp.uint8), FLOATS, FLOATS)
    assert (found.moved, found.least) == (9 * 2**16, 9 * 2**16)
    assert len(found.instructions) == 1


def test_a_temporary_is_written_and_read():
    found = of(lambda x: jax.lax.sort(x + 1), FLOATS)
    assert found.ratio == 2


def test_what_two_instructions_read_counts_twice():
    found = of(lambda x: x - jax.lax.sort(x), FLOATS)
    assert found.ratio == 5 / 2


def test_a_loop_counts_as_often_as_it_runs():
    found = of(lambda x: jax.lax.fori_loop(0, 10, lambda _, x: jax.lax.sort(-x), x), FLOATS)
    assert found.ratio == pytest.approx(20, abs=1)  # XLA may copy the argument first
