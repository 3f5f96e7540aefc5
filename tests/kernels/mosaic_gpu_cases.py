"""Products, small enough to simulate, and their results in NumPy. Run as a program, this simulates the Hopper kernel.

    python mosaic_gpu_cases.py CASE ...

prints, as JSON, for each case the elements in which the simulated kernel differs from NumPy, or the exception.
"""

import functools
import json
import sys
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from benchmarks.device import simulator
from jquant.kernels.epilogue import AddBias, Dequantize, Epilogue, Requantize, ZeroPointCorrection
from jquant.kernels.pallas import gpu
from jquant.kernels.pallas.gpu_tiles import TileConfig

LARGE = TileConfig(block_m=128, block_n=256, stages=2, warpgroups=2, epilogue_n=32, blocks=2)
TALL = TileConfig(block_m=256, block_n=64, stages=3, warpgroups=2, epilogue_n=32, group_m=2, blocks=3)
SQUARE = TileConfig(block_m=128, block_n=128, stages=2, warpgroups=1, epilogue_n=128, blocks=2)
NARROW = TileConfig(block_m=64, block_n=32, stages=12, warpgroups=1, epilogue_n=32, group_m=1, blocks=2)
SINGLE_STAGE = TileConfig(block_m=64, block_n=64, stages=1, warpgroups=1, epilogue_n=32, blocks=1)


class Case(NamedTuple):
    """``epilogue(a @ b)``: the shapes of A and of B, (..., K, N) or K-major, and functions that make the steps."""

    name: str
    a: tuple[int, ...]
    b: tuple[int, ...]
    steps: tuple[Callable[["Maker"], Any], ...] = ()
    k_major: bool = False
    config: TileConfig | None = None


class Maker:
    """Makes random vectors for the product of a case, of shape (..., M, N), the same ones each time."""

    def __init__(self, case: Case):
        self.random = np.random.default_rng(zlib.crc32(case.name.encode()))
        batch = np.broadcast_shapes(case.a[:-2], case.b[:-2])
        self.shape = (*batch, case.a[-2], case.b[-2 if case.k_major else -1])

    def sizes(self, role: str) -> tuple[int, ...]:
        """The shape of a "row", "column", "scalar" or "matrix"; "batch row" and so on have one for each batch."""
        *batch, m, n = self.shape
        batch = batch if role.startswith("batch ") else [1] * len(batch)
        return (*batch, m if role.endswith(("row", "matrix")) else 1, n if role.endswith(("column", "matrix")) else 1)

    def integers(self, role: str, bound: int = 2**31 - 1) -> np.ndarray:
        return self.random.integers(-bound, bound, self.sizes(role), np.int32)

    def floats(self, role: str, scale: float = 1.0) -> np.ndarray:
        return (scale * self.random.uniform(0.5, 2, self.sizes(role))).astype(np.float32)


def correction(*roles: tuple[str | None, str | None]):
    return lambda make: ZeroPointCorrection(tuple(tuple(make.integers(x) for x in pair if x is not None) for pair in roles))


def add_bias(role: str):
    return lambda make: AddBias(make.integers(role))


def dequantize(a_scale: str, b_scale: str, bias: str | None, dtype: type):
    return lambda make: Dequantize(
        make.floats(a_scale), make.floats(b_scale), None if bias is None else make.floats(bias, 1e4), np.dtype(dtype)
    )


