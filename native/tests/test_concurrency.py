"""Several programs, threads and processes at once, and programs that are interrupted."""

import concurrent.futures
import sys

import draw
import jax
import numpy as np
import processes
import pytest
from calls import DEQUANTIZE, Call, compute, expected, function, instruction_set, operands


def chain(seed):
    """Products of different sizes, most of which are worth sharing among threads."""
    rng = np.random.default_rng(seed)
    calls = []
    for _ in range(8):
        depth_minor = bool(rng.integers(2))
        rows, columns, depth = rng.integers(1, 200, 3)
        shape = (1, rows, columns)
        b_shape = (1, columns, depth) if depth_minor else (1, depth, columns)
        arrays = tuple(draw.array(rng, role, draw.broadcast_shape(rng, role, shape), np.float32) for role in DEQUANTIZE)
        a, b = draw.matrix(rng, (1, rows, depth), np.uint8), draw.matrix(rng, b_shape, np.int8)
        calls.append(Call(a, b, arrays, DEQUANTIZE, np.dtype(np.float32), depth_minor))
    return calls


def test_programs_on_several_threads():
    """64 programs on 8 threads: each waits for XLA's pool, whose threads all may wait in the library."""
    instruction_set()
    chains = [chain(seed) for seed in range(64)]
    results = [list(map(expected, calls)) for calls in chains]

    def run(calls):
        program = jax.jit(function(*calls)).lower(operands(*calls)).compile()
        return [program(operands(*calls)) for _ in range(5)]

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        for runs, of_chain in zip(threads.map(run, chains), results, strict=True):
            for actual in runs:
                jax.tree.map(np.testing.assert_array_equal, actual, of_chain)


def test_calls_within_one_program():
    """XLA may run independent calls of one program at the same time."""
    calls = [call for seed in range(8) for call in chain(seed)]
    for actual, call in zip(compute(*calls), calls, strict=True):
        np.testing.assert_array_equal(actual, expected(call))


def test_two_processes():
    first, second = (processes.start("long_program.py", seed) for seed in ("1", "2"))
    assert processes.printed(first) == "right\n"
    assert processes.printed(second) == "right\n"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT that a process sends to itself")
def test_an_interrupted_program():
    """What it has computed is right, and so is what follows."""
    assert processes.run("long_program.py", "3", "--interrupt") == "right\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process")
@pytest.mark.parametrize("depth_minor", ["", "--depth-minor"])
def test_too_little_memory(depth_minor):
    assert processes.run("little_memory.py", *depth_minor.split()) == "refused\nright\n"
