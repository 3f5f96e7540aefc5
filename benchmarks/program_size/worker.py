"""Measures the network once, in a process in which nothing is cached, and prints the results as JSON.

    PYTHONPATH=CHECKOUT python benchmarks/program_size/worker.py BLOCKS [--without-native]

It runs as a script, beside `network.py`, so that the same network can be measured with the jquant of another checkout.
"""

import argparse
import functools
import hashlib
import json
import re
import sys
import time
from itertools import pairwise

import jax
import numpy as np
from network import draw, program, random_image
from timing import PHASES, run_seconds

import jquant


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
    parameters, image = jax.device_put((parameters, random_image()))
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
    results = compiled(parameters, image)
    return {
        "module": jquant.__file__,
        "seconds": {phase: end - start for phase, (start, end) in zip(PHASES, pairwise(clock), strict=True)},
        "processor_seconds": processor,
        "run_seconds": run_seconds(lambda: jax.block_until_ready(compiled(parameters, image))),
        "lines": text.count("\n"),
        "functions": functions(text),
        "nodes": dict(nodes),
        "temporary_bytes": compiled.memory_analysis().temp_size_in_bytes,
        "result": hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in results)).hexdigest(),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("blocks", type=int)
    parser.add_argument("--without-native", action="store_true", help="as if jquant-native were not installed")
    arguments = parser.parse_args()
    if arguments.without_native:
        sys.modules["jquant_native"] = None  # type: ignore[assignment]  # importing it then raises ModuleNotFoundError
    print(json.dumps(measure(arguments.blocks)))


if __name__ == "__main__":
    main()
