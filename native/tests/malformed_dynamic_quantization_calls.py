"""As malformed_calls.py, for the quantization by ranges."""

import sys

import malformed_calls
import numpy as np
from calls import FLOATS
from dynamic_quantization_calls import Call, check, draw
from malformed_calls import TYPES, of_another_rank, of_another_size

MUTATIONS = [
    malformed_calls.missing_operands,
    malformed_calls.too_many_operands,
    malformed_calls.extra_attribute,
]


def mutation(function):
    """Registers a function that makes a call malformed."""
    MUTATIONS.append(function)
    return function


def valid(rng: np.random.Generator) -> Call:
    """A call whose sizes differ."""
    slices, length = rng.permutation(np.arange(2, 30))[:2].tolist()
    return draw(rng, slices, length)


def _any_result(rng, raw):
    index = rng.integers(len(raw.results))
    return index, *raw.results[index]


@mutation
def wrong_operand_rank(rng, raw):
    raw.operands[0] = of_another_rank(rng, raw.operands[0])


@mutation
def wrong_operand_size(rng, raw):
    raw.operands[0] = of_another_size(rng, raw.operands[0], rng.integers(2))


@mutation
def wrong_operand_type(rng, raw):
    types = [dtype for dtype in TYPES if np.dtype(dtype) not in map(np.dtype, FLOATS)]
    raw.operands[0] = np.zeros(raw.operands[0].shape, np.dtype(types[rng.integers(len(types))]))


@mutation
def empty_operand(rng, raw):
    shape = list(raw.operands[0].shape)
    shape[rng.integers(2)] = 0
    raw.operands[0] = np.zeros(shape, raw.operands[0].dtype)


@mutation
def wrong_result_rank(rng, raw):
    index, shape, dtype = _any_result(rng, raw)
    raw.results[index] = (*shape, 1), dtype


@mutation
def wrong_result_size(rng, raw):
    index, shape, dtype = _any_result(rng, raw)
    raw.results[index] = of_another_size(rng, np.zeros(shape, np.int8), rng.integers(len(shape))).shape, dtype


@mutation
def one_less_of_a_result(rng, raw):
    index, shape, dtype = _any_result(rng, raw)
    raw.results[index] = (*shape[:-1], shape[-1] - 1), dtype


@mutation
def wrong_result_type(rng, raw):
    index, shape, dtype = _any_result(rng, raw)
    types = [each for each in TYPES if np.dtype(each) != dtype]
    raw.results[index] = shape, np.dtype(types[rng.integers(len(types))])


@mutation
def missing_results(rng, raw):
    del raw.results[rng.integers(len(raw.results))]


@mutation
def too_many_results(rng, raw):
    raw.results += [raw.results[rng.integers(len(raw.results))]] * int(rng.integers(1, 4))


@mutation
def wrong_attributes(rng, raw):
    values = (None, np.int32(1), np.int8(1), 0.5, "1", np.zeros(3, np.float32), {"a": 1})
    raw.attributes[("is_symmetric", "is_by_row")[rng.integers(2)]] = values[rng.integers(len(values))]


if __name__ == "__main__":
    malformed_calls.main(int(sys.argv[1]), valid, MUTATIONS, check)
