"""As malformed_calls.py, for sums and products of quantized arrays."""

import sys

import malformed_calls
import numpy as np
from calls import BYTES
from elementwise_calls import Call, check, draw
from malformed_calls import TYPES, of_another_rank, of_another_size, of_another_type

MUTATIONS = [
    malformed_calls.missing_operands,
    malformed_calls.too_many_operands,
    malformed_calls.wrong_result_size,
    malformed_calls.wrong_result_rank,
    malformed_calls.extra_attribute,
    malformed_calls.two_results,
]
ARRAYS, SCALES, ZERO_POINTS = (0, 3), (1, 4, 6), (2, 5, 7)  # the positions of operands


def mutation(function):
    """Registers a function that makes a call malformed."""
    MUTATIONS.append(function)
    return function


def valid(rng: np.random.Generator) -> Call:
    """A call whose sizes differ, and of whose arrays none broadcasts, so that another size fits nowhere."""
    sizes = tuple(rng.permutation(np.arange(2, 30))[:3].tolist())
    call = draw(rng, sizes)
    return call._replace(arrays=tuple(np.resize(x, sizes).astype(x.dtype) for x in call.arrays))


@mutation
def wrong_size(rng, raw):
    index = rng.choice(ARRAYS)
    raw.operands[index] = of_another_size(rng, raw.operands[index], rng.integers(3))


@mutation
def wrong_rank(rng, raw):
    index = rng.choice(ARRAYS)
    raw.operands[index] = of_another_rank(rng, raw.operands[index])


@mutation
def wrong_type(rng, raw):
    index = rng.choice(ARRAYS)
    raw.operands[index] = of_another_type(rng, raw.operands[index], BYTES)


@mutation
def several_scales(rng, raw):
    index = rng.choice((*SCALES, *ZERO_POINTS))
    shape = ((2,), (1, 3), (0,), (2, 2, 2))[rng.integers(4)]
    raw.operands[index] = np.zeros(shape, raw.operands[index].dtype)


@mutation
def wrong_type_of_scale(rng, raw):
    index = rng.choice(SCALES)
    raw.operands[index] = of_another_type(rng, raw.operands[index], (np.float32,))


@mutation
def wrong_type_of_zero_point(rng, raw):
    index = rng.choice(ZERO_POINTS)
    raw.operands[index] = of_another_type(rng, raw.operands[index], (raw.operands[index].dtype,))


@mutation
def empty_operand(rng, raw):
    index = rng.choice(ARRAYS)
    shape = list(raw.operands[index].shape)
    shape[rng.integers(3)] = 0
    raw.operands[index] = np.zeros(shape, raw.operands[index].dtype)


@mutation
def wrong_result_type(rng, raw):
    shape, dtype = raw.results[0]
    types = [each for each in TYPES if np.dtype(each) != dtype]
    raw.results[0] = shape, np.dtype(types[rng.integers(len(types))])


@mutation
def wrong_attribute(rng, raw):
    values = (None, np.int32(1), np.int8(1), 0.5, "1", np.zeros(3, np.float32), {"a": 1})
    raw.attributes["is_product"] = values[rng.integers(len(values))]


if __name__ == "__main__":
    malformed_calls.main(int(sys.argv[1]), valid, MUTATIONS, check)
