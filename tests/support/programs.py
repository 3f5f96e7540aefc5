"""Many calls in one program: to start the compiler takes longer than most of what it compiles here."""

import functools
from collections.abc import Callable

import jax

import jquant


def together(calls: list[tuple[Callable, tuple]]) -> list:
    """The results of calls, each a function and its operands, none of which is a constant of the program."""
    functions, operands = zip(*calls, strict=True)
    return _program(functions, operands)


@functools.partial(jax.jit, static_argnums=0)
def _program(functions, operands):
    return [function(*given) for function, given in zip(functions, operands, strict=True)]


def with_packed_weights(operands: list[tuple]) -> list[tuple]:
    """Operands of fused products (those of A, of B, and others), B packed: by a program that is not the product's."""
    packed = together([(jquant.pack_matrix, (given[3], given[5])) for given in operands])
    return [(*given[:3], weights, given[4], None, *given[6:]) for given, weights in zip(operands, packed, strict=True)]
