"""A program that makes malformed calls, each of which must raise, and prints how many it made and what was not refused.

Its parts also serve the other programs whose names begin with malformed.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import draw
import jax
import jax.numpy as jnp
import numpy as np
from calls import BYTES, DEQUANTIZE, FLOATS, REQUANTIZE, RESCALE, ZERO_POINTS, Call, block_sums, check, instruction_set

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
INTEGER_ROLES = (*ZERO_POINTS, "block_sums", "integer_bias")
ROLES = (*DEQUANTIZE, *REQUANTIZE, "output_scale", *INTEGER_ROLES)


class Raw:
    """A call that can be malformed in every way: operands, shapes and types of results, attributes."""

    def __init__(self, call: Call):
        self.target = call.target
        self.operands = list(call.operands)
        self.roles = list(call.roles) if hasattr(call, "roles") else None
        self.results = list(call.results) if hasattr(call, "results") else [(call.shape, call.dtype)]
        self.attributes = dict(call.attributes)

    def make(self) -> list[jax.Array]:
        results = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in self.results]
        of_roles = {} if self.roles is None else {"roles": " ".join(self.roles)}
        attributes = {**of_roles, **self.attributes}
        attributes = {name: value for name, value in attributes.items() if value is not None}
        made = jax.ffi.ffi_call(self.target, results)(*self.operands, **attributes)
        return [result.block_until_ready() for result in made]


def valid(rng: np.random.Generator) -> Call:
    """A call in which every size differs from every other and from 1, apart from those of broadcast arrays."""
    batch, rows, columns, depth = rng.permutation(np.arange(2, 30))[:4].tolist()
    depth_minor = bool(rng.integers(2))
    integer = tuple(role for role in INTEGER_ROLES if rng.integers(2))
    choices = [((), np.int32)]
    choices += [(DEQUANTIZE[: rng.integers(2, 4)], dtype) for dtype in FLOATS]
    choices += [(REQUANTIZE[: rng.integers(1, 3)], dtype) for dtype in BYTES]
    choices += [(RESCALE[: rng.integers(3, 5)], dtype) for dtype in BYTES]
    scaling, dtype = choices[rng.integers(len(choices))]
    roles = (*integer, *scaling)
    b_shape = (columns, depth) if depth_minor else (depth, columns)
    a = draw.matrix(rng, (batch, rows, depth), rng.choice(BYTES))
    b = draw.matrix(rng, (batch, *b_shape), rng.choice(BYTES))
    arrays = tuple(
        block_sums(rng, b, depth_minor)
        if role == "block_sums"
        else draw.array(rng, role, draw.broadcast_shape(rng, role, (batch, rows, columns)), dtype)
        for role in roles
    )
    return Call(a, b, arrays, roles, np.dtype(dtype), depth_minor)


def _any_operand(rng, raw):
    """The index of an operand, and of an axis whose size matters: there may be any number of block sums."""
    index = rng.integers(len(raw.operands))
    is_of_block_sums = index >= 2 and raw.roles[index - 2] == "block_sums"
    return index, rng.choice([0, 2] if is_of_block_sums else 3)


def of_another_size(rng, array, axis):
    """`array` with one size that fits nowhere."""
    shape = list(array.shape)
    shape[axis] += 31 + int(rng.integers(20))
    return np.zeros(shape, array.dtype)


def of_another_rank(rng, array):
    shapes = [(), array.shape[:1], array.shape[1:], (1, *array.shape), (1, 1, *array.shape), (array.size,)]
    return np.zeros(shapes[rng.integers(len(shapes))], array.dtype)


def of_another_type(rng, array, allowed):
    types = [dtype for dtype in TYPES if dtype not in allowed]
    return np.zeros(array.shape, np.dtype(types[rng.integers(len(types))]))


def allowed_types(raw: Raw, index: int) -> tuple[Any, ...]:
    if index < 2:
        return BYTES
    role, own = raw.roles[index - 2], raw.operands[index].dtype
    by_role = dict.fromkeys(ZERO_POINTS, (np.int32, *BYTES)) | {"zero_point": (np.int32, raw.results[0][1])}
    return by_role.get(role, (own,))


MUTATIONS = []


def mutation(function):
    """Registers a function that makes a call malformed."""
    MUTATIONS.append(function)
    return function


@mutation
def wrong_operand_size(rng, raw):
    index, axis = _any_operand(rng, raw)
    raw.operands[index] = of_another_size(rng, raw.operands[index], axis)


@mutation
def wrong_operand_rank(rng, raw):
    index = rng.integers(len(raw.operands))
    raw.operands[index] = of_another_rank(rng, raw.operands[index])


@mutation
def wrong_operand_type(rng, raw):
    index = rng.integers(len(raw.operands))
    raw.operands[index] = of_another_type(rng, raw.operands[index], allowed_types(raw, index))


@mutation
def empty_operand(rng, raw):
    index, axis = _any_operand(rng, raw)
    shape = list(raw.operands[index].shape)
    shape[axis] = 0
    raw.operands[index] = np.zeros(shape, raw.operands[index].dtype)


@mutation
def wrong_result_size(rng, raw):
    shape, dtype = raw.results[0]
    raw.results[0] = of_another_size(rng, np.zeros(shape, np.int8), rng.integers(3)).shape, dtype


@mutation
def wrong_result_rank(rng, raw):
    shape, dtype = raw.results[0]
    raw.results[0] = of_another_rank(rng, np.zeros(shape, np.int8)).shape, dtype


@mutation
def wrong_result_type(rng, raw):
    """Not one of those to which the same arrays may lead."""
    shape, dtype = raw.results[0]
    allowed = next(group for group in ((np.dtype(np.int32),), BYTES, FLOATS) if dtype in map(np.dtype, group))
    types = [other for other in TYPES if np.dtype(other) not in map(np.dtype, allowed)]
    raw.results[0] = shape, types[rng.integers(len(types))]


@mutation
def missing_operands(rng, raw):
    del raw.operands[rng.integers(len(raw.operands)) :]


@mutation
def too_many_operands(rng, raw):
    raw.operands += [np.zeros((1, 1, 1), np.float32)] * int(rng.integers(1, 4))


@mutation
def two_results(rng, raw):
    raw.results = raw.results * 2


@mutation
def unknown_role(rng, raw):
    words = ("scale", "Multiplier", "multipliers", "multiplier,", "bias", "\0", "multiplier\0row_scale", "é", "x" * 5000)
    raw.roles.insert(rng.integers(len(raw.roles) + 1), words[rng.integers(len(words))])


@mutation
def missing_role(rng, raw):
    raw.operands.append(np.zeros((1, 1, 1), np.float32))


@mutation
def too_many_roles(rng, raw):
    raw.roles += [str(rng.choice(ROLES))] * int(rng.integers(1, 200))


def _of_type(role):
    """An array that has the type which that role asks for."""
    return np.zeros((1, 1, 1), np.float32 if role in (*DEQUANTIZE, "multiplier", "output_scale") else np.int32)


@mutation
def repeated_role(rng, raw):
    role = str(rng.choice(ROLES))
    raw.roles += [role, role]
    raw.operands += [_of_type(role)] * 2


@mutation
def elements_of_the_other_axis(rng, raw):
    """One for each row where the columns may have one each, or the other way around."""
    role = ("a_zero_point", "b_zero_point", "row_scale", "output_scale", "zero_point")[rng.integers(5)]
    (_, rows, columns), _ = raw.results[0]
    scaling = {"row_scale": ["column_scale"], "output_scale": ["row_scale", "column_scale"], "zero_point": ["multiplier"]}
    scaling = scaling.get(role, [])
    raw.roles = [role, *scaling]
    raw.operands[2:] = [_of_type(name) for name in raw.roles]
    raw.operands[2] = np.zeros((1, rows, 1) if role == "b_zero_point" else (1, 1, columns), raw.operands[2].dtype)
    dtype = {"row_scale": np.float32, "output_scale": np.uint8, "zero_point": np.uint8}.get(role, np.int32)
    raw.results[0] = raw.results[0][0], np.dtype(dtype)


@mutation
def one_block_sum_for_all_columns(rng, raw):
    raw.roles = ["block_sums"]
    raw.operands[2:] = [np.zeros((1, rng.integers(1, 4), 1), np.int32)]
    raw.results[0] = raw.results[0][0], np.dtype(np.int32)


@mutation
def both_scalings(rng, raw):
    roles = ("row_scale", "column_scale", "multiplier")
    raw.roles = list(rng.permutation(roles))
    raw.operands[2:] = [np.ones((1, 1, 1), np.float32)] * 3


@mutation
def half_of_a_scaling(rng, raw):
    choices = (["row_scale"], ["column_scale"], ["float_bias"], ["zero_point"], ["row_scale", "float_bias"])
    choices += (["row_scale", "multiplier"], ["multiplier", "float_bias"], ["row_scale", "column_scale", "zero_point"])
    choices += (["output_scale"], ["row_scale", "output_scale"], ["column_scale", "output_scale"])
    choices += (["multiplier", "output_scale"], ["row_scale", "column_scale", "output_scale", "float_bias"])
    raw.roles = choices[rng.integers(len(choices))]
    raw.operands[2:] = [_of_type(role) for role in raw.roles]


@mutation
def wrong_attributes(rng, raw):
    values = (None, 3, np.int8(1), 0.5, "True", np.zeros(3, np.float32), {"a": 1})
    name = ("depth_minor", "roles")[rng.integers(2)]
    value = values[rng.integers(len(values))]
    raw.attributes[name] = True if name == "roles" and isinstance(value, str) else value


@mutation
def extra_attribute(rng, raw):
    raw.attributes["transposed"] = bool(rng.integers(2))


@mutation
def the_other_order(rng, raw):
    raw.attributes["depth_minor"] = not raw.attributes["depth_minor"]


def main(count: int, valid: Callable, mutations: Sequence[Callable], check: Callable) -> None:
    """Makes calls that `valid` draws and one of the `mutations` makes malformed; `check` compares valid ones."""
    instruction_set()
    check(*(valid(np.random.default_rng((0, number))) for number in range(50)))  # what is mutated below is valid
    accepted = []
    for number in range(count):
        rng = np.random.default_rng((0, number))
        raw = Raw(valid(rng))
        mutate = mutations[number % len(mutations)]
        mutate(rng, raw)
        try:
            raw.make()
        except jax.errors.JaxRuntimeError:  # from the library, or from the reader of its arguments
            continue
        accepted.append(f"{mutate.__name__}, number {number}")
    check(valid(np.random.default_rng(0)))  # and the process works on
    print(f"{count} malformed calls, accepted: {accepted}")


if __name__ == "__main__":
    main(int(sys.argv[1]), valid, MUTATIONS, check)
