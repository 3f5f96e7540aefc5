"""Asserts that compiled programs of the element-wise operators move each tensor once."""

from collections.abc import Callable

import jax

from benchmarks import traffic
from jquant.cases import clip, linear, nonlinear, quantized, tensorflow

ELEMENTWISE = {
    name: case for family in (linear, quantized, clip, nonlinear, tensorflow) for name, case in family.CASES.items()
}
# Those that reduce their argument first, and read it again; or reduce it in two ways, along different dimensions.
READ_TWICE = {
    "dynamic_quantize_linear",
    "quantized_linear_softmax",
    "quantize_down_and_shrink_range",
    "requantization_range_per_channel",
}
ELEMENTS = 2**22  # about so many in each program
PARTIAL_SUMS = 2**16  # bytes that a reduction of a large tensor leaves to a second reduction


def assert_moved_once(name: str, compile: Callable[..., jax.stages.Compiled]) -> None:
    """Each tensor is read once, or twice if it is reduced first, and each result is written once.

    `compile` takes the operator's function and the shapes of its arguments.
    """
    program = compile(ELEMENTWISE[name].function, *_shapes(name))
    moves = traffic.read(program.as_text(), min_bytes=PARTIAL_SUMS)
    reads = 1 + (name.partition(",")[0] in READ_TWICE)
    assert moves.least <= moves.moved <= reads * moves.arguments + moves.results, moves.instructions


def _shapes(name: str) -> tuple:
    case = ELEMENTWISE[name]
    shapes = case.shapes(case.rows_of(ELEMENTS))
    if name != "dynamic_quantize_linear, rows":
        return shapes
    (x,) = shapes  # long rows, beside which their scales and zero points are small
    return (jax.ShapeDtypeStruct((ELEMENTS // 4096, 4096), x.dtype),)
