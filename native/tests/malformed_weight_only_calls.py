"""As malformed_calls.py, for the product of floats and weights of few bits."""

import sys

import malformed_calls
import numpy as np
from calls import FLOATS
from malformed_calls import TYPES, of_another_size
from weight_only_calls import Call, check, draw

MUTATIONS = [
    malformed_calls.wrong_operand_rank,
    malformed_calls.wrong_result_rank,
    malformed_calls.missing_operands,
    malformed_calls.too_many_operands,
    malformed_calls.two_results,
    malformed_calls.missing_role,
    malformed_calls.extra_attribute,
]


def mutation(function):
    """Registers a function that makes a call malformed."""
    MUTATIONS.append(function)
    return function


def valid(rng: np.random.Generator) -> Call:
    """A call in which every size differs from every other."""
    dtype, bits = [(np.uint8, 2), (np.uint8, 4), (np.uint8, 8), (np.uint16, 4), (np.int8, 8)][rng.integers(5)]
    rows, columns = rng.permutation(np.arange(2, 12))[:2].tolist()
    return draw(rng, rows, columns, int(rng.integers(33, 48)), dtype, bits, 16)


def _any_operand(rng, raw):
    return rng.integers(len(raw.operands))


@mutation
def wrong_operand_size(rng, raw):
    index = _any_operand(rng, raw)
    array = raw.operands[index]
    raw.operands[index] = of_another_size(rng, array, rng.integers(array.ndim))


@mutation
def one_more_of_a_size(rng, raw):
    """But not of A: its depth may end within a block."""
    index = 1 + rng.integers(len(raw.operands) - 1)
    shape = list(raw.operands[index].shape)
    shape[rng.integers(len(shape))] += 1
    raw.operands[index] = np.zeros(shape, raw.operands[index].dtype)


@mutation
def one_less_of_a_size(rng, raw):
    index = 1 + rng.integers(len(raw.operands) - 1)
    shape = list(raw.operands[index].shape)
    shape[rng.integers(len(shape))] -= 1
    raw.operands[index] = np.zeros(shape, raw.operands[index].dtype)


@mutation
def wrong_operand_type(rng, raw):
    index = _any_operand(rng, raw)
    is_zero_point = index == 3 and raw.roles[0] == "zero_point"
    allowed = [(np.float32,), (raw.operands[1].dtype,), FLOATS, (np.int8, np.uint8, *FLOATS) if is_zero_point else FLOATS][
        index
    ]
    types = [dtype for dtype in TYPES if np.dtype(dtype) not in map(np.dtype, allowed)]
    raw.operands[index] = np.zeros(raw.operands[index].shape, np.dtype(types[rng.integers(len(types))]))


@mutation
def empty_operand(rng, raw):
    index = _any_operand(rng, raw)
    shape = list(raw.operands[index].shape)
    shape[rng.integers(len(shape))] = 0
    raw.operands[index] = np.zeros(shape, raw.operands[index].dtype)


@mutation
def wrong_result_size(rng, raw):
    shape, dtype = raw.results[0]
    raw.results[0] = of_another_size(rng, np.zeros(shape, np.int8), rng.integers(2)).shape, dtype


@mutation
def wrong_result_type(rng, raw):
    types = [dtype for dtype in TYPES if dtype is not np.float32]
    raw.results[0] = raw.results[0][0], types[rng.integers(len(types))]


@mutation
def unknown_role(rng, raw):
    words = ("scale", "Minimum", "minimum,", "zero_points", "\0", "minimum\0zero_point", "é", "x" * 5000)
    raw.roles.insert(rng.integers(len(raw.roles) + 1), words[rng.integers(len(words))])
    raw.operands.append(raw.operands[2])


@mutation
def too_many_roles(rng, raw):
    raw.roles += ["zero_point"] * int(rng.integers(1, 200))


@mutation
def both_roles(rng, raw):
    raw.roles = ["zero_point", "minimum"]
    raw.operands[3:] = [raw.operands[2]] * 2


@mutation
def repeated_role(rng, raw):
    raw.roles = [("zero_point", "minimum")[rng.integers(2)]] * 2
    raw.operands[3:] = [raw.operands[2]] * 2


@mutation
def wrong_block_size(rng, raw):
    """The depth has three blocks of 16."""
    sizes = (0, -1, -16, 1, 8, 15, 17, 32, 48, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63))
    raw.attributes["block_size"] = np.int64(sizes[rng.integers(len(sizes))])


@mutation
def block_size_that_overflows(rng, raw):
    """The depth, rounded up to whole blocks in 64 bits, would have no block."""
    columns = int(rng.integers(2, 12))
    raw.operands[1:] = [np.zeros((0, columns), np.uint16), np.zeros((0, columns), np.float32)]
    raw.roles = []
    raw.results[0] = (len(raw.operands[0]), columns), np.dtype(np.float32)
    raw.attributes |= {"bits": 4, "block_size": np.int64(2**63 - 4 * int(rng.integers(1, 8)))}


@mutation
def wrong_bits(rng, raw):
    bits = [bits for bits in (0, -4, 1, 2, 3, 4, 5, 8, 16, 32, 64, 2**40, -(2**63)) if bits != raw.attributes["bits"]]
    raw.attributes["bits"] = np.int64(bits[rng.integers(len(bits))])


@mutation
def wrong_offset(rng, raw):
    offsets = (-129, 129, 2**31, -(2**63))
    raw.attributes["offset"] = np.int64(offsets[rng.integers(len(offsets))])


@mutation
def wrong_attributes(rng, raw):
    values = (None, np.int32(4), np.int8(4), 0.5, "4", True, np.zeros(3, np.float32), {"a": 1})
    raw.attributes[("bits", "block_size", "offset")[rng.integers(3)]] = values[rng.integers(len(values))]


if __name__ == "__main__":
    malformed_calls.main(int(sys.argv[1]), valid, MUTATIONS, check)
