"""jquant's products, by the default of the platform unless the name says otherwise."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import jquant
from benchmarks.contestant import Call, Contestant, Unavailable, jitted
from benchmarks.problem import Problem


def _packed(b: np.ndarray, zero_point: np.ndarray) -> object:
    return jax.block_until_ready(jquant.pack_matrix(b, zero_point))


def _plain(problem: Problem) -> Call:
    operands = problem.a, problem.b, problem.a_zero_point, problem.b_zero_point
    return Call(jitted(jquant.matmul_integer, *operands, layers=problem.shape.layers), problem.product)


def _pack(problem: Problem, implementation: str | None = None) -> Call:
    if not problem.shape.weights:
        raise Unavailable("B is not a weight here: nothing to pack ahead")
    operands = problem.a, _packed(problem.b, problem.b_zero_point), problem.a_zero_point
    multiply = functools.partial(jquant.matmul_integer, implementation=implementation)
    return Call(jitted(multiply, *operands, layers=problem.shape.layers), problem.product)


def _scaled_operands(problem: Problem) -> tuple:
    """A and B, each with its scale and zero point; B is packed together with its zero point if it is a weight."""
    a = problem.a, problem.a_scale, problem.a_zero_point
    if problem.shape.weights:
        return *a, _packed(problem.b, problem.b_zero_point), problem.b_scale, None
    return *a, problem.b, problem.b_scale, problem.b_zero_point


def _to_uint8(problem: Problem) -> Call:
    def function(*operands: jax.Array) -> jax.Array:
        return jquant.quantized_linear_matmul(*operands, output_dtype=jnp.uint8)

    operands = *_scaled_operands(problem), problem.output_scale, problem.output_zero_point
    return Call(jitted(function, *operands, layers=problem.shape.layers), problem.requantized)


def _to_float32(problem: Problem) -> Call:
    return Call(
        jitted(jquant.matmul_integer_to_float, *_scaled_operands(problem), layers=problem.shape.layers), problem.dequantized
    )


_PACKED = "B packed ahead of the call where it is a weight"
CONTESTANTS = (
    Contestant("jquant", "matmul_integer, uint8 x int8 to int32, both zero points", _plain),
    Contestant(
        "jquant-packed",
        "matmul_integer, uint8 x int8 to int32, both zero points, B packed ahead of the call",
        _pack,
    ),
    Contestant("jquant-packed-xla", "the same by XLA's product", functools.partial(_pack, implementation="xla")),
    Contestant(
        "jquant-to-uint8",
        f"quantized_linear_matmul, uint8 x int8 to uint8, three scales and zero points, {_PACKED}",
        _to_uint8,
    ),
    Contestant(
        "jquant-to-float32",
        f"matmul_integer_to_float, uint8 x int8 to float32, both scales and zero points, {_PACKED}",
        _to_float32,
    ),
)
