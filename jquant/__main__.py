"""Checks and measures this installation on this machine's devices: ``python -m jquant [--no-speed]``.

Prints the installed versions, JAX's devices, and the implementations of the integer product that run on them; compares every
exactness identity and every operator with NumPy, bit for bit; and measures the speed of the products. Exits with 1 if
anything is inexact.
"""

import argparse
import platform
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jquant
from jquant import self_check
from jquant.kernels.native import shared_library
from jquant.modes import Implementation

_PACKAGES = ("jax", "jaxlib", "numpy", "chex")
_SHAPES = {
    "cpu": ((1, 4096, 4096), (64, 4096, 4096), (1024, 1024, 1024)),
    "gpu": ((1, 8192, 8192), (4096, 4096, 4096), (8192, 8192, 8192)),
    "tpu": ((1, 8192, 8192), (4096, 4096, 4096), (8192, 8192, 8192)),
}

# jquant computes none of its results by such a program: see the tests of rows beyond 2**15.
_XLA_IS_WRONG = """this jaxlib is wrong in float programs of your own that reduce the product of a
small matrix and over 32,768 rows; no result of jquant is computed so"""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m jquant", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--version", action="version", version=f"jquant {jquant.__version__}")
    parser.add_argument("--no-speed", action="store_true", help="only check, without measuring the speed")
    options = parser.parse_args(arguments)
    for name, value in installation():
        print(f"{name:<12} {value}")
    available = print_implementations()
    inexact = print_checks(available)
    if self_check.wrong_rows_of_xla():
        print(f"\n{_XLA_IS_WRONG}")
    if not options.no_speed:
        print_speed(available)
    print(f"\n{inexact} of the comparisons above are INEXACT" if inexact else "\neverything is exact")
    return 1 if inexact else 0


def installation() -> Iterator[tuple[str, str]]:
    """The versions of what is installed, and the devices."""
    yield "Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield "jquant", jquant.__version__
    for package in _PACKAGES:
        yield package, metadata.version(package)
    library = shared_library.load()
    yield "native", library.obstacle or f"products in compiled code, for {library.instruction_set}"
    devices = jax.devices()
    yield "devices", f"{len(devices)} x {devices[0].device_kind} ({jax.default_backend()})"


def obstacle(implementation: Implementation) -> str | None:
    """Why an implementation does not run on the default device; None if it does."""
    ones = jnp.ones((128, 128), jnp.int8)
    try:
        jax.block_until_ready(jquant.matmul_integer(ones, ones, implementation=implementation))
    except Exception as error:  # a compiler may raise anything
        return str(error).strip().splitlines()[0]
    return None


def print_implementations() -> list[Implementation]:
    """Prints which implementations run here, and returns these."""
    print("\nimplementations of the integer product")
    available = []
    for implementation in Implementation:
        reason = obstacle(implementation)
        if reason is None:
            available.append(implementation)
        print(f"  {implementation:<12} {'runs here' if reason is None else _shortened(reason, 65)}")
    return available


def print_checks(available: list[Implementation]) -> int:
    """Runs all comparisons, and returns the number of names with a difference."""
    groups = {"identities": self_check.identities, "operators": self_check.operators}
    groups |= {f"products by {name}": lambda name=name: self_check.products(name) for name in available}
    inexact = 0
    for group, comparisons in groups.items():
        print(f"\n{f'{group}, compared with NumPy':<46}{'elements':>14}{'different':>14}")
        totals: dict[str, list[int]] = {}
        for name, actual, expected in comparisons():
            total = totals.setdefault(name, [0, 0])
            total[0] += expected.size
            total[1] += self_check.differing(actual, expected)
        for name, (elements, different) in totals.items():
            print(f"  {name:<44}{elements:>14,}{different or '0':>14}{'  <-' if different else ''}")
            inexact += different > 0
    return inexact


def print_speed(available: list[Implementation]) -> None:
    """Prints the throughput of each implementation, and of XLA's int8 product for comparison."""
    shapes = _SHAPES.get(jax.default_backend(), _SHAPES["cpu"])
    print("\nGOPS, uint8 x int8, zero points per tensor, uniform random values")
    print(f"  {'M x K x N':<30}" + "".join(f"{'x'.join(map(str, shape)):>16}" for shape in shapes))
    rows: dict[str, list[float]] = {}
    for shape in shapes:
        for name, call in measured_products(*shape, available):
            rows.setdefault(name, []).append(2e-9 * np.prod(shape, dtype=float) / seconds(call))
    for name, speeds in rows.items():
        print(f"  {name:<30}" + "".join(f"{speed:>16,.1f}" for speed in speeds))


def measured_products(
    m: int, k: int, n: int, available: list[Implementation]
) -> Iterator[tuple[str, Callable[[], jax.Array]]]:
    """The products that are measured: a name and a function without arguments each."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 256, (m, k), np.uint8), rng.integers(-128, 128, (k, n), np.int8)
    a, a_int8, b = jax.device_put((a, a.view(np.int8), b))
    az, bz = jax.device_put((np.uint8(121), np.int8(-3)))
    dot = jax.jit(lambda a, b: lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32))
    yield "lax.dot_general, int8 x int8", lambda: dot(a_int8, b)
    packed = jquant.pack_matrix(b, bz)
    for name in available:
        yield f"{name}", lambda name=name: jquant.matmul_integer(a, b, az, bz, implementation=name)
        yield f"{name}, packed", lambda name=name: jquant.matmul_integer(a, packed, az, implementation=name)


def seconds(call: Callable[[], jax.Array], budget: float = 0.3) -> float:
    """The time of a call: the median over batches of calls, each of which is awaited as a whole."""
    call().block_until_ready()
    start = time.perf_counter()
    call().block_until_ready()
    calls = max(1, int(budget / 5 / max(time.perf_counter() - start, 1e-6)))
    times = []
    for _ in range(5):
        start = time.perf_counter()
        jax.block_until_ready([call() for _ in range(calls)])
        times.append((time.perf_counter() - start) / calls)
    return float(np.median(times))


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."


if __name__ == "__main__":
    sys.exit(main())
