"""Measures the network once, in a process in which nothing is cached, and prints the results as JSON.

    PYTHONPATH=CHECKOUT python benchmarks/program_size/worker.py BLOCKS

It runs as a script, beside `network.py`, so that the same network can be measured with the jquant of another checkout.
"""

import functools
import hashlib
import json
import re
import statistics
import sys
import time
from itertools import pairwise

import jax
import numpy as np
from network import IMAGE, draw, program

import jquant

PHASES = "trace", "lower", "compile"
RUNS = 20  # of which the median counts


def functions(text: str) -> dict[str, tuple[int, int]]:
    """For each function name in a module, without its trailing number: how many functions have it, and their lines."""
    totals: dict[str, tuple[int, int]] = {}
    for name, body in re.findall(r"^  func\.func \w+ @(\w+)\((.*?)^  \}", text, re.MULTILINE | re.DOTALL):
        name = re.sub(r"_\d+$", "", name)
        count, lines = totals.get(name, (0, 0))
        totals[name] = count + 1, lines + body.count("\n") + 1
    return totals


def measure(blocks: int) -> dict:
    parameters, nodes = draw(blocks)
    parameters, image = jax.device_put((parameters, np.random.default_rng(1).normal(size=IMAGE).astype(np.float32)))
    jax.jit(lambda x: x + 1)(image).block_until_ready()  # the first program also initialises the backend
    clock, processor = [time.perf_counter()], time.process_time()
    traced = jax.jit(functools.partial(program, blocks)).trace(parameters, image)
    clock.append(time.perf_counter())
    lowered = traced.lower()
    clock.append(time.perf_counter())
    compiled = lowered.compile()
    clock.append(time.perf_counter())
    processor = time.process_time() - processor
    text = lowered.as_text()
    result = np.asarray(compiled(parameters, image))
    starts = []
    for _ in range(RUNS + 1):
        starts.append(time.perf_counter())
        compiled(parameters, image).block_until_ready()
    return {
        "module": jquant.__file__,
        "seconds": {phase: end - start for phase, (start, end) in zip(PHASES, pairwise(clock), strict=True)},
        "processor_seconds": processor,
        "run_seconds": statistics.median(end - start for start, end in pairwise(starts)),
        "lines": text.count("\n"),
        "functions": functions(text),
        "nodes": dict(nodes),
        "temporary_bytes": compiled.memory_analysis().temp_size_in_bytes,
        "result": hashlib.sha256(result.tobytes()).hexdigest(),
        "jax": jax.__version__,
    }


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
