"""Measures products by weights in blocks beside `matmul_integer_to_float` and onnxruntime's MatMulNBits.

    python -m benchmarks.blocks [--rounds 200] [--rows 1] [--blocks 32 128] [--size 4096] [--layers N] [--output FILE.md]

Prints a table, and writes it to FILE if one is given. The calls take the weights of several layers in turn, which together
are larger than the last-level cache.
"""

import argparse
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import jquant
from benchmarks import cache, environment
from benchmarks.contestant import Call, Unavailable, in_turn
from benchmarks.contestants import onnxruntime
from benchmarks.measure import measure, quartiles
from jquant.kernels import implementations
from jquant.modes import Implementation
from jquant.reference import blocks as blocks_reference
from jquant.reference import products as products_reference

BASELINE = "matmul_integer_to_float, int8 by packed int8"
A_SCALE = np.float32(2**-7)
HEADER = "| | median, ms | quartiles, ms | times the int8 product | temporary, bytes |\n|---|--:|--:|--:|--:|"


class Contestants:
    """Products of one matrix of activations and the weights of several layers in turn.

    Attributes:
      temporaries: the bytes of temporary memory of the compiled contestants, by name.
    """

    def __init__(self, rows: int, size: int, block_size: int, layers: int):
        rng = np.random.default_rng(0)
        self.block_size, self.layers = block_size, layers
        self.a = rng.integers(-127, 128, (rows, size)).astype(np.int8)
        self.b = [rng.integers(-8, 8, (size, size)).astype(np.int8) for _ in range(layers)]
        blocks = size // block_size
        self.scales = [rng.uniform(0.01, 0.1, (blocks, size)).astype(np.float32) for _ in range(layers)]
        self.temporaries: dict[str, int] = {}

    def calls(self) -> dict[str, Call]:
        per_column = np.full(self.a.shape[-1], 2**-5, np.float32)
        expected = products_reference.matmul_integer_to_float(
            self.a, A_SCALE, 0, self.b[0], per_column, 0, np.float32(0), np.float32
        )

        def column_scaled(a: jax.Array, b: jquant.PackedMatrix) -> jax.Array:
            return jquant.matmul_integer_to_float(a, A_SCALE, None, b, per_column)

        def block_scaled(implementation: Implementation, a: jax.Array, b: jquant.PackedBlockMatrix) -> jax.Array:
            return jquant.block_scaled_matmul(a, A_SCALE, None, b, implementation=implementation)

        int8 = [jquant.pack_matrix(b) for b in self.b]
        calls = {BASELINE: self._compiled(BASELINE, column_scaled, int8, expected)}
        expected = blocks_reference.block_scaled_matmul(self.a, A_SCALE, None, self.b[0], self.scales[0])
        for bits, dtype in ((4, jnp.int4), (8, jnp.int8)):
            layers = zip(self.b, self.scales, strict=True)
            packed = [jquant.pack_matrix(b.astype(dtype), scale=scale) for b, scale in layers]
            for implementation in dict.fromkeys((implementations.default(jax.default_backend()), Implementation.XLA)):
                name = f"block_scaled_matmul, {bits} bits, {implementation}"
                calls[name] = self._compiled(name, functools.partial(block_scaled, implementation), packed, expected)
        calls |= self._of_floats()
        for bits, level in ((4, 4), (8, 4), (4, 0)):
            try:
                calls[f"onnxruntime, MatMulNBits, {bits} bits, level {level}"] = self._engine(bits, level, expected)
            except Unavailable as reason:
                print(f"onnxruntime: {reason}")
        return calls

    def _of_floats(self) -> dict[str, Call]:
        """`matmul_n_bits` with weights of 4 bits, as onnxruntime stores them and packed."""
        a = self.a * A_SCALE
        weights = self.b[0] * np.repeat(self.scales[0], self.block_size, axis=0)
        expected = a.astype(np.float64) @ weights
        tolerance = (len(weights) + 2) * 2.0**-23 * (abs(a) @ abs(weights)).astype(np.float64)

        def as_stored(a: jax.Array, b: tuple[jax.Array, jax.Array]) -> jax.Array:
            return jquant.matmul_n_bits(a, *b, bits=4)

        layers = list(zip(self.b, self.scales, strict=True))
        stored = [(jnp.asarray(self._stored(b, 4)), jnp.asarray(scale.T)) for b, scale in layers]
        packed = [jquant.pack_matrix(b.astype(jnp.int4), scale=scale) for b, scale in layers]
        calls = {}
        for name, function, matrices in (
            ("matmul_n_bits, 4 bits as onnxruntime stores them", as_stored, stored),
            ("matmul_n_bits, 4 bits packed", jquant.matmul_n_bits, packed),
        ):
            calls[name] = self._compiled(name, function, matrices, expected, a, tolerance)
        return calls

    def _stored(self, b: np.ndarray, bits: int) -> np.ndarray:
        """Weights as MatMulNBits takes them."""
        k, n = b.shape
        stored = (b.astype(np.int16) + 2 ** (bits - 1)).astype(np.uint8).T.reshape(n, k // self.block_size, self.block_size)
        return stored[..., 0::2] | stored[..., 1::2] << 4 if bits == 4 else stored

    def _compiled(
        self,
        name: str,
        function: Callable,
        matrices: list,
        expected: np.ndarray,
        a: np.ndarray | None = None,
        tolerance: np.ndarray | None = None,
    ) -> Call:
        a = jnp.asarray(self.a if a is None else a)
        program = jax.jit(function).lower(a, matrices[0]).compile()
        self.temporaries[name] = program.memory_analysis().temp_size_in_bytes

        def call(matrix: Any) -> Callable:
            return lambda: jax.block_until_ready(program(a, matrix))

        return Call(in_turn([call(matrix) for matrix in matrices]), expected, tolerance)

    def _engine(self, bits: int, level: int, expected: np.ndarray) -> Call:
        """onnxruntime's MatMulNBits of floats; at level 4 it quantizes them by block, so its result differs slightly."""
        k, n = self.b[0].shape
        operands = [
            ("A", self.a * A_SCALE),
            ("B", self._stored(self.b[0], bits)),
            ("scales", self.scales[0].T.reshape(-1).copy()),
        ]
        attributes = {"K": k, "N": n, "bits": bits, "block_size": self.block_size, "accuracy_level": level}
        tolerance = np.full(expected.shape, 0.02 * abs(expected).max())
        options = {"layers": self.layers, "tolerance": tolerance, **attributes}
        return onnxruntime.run("MatMulNBits", operands, ("A",), expected, "com.microsoft", **options)


def table(rows: int, size: int, block_size: int, layers: int, rounds: int) -> list[str]:
    """The lines for one block size."""
    contestants = Contestants(rows, size, block_size, layers)
    calls = contestants.calls()
    for call in calls.values():
        call.check()
        for _ in range(layers - 1):  # so that the first measured call begins with the first layer again
            call.run()
    with tqdm(total=rounds, desc=f"{rows} x {size} x {size}, blocks of {block_size}", leave=False, disable=None) as progress:
        runs = {name: call.run for name, call in calls.items()}
        times = {
            name: quartiles(turns.further) for name, turns in measure(runs, rounds, after_round=progress.update).items()
        }
    lines = [f"\n## {rows} x {size} x {size}, blocks of {block_size}\n", HEADER]
    for name, (low, median, high) in times.items():
        ratio, temporary = median / times[BASELINE][1], contestants.temporaries.get(name, "")
        lines.append(f"| {name} | {median:.3f} | {low:.3f} to {high:.3f} | {ratio:.2f} | {temporary} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--rows", type=int, nargs="+", default=[1])
    parser.add_argument("--blocks", type=int, nargs="+", default=[32, 64, 128, 256])
    parser.add_argument("--size", type=int, default=4096, help="K and N")
    parser.add_argument("--layers", type=int, help="how many matrices take turns; by default, more than a cache holds")
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    arguments = parser.parse_args()
    layers = arguments.layers or 1 + cache.last_level() // (arguments.size**2 // 2)  # those of 4 bits are the smallest
    description = environment.describe(["onnxruntime"])
    lines = [
        f"# blocks-{environment.file_name(description)}\n",
        f"{environment.summary(description)} {arguments.rounds} rounds, in each of which every contestant has a turn, in "
        f"random order; the weights of {layers} layers take turns. Every result of ours was checked first: by equality, "
        "and by the bound of matmul_n_bits. onnxruntime takes floats, and is within 2 % of the largest output.",
    ]
    for rows in arguments.rows:
        for block_size in arguments.blocks:
            lines += table(rows, arguments.size, block_size, layers, arguments.rounds)
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.output is not None:
        arguments.output.write_text(text)


if __name__ == "__main__":
    main()
