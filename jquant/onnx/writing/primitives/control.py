"""Calls, written in their place; branches and loops: If, Loop and Scan, whose bodies see the values around them."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from jquant import jaxprs
from jquant.onnx.writing import walk
from jquant.onnx.writing.bodies import body
from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.steps import computed, reshape
from jquant.onnx.writing.table import primitive
from jquant.onnx.writing.tensor import Tensor, is_static, known, sizes_equal

_FLAG = jax.ShapeDtypeStruct((), np.bool_)


@primitive("call", "composite", "custom_vmap_call", "linear_call", "xla_metadata_call")
def _called(builder: Builder, equation: Any, operands: list[Tensor]) -> Sequence[Tensor]:
    """A program with a name, or with rules of its own for derivatives and the like: what it computes."""
    (program,) = jaxprs.closed_programs(equation)
    return walk.write(builder, program, operands)


@primitive("cond")
def _branches(builder: Builder, equation: Any, operands: list[Tensor]) -> Sequence[Tensor]:
    """If, nested for more than two branches. A known number picks its branch."""
    (number, *operands), programs = operands, list(map(jaxprs.closed, equation.params["branches"]))
    if number.is_known:
        return walk.write(builder, programs[min(max(int(number.item()), 0), len(programs) - 1)], operands)
    types = [variable.aval for variable in equation.outvars]
    return _branch(builder, number, 0, programs, operands, types)


def _branch(
    builder: Builder, number: Tensor, first: int, programs: Sequence[Any], operands: list[Tensor], types: list[Any]
) -> list[Tensor]:
    """The results of the branch with this number, among those from `first` on."""
    if len(programs) == 1:
        return walk.write(builder, programs[0], operands)
    if not types:
        return []
    is_later = walk.traced(builder, lambda number: lax.gt(number, np.array(first, number.dtype)), number)

    def later(inner: Builder) -> list[Tensor]:
        return _branch(inner, number, first + 1, programs[1:], operands, types)

    def this(inner: Builder) -> list[Tensor]:
        return walk.write(inner, programs[0], operands)

    on_true, on_false = body(builder, "later", [], later), body(builder, f"branch_{first}", [], this)
    return builder.node("If", [is_later], types, since=13, label="chosen", then_branch=on_true, else_branch=on_false)


@primitive("while")
def _while(builder: Builder, equation: Any, operands: list[Tensor]) -> Sequence[Tensor]:
    """Loop, whose condition is computed before the first pass, and after each. Of known operands the result is known."""
    loop = jaxprs.while_loop(equation)
    is_mapped = bool(loop.condition.jaxpr.outvars[0].aval.shape)  # over loops of which each ends by itself
    count = loop.num_condition_constants
    of_condition, rest = operands[:count], operands[count:]
    of_body, carry = rest[: loop.num_body_constants], rest[loop.num_body_constants :]

    def conditions(builder: Builder, carry: Sequence[Tensor]) -> Tensor:
        return walk.write(builder, loop.condition, [*of_condition, *carry])[0]

    def condition(builder: Builder, carry: Sequence[Tensor]) -> Tensor:
        each = conditions(builder, carry)
        return walk.traced(builder, lambda each: lax.reduce_or(each, range(each.ndim)), each) if each.ndim else each

    def step(builder: Builder, carry: Sequence[Tensor]) -> list[Tensor]:
        results = walk.write(builder, loop.body, [*of_body, *carry])
        if not is_mapped:
            return results
        each = conditions(builder, carry)
        return [walk.traced(builder, _kept, each, *pair) for pair in zip(results, carry, strict=True)]

    def computed() -> list[Tensor] | None:
        state = carry
        while all(value.is_known for value in state):
            goes_on = condition(builder, state)
            if not goes_on.is_known:
                return None
            if not goes_on.item():
                return state
            state = step(builder, state)
        return None

    if all(operand.is_known for operand in operands):
        results = builder.attempt(computed)
        if results is not None:
            return results
    types = [value.type for value in carry]

    def write(inner: Builder, _: Tensor, __: Tensor, *carry: Tensor) -> list[Tensor]:
        results = step(inner, carry)
        return [condition(inner, results), *results]

    graph = body(builder, "loop", [jax.ShapeDtypeStruct((), np.int64), _FLAG, *types], write)
    inputs = [None, condition(builder, carry), *carry]
    return builder.node("Loop", inputs, types, since=13, label="loop", body=graph)


def _kept(goes_on: jax.Array, result: jax.Array, carry: jax.Array) -> jax.Array:
    """The carries of those loops that have ended, and the results of the others."""
    return lax.select(lax.broadcast_in_dim(goes_on, result.shape, range(goes_on.ndim)), result, carry)


@primitive("scan")
def _scan(builder: Builder, equation: Any, operands: list[Tensor]) -> Sequence[Tensor]:
    """The steps one after the other, or Scan."""
    scan = jaxprs.loop(equation)
    is_short = builder.shared.unroll or scan.length == 0 or all(operand.is_known for operand in operands)
    write = _unrolled if is_short and isinstance(scan.length, int) else _as_node
    return write(builder, scan, operands, [variable.aval for variable in equation.outvars])


def _unrolled(builder: Builder, scan: jaxprs.Loop, operands: list[Tensor], types: list[Any]) -> list[Tensor]:
    constants, carry, stacked = _parts(scan, operands)
    steps = range(scan.length)
    rows: dict[int, list[Tensor]] = {}
    for number in reversed(steps) if scan.reverse else steps:
        inputs = [_row(builder, value, number) for value in stacked]
        with builder.scope(f"step_{number}", is_repeated=True):
            results = walk.write(builder, scan.body, [*constants, *carry, *inputs])
        carry, rows[number] = results[: scan.num_carry], results[scan.num_carry :]
    columns = [[rows[number][k] for number in steps] for k in range(len(types) - scan.num_carry)]
    return carry + [_stacked(builder, column, type) for column, type in zip(columns, types[scan.num_carry :], strict=True)]


def _parts(scan: jaxprs.Loop, operands: list[Tensor]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """The constants, the carry, and the arrays of which each step has one row."""
    end = scan.num_constants + scan.num_carry
    return operands[: scan.num_constants], operands[scan.num_constants : end], operands[end:]


def _row(builder: Builder, value: Tensor, number: int) -> Tensor:
    if value.known is not None:
        return known(value.known[number], f"{value.label}.{number}" if value.label else "")
    type = jax.ShapeDtypeStruct(value.shape[1:], value.dtype)
    if value.small is not None:
        small = _row(builder, value.small, number if value.small.shape[0] != 1 else 0)
        return small if sizes_equal(small.shape, type.shape) else Tensor(value.dtype, type.shape, small=small)
    return computed(builder, "Gather", [value, known(np.array(number, np.int64))], type, since=13, axis=0, label="row")


def _stacked(builder: Builder, rows: Sequence[Tensor], type: Any) -> Tensor:
    arrays = [row.known for row in rows if row.known is not None]
    if len(arrays) == len(rows) and is_static(type.shape):
        return known(np.stack(arrays) if arrays else np.zeros(type.shape, type.dtype))
    parts = [reshape(builder, row, (1, *row.shape)) for row in rows]
    return parts[0] if len(parts) == 1 else computed(builder, "Concat", parts, type, since=13, axis=0, label="rows")


def _as_node(builder: Builder, scan: jaxprs.Loop, operands: list[Tensor], types: list[Any]) -> list[Tensor]:
    """Scan, which needs something to go along: if there is nothing, an array without meaning."""
    constants, carry, stacked = _parts(scan, operands)
    along = stacked or [Tensor(np.dtype(np.bool_), (scan.length,), small=known(np.zeros(1, np.bool_)))]

    def write(inner: Builder, *inputs: Tensor) -> list[Tensor]:
        return walk.write(inner, scan.body, [*constants, *inputs[: scan.num_carry + len(stacked)]])

    row_types = [jax.ShapeDtypeStruct(value.shape[1:], value.dtype) for value in along]
    graph = body(builder, "step", [*(value.type for value in carry), *row_types], write)
    direction = int(scan.reverse)
    return builder.node(
        "Scan",
        [*carry, *along],
        types,
        since=11,
        label="scan",
        body=graph,
        num_scan_inputs=len(along),
        scan_input_directions=[direction] * len(along),
        scan_output_directions=[direction] * (len(types) - scan.num_carry) or None,
    )
