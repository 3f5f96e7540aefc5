"""Compiles many calls as one program, because starting the compiler takes longer than compiling one of them."""

import functools
from collections.abc import Callable

import jax

import jquant


def together(calls: list[tuple[Callable, tuple]]) -> list:
    """The results of calls, each a function and its operands, which are arguments of the program."""
    functions, operands = zip(*calls, strict=True)
    return _program(functions, operands)


@functools.partial(jax.jit, static_argnums=0)
def _program(functions, operands):
    return [function(*arguments) for function, arguments in zip(functions, operands, strict=True)]


def with_packed_weights(operands: list[tuple]) -> list[tuple]:
    """Operands of fused products with B and its zero point packed, by a program of its own."""
    packed = together([(jquant.pack_matrix, (b, b_zero_point)) for _, _, _, b, _, b_zero_point, *_ in operands])
    return [
        (a, a_scale, a_zero_point, weights, b_scale, None, *others)
        for (a, a_scale, a_zero_point, _, b_scale, _, *others), weights in zip(operands, packed, strict=True)
    ]
