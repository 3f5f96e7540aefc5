"""Measures what a program of many operators costs: its size, the time to trace, lower and compile it, and to run it.

    python -m benchmarks.program_size [--repeat 5] [--baseline PATH] [--blocks 15]

The program is MobileNetV3-Large in integers: 212 operators, whose parameters are arguments of the program. Each measurement
has a process of its own, in which nothing is cached. With --baseline, another checkout of this repository takes turns with
this one, on the same program; the results of both must be equal.
"""

import argparse
import functools
import hashlib
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import jquant

# --- The network ------------------------------------------------------------------------------------------------------

# For each block: the size of the depthwise filter, the channels in the block and after it, whether it has a
# squeeze-and-excite part, whether its activation functions are hard-swish (or else ReLU), and the stride.
# Howard et al., Searching for MobileNetV3, table 1.
BLOCKS = [
    (3, 16, 16, False, False, 1),
    (3, 64, 24, False, False, 2),
    (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2),
    (5, 120, 40, True, False, 1),
    (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2),
    (3, 200, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 480, 112, True, True, 1),
    (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2),
    (5, 960, 160, True, True, 1),
    (5, 960, 160, True, True, 1),
]
IMAGE = (1, 3, 224, 224)


class Quantized(NamedTuple):
    values: jax.Array
    scale: jax.Array
    zero_point: jax.Array


