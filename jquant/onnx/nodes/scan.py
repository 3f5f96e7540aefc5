"""Scan: `lax.scan`, or unrolled where its body must be known while tracing."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.errors import ModelError
from jquant.onnx.graphs.values import is_static, to_jax
from jquant.onnx.nodes.subgraphs import MAX_UNROLLED, as_arrays, stack
from jquant.onnx.running import axes
from jquant.onnx.running.registry import converter


@converter("Scan", since=8, until=8)
def scan_8(sequence_lens, *operands, body, num_scan_inputs, directions=None):
    """Scans the second dimension, for each element of the first. After a sequence ends, states stay and outputs are 0."""
    states, inputs = operands[: len(operands) - num_scan_inputs], operands[len(operands) - num_scan_inputs :]
    batch, count = inputs[0].shape[:2]
    lengths = jnp.full(batch, count, jnp.int32) if sequence_lens is None else to_jax(sequence_lens, "sequence_lens")
    reversals = _or_zeros(directions, len(inputs))

    def scan_sequence(length: jax.Array, states: list[jax.Array], inputs: list[jax.Array]) -> Any:
        def step(carried: list[jax.Array], numbered: tuple[jax.Array, list[jax.Array]]):
            number, elements = numbered
            results = as_arrays(body(*carried, *elements))
            inside = number < length
            after = [jnp.where(inside, new, old) for new, old in zip(results, carried, strict=False)]
            return after, [jnp.where(inside, each, jnp.zeros_like(each)) for each in results[len(carried) :]]

        ordered = [jnp.flip(x, 0) if is_reversed else x for x, is_reversed in zip(inputs, reversals, strict=True)]
        return lax.scan(step, states, (jnp.arange(count), ordered))

    final, outputs = jax.vmap(scan_sequence)(lengths, as_arrays(states), as_arrays(inputs))
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
    input_axes = _or_zeros(scan_input_axes, num_scan_inputs)
    reversals = _or_zeros(scan_input_directions, num_scan_inputs)
    inputs = [
        _in_scan_order(x, axis, is_reversed) for x, axis, is_reversed in zip(inputs, input_axes, reversals, strict=True)
    ]
    output_axes = _or_zeros(scan_output_axes, outputs - len(states))
    if unrolled:
        final, stacked = _unrolled(body, states, inputs)
    else:

        def step(carried: list[jax.Array], elements: list[jax.Array]):
            results = as_arrays(body(*carried, *elements))
            return results[: len(carried)], results[len(carried) :]

        final, stacked = lax.scan(step, as_arrays(states), as_arrays(inputs))
    reversals = _or_zeros(scan_output_directions, len(output_axes))
    ordered = [jnp.flip(y, 0) if is_reversed else y for y, is_reversed in zip(stacked, reversals, strict=True)]
    for y, axis in zip(ordered, output_axes, strict=True):
        message = f"its attribute scan_output_axes is {output_axes}"
        axes.require(axis, *axes.axis_bounds(y.ndim), message, len(output_axes) > 1)
    return (*final, *(jnp.moveaxis(y, 0, axis) for y, axis in zip(ordered, output_axes, strict=True)))


def _unrolled(body: Callable[..., Any], states: Sequence[Any], inputs: Sequence[Any]) -> tuple[Any, Any]:
    count = inputs[0].shape[0]
    if not 0 < count <= MAX_UNROLLED:
        raise ModelError(
            f"the values of its {count} steps must be known while tracing, which is possible for 1 to {MAX_UNROLLED}"
        )
    outputs = []
    for number in range(count):
        results = body(*states, *(x[number] for x in inputs))
        states = results[: len(states)]
        outputs.append(results[len(states) :])
    return states, [stack(each) for each in zip(*outputs, strict=True)]


def _or_zeros(attribute: Sequence[int] | None, count: int) -> Sequence[int]:
    """An attribute that has an integer for each input or output, and whose default is zeros."""
    return [0] * count if attribute is None else attribute


def _in_scan_order(x: Any, axis: int, is_reversed: int) -> Any:
    xp = np if is_static(x) else jnp
    x = xp.moveaxis(x, axis, 0)
    return xp.flip(x, 0) if is_reversed else x
