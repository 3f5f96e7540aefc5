"""Measures what it costs to call an operator outside any `jit`, beside `jnp.add` of a tensor and a scalar.

    python -m benchmarks.eager [--rounds 20] [--operators 'quantized*' ...]

The tensors have 15 or 16 elements, so that nearly all of the time goes into checking the arguments and dispatching the
program. They are JAX arrays; the scalars (scales, zero points, bounds) are arrays, NumPy scalars or Python numbers. The
benchmark does not wait for the results: nothing reads them.

An operator is called as in the first of its `jquant.cases`, unless the table here has a call of its own.
"""

import argparse
import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jquant
from benchmarks import environment
from benchmarks.measure import quartiles
from benchmarks.selection import select
from jquant.cases import CASES, Case

SIZES = (4, 4)
UINT8, INT8 = jnp.full(SIZES, 100, jnp.uint8), jnp.full(SIZES, 100, jnp.int8)
# With an explicit dtype: without it, `jnp.full` makes a weakly typed tensor, which an operator converts first.
FLOATS, INT32 = jnp.full(SIZES, 0.3, jnp.float32), jnp.full(SIZES, 10**8, jnp.int32)
IMAGE, FILTER = UINT8.reshape(1, 1, 4, 4), INT8[:2, :2].reshape(1, 1, 2, 2)
SCALE, ZERO_POINT, SIGNED_ZERO_POINT = np.float32(0.3), np.uint8(3), np.int8(3)
X = UINT8, SCALE, ZERO_POINT
W = INT8, SCALE, SIGNED_ZERO_POINT
OUTPUT = SCALE, ZERO_POINT
BOUNDS = np.float32(-1), np.float32(1)
NEW_BOUNDS = np.float32(-0.5), np.float32(0.5)
CHANNELS = -jnp.ones(4), jnp.ones(4)
RANGED = FLOATS, *BOUNDS
PACKED = jquant.pack_matrix(INT8, SIGNED_ZERO_POINT)
BLOCKS = jquant.pack_matrix(INT8, scale=jnp.ones((2, 4)))
TABLE = jnp.ones((2, 16), jnp.int4), jnp.zeros(1, jnp.int32), jnp.ones((2, 1))
MX = jquant.mx_quantize(FLOATS, "float8_e4m3fn")
NVFP4 = jquant.nvfp4_quantize(FLOATS)


def concat(scale: Any, zero_point: Any, *triples: Any) -> Any:
    return jquant.quantized_linear_concat([triples[:3], triples[3:]], scale, zero_point, axis=1)


# In place of a case that has more elements, has vectors for scalars, converts its arguments first, or takes the type of its
# result from a scalar, as a concatenation does.
_OWN: dict[str, tuple[Callable, tuple]] = {
    "block_scaled_matmul": (jquant.block_scaled_matmul, (*X, BLOCKS)),
    "clip": (jquant.clip, RANGED),
    "clip1": (jquant.clip1, RANGED),
    "clip_gradient": (jquant.clip_gradient, (FLOATS, FLOATS, *BOUNDS)),
    "clip_gradient1": (jquant.clip_gradient1, (FLOATS, FLOATS, *BOUNDS)),
    "convolution_integer": (jquant.convolution_integer, (IMAGE, FILTER, ZERO_POINT, SIGNED_ZERO_POINT)),
    "convolution_integer_to_float": (jquant.convolution_integer_to_float, (IMAGE, *X[1:], FILTER, *W[1:])),
    "dequantize_linear": (jquant.dequantize_linear, X),
    "dot_general": (lambda lhs, rhs: jquant.dot_general(lhs, rhs, (((1,), (0,)), ((), ()))), (FLOATS, FLOATS)),
    "gather_block_quantized": (functools.partial(jquant.gather_block_quantized, block_size=16), TABLE),
    "hadamard_transform": (jquant.hadamard_transform, (FLOATS,)),
    "matmul_integer": (jquant.matmul_integer, (UINT8, INT8, ZERO_POINT, SIGNED_ZERO_POINT)),
    "matmul_integer, packed": (jquant.matmul_integer, (UINT8, PACKED, ZERO_POINT)),
    "matmul_integer_to_float": (jquant.matmul_integer_to_float, (*X, *W)),
    "matmul_n_bits": (jquant.matmul_n_bits, (FLOATS, BLOCKS)),
    "mx_dequantize": (jquant.mx_dequantize, tuple(MX)),
    "mx_quantize": (lambda x: jquant.mx_quantize(x, "float8_e4m3fn"), (FLOATS,)),
    "nvfp4_dequantize": (jquant.nvfp4_dequantize, tuple(NVFP4)),
    "nvfp4_quantize": (jquant.nvfp4_quantize, (FLOATS,)),
    "pack_integers": (jquant.pack_integers, (UINT8.astype(jnp.uint4),)),
    "pack_matrix": (jquant.pack_matrix, (INT8, SIGNED_ZERO_POINT)),
    "quantize_linear": (jquant.quantize_linear, (FLOATS, *OUTPUT)),
    "quantized_gemm": (jquant.quantized_gemm, (*X, *W, None, *OUTPUT)),
    "quantized_linear_average_pool": (
        functools.partial(jquant.quantized_linear_average_pool, window_sizes=(2, 2)),
        (IMAGE, *X[1:], *OUTPUT),
    ),
    "quantized_linear_concat": (concat, (*OUTPUT, *X, *W)),
    "quantized_linear_convolution": (
        jquant.quantized_linear_convolution,
        (IMAGE, *X[1:], FILTER, *W[1:], *OUTPUT),
    ),
    "quantized_linear_global_average_pool": (jquant.quantized_linear_global_average_pool, (IMAGE, *X[1:], *OUTPUT)),
    "quantized_linear_matmul": (jquant.quantized_linear_matmul, (*X, *W, *OUTPUT)),
    "scale_and_zero_point": (functools.partial(jquant.scale_and_zero_point, dtype="uint8"), BOUNDS),
    "unpack_integers": (functools.partial(jquant.unpack_integers, dtype="uint4"), (UINT8,)),
}
_ROWS = 3  # of 5 elements


