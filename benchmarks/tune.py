"""Measures tile configurations of the Pallas kernels on this machine's TPU or GPU.

    python -m benchmarks.tune [--rounds 20] [--repeats 50] [--shapes square-1024] [--transpose-b]

For each shape it prints the tile configurations, the fastest first, to be entered in the kernel's `_tiles` module, with
XLA's own product among them. The product is uint8 x int8 with both zero points; the row and column sums that these need are
not part of what is timed. Exits with 2 if there is no such device.
"""

import argparse
import functools
import importlib
import itertools
import sys
from collections.abc import Callable, Iterator
from types import ModuleType

import jax
import jax.numpy as jnp
from jax import lax
from tqdm import tqdm

from benchmarks.contestant import jitted
from benchmarks.measure import measure, quartiles
from benchmarks.problem import Problem
from benchmarks.selection import select
from benchmarks.shapes import PRODUCTS, Product, tagged
from jquant.arithmetic import signs
from jquant.kernels import xla, zero_point

# Values of the fields of each platform's `TileConfig`. All combinations are tried; the kernel rejects those it cannot run.
CANDIDATES = {
    "tpu": {
        "block_m": (128, 256, 512, 1024, 2048),
        "block_k": (512, 1024),
        "block_n": (256, 512, 1024, 2048),
        "rows_at_once": (256, 1024),
        "vmem_limit_bytes": (96 * 2**20,),
    },
    "gpu": {
        "block_m": (64, 128, 256),
        "block_n": (64, 128, 256),
        "stages": (3, 4, 5),
        "warpgroups": (1, 2),
        "epilogue_n": (32,),  # columns of int32 in 128 bytes
        "group_m": (4, 8, 16),
    },
}


def candidates(configs: ModuleType, values: dict[str, tuple]) -> Iterator[object]:
    """The configurations with every combination of the values of the fields."""
    for combination in itertools.product(*values.values()):
        yield configs.TileConfig(**dict(zip(values, combination, strict=True)))


def repeated(product: Callable[..., jax.Array], repeats: int) -> Callable[..., jax.Array]:
    """A function of many products, one after another, so that the time of dispatching one call does not count."""

    def function(a: jax.Array, *others: object) -> jax.Array:
        def step(_: jax.Array, a: jax.Array) -> jax.Array:
            # The next product waits for one element of this one; XLA must still compute all the others.
            result = lax.optimization_barrier(product(a, *others))
            return a.at[..., 0, 0].set(result[..., 0, 0].astype(a.dtype))

        return lax.fori_loop(0, repeats, step, a)

    return function


def operands(problem: Problem, transpose_b: bool) -> tuple:
    """int8 A and B, and the epilogue that corrects for signs and zero points."""
    a, b = signs.to_int8(jnp.array(problem.a)), jnp.array(problem.b)
    ones = (1,) * a.ndim
    a_zero_point = zero_point.shifted(jnp.full(ones, problem.a_zero_point), problem.a.dtype, a.ndim)
    b_zero_point = zero_point.shifted(jnp.full(ones, problem.b_zero_point), problem.b.dtype, b.ndim)
    row_sum, column_sum = zero_point.row_sum(a), zero_point.column_sum(b)
    correction = zero_point.correction(a_zero_point, b_zero_point, row_sum, column_sum, problem.shape.k)
    return a, b.mT if transpose_b else b, (correction,)


def tune(shape: Product, kernel: Callable, configs: list, transpose_b: bool, rounds: int, repeats: int) -> None:
    arguments = operands(Problem(shape), transpose_b)
    reference = functools.partial(xla.integer_dot, transpose_b=transpose_b)
    expected = jax.jit(reference)(*arguments)
    calls = {"XLA": jitted(repeated(reference, repeats), *arguments)}
    print(f"# {shape.name} {shape.size}, {jax.devices()[0].device_kind}, jax {jax.__version__}")
    for config in tqdm(configs, desc=f"{shape.name}: compiling", unit="config", leave=False, disable=None):
        product = functools.partial(kernel, transpose_b=transpose_b, config=config)
        try:
            if not (jax.jit(product)(*arguments) == expected).all():
                print(f"# {config}: WRONG RESULT")
                continue
            calls[config] = jitted(repeated(product, repeats), *arguments)
            calls[config]()
        except Exception as error:  # kernels and compilers reject configurations with errors of many types
            calls.pop(config, None)
            print(f"# {config}: rejected: {type(error).__name__}: {str(error).strip().partition(chr(10))[0][:100]}")
    with tqdm(total=rounds, desc=shape.name, unit="round", leave=False, disable=None) as progress:
        times = {
            config: quartiles(turns.further / repeats)
            for config, turns in measure(calls, rounds, after_round=progress.update).items()
        }
    for config, (low, median, high) in sorted(times.items(), key=lambda item: item[1][1]):
        speed = shape.operations / median / 1e9
        line = "# XLA" if config == "XLA" else f"{config},"
        print(f"{line}  # {1e3 * median:.1f} us ({1e3 * low:.1f} to {1e3 * high:.1f}), {speed:.1f} TOPS")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=50, help="products per call")
    parser.add_argument("--shapes", nargs="+", default=["*"], metavar="NAME", help="names, tags or patterns; all by default")
    parser.add_argument("--transpose-b", action="store_true", help="B is (N, K), as it always is on a GPU")
    arguments = parser.parse_args()
    platform = jax.default_backend()
    if platform not in CANDIDATES:
        print(f"The kernels run on a TPU or a GPU, but jax finds neither here, only {platform!r}.", file=sys.stderr)
        return 2
    kernel, configs = (importlib.import_module(f"jquant.kernels.pallas.{platform}{part}") for part in ("", "_tiles"))
    all_configs = list(candidates(configs, CANDIDATES[platform]))
    shapes = {name: shape for name, shape in tagged(PRODUCTS, "timed").items() if not shape.cold}
    for shape in select(arguments.shapes, shapes).values():
        tune(
            shape,
            kernel.integer_dot,
            all_configs,
            arguments.transpose_b or platform == "gpu",
            arguments.rounds,
            arguments.repeats,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
