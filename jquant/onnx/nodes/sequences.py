"""Sequences of tensors, whose length is known while tracing, and optional values."""

import jax.numpy as jnp
import numpy as np

from jquant.errors import ModelError
from jquant.onnx.graphs.values import is_static, sizes
from jquant.onnx.running.registry import converter


@converter("SequenceEmpty", since=11)
def sequence_empty(*, dtype=None, xp):
    return []


@converter("SequenceConstruct", since=11)
def sequence_construct(*inputs, xp):
    return list(inputs)


@converter("SequenceLength", since=11)
def sequence_length(input_sequence, *, xp):
    return np.asarray(len(input_sequence), np.int64)


@converter("SequenceAt", since=11, prefers_static=("position",))
def sequence_at(input_sequence, position, *, xp):
    """A position that depends on data requires all tensors to have the same shape."""
    if is_static(position):
        (index,) = sizes(position)
        return input_sequence[index]
    if len({each.shape for each in input_sequence}) != 1:
        raise ModelError("its position depends on data, but the tensors of the sequence differ in shape")
    return jnp.take(jnp.stack(input_sequence), position.reshape(()), 0)


@converter("SequenceInsert", since=11, static=("position",))
def sequence_insert(input_sequence, tensor, position=None, *, xp):
    """Inserts before a position; without a position, at the end."""
    index = len(input_sequence) if position is None else sizes(position)[0]
    return [*input_sequence[:index], tensor, *input_sequence[index:]]


@converter("SequenceErase", since=11, static=("position",))
def sequence_erase(input_sequence, position=None, *, xp):
    """Without a position, removes the last element."""
    elements = list(input_sequence)
    del elements[-1 if position is None else sizes(position)[0]]
    return elements


@converter("ConcatFromSequence", since=11)
def concat_from_sequence(input_sequence, *, axis, new_axis, xp):
    return (xp.stack if new_axis else xp.concatenate)(input_sequence, axis)


@converter("SplitToSequence", since=11, static=("split",))
def split_to_sequence(input, split=None, *, axis, keepdims, xp):
    """A scalar `split` gives parts of that size, of which the last may be smaller. Without `split`, parts have size 1."""
    size = input.shape[axis]
    if split is not None and split.ndim:
        ends = np.cumsum(sizes(split))[:-1]
    else:
        part_size = 1 if split is None else int(split.item())
        ends = np.arange(part_size, size, part_size)
    parts = xp.split(input, ends, axis)
    return [xp.squeeze(part, axis) for part in parts] if split is None and not keepdims else parts


@converter("SequenceMap", since=17)
def sequence_map(input_sequence, *additional_inputs, body, outputs):
    """Computes the body for each element. It iterates over additional sequences too; additional tensors stay the same."""
    results = []
    for index, element in enumerate(input_sequence):
        others = (each[index] if isinstance(each, list) else each for each in additional_inputs)
        results.append(body(element, *others))
    return tuple(map(list, zip(*results, strict=True))) if results else tuple([] for _ in range(outputs))


@converter("Optional", since=15)
def optional(input=None, *, type=None, xp):
    return input


@converter("OptionalHasElement", since=15)
def optional_has_element(input=None, *, xp):
    return np.asarray(input is not None)


@converter("OptionalGetElement", since=15)
def optional_get_element(input, *, xp):
    if input is None:
        raise ModelError("the optional value has no element")
    return input
