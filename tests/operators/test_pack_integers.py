"""`pack_integers` and `unpack_integers`: integers of fewer than 8 bits in bytes, and errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.comparison import assert_equal
from support.signatures import raises, u8

import jquant
from jquant import DescriptorTypeError
from jquant.reference import packing as reference

from .affine import TYPES


@pytest.mark.parametrize("dtype", TYPES[:4], ids=str)
def test_packed_integers(dtype):
    """Every byte, and every number of integers in a partial last byte."""
    count = 8 // jnp.iinfo(dtype).bits
    every_byte = np.arange(256, dtype=np.uint8).reshape(4, 64)
    integers = reference.unpack_integers(every_byte, dtype, 64 * count)
    assert_equal(jquant.unpack_integers(every_byte, dtype), integers)
    assert_equal(jquant.pack_integers(integers), every_byte)
    for x in (integers[0, :0], *(integers[:, None, :size] for size in range(1, count + 2))):
        packed = reference.pack_integers(x)
        assert_equal(jquant.pack_integers(x), packed)
        assert_equal(jquant.unpack_integers(packed, dtype, size=x.shape[-1]), x)


@pytest.mark.parametrize("dtype", TYPES[:4], ids=str)
def test_symbolic_sizes(dtype):
    """One exported program packs rows of any size, also with a partial last byte."""
    shape = jax.ShapeDtypeStruct(jax.export.symbolic_shape("n, k"), dtype)
    exported = jax.export.export(jax.jit(jquant.pack_integers))(shape)
    every_byte = np.arange(256, dtype=np.uint8).reshape(4, 64)
    integers = reference.unpack_integers(every_byte, dtype, 64)
    for size in (64, 5, 3, 2, 1):
        assert_equal(exported.call(integers[:, :size]), reference.pack_integers(integers[:, :size]))


def test_the_first_integer_has_the_lowest_bits():
    assert jquant.pack_integers(jnp.array([1, -2], jnp.int4)) == 0xE1
    assert jquant.pack_integers(jnp.array([1, 0, 3, 2], jnp.uint2)) == 0b10_11_00_01


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "int32", "float32", "bfloat16"])
def test_data_types(dtype):
    text = "it must be one of INT4, UINT4, INT2, UINT2"
    with raises(f"pack_integers: x has data type {dtype.upper()}; {text}", DescriptorTypeError):
        jquant.pack_integers(jnp.zeros(3, dtype))
    with raises(f"unpack_integers: dtype is {dtype.upper()}; {text}", DescriptorTypeError):
        jquant.unpack_integers(jnp.zeros(3, u8), dtype)
    if dtype != "uint8":
        with raises(f"unpack_integers: packed has data type {dtype.upper()}; it must be UINT8", DescriptorTypeError):
            jquant.unpack_integers(jnp.zeros(3, dtype), "INT4")


def test_scalars():
    with raises("pack_integers: x is a scalar; it must have a last dimension, which is packed"):
        jquant.pack_integers(jnp.zeros((), jnp.int4))
    with raises("unpack_integers: packed is a scalar; it must have a last dimension, that of the bytes"):
        jquant.unpack_integers(jnp.zeros((), u8), "INT4")


@pytest.mark.parametrize(("dtype", "valid"), [("int4", (5, 6)), ("uint2", (9, 10, 11, 12))])
def test_sizes(dtype, valid):
    for size in valid:
        assert jquant.unpack_integers(jnp.zeros((2, 3), u8), dtype, size=size).shape == (2, size)
    for size, count in ((valid[0] - 1, 2), (valid[-1] + 1, 4)):
        text = f"size is {size}: {size} integers of dtype {dtype.upper()} need {count} bytes; packed has 3"
        with raises(f"unpack_integers: {text}"):
            jquant.unpack_integers(jnp.zeros((2, 3), u8), dtype, size=size)
