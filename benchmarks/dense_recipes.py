"""Measures a dense layer under the ready recipes of jquant.transform, beside float32: a table of docs/speed.md.

    taskset -c 0,1 python -m benchmarks.dense_recipes [--rounds 40] [--rows 1 8 64] [--width 2048]

Prints the table: the median time of a call in milliseconds, for each number of rows; the signal over the noise in decibels,
for the largest of these; and the megabytes of the weights, with their scales. In each round, each recipe has a turn of at
least two calls, in random order, and the first one counts: it finds in the caches what another recipe left there, as in a
network of many layers. The page's figures are of two cores, to which taskset limits the process. Inputs and weights are
normally distributed; the ranges of `static_int8` are of 16 other inputs.
"""

import argparse
import functools
import sys
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from benchmarks import environment
from benchmarks.compared.workload import decibels
from benchmarks.measure import measure
from benchmarks.models.profile import finish
from jquant import transform

FLOAT32 = "float32"
RECIPES = (
    "static_int8",
    "dynamic_int8",
    "dynamic_int8_rows",
    "int4_by_rows",
    "weight_only_int8",
    "weight_only_int4",
    "weight_only_float8",
    "weight_only_mxfp4",
    "weight_only_nvfp4",
)


def dense(weights: jax.Array, x: jax.Array) -> jax.Array:
    return x @ weights


def drawn(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


def quantized(name: str, weights: jax.Array, x: jax.Array) -> tuple[Any, Any]:
    """The layer and its parameters under a recipe."""
    recipe, statistics = getattr(transform, name), None
    if name == "static_int8":
        statistics = transform.calibrate(dense, weights, [drawn(2 + batch, 1, x.shape[1]) for batch in range(16)], recipe)
    return transform.quantize(dense, weights, recipe, x, calibration=statistics)


def table(rows: list[int], width: int, rounds: int) -> list[str]:
    x, weights = drawn(0, max(rows), width), drawn(1, width, width) / width**0.5
    layers = {FLOAT32: (dense, weights), **{f"`{name}`": quantized(name, weights, x) for name in RECIPES}}
    programs = {name: (jax.jit(function), params) for name, (function, params) in layers.items()}
    results = {name: np.asarray(program(params, x)) for name, (program, params) in programs.items()}
    times = []
    for count in tqdm(rows, unit="size", file=sys.stderr):
        inputs = jax.device_put(x[:count])
        calls = {name: functools.partial(finish, program, (params, inputs)) for name, (program, params) in programs.items()}
        times.append({name: np.median(each.first) for name, each in measure(calls, rounds).items()})
    titles = [f"{count} {'row' if count == 1 else 'rows'}" for count in rows]
    lines = [f"| recipe | {' | '.join(titles)} | signal over noise, dB | weights, MB |", f"|---|{'--:|' * (len(rows) + 2)}"]
    for name, (_, params) in programs.items():
        noise = "" if name == FLOAT32 else f"{decibels(results[FLOAT32], results[name]):.0f}"
        megabytes = sum(leaf.nbytes for leaf in jax.tree.leaves(params)) / 1e6
        lines.append(f"| {name} | {' | '.join(f'{each[name]:.2f}' for each in times)} | {noise} | {megabytes:.1f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.dense_recipes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--width", type=int, default=2048)
    arguments = parser.parse_args()
    print(f"{environment.summary(environment.describe(['jquant-native']))} {arguments.rounds} rounds.\n")
    print("\n".join(table(arguments.rows, arguments.width, arguments.rounds)))


if __name__ == "__main__":
    main()
