"""Measures networks of other people's packages in int8 (`transform.dynamic_int8`) beside their floats.

    python -m benchmarks.networks [--rounds 30] [--networks NAME ...]

Prints a table: how many products, convolutions and embeddings are quantized, and how many stay float; the signal-to-noise
ratio of the outputs; and int8 over float in the bytes of the ONNX files, the time of a call, and the time to trace and
compile. `.ci/networks.txt` has the packages.
"""

import argparse
import functools

import jax
import numpy as np
from tqdm import tqdm

from benchmarks import environment
from benchmarks.measure import measure
from benchmarks.models.profile import compile_cost, finish
from benchmarks.networks.networks import NETWORKS
from benchmarks.networks.quantized import quantized
from jquant.onnx import export
from jquant.onnx.compare.measures import decibels_of

COMPILATIONS = 3
HEADER = (
    "| | package | sites | stayed float | dB | bytes | of float | ms | of float | compiling, s | of float |\n"
    "|---|---|--:|---|--:|--:|--:|--:|--:|--:|--:|"
)


def line(name: str, rounds: int) -> str:
    """The row of a network."""
    package, make = NETWORKS[name]
    network = make()
    int8 = quantized(network)
    contestants = {"float": (network.function, network.params), "int8": (int8.function, int8.params)}
    sizes = {which: export(*contestant, *network.inputs).ByteSize() for which, contestant in contestants.items()}
    programs = {which: jax.jit(function) for which, (function, _) in contestants.items()}
    operands = {which: (params, *jax.device_put(network.inputs)) for which, (_, params) in contestants.items()}
    compiling = [[compile_cost(programs[which], operands[which])[0] for which in programs] for _ in range(COMPILATIONS)]
    calls = {which: functools.partial(finish, program, operands[which]) for which, program in programs.items()}
    outputs = {which: np.asarray(call()) for which, call in calls.items()}
    times = {which: turns.further for which, turns in measure(calls, rounds).items()}
    ms, ms_int8, seconds, seconds_int8 = times["float"], times["int8"], *np.transpose(compiling)
    cells = [
        name,
        f"{package} {environment.version(package)}",
        int8.sites,
        ", ".join(f"{count} {reason}" for reason, count in int8.floats.items()),
        f"{decibels_of(outputs['int8'], outputs['float']):.0f}",
        f"{sizes['int8']:,}",
        f"{sizes['int8'] / sizes['float']:.2f}",
        f"{np.median(ms_int8):.3f}",
        f"{np.median(ms_int8 / ms):.2f}",
        f"{np.median(seconds_int8):.2f}",
        f"{np.median(seconds_int8 / seconds):.2f}",
    ]
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.networks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument(
        "--networks", nargs="+", choices=NETWORKS, default=[*NETWORKS], metavar="NAME", help=", ".join(NETWORKS)
    )
    arguments = parser.parse_args()
    packages = dict.fromkeys(NETWORKS[name].package for name in arguments.networks)
    print(environment.summary(environment.describe([*packages, "flax", "onnxruntime"])), HEADER, sep="\n\n")
    for name in tqdm(arguments.networks, unit="network"):
        print(line(name, arguments.rounds), flush=True)


if __name__ == "__main__":
    main()
