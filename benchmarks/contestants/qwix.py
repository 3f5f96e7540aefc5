"""qwix, whose integers are int8, and which allows a zero point for only one of the two operands."""

import jax
import numpy as np

from benchmarks.contestant import Call, Contestant, dimension_numbers, jitted, require
from benchmarks.problem import Problem


def _dot_general(problem: Problem, a_zero_point: int | None) -> Call:
    qwix = require("qwix")
    ones = (1,) * problem.a.ndim

    def tensor(values: np.ndarray, scale: np.float32, zero_point: int | None = None) -> object:
        shift = None if zero_point is None else np.full(ones, zero_point, np.int8)
        return qwix.QArray(values, np.full(ones, scale), shift)

    dimensions = dimension_numbers(problem)

    def dot(a: jax.Array, b: jax.Array) -> jax.Array:
        return qwix.dot_general(a, b, dimensions)

    run = jitted(
        dot,
        tensor(problem.a_int8, problem.a_scale, a_zero_point),
        tensor(problem.b, problem.b_scale),
        layers=problem.shape.layers,
    )
    product = problem.integer_product(problem.a_int8, problem.b, a_zero_point or 0)
    return Call(run, product.astype(np.float32) * (problem.a_scale * problem.b_scale))


_TIMED = "qwix.dot_general of two QArrays that are quantized ahead, int8 x int8 to float32, a scale each"
CONTESTANTS = (
    Contestant("qwix", f"{_TIMED}, no zero points", lambda problem: _dot_general(problem, None), "qwix"),
    Contestant(
        "qwix-a-zero-point", f"{_TIMED}, a zero point for A alone", lambda problem: _dot_general(problem, -7), "qwix"
    ),
)
