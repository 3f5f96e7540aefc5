"""`benchmarks.traffic`: the bytes that a compiled program reads and writes, counted in its instructions."""

import jax
import jax.numpy as jnp
import pytest

from benchmarks import traffic


def compiled_traffic(function, *arguments) -> traffic.Traffic:
    return traffic.read(jax.jit(function).lower(*arguments).compile().as_text())


FLOATS = jax.ShapeDtypeStruct((2**16,), jnp.float32)


def test_a_loop_moves_its_arguments_and_its_result():
    program = compiled_traffic(lambda x, y: ((x + y) * y).astype(jnp.uint8), FLOATS, FLOATS)
    assert (program.moved, program.least) == (9 * 2**16, 9 * 2**16)
    assert len(program.instructions) == 1


def test_a_temporary_is_written_and_read():
    assert compiled_traffic(lambda x: jax.lax.sort(x + 1), FLOATS).ratio == 2


def test_what_two_instructions_read_counts_twice():
    assert compiled_traffic(lambda x: x - jax.lax.sort(x), FLOATS).ratio == 5 / 2


def test_a_loop_counts_as_often_as_it_runs():
    program = compiled_traffic(lambda x: jax.lax.fori_loop(0, 10, lambda _, x: jax.lax.sort(-x), x), FLOATS)
    assert program.ratio == pytest.approx(20, abs=1)  # XLA may copy the argument first
