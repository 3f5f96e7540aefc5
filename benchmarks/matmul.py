"""`matmul_integer` beside what JAX offers by itself, in the same run, the contestants alternating.

    python benchmarks/matmul.py [--rounds 200] [--shape 1024 1024 1024]

The data are uniform over the whole range of each type. Times are wall-clock, of one jitted call at a time.
"""

import argparse
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from tqdm import trange

import jquant


def dot(a: jax.Array, b: jax.Array) -> jax.Array:
    return lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)


def naive(a: jax.Array, b: jax.Array, a_zero_point: jax.Array, b_zero_point: jax.Array) -> jax.Array:
    """The document's formula as it is written, in int32."""
    return dot(a.astype(jnp.int32) - a_zero_point.astype(jnp.int32), b.astype(jnp.int32) - b_zero_point.astype(jnp.int32))


def contestants(m: int, k: int, n: int) -> dict[str, Callable[[], jax.Array]]:
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 256, (m, k), np.uint8), rng.integers(-128, 128, (k, n), np.int8)
    a, a_int8, b = map(jnp.asarray, (a, a.view(np.int8), b))
    zero_points = jnp.uint8(121), jnp.int8(-3)
    raw, ours, formula = jax.jit(dot), jax.jit(jquant.matmul_integer), jax.jit(naive)
    np.testing.assert_array_equal(ours(a, b, *zero_points), formula(a, b, *zero_points))
    return {
        "lax.dot_general, int8 x int8": lambda: raw(a_int8, b),
        "matmul_integer, uint8 x int8, both zero points": lambda: ours(a, b, *zero_points),
        "int32 formula, uint8 x int8, both zero points": lambda: formula(a, b, *zero_points),
    }


def measure(calls: dict[str, Callable[[], jax.Array]], rounds: int) -> dict[str, np.ndarray]:
    """Milliseconds of each call in each round."""
    for call in calls.values():
        call().block_until_ready()
    times = {name: np.empty(rounds) for name in calls}
    for index in trange(rounds, desc="measuring", unit="round", leave=False):
        for name, call in calls.items():
            start = time.perf_counter()
            call().block_until_ready()
            times[name][index] = 1e3 * (time.perf_counter() - start)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--shape", type=int, nargs=3, default=(1024, 1024, 1024), metavar=("M", "K", "N"))
    arguments = parser.parse_args()
    times = measure(contestants(*arguments.shape), arguments.rounds)
    m, k, n = arguments.shape
    first = next(iter(times.values()))
    print(f"jax {jax.__version__} on {jax.devices()[0].device_kind}; {m} x {k} x {n}, {arguments.rounds} alternating rounds")
    print(f"{'':<48}{'median, ms':>12}{'quartiles, ms':>18}{'GOPS':>8}{'ratio':>8}")
    for name, milliseconds in times.items():
        low, median, high = np.percentile(milliseconds, [25, 50, 75])
        speed, ratio = 2e-6 * m * k * n / median, median / np.median(first)
        print(f"{name:<48}{median:>12.2f}{f'{low:.2f} to {high:.2f}':>18}{speed:>8.0f}{ratio:>8.2f}")


if __name__ == "__main__":
    main()
