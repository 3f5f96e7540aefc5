"""A program that makes malformed calls, each of which must raise, and prints how many it made and what was not refused."""

import itertools
import sys
from collections.abc import Iterator

import draw
import jax
import jax.numpy as jnp
import numpy as np
from calls import BYTES, DEQUANTIZE, FLOATS, REQUANTIZE, TARGET, ZERO_POINTS, Call, check, instruction_set

TYPES = (
    np.int8,
    np.uint8,
    np.int16,
    np.int32,
    np.uint32,
    np.float16,
    jnp.bfloat16,
    np.float32,
    np.complex64,
    np.bool_,
)
TYPES = (*TYPES, jnp.float8_e4m3fn, jnp.int4)
ROLES = (*DEQUANTIZE, *REQUANTIZE, *ZERO_POINTS, "integer_bias")
INTEGERS = (*ZERO_POINTS, "integer_bias", "zero_point")


class Raw:
    """A call that can be malformed in every way: operands, shapes and types of results, attributes."""

    def __init__(self, call: Call):
        self.operands = [call.a, call.b, *call.arrays]
        self.roles = list(call.roles)
        self.results = [(call.shape, call.dtype)]
        self.attributes = {"depth_minor": call.depth_minor}

    def make(self) -> list[jax.Array]:
        results = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in self.results]
        attributes = {"roles": " ".join(self.roles), **self.attributes}
        attributes = {name: value for name, value in attributes.items() if value is not None}
        made = jax.ffi.ffi_call(TARGET, results)(*map(jnp.asarray, self.operands), **attributes)
        return [result.block_until_ready() for result in made]


def valid(rng: np.random.Generator) -> Call:
    """A call in which every size differs from every other and from 1, apart from those of broadcast arrays."""
    batch, rows, columns, depth = rng.permutation(np.arange(2, 30))[:4].tolist()
    depth_minor = bool(rng.integers(2))
    integer = ZERO_POINTS[: rng.integers(len(ZERO_POINTS) + 1)] + ("integer_bias",) * int(rng.integers(2))
    choices = [((), np.int32)]
    choices += [(DEQUANTIZE[: rng.integers(2, 4)], dtype) for dtype in FLOATS]
    choices += [(REQUANTIZE[: rng.integers(1, 3)], dtype) for dtype in BYTES]
    scaling, dtype = choices[rng.integers(len(choices))]
    roles = (*integer, *scaling)
    b_shape = (columns, depth) if depth_minor else (depth, columns)
    a = draw.matrix(rng, (batch, rows, depth), rng.choice(BYTES))
    b = draw.matrix(rng, (batch, *b_shape), rng.choice(BYTES))
    arrays = (
        draw.block_sums(rng, b, depth_minor)
        if role == "block_sums"
        else draw.array(rng, role, draw.broadcast_shape(rng, role, (batch, rows, columns)), dtype)
        for role in roles
    )
    return Call(a, b, tuple(arrays), roles, np.dtype(dtype), depth_minor)


def _of_another_size(rng, array):
    """`array` with one size that fits nowhere."""
    shape, axis = list(array.shape), rng.integers(3)
    shape[axis] += 31 + int(rng.integers(20))
    return np.zeros(shape, array.dtype)


def _of_another_rank(rng, array):
    shapes = [(), array.shape[:1], array.shape[1:], (1, *array.shape), (1, 1, *array.shape), (array.size,)]
    return np.zeros(shapes[rng.integers(len(shapes))], array.dtype)


def _of_another_type(rng, array, allowed):
    types = [dtype for dtype in TYPES if dtype not in allowed]
    return jnp.zeros(array.shape, types[rng.integers(len(types))])


def wrong_operand_size(rng, raw):
    """Of any operand but the sums of blocks, of which there may be any number."""
    index = rng.choice([i for i in range(len(raw.operands)) if i < 2 or raw.roles[i - 2] != "block_sums"])
    raw.operands[index] = _of_another_size(rng, raw.operands[index])


def wrong_number_of_columns(rng, raw):
    if "block_sums" not in raw.roles:
        raw.roles.append("block_sums")
        raw.operands.append(np.zeros((1, 1, raw.results[0][0][2]), np.int32))
    index = 2 + raw.roles.index("block_sums")
    batch, blocks, columns = raw.operands[index].shape
    raw.operands[index] = np.zeros((batch, blocks, rng.choice([0, 1, columns - 1, columns + 1])), np.int32)


def wrong_operand_rank(rng, raw):
    index = rng.integers(len(raw.operands))
    raw.operands[index] = _of_another_rank(rng, raw.operands[index])


def wrong_operand_type(rng, raw):
    index = rng.integers(len(raw.operands))
    allowed = BYTES if index < 2 else (raw.operands[index].dtype,)
    raw.operands[index] = _of_another_type(rng, raw.operands[index], allowed)


def empty_operand(rng, raw):
    index, axis = rng.integers(len(raw.operands)), rng.integers(3)
    shape = list(raw.operands[index].shape)
    shape[axis] = 0
    raw.operands[index] = np.zeros(shape, raw.operands[index].dtype)


