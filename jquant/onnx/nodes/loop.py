"""Loop: `lax.scan` or `lax.while_loop`, or unrolled where its body must be known while tracing."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.errors import ModelError
from jquant.onnx.graphs.values import is_static, sizes, to_jax
from jquant.onnx.nodes.subgraphs import MAX_UNROLLED, as_arrays, stack
from jquant.onnx.running.registry import converter

_MAX_COUNT = 2**31 - 1  # iterations; a larger limit is no limit


@converter("Loop", since=1, prefers_static=("M", "cond"))
def loop(M=None, cond=None, *v_initial, body, outputs, unrolled):
    """A `lax.scan` if the number of iterations is known, else a `lax.while_loop`.

    Unrolled, for few iterations, if sequences are carried, if shapes change, or if the body needs the iteration number
    while tracing.
    """
    count = _trip_count(M)
    if cond is not None and is_static(cond) and not cond.item():
        count = 0
    if is_static(cond) and (unrolled or any(isinstance(each, list) for each in v_initial)):
        return _unrolled(body, count, v_initial)
    carried = as_arrays(v_initial)
    if is_static(cond):
        iteration = _trace_iteration(body, carried)
        if iteration.always_continues and not iteration.changes and count is not None:
            return _scanned(body, count, carried)
        if iteration.always_continues and count is not None and count <= MAX_UNROLLED:
            return _unrolled(body, count, v_initial, iteration.scan_outputs)
        if iteration.changes:
            raise ModelError(f"its body changes the type of a value: {iteration.changes}")
    if outputs > len(carried):
        raise ModelError("it has scan outputs, so its number of iterations must be known while tracing")
    return _while(body, M, cond, carried)


def _trip_count(limit: Any) -> int | None:
    """The number of iterations; None if it is not known, or if there is no limit."""
    if limit is None or not is_static(limit):
        return None
    (count,) = sizes(limit)
    if jax.export.is_symbolic_dim(count) or count > _MAX_COUNT:
        return None
    return max(0, count)


class _Iteration(NamedTuple):
    """An abstract iteration of a loop.

    Attributes:
      changes: the carried values that change their shapes or dtypes, described for a message; "" if there are none.
      always_continues: whether the condition that it returns is statically true.
      scan_outputs: the shapes and dtypes of what it adds to each scan output.
    """

    changes: str
    always_continues: bool
    scan_outputs: list[Any]


def _trace_iteration(body: Callable[..., Any], carried: list[jax.Array]) -> _Iteration:
    continues = []

    def iteration(number: jax.Array, *operands: jax.Array) -> list[Any]:
        condition, *results = body(number, np.asarray(True), *operands)
        continues.append(is_static(condition) and bool(condition.item()))
        return as_arrays(results)

    results = jax.eval_shape(iteration, jax.ShapeDtypeStruct((), jnp.int32), *carried)
    before = [f"{each.dtype}{list(each.shape)}" for each in carried]
    after = [_described(each) for each in results[: len(carried)]]
    changes = ", ".join(f"{old} to {new}" for old, new in zip(before, after, strict=True) if old != new)
    return _Iteration(changes=changes, always_continues=continues[0], scan_outputs=results[len(carried) :])


def _described(value: Any) -> str:
    return "a sequence" if isinstance(value, list) else f"{value.dtype}{list(value.shape)}"


def _scanned(body: Callable[..., Any], count: int, carried: list[jax.Array]) -> tuple[Any, ...]:
    def step(state: tuple[jax.Array, list[jax.Array]], _: None):
        number, operands = state
        _, *results = as_arrays(body(number, np.asarray(True), *operands))
        return (number + 1, results[: len(operands)]), results[len(operands) :]

    (_, final), stacked = lax.scan(step, (jnp.int32(0), carried), None, count)
    return (*final, *stacked)


def _while(body: Callable[..., Any], limit: Any, cond: Any, carried: list[jax.Array]) -> tuple[Any, ...]:
    if limit is not None:
        limit = to_jax(np.minimum(limit, _MAX_COUNT) if isinstance(limit, np.ndarray) else limit, "M").reshape(())

    def continues(state: tuple[jax.Array, jax.Array, list[jax.Array]]) -> jax.Array:
        number, condition, _ = state
        return condition if limit is None else condition & (number < limit)

    def step(state: tuple[jax.Array, jax.Array, list[jax.Array]]):
        number, condition, operands = state
        condition, *results = as_arrays(body(number, condition, *operands))
        return number + 1, condition.reshape(()), results

    start = jnp.asarray(True) if cond is None else to_jax(cond, "cond").reshape(())
    _, _, final = lax.while_loop(continues, step, (jnp.int32(0), start, carried))
    return tuple(final)


def _unrolled(
    body: Callable[..., Any], count: int | None, carried: Sequence[Any], scan_outputs: Sequence[Any] | None = None
) -> tuple[Any, ...]:
    """Unrolls the loop, so that the iteration number and everything that follows from it is known.

    Args:
      scan_outputs: the shapes and dtypes of what an iteration adds to each scan output; used if there are no iterations.
    """
    operands, iterations, number, condition = list(carried), [], 0, np.asarray(True)
    while condition.item() and (count is None or number < count):
        if number == MAX_UNROLLED:
            raise ModelError(
                f"it has more than {MAX_UNROLLED} iterations, and the values of each must be known while tracing"
            )
        condition, *results = body(np.asarray(number, np.int64), condition, *operands)
        if not is_static(condition):
            raise ModelError("when it ends depends on data, but its body needs the iteration number while tracing")
        operands = results[: len(operands)]
        iterations.append(results[len(operands) :])
        number += 1
    if not iterations:
        if scan_outputs is None and _are_arrays(operands):
            scan_outputs = _trace_iteration(body, as_arrays(operands)).scan_outputs
        return (*operands, *(jnp.zeros((0, *each.shape), each.dtype) for each in scan_outputs or ()))
    return (*operands, *(stack(each) for each in zip(*iterations, strict=True)))


def _are_arrays(values: Sequence[Any]) -> bool:
    return not any(value is None or isinstance(value, list) for value in values)