class Network:
    """The network, in the public operators. Its parameters come from `take`, in the order in which they are needed."""

    def __init__(self, blocks: int, take: Callable[[Callable[[np.random.Generator], np.ndarray]], jax.Array]):
        self.blocks, self.take = BLOCKS[:blocks], take
        self.nodes: Counter[str] = Counter()

    def __call__(self, image: jax.Array) -> jax.Array:
        scale, zero_point = self.quantization()
        x = Quantized(self.node(jquant.quantize_linear, image, scale, zero_point), scale, zero_point)
        x = self.hard_swish(self.convolution(x, 16, 3, stride=2))
        for block in self.blocks:
            x = self.block(x, *block)
        x = self.hard_swish(self.convolution(x, 960))
        x = self.global_average_pool(x)
        x = x._replace(values=x.values.reshape(1, 960))
        x = self.dense(self.hard_swish(self.dense(x, 1280)), 1000)
        scale, zero_point = self.quantization()
        return self.node(jquant.quantized_linear_softmax, *x, scale, zero_point, axis=1)

    def node(self, operator: Callable[..., jax.Array], *operands: Any, **options: Any) -> jax.Array:
        self.nodes[operator.__name__] += 1
        return operator(*operands, **options)

    def quantization(self) -> tuple[jax.Array, jax.Array]:
        """A scale and a zero point."""
        scale = self.take(lambda rng: np.float32(rng.uniform(0.01, 0.05)))
        return scale, self.take(lambda rng: rng.integers(100, 156, (), np.uint8))

    def block(self, x: Quantized, kernel: int, inner: int, outer: int, squeeze: bool, swish: bool, stride: int) -> Quantized:
        channels = x.values.shape[1]
        activation = self.hard_swish if swish else self.relu
        inside = x if inner == channels else activation(self.convolution(x, inner))
        inside = activation(self.convolution(inside, inner, kernel, stride=stride, groups=inner))
        if squeeze:
            inside = self.squeeze_and_excite(inside)
        inside = self.convolution(inside, outer)
        return self.binary(jquant.quantized_linear_add, x, inside) if (stride, outer) == (1, channels) else inside

    def squeeze_and_excite(self, x: Quantized) -> Quantized:
        channels = x.values.shape[1]
        factors = self.convolution(self.global_average_pool(x), -(-channels // 32) * 8)
        return self.binary(jquant.quantized_linear_multiply, x, self.hard_sigmoid(self.convolution(factors, channels)))

    def relu(self, x: Quantized) -> Quantized:
        return x._replace(values=self.node(jquant.clip1, x.values, x.zero_point, np.uint8(255)))

    def hard_swish(self, x: Quantized) -> Quantized:
        return self.binary(jquant.quantized_linear_multiply, x, self.hard_sigmoid(x))

    def hard_sigmoid(self, x: Quantized) -> Quantized:
        value = self.node(jquant.dequantize_linear, *x)
        value = self.node(jquant.clip, value, 0.0, 1.0, scale_bias=jquant.ScaleBias(np.float32(1 / 6), np.float32(0.5)))
        scale, zero_point = self.quantization()
        return Quantized(self.node(jquant.quantize_linear, value, scale, zero_point), scale, zero_point)

    def binary(self, operator: Callable[..., jax.Array], a: Quantized, b: Quantized) -> Quantized:
        output = self.quantization()
        return Quantized(self.node(operator, *a, *b, *output), *output)

    def global_average_pool(self, x: Quantized) -> Quantized:
        output = self.quantization()
        return Quantized(self.node(jquant.quantized_linear_global_average_pool, *x, *output), *output)

    def weights(self, *sizes: int, channels: int) -> tuple[jax.Array, jax.Array]:
        """Symmetric weights, and the scale of each channel."""
        values = self.take(lambda rng: rng.integers(-127, 128, sizes, np.int8))
        return values, self.take(lambda rng: rng.uniform(1e-3, 1e-2, channels).astype(np.float32))

    def convolution(self, x: Quantized, channels: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> Quantized:
        weights, scales = self.weights(channels, x.values.shape[1] // groups, kernel, kernel, channels=channels)
        bias = self.take(lambda rng: rng.integers(-1000, 1000, (1, channels, 1, 1), np.int32))
        output = self.quantization()
        windows = {"strides": (stride, stride), "padding": ((kernel // 2, kernel // 2),) * 2, "groups": groups}
        operands = *x, weights, scales, None, *output, bias
        return Quantized(self.node(jquant.quantized_linear_convolution, *operands, **windows), *output)

    def dense(self, x: Quantized, channels: int) -> Quantized:
        weights, scales = self.weights(x.values.shape[1], channels, channels=channels)
        bias = self.take(lambda rng: rng.integers(-1000, 1000, channels, np.int32))
        output = self.quantization()
        return Quantized(self.node(jquant.quantized_gemm, *x, weights, scales, None, bias, *output), *output)


def draw(blocks: int) -> tuple[list[np.ndarray], Counter[str]]:
    """Random parameters, and how many nodes there are of each kind. Leaves nothing in JAX's caches."""
    rng, drawn = np.random.default_rng(0), []

    def take(make: Callable[[np.random.Generator], np.ndarray]) -> np.ndarray:
        drawn.append(make(rng))
        return drawn[-1]

    network = Network(blocks, take)
    jax.eval_shape(network, jax.ShapeDtypeStruct(IMAGE, np.float32))
    jax.clear_caches()
    return drawn, network.nodes


def program(blocks: int, parameters: list[jax.Array], image: jax.Array) -> jax.Array:
    given: Iterator[jax.Array] = iter(parameters)
    return Network(blocks, lambda make: next(given))(image)


# --- Measuring --------------------------------------------------------------------------------------------------------

PHASES = "trace", "lower", "compile"
RUNS = 20  # in each process, of which the median counts


def functions(text: str) -> dict[str, tuple[int, int]]:
    """For each function name in a module, without its trailing number: how many functions have it, and their lines."""
    found: dict[str, tuple[int, int]] = {}
    for name, body in re.findall(r"^  func\.func \w+ @(\w+)\((.*?)^  \}", text, re.MULTILINE | re.DOTALL):
        name = re.sub(r"_\d+$", "", name)
        count, lines = found.get(name, (0, 0))
        found[name] = count + 1, lines + body.count("\n") + 1
    return found


def once(blocks: int) -> dict:
    """One measurement, in this process."""
    parameters, nodes = draw(blocks)
    parameters, image = jax.device_put((parameters, np.random.default_rng(1).normal(size=IMAGE).astype(np.float32)))
    jax.jit(lambda x: x + 1)(image).block_until_ready()  # what starts with the first program
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


def elsewhere(tree: Path, blocks: int) -> dict:
    """One measurement of the package in a checkout, in a process of its own."""
    command = [sys.executable, "-P", __file__, "--once", f"--blocks={blocks}"]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    found = json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout)
    if not Path(found["module"]).is_relative_to(tree):
        raise SystemExit(f"{found['module']} is not in {tree}")
    return found


def print_tables(found: dict[str, list[dict]], repeat: int) -> None:
    first = {name: runs[0] for name, runs in found.items()}
    one = next(iter(first.values()))
    print(
        f"jax {one['jax']}, {sum(one['nodes'].values())} nodes; medians and ranges of {repeat} processes that take turns\n"
    )
    names = [*PHASES, "together", "time of processors", "run"]
    print("| | lines of StableHLO | temporary MiB | " + " | ".join(f"{name}, s" for name in names) + " |")
    print("|---|--:|--:" + "|--:" * len(names) + "|")
    medians = {}
    for tree, runs in found.items():
        seconds = {phase: [run["seconds"][phase] for run in runs] for phase in PHASES}
        seconds["together"] = [sum(run["seconds"].values()) for run in runs]
        seconds["time of processors"] = [run["processor_seconds"] for run in runs]
        seconds["run"] = [run["run_seconds"] for run in runs]
        medians[tree] = {name: statistics.median(seconds[name]) for name in names}
        cells = [f"{medians[tree][name]:.3g} ({min(seconds[name]):.3g} to {max(seconds[name]):.3g})" for name in names]
        size = f"{first[tree]['lines']:,} | {first[tree]['temporary_bytes'] / 2**20:.1f}"
        print(f"| {tree} | {size} | " + " | ".join(cells) + " |")
    if len(found) == 2:
        ours, theirs = first.values()
        cells = [f"{a / b:.2f}" for a, b in zip(*(each.values() for each in medians.values()), strict=True)]
        print(f"| ratio | {ours['lines'] / theirs['lines']:.2f} | | " + " | ".join(cells) + " |")
    for tree, run in first.items():
        print(f"\n{tree}: {dict(sorted(run['nodes'].items()))}\n")
        print("| function | how many | lines of StableHLO | lines of each |\n|---|--:|--:|--:|")
        for name, (count, lines) in sorted(run["functions"].items(), key=lambda item: -item[1][1]):
            print(f"| `{name}` | {count} | {lines:,} | {lines / count:.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--baseline", type=Path, metavar="PATH", help="another checkout of this repository")
    parser.add_argument("--blocks", type=int, default=len(BLOCKS), help="how many of the network's blocks, from the first")
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)  # what the processes do
    arguments = parser.parse_args()
    if arguments.once:
        print(json.dumps(once(arguments.blocks)))
        return
    trees = {"this tree": Path(__file__).resolve().parent.parent}
    if arguments.baseline:
        trees["baseline"] = arguments.baseline.resolve()
    found: dict[str, list[dict]] = {name: [] for name in trees}
    for _ in range(arguments.repeat):
        for name, tree in trees.items():
            found[name].append(elsewhere(tree, arguments.blocks))
    if len({run["result"] for runs in found.values() for run in runs}) > 1:
        raise SystemExit("the results differ")
    print_tables(found, arguments.repeat)


if __name__ == "__main__":
    main()
