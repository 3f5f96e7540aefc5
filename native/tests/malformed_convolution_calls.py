"""As malformed_calls.py, for convolutions."""

import sys

import convolution_calls
import malformed_calls
import numpy as np
from calls import BYTES, DEQUANTIZE, FLOATS, REQUANTIZE, RESCALE, ZERO_POINTS
from convolution_calls import ConvolutionCall, Window, check
from malformed_calls import allowed_types, of_another_size, of_another_type

MUTATIONS = [
    malformed_calls.wrong_operand_rank,
    malformed_calls.wrong_result_rank,
    malformed_calls.wrong_result_type,
    malformed_calls.missing_operands,
    malformed_calls.too_many_operands,
    malformed_calls.two_results,
    malformed_calls.unknown_role,
    malformed_calls.missing_role,
    malformed_calls.too_many_roles,
    malformed_calls.repeated_role,
    malformed_calls.extra_attribute,
]

_WINDOW_ATTRIBUTES = "sizes", "strides", "dilations", "padding"


def mutation(function):
    """Registers a function that makes a call malformed."""
    MUTATIONS.append(function)
    return function


def valid(rng: np.random.Generator) -> ConvolutionCall:
    """A call in which every size differs from every other and from 1."""
    batch, channels, filters, groups, *images = rng.permutation(np.arange(2, 12))[: 4 + rng.integers(1, 4)].tolist()
    windows = tuple(Window(image, 2, stride=2, dilation=1, padding=1, count=(image - 1) // 2 + 1) for image in images)
    integer = tuple(role for role in (*ZERO_POINTS, "integer_bias") if rng.integers(2))
    choices = [((), np.int32)]
    choices += [(DEQUANTIZE[: rng.integers(2, 4)], dtype) for dtype in FLOATS]
    choices += [(REQUANTIZE[: rng.integers(1, 3)], dtype) for dtype in BYTES]
    choices += [(RESCALE[: rng.integers(3, 5)], dtype) for dtype in BYTES]
    scaling, dtype = choices[rng.integers(len(choices))]
    layout = convolution_calls.every_layout()[rng.integers(3)]
    if rng.integers(3) == 0:
        channels, filters = 1, 1 if layout["channels_last"] else filters
    roles = (*integer, *scaling)
    return convolution_calls.call(rng, windows, channels, filters, roles, batch=batch, groups=groups, dtype=dtype, **layout)


@mutation
def wrong_operand_size(rng, raw):
    """Not the size of an image, of which the windows may be as many."""
    index = rng.integers(1, len(raw.operands))
    raw.operands[index] = of_another_size(rng, raw.operands[index], rng.integers(raw.operands[index].ndim))


@mutation
def wrong_channels_or_batch(rng, raw):
    axis = (0, -1 if raw.attributes["channels_last"] else 1)[rng.integers(2)]
    raw.operands[0] = of_another_size(rng, raw.operands[0], axis)


@mutation
def wrong_filters_or_batch_of_the_result(rng, raw):
    shape, dtype = raw.results[0]
    axis = (0, -1 if raw.attributes["channels_last"] else 1)[rng.integers(2)]
    raw.results[0] = of_another_size(rng, np.zeros(shape, np.int8), axis).shape, dtype


@mutation
def wrong_operand_type(rng, raw):
    index = rng.integers(len(raw.operands))
    raw.operands[index] = of_another_type(rng, raw.operands[index], allowed_types(raw, index))


@mutation
def empty_filter(rng, raw):
    shape = list(raw.operands[1].shape)
    shape[rng.integers(2)] = 0
    raw.operands[1] = np.zeros(shape, raw.operands[1].dtype)


@mutation
def wrong_windows(rng, raw):
    """Sizes that do not fit the filter; strides, dilations and padding out of range; or not one for each dimension."""
    name = _WINDOW_ATTRIBUTES[rng.integers(4)]
    values = np.array(raw.attributes[name])
    large = (2**30 + 1, 2**62, -(2**63), 2**63 - 1)
    wrong = {"sizes": (0, -1, 3, 2**20, *large), "padding": (-(2**30) - 1, *large)}.get(name, (0, -1, *large))
    kind = rng.integers(3)
    if kind == 0:
        values[rng.integers(len(values))] = wrong[rng.integers(len(wrong))]
    elif kind == 1:
        values = values[1:]
    else:
        values = np.append(values, values[:1])
    raw.attributes[name] = values


@mutation
def windows_that_overflow(rng, raw):
    """The number of their elements is 0 in 64 bits, as many as the filters have."""
    raw.attributes["sizes"] = np.full(3, 2**22)
    for name in _WINDOW_ATTRIBUTES[1:]:
        raw.attributes[name] = np.ones(3, np.int64)
    last, groups = raw.attributes["channels_last"], int(raw.attributes["groups"])
    raw.operands[0] = np.zeros((1, 2, 2, 2, groups) if last else (1, groups, 2, 2, 2), np.int8)
    raw.operands[1] = np.zeros((0, groups) if raw.attributes["filters_last"] else (groups, 0), np.int8)
    raw.roles, raw.operands[2:] = [], []
    raw.results[0] = (1, 1, 1, 1, groups) if last else (1, groups, 1, 1, 1), np.dtype(np.int32)


@mutation
def channels_that_overflow(rng, raw):
    """The number of their elements in a window is 0 in 64 bits. The image has no pixels, so that it takes no memory."""
    raw.attributes |= {"channels_last": True, "groups": np.int64(1), "sizes": np.array([2**30, 4, 4])}
    for name in _WINDOW_ATTRIBUTES[1:]:
        raw.attributes[name] = np.ones(3, np.int64)
    filter = np.zeros((0, 5) if raw.attributes["filters_last"] else (5, 0), np.int8)
    raw.roles, raw.operands = [], [np.zeros((1, 0, 1, 1, 2**30), np.int8), filter]
    raw.results[0] = (1, 1, 1, 1, 5), np.dtype(np.int32)


@mutation
def wrong_groups(rng, raw):
    groups = int(raw.attributes["groups"])
    wrong = (0, -1, -groups, 13, 2**62, -(2**63), 1)
    raw.attributes["groups"] = np.int64(wrong[rng.integers(len(wrong))])


@mutation
def filters_last_with_channels_second(rng, raw):
    raw.attributes["channels_last"], raw.attributes["filters_last"] = False, True


@mutation
def several_zero_points_of_the_image(rng, raw):
    """Or a scale of A, or an output's zero point, for each filter where they are columns."""
    last = raw.attributes["channels_last"]
    role = ZERO_POINTS[0 if last else 1]
    shape = (int(raw.attributes["groups"]), 1, 1)
    raw.roles, raw.operands[2:] = [role], [np.zeros(shape, np.int32)]
    raw.results[0] = raw.results[0][0], np.dtype(np.int32)


@mutation
def block_sums(rng, raw):
    last = raw.attributes["channels_last"]
    filters = raw.results[0][0][-1 if last else 1] // int(raw.attributes["groups"])
    raw.roles, raw.operands[2:] = ["block_sums"], [np.zeros((1, 2, filters if last else 1), np.int32)]
    raw.results[0] = raw.results[0][0], np.dtype(np.int32)


@mutation
def wrong_attributes(rng, raw):
    values = (None, -3, np.int8(1), 0.5, "True", np.zeros(3, np.float32), {"a": 1})
    names = ("channels_last", "filters_last", "groups", "roles", *_WINDOW_ATTRIBUTES)
    name, value = names[rng.integers(len(names))], values[rng.integers(len(values))]
    raw.attributes[name] = True if name == "roles" and isinstance(value, str) else value


if __name__ == "__main__":
    malformed_calls.main(int(sys.argv[1]), valid, MUTATIONS, check)
