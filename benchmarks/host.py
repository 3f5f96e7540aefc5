"""Measures native/example, a host without Python, beside the same programs in Python, and beside onnxruntime.

    python -m benchmarks.host PLUGIN [--rounds 7] [--calls 500]

PLUGIN is a plugin of PJRT for CPUs, such as that of the package of .ci/host.txt; GCC builds the host, with the headers in
TensorFlow's package. In each round every contestant has its turn of as many calls: the host in a process of its own, with
one device; in Python the exported program, jitted, with JAX's synchronous dispatch, from arrays of NumPy to arrays of NumPy;
and onnxruntime (two threads that do not spin) with the network's ONNX form and its inputs and outputs bound. Inputs and
weights are normal.
"""

import argparse
import contextlib
import functools
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jquant_native
import numpy as np
import tensorflow as tf
from tqdm import tqdm

import jquant.onnx
from benchmarks import environment
from jquant import host, transform
from jquant.onnx import onnxruntime_session

SOURCE = Path(__file__).parents[1] / "native" / "example" / "host.cc"


def build(path: Path, *options: str) -> Path:
    """Builds the host with GCC."""
    headers, library = Path(tf.sysconfig.get_include()), Path(jquant_native.LIBRARY).parent
    folders = ["-I", library / "include", "-isystem", headers / "tensorflow" / "compiler", "-isystem", headers]
    command = ["g++", "-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", *options, *folders, SOURCE, "-ldl", "-o", path]
    subprocess.run(command, check=True)
    return path


def perceptron(params: list[jax.Array], x: jax.Array) -> jax.Array:
    for weights in params[:-1]:
        x = jax.nn.relu(x @ weights)
    return x @ params[-1]


def convolutions(params: list[jax.Array], x: jax.Array) -> jax.Array:
    for filters in params:
        numbers = ("NHWC", "HWIO", "NHWC")
        x = jax.nn.relu(jax.lax.conv_general_dilated(x, filters, (1, 1), "SAME", dimension_numbers=numbers))
    return x


def _drawn(*shape: int) -> jax.Array:
    deviation = (2 / np.prod(shape[:-1])) ** 0.5
    return jnp.asarray(np.random.default_rng(len(shape)).normal(size=shape) * deviation, jnp.float32)


MATRICES = [_drawn(512, 1024), _drawn(1024, 1024), _drawn(1024, 256)]
WIDE = [_drawn(1024, 4096), _drawn(4096, 1024)]
NETWORKS: dict[str, tuple[Callable, list[jax.Array], transform.Recipe, tuple[int, ...]]] = {
    "512-1024-1024-256, dynamic_int8, 1 row": (perceptron, MATRICES, transform.dynamic_int8, (1, 512)),
    "the same, 32 rows": (perceptron, MATRICES, transform.dynamic_int8, (32, 512)),
    "1024-4096-1024, weight_only_int4, 1 row": (perceptron, WIDE, transform.weight_only_int4, (1, 1024)),
    "two convolutions 3 x 3 of 56 x 56 x 64, dynamic_int8": (
        convolutions,
        [_drawn(3, 3, 64, 64)] * 2,
        transform.dynamic_int8,
        (1, 56, 56, 64),
    ),
}


class Contestants:
    """The forms of a network, of which each gives the microseconds of `calls` calls."""

    def __init__(self, name: str, folder: Path, program: Path, plugin: str, calls: int) -> None:
        apply, params, recipe, shape = NETWORKS[name]
        self.calls, self.x = calls, np.random.default_rng(0).normal(size=shape).astype(np.float32)
        function, packed = transform.quantize(apply, params, recipe, self.x)
        types = packed, jax.ShapeDtypeStruct(shape, np.float32)
        self._command = [program, plugin, jquant_native.LIBRARY]
        self._folder = folder
        (folder / "inputs").write_bytes(self.x.tobytes())
        exported = host.export(function, *types)
        for native in (True, False):
            host.write(folder / f"{native}.jquant", host.export(function, *types, native=native), *types)
        self._jitted, self._leaves = jax.jit(exported.call), jax.tree.leaves(packed)
        model = jquant.onnx.export(function, packed, self.x)
        session = onnxruntime_session.session(model.SerializeToString(), optimized=True)
        self._bound = session, session.io_binding()
        (its_input,), (its_output,) = session.get_inputs(), session.get_outputs()
        self._bound[1].bind_cpu_input(its_input.name, self.x)
        self._bound[1].bind_output(its_output.name)
        (expected,) = self._jitted(*self._leaves, self.x)
        self.started, self.peak = self._cold()
        np.testing.assert_array_equal(np.fromfile(folder / "outputs", np.float32), np.ravel(expected))

    def times(self) -> dict[str, Callable[[], float]]:
        session, binding = self._bound
        return {
            "host, XLA's products": functools.partial(self._by_host, native=False),
            "host": functools.partial(self._by_host, native=True),
            "Python": lambda: self._loop(lambda: np.asarray(self._jitted(*self._leaves, self.x)[0])),
            "onnxruntime": lambda: self._loop(lambda: session.run_with_iobinding(binding)),
        }

    def _words(self, native: bool) -> list[Any]:
        return [*self._command, self._folder / f"{native}.jquant", self._folder / "inputs", self._folder / "outputs"]

    def _by_host(self, native: bool) -> float:
        words = [*self._words(native), str(self.calls)]
        printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        return float(printed.split("median ")[1].split()[0])

    def _loop(self, call: Callable[[], Any]) -> float:
        times = []
        for _ in range(self.calls):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        return 1e6 * float(np.median(times))

    def _cold(self) -> tuple[float, float]:
        """Seconds from the start of a host to its first result, and the MB of memory that it takes at most."""
        start, peak = time.perf_counter(), 0
        process = subprocess.Popen(self._words(True), stdout=subprocess.DEVNULL)
        while process.poll() is None:  # what the kernel reports of an ended process is at least what its parent had
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
                peak = max([peak, *(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))])
            time.sleep(0.001)
        assert process.returncode == 0
        return time.perf_counter() - start, peak / 1000


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.host", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plugin", help="the shared library of a plugin of PJRT for CPUs")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=500)
    arguments = parser.parse_args()
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    print(environment.describe(["onnx", "onnxruntime", "jquant-native"]))
    print("\nus of a call, medians; and a host's seconds to its first result, and MB at most\n")
    header = False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = build(folder / "host")
        for network in tqdm(NETWORKS, unit="network", file=sys.stderr):
            contestants = Contestants(network, folder, program, arguments.plugin, arguments.calls)
            times = {each: [] for each in contestants.times()}
            for _ in range(arguments.rounds):
                for each, call in contestants.times().items():
                    times[each].append(call())
            medians = {each: float(np.median(found)) for each, found in times.items()}
            if not header:
                print(f"| network | {' | '.join(medians)} | host / Python | host / onnxruntime | first result | peak |")
                print(f"|---|{'--:|' * (len(medians) + 4)}")
                header = True
            ratios = [medians["host"] / medians[each] for each in ("Python", "onnxruntime")]
            cells = [*(f"{median:.0f}" for median in medians.values()), *(f"{ratio:.2f}" for ratio in ratios)]
            cells += [f"{contestants.started:.2f}", f"{contestants.peak:.0f}"]
            print(f"| {network} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
