"""Sequences of tensors, whose length is known while tracing, and optional values."""

import jax.numpy as jnp
import numpy as np

from jquant.errors import ModelError
from jquant.onnx.registry import converter
from jquant.onnx.values import is_static, sizes


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
    """A position that depends on data requires all tensors to have one shape."""
    if is_static(position):
        (place,) = sizes(position)
        return input_sequence[place]
    if len({each.shape for each in input_sequence}) != 1:
        raise ModelError("its position depends on data, but the tensors of the sequence differ in shape")
    return jnp.take(jnp.stack(input_sequence), position.reshape(()), 0)


@converter("SequenceInsert", since=11, static=("position",))
def sequence_insert(input_sequence, tensor, position=None, *, xp):
    """Inserts before a position; without one, at the end."""
    place = len(input_sequence) if position is None else sizes(position)[0]
    found = list(input_sequence)
    found.insert(place, tensor)
    return found


@converter("SequenceErase", since=11, static=("position",))
def sequence_erase(input_sequence, position=None, *, xp):
    """Without a position, it is the last one."""
    found = list(input_sequence)
    del found[-1 if position is None else sizes(position)[0]]
    return found


@converter("ConcatFromSequence", since=11)
def concat_from_sequence(input_sequence, *, axis, new_axis, xp):
    return (xp.stack if new_axis else xp.concatenate)(input_sequence, axis)


@converter("SplitToSequence", since=11, static=("split",))
def split_to_sequence(input, split=None, *, axis, keepdims, xp):
    """A number splits into parts of that size, of which the last may be smaller. Without one, parts have size 1."""
    size = input.shape[axis]
    if split is not None and split.ndim:
        ends = np.cumsum(sizes(split))[:-1]
    else:
        each = 1 if split is None else int(split.item())
        ends = np.arange(each, size, each)
    parts = xp.split(input, ends, axis)
    return [xp.squeeze(part, axis) for part in parts] if split is None and not keepdims else parts


@converter("SequenceMap", since=17)
def sequence_map(input_sequence, *additional_inputs, body, outputs):
    """Computes the body for each element. Additional sequences are stepped through, additional tensors are passed whole."""
    results = []
    for index, element in enumerate(input_sequence):
        others = [each[index] if isinstance(each, list) else each for each in additional_inputs]
        results.append(body(element, *others))
    return tuple([result[place] for result in results] for place in range(outputs))


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