def requantize(multiplier: str, zero_point: str | None, dtype: type):
    def step(make: Maker) -> Requantize:
        factors = make.floats(multiplier, 1e-3)
        # Ties; products that overflow, and that are 0 times infinity.
        special = np.float32([2**-3, 2**-8, np.inf, 3e38, np.nan, -1.0])[: factors.size // 2]
        factors.flat[: special.size] = special
        offset = None if zero_point is None else make.integers(zero_point, 100).astype(np.float32)
        return Requantize(factors, offset, np.dtype(dtype))

    return step


SCALED = (correction((None, "column")), dequantize("row", "column", "column", np.float32))
CASES = [
    Case("whole tile", (64, 256), (256, 32), config=NARROW),
    Case("one step of K", (8, 128), (128, 32)),
    Case("no multiple of anything", (5, 7), (7, 3)),
    Case("one row", (1, 300), (300, 70), SCALED),
    Case("one column", (70, 300), (300, 1), SCALED),
    Case("one element", (1, 1), (1, 1), (correction(("scalar", "scalar")),)),
    Case("correction, vectors", (70, 300), (300, 90), (correction(("row", "column"), ("scalar", "column"), ("row", None)),)),
    Case("correction, large tiles", (200, 520), (520, 600), (correction(("row", "column")),), config=LARGE),
    Case("correction, tall tiles", (300, 260), (160, 260), (correction(("row", "column")),), k_major=True, config=TALL),
    Case("correction, K-major", (40, 300), (90, 300), (correction((None, "column"), ("row", None)),), k_major=True),
    Case("float32", (70, 300), (300, 90), SCALED),
    Case("float32, no bias", (70, 300), (300, 90), (dequantize("scalar", "column", None, np.float32),), config=LARGE),
    Case("float32, single stage", (70, 300), (300, 90), SCALED, config=SINGLE_STAGE),
    Case("float16", (70, 300), (300, 90), (dequantize("row", "scalar", "column", np.float16),), config=TALL),
    Case("bfloat16", (70, 300), (90, 300), (dequantize("row", "column", "row", ml_dtypes.bfloat16),), k_major=True),
    Case("int8", (70, 300), (300, 90), (correction((None, "column")), requantize("column", "row", np.int8)), config=SQUARE),
    Case(
        "uint8",
        (70, 300),
        (300, 90),
        (
            add_bias("column"),
            requantize("row", "scalar", np.uint8),
        ),
    ),
    Case("uint8, no zero point", (70, 300), (300, 200), (requantize("scalar", None, np.uint8),), config=NARROW),
    Case("batch", (2, 40, 200), (2, 200, 50), (correction(("batch row", "batch column")),)),
    Case(
        "batch of A",
        (2, 3, 5, 200),
        (1, 1, 200, 50),
        (correction(("batch row", "column"), ("batch scalar", None)), SCALED[1]),
    ),
    Case(
        "batch of A, vectors of it", (4, 20, 200), (1, 200, 50), (correction(("row", "batch column"), ("batch row", None)),)
    ),
    Case("batch of B", (1, 20, 200), (3, 50, 200), SCALED, k_major=True),
    Case("batches that broadcast", (2, 1, 9, 130), (1, 3, 130, 40), (correction(("batch row", "batch column")),)),
    Case(
        "bias for each element",
        (70, 300),
        (300, 90),
        (correction((None, "column")), dequantize("row", "column", "matrix", np.float32)),
    ),
]


def operands(case: Case) -> tuple[np.ndarray, np.ndarray, Epilogue]:
    make = Maker(case)
    a, b = (make.random.integers(-128, 128, shape, np.int8) for shape in (case.a, case.b))
    return a, b, tuple(step(make) for step in case.steps)


def reference(case: Case) -> np.ndarray:
    """The formulas, in NumPy: int32 wraps, and float32 is rounded after each operation."""
    a, b, epilogue = operands(case)
    value = np.matmul(a.astype(np.int32), (np.swapaxes(b, -1, -2) if case.k_major else b).astype(np.int32))
    for step in epilogue:
        with np.errstate(all="ignore"):
            value = _stepped(step, value)
    return value


def _stepped(step: Any, value: np.ndarray) -> np.ndarray:
    match step:
        case ZeroPointCorrection(terms):
            return value - sum(functools.reduce(np.multiply, factors) for factors in terms)
        case AddBias(bias):
            return value + bias
        case Dequantize(a_scale, b_scale, bias, dtype):
            value = value.astype(np.float32) * (a_scale * b_scale)
            return (value if bias is None else value + bias).astype(dtype)
        case Requantize(multiplier, zero_point, dtype):
            rounded = np.rint(value.astype(np.float32) * multiplier) + np.float32(0 if zero_point is None else zero_point)
            limits = np.iinfo(dtype)
            return np.where(np.isnan(rounded), 0, np.clip(rounded, limits.min, limits.max)).astype(dtype)
    raise TypeError(step)


def result(case: Case, interpret: Any = None) -> np.ndarray:
    """The product by the Hopper kernel."""
    a, b, epilogue = jax.tree.map(jnp.asarray, operands(case))
    options = {"transpose_b": case.k_major, "config": case.config, "interpret": interpret}
    return np.asarray(jax.jit(lambda *operands: gpu.integer_dot(*operands, **options))(a, b, epilogue))


def differences(actual: np.ndarray, expected: np.ndarray) -> list[str]:
    """The first elements whose bits differ."""
    if (actual.shape, actual.dtype) != (expected.shape, expected.dtype):
        return [f"{actual.dtype}{actual.shape}, not {expected.dtype}{expected.shape}"]
    indices = np.argwhere(bits(actual) != bits(expected)).tolist()[:5]
    return [f"{index}: {actual[*index]}, not {expected[*index]}" for index in indices]


def bits(x: np.ndarray) -> np.ndarray:
    """The bits of each element, as unsigned integers."""
    return x.view(f"u{x.dtype.itemsize}")


def simulate(names: list[str]) -> dict[str, list[str]]:
    """For each case, the differences between the simulated kernel and NumPy, or the exception."""
    reports = {}
    for case in (case for case in CASES if case.name in names):
        try:
            reports[case.name] = differences(result(case, simulator.parameters()), reference(case))
        except Exception as error:  # reported for its case
            reports[case.name] = [f"{type(error).__name__}: {error}"]
    return reports


if __name__ == "__main__":
    print(json.dumps(simulate(sys.argv[1:])))
