"""Products at twenty shapes, compared with NumPy bit for bit."""

import itertools
from typing import Any, NamedTuple

import jax
import numpy as np

import jquant
from jquant import reference, self_check
from jquant.modes import Implementation

# M, K and N: one row, few rows, more than a tile; whole tiles and ragged ones; the layers of language models.
SHAPES = (
    *((1, 1, 1), (1, 128, 128), (1, 4096, 4096), (2, 300, 70), (5, 1000, 33), (8, 4096, 4096), (16, 4096, 11008)),
    *((17, 129, 257), (33, 2048, 512), (64, 64, 64), (128, 4096, 4096), (129, 4096, 1000), (200, 520, 600)),
    *((256, 256, 256), (256, 9000, 1000), (300, 1100, 520), (512, 512, 512), (1000, 4096, 1024), (1024, 1024, 1024)),
    (2048, 2048, 2048),
)
_SMALL = 40, 300, 130  # an interpreted kernel takes as long as it likes
FORMS = "int32", "float32", "uint8"
ZERO_POINTS = "none", "scalar", "row"


class Case(NamedTuple):
    m: int
    k: int
    n: int
    form: str
    zero_points: str
    is_packed: bool


def cases(is_small: bool) -> list[Case]:
    """A product for each shape; forms, zero points and packing take turns so that each meets each."""
    turns = itertools.cycle(itertools.product(FORMS, ZERO_POINTS, (True, False)))
    shapes = (map(min, shape, _SMALL) if is_small else shape for shape in SHAPES)
    return [Case(*shape, *next(turns)) for shape in shapes]


def compared(case: Case, implementation: Implementation) -> dict:
    """How many elements there are, and how many differ from NumPy's."""
    operands, expected = drawn(case)
    actual = jax.jit(lambda *operands: product(case, implementation, *operands))(*operands)
    return {"elements": expected.size, "different": self_check.differing(actual, expected)}


def product(case: Case, implementation: Implementation, a, a_scale, az, b, b_scale, bz, output_scale, oz) -> jax.Array:
    if case.is_packed:
        b, bz = jquant.pack_matrix(b, bz), None
    options: dict[str, Any] = {"implementation": implementation}
    match case.form:
        case "int32":
            return jquant.matmul_integer(a, b, az, bz, **options)
        case "float32":
            return jquant.matmul_integer_to_float(a, a_scale, az, b, b_scale, bz, **options)
        case _:
            return jquant.quantized_linear_matmul(a, a_scale, az, b, b_scale, bz, output_scale, oz, **options)


def drawn(case: Case) -> tuple[tuple, np.ndarray]:
    """Random operands over the whole range of their types, and the result in NumPy."""
    m, k, n, form, zero_points, _ = case
    rng = np.random.default_rng([m, k, n])
    row, column = ((m, 1), (1, n)) if zero_points == "row" else ((), ())
    a, b = rng.integers(0, 256, (m, k), np.uint8), rng.integers(-128, 128, (k, n), np.int8)
    has_none = zero_points == "none"
    az = None if has_none else rng.integers(0, 256, row, np.uint8)
    bz = None if has_none else rng.integers(-128, 128, column, np.int8)
    a_scale, b_scale = (rng.uniform(1e-3, 1e-1, shape).astype(np.float32) for shape in (row, column))
    # float64 has each of these integers, and NumPy multiplies it fast.
    shifted = (x.astype(np.float64) - (0 if zero is None else zero.astype(np.float64)) for x, zero in ((a, az), (b, bz)))
    sums = np.matmul(*shifted).astype(np.int64).astype(np.int32)
    output_scale, oz = np.float32(k**0.5), np.uint8(77)
    operands = a, a_scale, az, b, b_scale, bz, output_scale, oz
    if form == "int32":
        return operands, sums
    if form == "float32":
        return operands, sums.astype(np.float32) * (a_scale * b_scale)
    return operands, reference.requantize_product(sums, a_scale, b_scale, output_scale, oz, np.uint8)
