"""As malformed_calls.py, for the product with block scales."""

import sys

import block_calls
import malformed_calls
import numpy as np
from block_calls import OF_BLOCKS, OF_ROWS, ROLES, BlockCall, check
from calls import BYTES, CODED_BLOCK_PRODUCT, FLOATS
from malformed_calls import of_another_size, of_another_type

MUTATIONS = [
    malformed_calls.wrong_operand_rank,
    malformed_calls.wrong_result_size,
    malformed_calls.wrong_result_rank,
    malformed_calls.missing_operands,
    malformed_calls.too_many_operands,
    malformed_calls.two_results,
    malformed_calls.unknown_role,
    malformed_calls.missing_role,
    malformed_calls.extra_attribute,
]


def mutation(function):
    """Registers a function that makes a call malformed."""
    MUTATIONS.append(function)
    return function


def valid(rng: np.random.Generator) -> BlockCall:
    """A call in which every size differs from every other and from 1, apart from those of broadcast arrays."""
    batch, rows, columns, blocks = rng.permutation(np.arange(2, 30))[:4].tolist()
    correction = ((), *((role,) for role in OF_BLOCKS))[rng.integers(3)]
    roles = (*correction, *(role for role in OF_ROWS if rng.integers(2)))
    words = bool(rng.integers(2))
    block_size = int(rng.integers(1, 9)) * 4 if words else int(rng.integers(31, 60))
    dtype = FLOATS[rng.integers(3)]
    call = block_calls.call(rng, (batch, rows, columns), blocks, block_size, roles, words=words, dtype=dtype)
    return call._replace(are_codes=words and bool(rng.integers(2)))


def _any_axis(rng, raw):
    """The index of an operand, and of an axis."""
    return rng.integers(len(raw.operands)), rng.integers(3)


@mutation
def wrong_operand_size(rng, raw):
    index, axis = _any_axis(rng, raw)
    raw.operands[index] = of_another_size(rng, raw.operands[index], axis)


@mutation
def wrong_operand_type(rng, raw):
    """Not one that has another meaning."""
    index = rng.integers(len(raw.operands))
    role = ("a", "b", "scale", *raw.roles)[index]
    allowed = {"a": BYTES, "b_zero_point": BYTES, "scale": FLOATS, "minimum": FLOATS}
    allowed = allowed.get(role, (raw.operands[index].dtype,))
    if role == "a" and "a_zero_point" not in raw.roles:
        raw.roles.append("a_zero_point")
        raw.operands.append(np.zeros((1, 1, 1), raw.operands[0].dtype))
    raw.operands[index] = of_another_type(rng, raw.operands[index], tuple(map(np.dtype, allowed)))


@mutation
def zero_point_of_the_other_sign(rng, raw):
    raw.roles = ["a_zero_point"]
    dtype = np.int8 if raw.operands[0].dtype == np.uint8 else np.uint8
    raw.operands[3:] = [np.zeros((1, 1, 1), dtype)]


@mutation
def words_as_bytes(rng, raw):
    """Or the other way around: there are four times as many, or a fourth."""
    b = raw.operands[1]
    raw.operands[1] = np.zeros(b.shape, np.int8 if b.dtype == np.uint16 else np.uint16)


@mutation
def empty_operand(rng, raw):
    index, axis = _any_axis(rng, raw)
    shape = list(raw.operands[index].shape)
    shape[axis] = 0
    raw.operands[index] = np.zeros(shape, raw.operands[index].dtype)


@mutation
def one_block_for_all(rng, raw):
    """Arrays of blocks do not broadcast."""
    places = [2, *(3 + place for place, role in enumerate(raw.roles) if role in OF_BLOCKS)]
    index, axis = places[rng.integers(len(places))], rng.integers(1, 3)
    raw.operands[index] = np.ascontiguousarray(raw.operands[index].take([0], axis))


@mutation
def zero_points_of_columns(rng, raw):
    raw.roles = ["a_zero_point"]
    raw.operands[3:] = [np.zeros((1, 1, raw.results[0][0][2]), raw.operands[0].dtype)]


@mutation
def wrong_result_type(rng, raw):
    shape, _ = raw.results[0]
    raw.results[0] = shape, of_another_type(rng, np.zeros((), np.float32), tuple(map(np.dtype, FLOATS))).dtype


@mutation
def both_corrections(rng, raw):
    blocks = raw.operands[2].shape
    raw.roles = list(rng.permutation(OF_BLOCKS))
    arrays = {"b_zero_point": np.zeros(blocks, np.int8), "minimum": np.zeros(blocks, np.float32)}
    raw.operands[3:] = [arrays[role] for role in raw.roles]


@mutation
def repeated_role(rng, raw):
    role = str(rng.choice(ROLES))
    dtype = {"a_zero_point": raw.operands[0].dtype, "b_zero_point": np.int8}.get(role, np.float32)
    shape = raw.operands[2].shape if role in OF_BLOCKS else (1, 1, 1)
    raw.roles += [role, role]
    raw.operands += [np.zeros(shape, dtype)] * 2


@mutation
def too_many_roles(rng, raw):
    raw.roles += [str(rng.choice(ROLES))] * int(rng.integers(1, 200))


@mutation
def wrong_block_size(rng, raw):
    size = int(raw.attributes["block_size"])
    sizes = [0, 1, -1, -size, size - 4, size + 4, 2 * size, 2**62, -(2**63), 3 * size]
    raw.attributes["block_size"] = np.int64(sizes[rng.integers(len(sizes))] if size > 1 else 2)


@mutation
def wrong_offset(rng, raw):
    offsets = (-129, 129, 2**31, 2**32, -(2**63))
    raw.attributes["offset"] = np.int64(offsets[rng.integers(len(offsets))])


@mutation
def codes_in_bytes(rng, raw):
    """Codes lie in words alone."""
    raw.target, b = CODED_BLOCK_PRODUCT, raw.operands[1]
    rows = raw.operands[0].shape[2]
    raw.operands[1] = np.zeros((b.shape[0], rows, b.shape[2]), np.int8)


@mutation
def words_in_two_blocks(rng, raw):
    """A block of words has whole words."""
    batch, rows, _ = raw.operands[0].shape
    columns = raw.results[0][0][2]
    blocks, size = 4 * int(rng.integers(1, 5)), 2 * int(rng.integers(8)) + 1
    raw.operands = [
        np.zeros((batch, rows, blocks * size), np.int8),
        np.zeros((batch, blocks * size // 4, columns), np.uint16),
        np.ones((batch, blocks, columns), np.float32),
    ]
    raw.roles = []
    raw.attributes["block_size"] = np.int64(size)


@mutation
def wrong_attributes(rng, raw):
    values = (None, np.int8(1), 0.5, "32", True, np.zeros(3, np.float32), {"a": 1})
    name = ("block_size", "offset", "roles")[rng.integers(3)]
    value = values[rng.integers(len(values))]
    raw.attributes[name] = np.int64(3) if name == "roles" and isinstance(value, str) else value


if __name__ == "__main__":
    malformed_calls.main(int(sys.argv[1]), valid, MUTATIONS, check)
