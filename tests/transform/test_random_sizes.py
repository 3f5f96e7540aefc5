"""Random programs called with other sizes, and under other settings of JAX, than they were quantized with."""

import contextlib
import re

import jax
import numpy as np
import pytest
from support.comparison import assert_equal
from support.random_networks import FIRST
from support.random_sizes import BOUND, FREE, SIZES, draw_program, rows

from jquant import transform

PROGRAMS, SUITE, GATE, CHUNK = 200, 2, 4, 2  # how many are drawn in all, in the suite, in the gate, and in each test
CONTEXTS = {
    "none": contextlib.nullcontext,
    "precision": lambda: jax.default_matmul_precision("highest"),
    "x64": lambda: jax.enable_x64(True),
    "mesh": lambda: jax.set_mesh(jax.make_mesh((2,), ("data",))),
}


def chunks() -> list:
    marks = [()] * (SUITE // CHUNK) + [pytest.mark.gate] * ((GATE - SUITE) // CHUNK)
    marks += [pytest.mark.full] * ((PROGRAMS - GATE) // CHUNK)
    return [pytest.param(chunk, marks=mark) for chunk, mark in enumerate(marks)]


def program_of(apply, params, x):
    """The program of a call, and its constants: equal ones compute the same."""
    traced = jax.make_jaxpr(apply)(params, x)
    return str(traced), [np.asarray(constant) for constant in traced.consts]


def called(quantized, x):
    """The program of a call; None if it is refused."""
    try:
        return program_of(*quantized, x)
    except transform.TransformError:
        return None


@pytest.mark.parametrize("chunk", chunks())
def test_random_sizes(chunk, count):
    """A call with other sizes has the program and the packed weights of a function that is quantized with these."""
    for seed in range(FIRST + chunk * CHUNK, FIRST + (chunk + 1) * CHUNK):
        program = draw_program(seed)
        made_at, *others = np.random.default_rng(seed).permutation(SIZES)
        quantized = transform.quantize(program.apply, program.parameters, program.recipe, rows(seed, made_at))
        for size in others:
            x, what = rows(seed, size), f"program {seed}, {program.parts}, from {made_at} to {size}"
            actual = called(quantized, x)
            count("other sizes", 1)
            if actual is None:
                assert not program.is_free, f"refused: {what}"
                count("other sizes, refused", 1)
                continue
            compare(quantized, actual, transform.quantize(program.apply, program.parameters, program.recipe, x), x, what)
            count("other sizes, computed", 1)
            count("other sizes, of which no weight depends on one", int(program.is_free))


def compare(quantized, actual, new, x, what):
    """Asserts that two functions have the same weights and program or, if sites have other names, the same results.

    The first may have weights that the second does not read. They are jitted: of a program with arrays that were made inside
    of `jax.set_mesh`, JAX 0.10 evaluates no constants outside of it.
    """
    (apply, params), (new_apply, new_params) = quantized, new
    for name, (stored, new_stored) in shared(params, new_params).items():
        assert_equal(stored, new_stored, f"{what}: {name}")
    text, constants = called(new, x)
    if actual[0] != text:
        assert_equal(jax.jit(apply)(params, x), jax.jit(new_apply)(new_params, x), what)
    else:
        assert_equal(actual[1], constants, what)


def shared(params, new_params):
    """The stored weights that a new function has under the same name."""
    sites, new_sites = params["sites"], new_params["sites"]
    return {name: (sites[name], new_sites[name]) for name in new_sites if name in sites}


@pytest.mark.parametrize("chunk", chunks())
def test_random_contexts(chunk, count):
    """Contexts that are entered before or after a program is quantized, and for some calls only."""
    for seed in range(FIRST + chunk * CHUNK, FIRST + (chunk + 1) * CHUNK):
        random = np.random.default_rng([seed, 3])
        program, x = draw_program(seed), rows(seed, 7)
        names = random.permutation([*CONTEXTS])[:3]
        with CONTEXTS[names[0]]():
            quantized = transform.quantize(program.apply, program.parameters, program.recipe, x)
        for name in (*names, names[1], names[0]):
            with CONTEXTS[name]():
                actual = called(quantized, x)
                if actual is None:
                    changes_programs = {"x64", "mesh"} & {names[0], name} or "product of weights" in program.parts
                    assert changes_programs, f"program {seed}, {program.parts}: {name} after {names[0]}"
                    count("contexts, refused", 1)
                    continue
                new = transform.quantize(program.apply, program.parameters, program.recipe, x)
                what = f"program {seed}, {program.parts}: {name} after {names[0]}"
                compare(quantized, actual, new, x, what)
                precisions = [re.findall("precision=[^ ]*", text) for text in (actual[0], called(new, x)[0])]
                assert precisions[0] == precisions[1], what
            count("contexts", 1)


def test_enough_is_free():
    """Programs in which no size enters a weight are never refused: a net that allows any refusal would have holes."""
    programs = [draw_program(seed) for seed in range(FIRST, FIRST + PROGRAMS)]
    assert sum(program.is_free for program in programs) > 0.4 * PROGRAMS
    assert {part for program in programs for part in program.parts} == {*FREE, *BOUND}
