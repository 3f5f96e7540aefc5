"""Every element-wise operator, compiled for TPUs: with few exceptions, tensors are read once and results written once."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import moved_once
from support.sampling import one_in

import jquant
from benchmarks import chips

pytest.importorskip("libtpu", reason="programs compile for TPUs only where libtpu is installed")


# For these the compiler makes several passes, as for the formula in jax.numpy: it stores exponentials before their sum is
# known; rows are stored in tiles, so that neighbours in a row are brought together by copies; the inputs of a concatenation
# are computed separately.
EXCEPTIONS = {
    "quantized_linear_softmax",
    "dequantize_linear, blocks",
    "pack_integers",
    "unpack_integers",
    "quantized_linear_concat",
    "quantized_linear_average_pool",
    "quantized_linear_global_average_pool",
    "dynamic_quantize_linear, where",
}


@one_in(4, "name", sorted(moved_once.ELEMENTWISE.keys() - EXCEPTIONS), others="full")
@pytest.mark.parametrize("chip", ["v5e", pytest.param("v6e", marks=pytest.mark.full)])
def test_each_tensor_is_moved_once(chip, name):
    moved_once.assert_moved_once(name, functools.partial(chips.compile, chip))


def test_sigmoid_looks_nothing_up():
    """A TPU takes longer to look up a number than to compute ten."""
    shapes = jax.ShapeDtypeStruct((1024, 1024), np.uint8), *(jax.ShapeDtypeStruct((), np.float32),) * 2
    sigmoid = jquant.quantized_linear_sigmoid
    program = chips.compile("v5e", lambda x, x_scale, scale: sigmoid(x, x_scale, None, scale), *shapes)
    assert " gather(" not in program.as_text()


@pytest.mark.parametrize("sizes", [(1024, 1024), (16_384, 64)])
def test_softmax(sizes):
    """It stores a few numbers for each element, and has no look-ups."""
    softmax = functools.partial(jquant.quantized_linear_softmax, axis=1)
    shapes = jax.ShapeDtypeStruct(sizes, np.uint8), *(jax.ShapeDtypeStruct((), np.float32),) * 2
    program = chips.compile("v5e", lambda x, x_scale, scale: softmax(x, x_scale, None, scale), *shapes)
    assert program.memory_analysis().temp_size_in_bytes <= 20 * np.prod(sizes)
    assert " gather(" not in program.as_text()


def test_temporaries_of_pack_integers():
    """None. In a last dimension, the integers of a byte would be padded to 128."""
    program = chips.compile("v5e", jquant.pack_integers, jax.ShapeDtypeStruct((2**20,), jnp.int4))
    assert program.memory_analysis().temp_size_in_bytes == 0
