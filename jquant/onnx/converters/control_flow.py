"""If, Loop and Scan: decided while tracing if possible, otherwise JAX's control flow."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.errors import ModelError
from jquant.onnx import axes
from jquant.onnx.registry import converter
from jquant.onnx.values import is_static, sizes, to_jax

_MOST_UNROLLED = 256  # iterations of an unrolled loop
_MOST_SCANNED = 2**31 - 1


@converter("If", since=1, prefers_static=("cond",))
def if_(cond, *, then_branch, else_branch):
    """If the condition is known while tracing, it chooses the branch, and the other is never traced."""
    if is_static(cond):
        return tuple((then_branch if cond.item() else else_branch)())
    branches = {"then_branch": then_branch, "else_branch": else_branch}
    return tuple(lax.cond(cond.reshape(()), *(_named(name, branch) for name, branch in branches.items())))


def _named(name: str, branch: Callable[..., Any]) -> Callable[[], list[jax.Array]]:
    """A branch whose errors say which one it is."""

    def traced() -> list[jax.Array]:
        try:
            return _arrays(branch())
        except ModelError as error:
            raise ModelError(f"its {name} cannot be computed: {error}") from error

    return traced


@converter("Loop", since=1, prefers_static=("M", "cond"))
def loop(M=None, cond=None, *v_initial, body, outputs, unrolled):
    """
    A `lax.scan` if the number of iterations is known, else a `lax.while_loop`. Unrolled, for few iterations, if sequences
    are carried, shapes change, or the body needs the iteration number while tracing.
    """
    count, going = _trip_count(M), cond is None or not is_static(cond) or bool(cond.item())
    if not going:
        count = 0
    if is_static(cond) and (unrolled or any(isinstance(each, list) for each in v_initial)):
        return _unrolled(body, count, v_initial)
    carried = _arrays(v_initial)
    if is_static(cond):
        steady, endless, changed, elements = _one_iteration(body, carried)
        if endless and steady and count is not None:
            return _scanned(body, count, carried)
        if endless and count is not None and count <= _MOST_UNROLLED:
            return _unrolled(body, count, v_initial, elements)
        if not steady:
            raise ModelError(f"its body changes the type of a value: {changed}")
    if outputs > len(carried):
        raise ModelError("it has scan outputs, so its number of iterations must be known while tracing")
    return _while(body, M, cond, carried)


def _trip_count(limit: Any) -> int | None:
    """The number of iterations; None if it is not known, or if there is no limit."""
    if limit is None or not is_static(limit):
        return None
    (count,) = sizes(limit)
    if jax.export.is_symbolic_dim(count) or count > _MOST_SCANNED:
        return None
    return max(0, count)


def _one_iteration(body: Callable[..., Any], carried: list[jax.Array]) -> tuple[bool, bool, str, list[Any]]:
    """For an abstract iteration: whether it keeps shapes and dtypes; whether it always goes on; changes; scan outputs."""
    goes_on = []

    def once(number: jax.Array, *operands: jax.Array) -> list[Any]:
        condition, *results = body(number, np.asarray(True), *operands)
        goes_on.append(is_static(condition) and bool(condition.item()))
        return _arrays(results)

    results = jax.eval_shape(once, jax.ShapeDtypeStruct((), jnp.int32), *carried)
    before = [f"{each.dtype}{list(each.shape)}" for each in carried]
    after = [_kind(each) for each in results[: len(carried)]]
    changed = ", ".join(f"{old} to {new}" for old, new in zip(before, after, strict=True) if old != new)
    return not changed, goes_on[0], changed, results[len(carried) :]


def _kind(value: Any) -> str:
    return "a sequence" if isinstance(value, list) else f"{value.dtype}{list(value.shape)}"


def _scanned(body: Callable[..., Any], count: int, carried: list[jax.Array]) -> tuple[Any, ...]:
    def step(state: tuple[jax.Array, list[jax.Array]], _: None):
        number, operands = state
        _, *results = _arrays(body(number, np.asarray(True), *operands))
        return (number + 1, results[: len(operands)]), results[len(operands) :]

    (_, final), stacked = lax.scan(step, (jnp.int32(0), carried), None, count)
    return (*final, *stacked)


def _while(body: Callable[..., Any], limit: Any, cond: Any, carried: list[jax.Array]) -> tuple[Any, ...]:
    if limit is not None:
        limit = to_jax(np.minimum(limit, _MOST_SCANNED) if isinstance(limit, np.ndarray) else limit, "M").reshape(())

    def goes_on(state: tuple[jax.Array, jax.Array, list[jax.Array]]) -> jax.Array:
        number, condition, _ = state
        return condition if limit is None else condition & (number < limit)

    def step(state: tuple[jax.Array, jax.Array, list[jax.Array]]):
        number, condition, operands = state
        condition, *results = _arrays(body(number, condition, *operands))
        return number + 1, condition.reshape(()), results

    start = jnp.asarray(True) if cond is None else to_jax(cond, "cond").reshape(())
    _, _, final = lax.while_loop(goes_on, step, (jnp.int32(0), start, carried))
    return tuple(final)


def _unrolled(
    body: Callable[..., Any], count: int | None, carried: Sequence[Any], elements: Sequence[Any] | None = None
) -> tuple[Any, ...]:
    """Unrolls the loop, so that the iteration number and everything that follows from it is known.

    Args:
      elements: what one iteration adds to each scan output; used if there are no iterations.
    """
    operands, scanned, number, condition = list(carried), [], 0, np.asarray(True)
    while condition.item() and (count is None or number < count):
        if number == _MOST_UNROLLED:
            raise ModelError(
                f"it has more than {_MOST_UNROLLED} iterations, and the values of each must be known while tracing"
            )
        condition, *results = body(np.asarray(number, np.int64), condition, *operands)
        if not is_static(condition):
            raise ModelError("when it ends depends on data, but its body needs the iteration number while tracing")
        operands = results[: len(operands)]
        scanned.append(results[len(operands) :])
        number += 1
    if not scanned:
        elements = (
            _one_iteration(body, _arrays(operands))[3] if elements is None and _are_arrays(operands) else elements or ()
        )
        return (*operands, *(jnp.zeros((0, *each.shape), each.dtype) for each in elements))
    return (*operands, *(_stacked(each, 0) for each in zip(*scanned, strict=True)))


def _are_arrays(values: Sequence[Any]) -> bool:
    return not any(value is None or isinstance(value, list) for value in values)


@converter("SequenceMap", since=17)
def sequence_map(input_sequence, *additional_inputs, body, outputs):
    """Inputs that are not sequences are the same for every element."""
    found = []
    for number, element in enumerate(input_sequence):
        others = (each[number] if isinstance(each, list) else each for each in additional_inputs)
        found.append(body(element, *others))
    return tuple(map(list, zip(*found, strict=True))) if found else tuple([] for _ in range(outputs))


@converter("Scan", since=8, until=8)
def scan_8(sequence_lens, *operands, body, num_scan_inputs, directions=None):
    """Scans the second dimension, for each element of the first. After a sequence ends, states stay and outputs are 0."""
    states, inputs = operands[: len(operands) - num_scan_inputs], operands[len(operands) - num_scan_inputs :]
    batch, count = inputs[0].shape[:2]
    lengths = jnp.full(batch, count, jnp.int32) if sequence_lens is None else to_jax(sequence_lens, "sequence_lens")

    def one(length: jax.Array, states: list[jax.Array], inputs: list[jax.Array]) -> Any:
        def step(carried: list[jax.Array], numbered: tuple[jax.Array, list[jax.Array]]):
            number, elements = numbered
            results = _arrays(body(*carried, *elements))
            inside = number < length
            after = [jnp.where(inside, new, old) for new, old in zip(results, carried, strict=False)]
            return after, [jnp.where(inside, each, jnp.zeros_like(each)) for each in results[len(carried) :]]

        flipped = [jnp.flip(x, 0) if back else x for x, back in zip(inputs, _all(directions, len(inputs)), strict=True)]
        return lax.scan(step, states, (jnp.arange(count), flipped))

    final, outputs = jax.vmap(one)(lengths, _arrays(states), _arrays(inputs))
    return (*final, *outputs)


@converter("Scan", since=9)
def scan(
    *operands,
    body,
    num_scan_inputs,
    scan_input_axes=None,
    scan_input_directions=None,
    scan_output_axes=None,
    scan_output_directions=None,
    outputs,
    unrolled,
):
    """Unrolled, for few steps, if the body needs its elements while tracing."""
    states, inputs = operands[: len(operands) - num_scan_inputs], operands[len(operands) - num_scan_inputs :]
    inputs_axes, backwards = _all(scan_input_axes, num_scan_inputs), _all(scan_input_directions, num_scan_inputs)
    inputs = [_in_scan_order(x, axis, back) for x, axis, back in zip(inputs, inputs_axes, backwards, strict=True)]
    count = len(outputs_axes := _all(scan_output_axes, outputs - len(states)))
    if unrolled:
        final, stacked = _scan_unrolled(body, states, inputs)
    else:

        def step(carried: list[jax.Array], elements: list[jax.Array]):
            results = _arrays(body(*carried, *elements))
            return results[: len(carried)], results[len(carried) :]

        final, stacked = lax.scan(step, _arrays(states), _arrays(inputs))
    backwards = _all(scan_output_directions, count)
    ordered = [jnp.flip(y, 0) if back else y for y, back in zip(stacked, backwards, strict=True)]
    for y, axis in zip(ordered, outputs_axes, strict=True):
        axes.require(axis, *axes.of_rank(y.ndim), f"its attribute scan_output_axes is {outputs_axes}", count > 1)
    return (*final, *(jnp.moveaxis(y, 0, axis) for y, axis in zip(ordered, outputs_axes, strict=True)))


def _scan_unrolled(body: Callable[..., Any], states: Sequence[Any], inputs: Sequence[Any]) -> tuple[Any, Any]:
    count = inputs[0].shape[0]
    if not 0 < count <= _MOST_UNROLLED:
        raise ModelError(
            f"the values of its {count} steps must be known while tracing, which is possible for 1 to {_MOST_UNROLLED}"
        )
    outputs = []
    for number in range(count):
        results = body(*states, *(x[number] for x in inputs))
        states = results[: len(states)]
        outputs.append(results[len(states) :])
    return states, [_stacked(each, 0) for each in zip(*outputs, strict=True)]


def _all(given: Sequence[int] | None, count: int) -> Sequence[int]:
    return [0] * count if given is None else given


def _in_scan_order(x: Any, axis: int, backwards: int) -> Any:
    xp = np if is_static(x) else jnp
    x = xp.moveaxis(x, axis, 0)
    return xp.flip(x, 0) if backwards else x


def _stacked(values: Sequence[Any], axis: int) -> Any:
    return np.stack(values, axis) if is_static(list(values)) else jnp.stack(_arrays(values), axis)


def _arrays(values: Sequence[Any]) -> list[Any]:
    return [to_jax(value, "a value of a subgraph") for value in values]
