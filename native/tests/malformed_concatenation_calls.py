"""As malformed_calls.py, for quantized arrays that are joined."""

import sys

import malformed_calls
import numpy as np
from calls import BYTES
from concatenation_calls import Call, check, draw
from malformed_calls import TYPES, of_another_size, of_another_type

MUTATIONS = [malformed_calls.missing_operands, malformed_calls.two_results]  # no attributes are looked at


def mutation(function):
    """Registers a function that makes a call malformed."""
    MUTATIONS.append(function)
    return function


def valid(rng: np.random.Generator) -> Call:
    """A call whose sizes differ."""
    return draw(rng, *rng.permutation(np.arange(2, 30))[: rng.integers(2, 6)].tolist())


def _any(rng, raw, *of_three):
    """The position of an operand: of the arrays (0), the scales (1) or the zero points (2)."""
    return rng.choice([i for i in range(2, len(raw.operands)) if (i - 2) % 3 in of_three])


@mutation
def wrong_size(rng, raw):
    index = _any(rng, raw, 0)
    raw.operands[index] = of_another_size(rng, raw.operands[index], rng.integers(2))


@mutation
def wrong_rank(rng, raw):
    index = _any(rng, raw, 0)
    shape = raw.operands[index].shape
    shapes = (shape[0] * shape[1],), (), (*shape, 1), (1, *shape)
    raw.operands[index] = np.zeros(shapes[rng.integers(4)], raw.operands[index].dtype)


@mutation
def wrong_type(rng, raw):
    index = _any(rng, raw, 0)
    raw.operands[index] = of_another_type(rng, raw.operands[index], BYTES)


@mutation
def empty_operand(rng, raw):
    index = _any(rng, raw, 0)
    shape = list(raw.operands[index].shape)
    shape[rng.integers(2)] = 0
    raw.operands[index] = np.zeros(shape, raw.operands[index].dtype)


@mutation
def several_scales(rng, raw):
    index = rng.choice((0, 1, _any(rng, raw, 1, 2)))
    shape = ((2,), (1, 3), (0,), (2, 2, 2))[rng.integers(4)]
    raw.operands[index] = np.zeros(shape, raw.operands[index].dtype)


@mutation
def wrong_type_of_scale(rng, raw):
    index = rng.choice((0, _any(rng, raw, 1)))
    raw.operands[index] = of_another_type(rng, raw.operands[index], (np.float32,))


@mutation
def wrong_type_of_zero_point(rng, raw):
    index = rng.choice((1, _any(rng, raw, 2)))
    raw.operands[index] = of_another_type(rng, raw.operands[index], (raw.operands[index].dtype,))


@mutation
def too_many_operands(rng, raw):
    """One more array, or a part of one."""
    raw.operands += raw.operands[2 : 2 + int(rng.integers(1, 4))]


@mutation
def wrong_result_size(rng, raw):
    (shape, dtype), axis = raw.results[0], rng.integers(2)
    raw.results[0] = of_another_size(rng, np.zeros(shape, np.int8), axis).shape, dtype


@mutation
def smaller_result(rng, raw):
    shape, dtype = raw.results[0]
    axis = rng.integers(2)
    raw.results[0] = tuple(size - int(i == axis) for i, size in enumerate(shape)), dtype


@mutation
def wrong_result_rank(rng, raw):
    shape, dtype = raw.results[0]
    raw.results[0] = ((shape[0] * shape[1],), (), (*shape, 1), (1, *shape))[rng.integers(4)], dtype


@mutation
def wrong_result_type(rng, raw):
    shape, dtype = raw.results[0]
    types = [each for each in TYPES if np.dtype(each) != dtype]
    raw.results[0] = shape, np.dtype(types[rng.integers(len(types))])


if __name__ == "__main__":
    malformed_calls.main(int(sys.argv[1]), valid, MUTATIONS, check)