def from_case(case: Case) -> tuple[Callable, tuple]:
    """The function of a case, and operands with few rows, tensors as JAX's arrays and scalars as NumPy's."""
    operands = jax.tree.map(lambda x: jnp.asarray(x) if np.ndim(x) else x[()], case.arguments(rows=_ROWS))
    return case.function, operands


def _operators() -> dict[str, tuple[Callable, tuple]]:
    """A call of every operator, by name."""
    first = {operator: case for name, case in reversed(CASES.items()) if (operator := name.partition(",")[0])}
    from_cases = {operator: from_case(case) for operator, case in first.items() if operator not in _OWN}
    return dict(sorted((_OWN | from_cases).items()))


OPERATORS = _operators()
FORMS: dict[str, Callable[[Any], Any]] = {
    "arrays": lambda x: jnp.asarray(x) if isinstance(x, np.generic) else x,
    "NumPy's scalars": lambda x: x,
    "Python's scalars": lambda x: x.item() if isinstance(x, np.generic) else x,
}
BASELINE = "jnp.add"
CALLS, WARM_CALLS = 200, 20  # in a turn


def make_calls(names: list[str]) -> dict[tuple[str, str], Callable[[], Any]]:
    """A call for each operator and each form of the scalars, if the operator takes scalars."""
    calls: dict[tuple[str, str], Callable[[], Any]] = {}
    rows = {BASELINE: (jnp.add, (FLOATS, SCALE))} | {name: OPERATORS[name] for name in names}
    for name, (function, operands) in rows.items():
        forms = FORMS if any(isinstance(value, np.generic) for value in operands) else ["arrays"]
        for form in forms:
            calls[name, form] = functools.partial(function, *map(FORMS[form], operands))
    return calls


def measure(calls: Mapping[tuple[str, str], Callable[[], Any]], rounds: int) -> dict:
    """Milliseconds: the quartiles, over the rounds, of a turn's median call, which interruptions do not affect."""
    names, rng = list(calls), np.random.default_rng(0)
    medians: dict[tuple[str, str], list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in (names[place] for place in rng.permutation(len(names))):
            times = np.empty(CALLS)
            for index in range(-WARM_CALLS, CALLS):
                start = time.perf_counter()
                calls[name]()
                times[max(index, 0)] = time.perf_counter() - start
            medians[name].append(1e3 * float(np.median(times)))
    return {name: quartiles(np.asarray(turns)) for name, turns in medians.items()}


def table(times: dict[tuple[str, str], tuple[float, float, float]]) -> list[str]:
    unit = times[BASELINE, "arrays"][1]
    lines = ["| | " + " | ".join(f"{form}, µs | times `{BASELINE}`" for form in FORMS) + " |"]
    lines.append("|---" + "|--:|--:" * len(FORMS) + "|")
    for name in dict.fromkeys(name for name, _ in times):
        cells = []
        for form in FORMS:
            if (name, form) in times:
                low, median, high = (1e3 * milliseconds for milliseconds in times[name, form])
                cells += [f"{median:.1f} ({low:.1f} to {high:.1f})", f"{times[name, form][1] / unit:.1f}"]
            else:
                cells += ["", ""]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--operators", nargs="+", default=["*"], metavar="NAME", help="names or patterns; all by default")
    arguments = parser.parse_args()
    names = [*select(arguments.operators, OPERATORS)]
    description = environment.describe([])
    times = measure(make_calls(names), arguments.rounds)
    print(
        f"{environment.summary(description)} Tensors of 15 or 16 elements. In each of {arguments.rounds} rounds every call "
        f"has a turn, in random order, of which the median of {CALLS} calls counts; the table has the median and the "
        "quartiles of these.\n"
    )
    print("\n".join(table(times)))


if __name__ == "__main__":
    main()
