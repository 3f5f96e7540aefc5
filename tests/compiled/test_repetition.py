"""An operator's result is computed once, however many loops read it; XLA:CPU would recompute it in each of them."""

import re
from collections import Counter
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.sampling import one_in

import jquant
from jquant.cases import CASES

ROWS = 64
ARITHMETIC = re.compile(r" = \S+ (add|subtract|multiply|divide|select|compare|round-nearest-even)\(")
INTEGERS = {
    name: case
    for name, case in CASES.items()
    if any(jnp.issubdtype(x.dtype, jnp.integer) for x in jax.tree.leaves(jax.eval_shape(case.function, *case.shapes(ROWS))))
    and name != "unpack_integers"  # whose shifts are cheaper than storing the integers
}


def arithmetic(function: Callable, *shapes) -> Counter[str]:
    """The number of instructions of each opcode in the compiled program."""
    return Counter(ARITHMETIC.findall(jax.jit(function).lower(*shapes).compile().as_text()))


@one_in(5, "name", INTEGERS)
def test_two_readers(name):
    case = INTEGERS[name]

    def read_twice(x: jax.Array) -> tuple[jax.Array, ...]:
        return (x ^ x.dtype.type(1), x & x.dtype.type(3)) if jnp.issubdtype(x.dtype, jnp.integer) else (x,)

    def caller(*operands):
        return jax.tree.map(read_twice, case.function(*operands))

    assert arithmetic(caller, *case.shapes(ROWS)) == arithmetic(case.function, *case.shapes(ROWS))


@pytest.mark.usefixtures("xla_by_default")
def test_residual_network():
    """A product and a sum read each layer; without materialisation, every sum's loop would start at the network's input."""
    scale, zero_point, layers = np.float32(0.1), np.uint8(100), 6

    def network(x, weights):
        for _ in range(layers):
            y = jquant.quantized_linear_matmul(x, scale, zero_point, weights, scale, None, scale, zero_point)
            x = jquant.quantized_linear_add(x, scale, zero_point, y, scale, zero_point, scale, zero_point)
        return x

    shapes = (jax.ShapeDtypeStruct((ROWS, ROWS), dtype) for dtype in (jnp.uint8, jnp.int8))
    assert arithmetic(network, *shapes)["round-nearest-even"] == 2 * layers


@pytest.mark.parametrize("shape", [(2**20,), (2, 2**5, 2**7, 2**7)])
def test_one_reader_stays_in_the_loop(shape):
    """A result with one reader is not stored."""
    scale, zero_point = np.float32(0.1), np.uint8(100)

    def caller(x):
        quantized = jquant.quantize_linear(x, scale, zero_point)
        rectified = jquant.quantized_linear_leaky_relu(quantized, scale, zero_point, scale, zero_point)
        return jquant.dequantize_linear(rectified, scale, zero_point)

    memory = jax.jit(caller).lower(jax.ShapeDtypeStruct(shape, jnp.float32)).compile().memory_analysis()
    assert memory.temp_size_in_bytes == 0


@pytest.mark.usefixtures("xla_by_default")
def test_windows_are_summed_once():
    """The correction for the filters' zero point is the same for each filter: the last loop reads it."""

    def convolution(x, w, zero_point):
        return jquant.convolution_integer(x, w, None, zero_point)

    shapes = (jax.ShapeDtypeStruct(sizes, jnp.int8) for sizes in ((1, 3, 16, 16), (8, 3, 5, 5), ()))
    text = jax.jit(convolution).lower(*shapes).compile().as_text()
    root = re.search(r"ENTRY.*ROOT .* calls=(%[\w.]+)", text, re.DOTALL)
    assert root
    last_loop = text[text.index(f"\n{root[1]} (") :].partition("\n}")[0]
    assert "subtract(" in last_loop
    assert "slice(" not in last_loop