def wrong_result_size(rng, raw):
    shape, dtype = raw.results[0]
    raw.results[0] = _of_another_size(rng, np.zeros(shape, np.int8)).shape, dtype


def wrong_result_rank(rng, raw):
    shape, dtype = raw.results[0]
    raw.results[0] = _of_another_rank(rng, np.zeros(shape, np.int8)).shape, dtype


def wrong_result_type(rng, raw):
    """Not one of those to which the same arrays may lead."""
    shape, dtype = raw.results[0]
    allowed = next(group for group in ((np.dtype(np.int32),), BYTES, FLOATS) if dtype in map(np.dtype, group))
    types = [other for other in TYPES if np.dtype(other) not in map(np.dtype, allowed)]
    raw.results[0] = shape, types[rng.integers(len(types))]


def missing_operands(rng, raw):
    del raw.operands[rng.integers(len(raw.operands)) :]


def too_many_operands(rng, raw):
    raw.operands += [np.zeros((1, 1, 1), np.float32)] * int(rng.integers(1, 4))


def two_results(rng, raw):
    raw.results = raw.results * 2


def unknown_role(rng, raw):
    words = ("scale", "Zero_point", "zero_points", "multiplier,", "bias", "\0", "row_scale\0column_scale", "é", "x" * 5000)
    raw.roles.insert(rng.integers(len(raw.roles) + 1), words[rng.integers(len(words))])


def missing_role(rng, raw):
    raw.operands.append(np.zeros((1, 1, 1), np.float32))


def too_many_roles(rng, raw):
    raw.roles += [str(rng.choice(ROLES))] * int(rng.integers(1, 200))


def repeated_role(rng, raw):
    role = str(rng.choice(ROLES))
    position = len(raw.roles) + 2
    raw.roles += [role, role]
    shape = (1, 1, raw.results[0][0][2]) if role == "block_sums" else (1, 1, 1)
    raw.operands[position:] = [np.zeros(shape, np.int32 if role in INTEGERS else np.float32)] * 2


def too_many_rows_or_columns(rng, raw):
    """Of an array that has one element for each column, or for each row."""
    role = str(rng.choice(["a_zero_point", "b_zero_point", "row_scale", "zero_point"]))
    batch, rows, columns = raw.results[0][0]
    scaling = {"row_scale": ["column_scale"], "zero_point": ["multiplier"]}.get(role, [])
    raw.roles = [role, *scaling]
    shape = (1, rows, 1) if role == "b_zero_point" else (1, 1, columns)
    raw.operands[2:] = [np.zeros(shape, np.int32 if role in INTEGERS else np.float32)]
    raw.operands += [np.ones((1, 1, 1), np.float32)] * len(scaling)
    raw.results[0] = (batch, rows, columns), np.dtype({"row_scale": np.float32, "zero_point": np.int8}.get(role, np.int32))


def both_scalings(rng, raw):
    roles = ("row_scale", "column_scale", "multiplier")
    raw.roles = list(rng.permutation(roles))
    raw.operands[2:] = [np.ones((1, 1, 1), np.float32)] * 3


def half_of_a_scaling(rng, raw):
    choices = (["row_scale"], ["column_scale"], ["float_bias"], ["zero_point"], ["row_scale", "float_bias"])
    choices += (["row_scale", "multiplier"], ["multiplier", "float_bias"], ["row_scale", "column_scale", "zero_point"])
    raw.roles = choices[rng.integers(len(choices))]
    raw.operands[2:] = [np.ones((1, 1, 1), np.int32 if role in INTEGERS else np.float32) for role in raw.roles]


def wrong_attributes(rng, raw):
    values = (None, 3, np.int8(1), 0.5, "True", np.zeros(3, np.float32), {"a": 1})
    name = ("depth_minor", "roles")[rng.integers(2)]
    value = values[rng.integers(len(values))]
    raw.attributes[name] = True if name == "roles" and isinstance(value, str) else value


def extra_attribute(rng, raw):
    raw.attributes["transposed"] = bool(rng.integers(2))


def the_other_order(rng, raw):
    raw.attributes["depth_minor"] = not raw.attributes["depth_minor"]


MUTATIONS = [value for value in list(globals().values()) if callable(value) and getattr(value, "__code__", None)]
MUTATIONS = [value for value in MUTATIONS if value.__code__.co_varnames[:2] == ("rng", "raw")]


def malformed(seed: int) -> Iterator[tuple[str, Raw]]:
    """Calls without end, each with a description."""
    for number in itertools.count():
        rng = np.random.default_rng((seed, number))
        mutation = MUTATIONS[number % len(MUTATIONS)]
        raw = Raw(valid(rng))
        mutation(rng, raw)
        yield f"{mutation.__name__}, number {number}", raw


def main(count: int) -> None:
    instruction_set()
    check(*(valid(np.random.default_rng((0, number))) for number in range(50)))  # what is mutated below is valid
    accepted = []
    for description, raw in itertools.islice(malformed(0), count):
        try:
            raw.make()
        except jax.errors.JaxRuntimeError:  # from the library, or from the reader of its arguments
            continue
        accepted.append(description)
    check(valid(np.random.default_rng(0)))  # and the process works on
    print(f"{count} malformed calls, accepted: {accepted}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
