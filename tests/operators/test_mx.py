"""`mx_quantize` and `mx_dequantize`: every element type, inputs of any bits, partial blocks, and errors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.comparison import assert_equal
from support.narrow_samples import every
from support.sampling import one_in
from support.signatures import raises

import jquant
from jquant import DescriptorTypeError
from jquant.cases.microscaling import ELEMENTS
from jquant.reference import microscaling as reference
from jquant.reference import narrow_floats

FLOAT32 = np.float32


@functools.cache
def programs(element, dtype, axis, block_size):
    blocks = {"axis": axis, "block_size": block_size}
    quantize = functools.partial(jquant.mx_quantize, element_type=element, **blocks)
    return jax.jit(quantize), jax.jit(
        functools.partial(jquant.mx_dequantize, element_type=element, output_dtype=dtype, **blocks)
    )


def both(x, element, dtype=np.float32, axis=-1, block_size=32):
    """Asserts that quantization and dequantization give the reference's bits; returns the dequantized array."""
    blocks = {"axis": axis, "block_size": block_size}
    quantize, dequantize = programs(element, dtype, axis, block_size)
    quantized = quantize(x)
    assert_equal(quantized, jquant.MxQuantizeOutput(*reference.mx_quantize(x, element, **blocks)))
    back = dequantize(*quantized)
    assert_equal(back, reference.mx_dequantize(*quantized, element, dtype=dtype, **blocks))
    return np.asarray(back)


@one_in(3, "element", ELEMENTS)
def test_zeros_have_the_sign_of_the_input(element):
    """Except in int8, which has no -0."""
    small = FLOAT32([-0.0, 0.0, -(2.0**-20), 2.0**-20])
    x = np.stack([np.append(small, FLOAT32(1)), np.append(np.copysign(FLOAT32(0), small), FLOAT32(0))])
    back = both(x, element)
    assert (back[:, :2] == 0).all()
    assert_equal(np.signbit(back), np.signbit(x) & (element != "int8"))


@one_in(2, "element", ELEMENTS)
def test_any_bits(element):
    """Any float32: blocks of one magnitude, also subnormal, and blocks of all magnitudes, with NaN and infinities."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, (300, 64), np.uint32)
    bits[:200] &= 0x80FFFFFF  # exponents 0 and 1: subnormal numbers, and the smallest normal ones
    bits[20:200] |= (np.arange(180, dtype=np.uint32) + 72)[:, None] << 23 & 0x7F000000
    bits[:5] &= 0x8000000F
    x = bits.view(FLOAT32)
    back = both(x, element)
    is_finite = np.isfinite(x).reshape(300, 2, 32).all(-1, keepdims=True)
    np.testing.assert_array_equal(~np.isnan(back.reshape(300, 2, 32)), np.broadcast_to(is_finite, (300, 2, 32)))


@one_in(2, "element", ELEMENTS)
def test_all_numbers_of_16_bits(element):
    for dtype in (np.float16, jnp.bfloat16):
        x = every(dtype).reshape(-1, 32)
        both(x, element, dtype)


@one_in(3, "element", ELEMENTS)
def test_every_code_with_every_scale(element):
    """Products may be subnormal, and may overflow float32."""
    bits = 8 if element == "int8" else int(element[5])
    codes = np.broadcast_to(np.arange(2**bits, dtype=np.uint8), (256, 2**bits))
    values = codes if element.startswith("float6") else np.ascontiguousarray(codes).view(element)
    scale = np.arange(256, dtype=np.uint8)[:, None].view(jnp.float8_e8m0fnu)
    for dtype in (np.float32, jnp.bfloat16):
        options = {"block_size": 2**bits}
        actual = jquant.mx_dequantize(values, scale, element_type=element, output_dtype=dtype, **options)
        assert_equal(actual, reference.mx_dequantize(values, scale, element, dtype=dtype, **options))


@one_in(2, "element", ELEMENTS, first=1)
def test_what_it_represents_comes_back(element):
    """A block of an element type's numbers times any scale comes back unchanged."""
    bits = 8 if element == "int8" else int(element[5])
    numbers = np.arange(-127, 128) / 64 if element == "int8" else narrow_floats.decode(np.arange(2**bits), element)
    numbers = numbers[np.isfinite(numbers)].astype(FLOAT32)
    x = numbers * 2.0 ** np.arange(-100.0, 100, 7)[:, None].astype(FLOAT32)
    assert_equal(both(x, element, block_size=256), x)


@pytest.mark.parametrize(
    ("element", "x", "values", "exponent"),
    [
        ("float8_e4m3fn", [448, 1, -0.0], [448, 1, -0.0], 0),
        ("float8_e4m3fn", [511, 1, 17], [448, 1, 16], 0),  # above the largest number, and a tie
        ("float8_e4m3fn", [512, 1, 2.0**-9], [256, 0.5, 0], 1),
        ("float8_e5m2", [65535, 9, 11], [57344, 8, 12], 0),
        ("float6_e2m3fn", [7.9, 1, 0.0625], [7.5, 1, 0], 0),
        ("float6_e3m2fn", [16, -31, 2.5], [16, -28, 2.5], 0),
        ("float4_e2m1fn", [7, 2.5, 0.25], [6, 2, 0], 0),
        ("float4_e2m1fn", [8, 5, -0.5], [4, 2, -0.0], 1),
        ("int8", [1, 1.9921875, -1.9921875], [64, 127, -127], 0),  # ties with 128 and -128, which are not elements
        ("int8", [0, 1.0234375, -1.0078125], [0, 66, -64], 0),  # ties
        ("float8_e4m3fn", [0, 0, -0.0], [0, 0, -0.0], -127),
        ("float8_e4m3fn", [2.0**-149, 2.0**-130, 0], [0, 0.125, 0], -127),
        ("float8_e4m3fn", [2.0**127, 2.0**-149, 0], [256, 0, 0], 119),
        ("int8", [2.0**127, 2.0**-126, 0], [64, 0, 0], 127),
        ("float8_e4m3fn", [np.inf, 1, 0], [np.nan] * 3, np.nan),
        ("float4_e2m1fn", [np.nan, 1, 0], [6] * 3, np.nan),
        ("int8", [-np.inf, 1, 0], [0] * 3, np.nan),
    ],
)
def test_values(element, x, values, exponent):
    codes, scale = jquant.mx_quantize(np.array(x, FLOAT32), element)
    numbers = narrow_floats.decode(codes, element) if element.startswith("float6") else np.asarray(codes).astype(FLOAT32)
    assert_equal(numbers, FLOAT32(values))
    assert_equal(np.asarray(scale).astype(np.float64), np.array([2.0**exponent]))


@one_in(
    2,
    ("shape", "options"),
    [
        ((2, 70), {}),
        ((70, 3), {"axis": 0}),
        ((2, 33, 3), {"axis": -2, "block_size": 16}),
        ((5,), {"block_size": 1}),
        ((5,), {"block_size": 3}),
        ((3, 0), {}),
        ((0, 64), {}),
    ],
)
def test_blocks(shape, options):
    x = np.random.default_rng(0).normal(size=shape).astype(FLOAT32)
    both(x, "float8_e4m3fn", **options)
    both(x, "float4_e2m1fn", **options)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_block_longer_than_the_axis(axis):
    """It is a block of the whole axis, without memory for elements beyond its end."""
    x = np.random.default_rng(1).normal(size=(4, 16)).astype(FLOAT32)
    blocks = {"axis": axis, "block_size": x.shape[axis]}, {"axis": axis, "block_size": 2**40}
    assert_equal(*(jquant.mx_quantize(x, "int8", **options) for options in blocks))
    values, scale = jquant.mx_quantize(x, "int8", **blocks[0])
    assert_equal(*(jquant.mx_dequantize(values, scale, **options) for options in blocks))


@pytest.mark.parametrize(("element", "count"), [("float6_e3m2fn", 64), ("float4_e2m1fn", 16)])
def test_codes_in_bytes(element, count):
    """Of which the lower 6 or 4 bits count."""
    codes, scale = np.arange(256, dtype=np.uint8), np.ones(8, jnp.float8_e8m0fnu)
    all_bits, lower_bits = (jquant.mx_dequantize(x, scale, element_type=element) for x in (codes, codes % count))
    assert_equal(all_bits, lower_bits)
    assert_equal(all_bits, narrow_floats.decode(codes % count, element).astype(FLOAT32))


def test_it_leaves_no_tensor_behind():
    """Its temporaries are the scales and, for elements of 4 bits, their codes in bytes."""
    for element, size in (("float8_e4m3fn", 1 / 8), ("int8", 1 / 8), ("float4_e2m1fn", 9 / 8)):
        shape = jax.ShapeDtypeStruct((256, 2048), np.float32)
        program = jax.jit(lambda x, element=element: jquant.mx_quantize(x, element)).lower(shape).compile()
        assert program.memory_analysis().temp_size_in_bytes <= 256 * 2048 * size


def test_data_types():
    x = np.zeros(3, FLOAT32)
    elements = "FLOAT8E4M3FN, FLOAT8E5M2, FLOAT4E2M1, FLOAT6E2M3, FLOAT6E3M2, INT8"
    with raises("mx_quantize: x has data type INT8; it must be one of FLOAT32, FLOAT16, BFLOAT16", DescriptorTypeError):
        jquant.mx_quantize(np.int8([1]), "int8")
    with raises(f"mx_quantize: element_type is FLOAT8E4M3FNUZ; it must be one of {elements}", DescriptorTypeError):
        jquant.mx_quantize(x, "float8_e4m3fnuz")
    values, scale = jquant.mx_quantize(x, "FLOAT6E2M3")
    stored = "FLOAT8E4M3FN, FLOAT8E5M2, FLOAT4E2M1, INT8, or UINT8 with an element_type of 6 or 4 bits"
    with raises(f"mx_dequantize: values has data type UINT8; it must be one of {stored}", DescriptorTypeError):
        jquant.mx_dequantize(values, scale)
    with raises(f"mx_dequantize: element_type is UINT8; it must be one of {elements}", DescriptorTypeError):
        jquant.mx_dequantize(values, scale, element_type="uint8")
    with raises("mx_dequantize: values has data type UINT8; with element_type INT8 it must be INT8", DescriptorTypeError):
        jquant.mx_dequantize(values, scale, element_type="int8")
    for element, held in (("FLOAT6E2M3", "UINT8"), ("FLOAT4E2M1", "FLOAT4E2M1 or UINT8")):
        with raises(
            f"mx_dequantize: values has data type INT8; with element_type {element} it must be {held}", DescriptorTypeError
        ):
            jquant.mx_dequantize(np.int8([1, 2, 3]), scale, element_type=element)
    with raises("mx_dequantize: scale has data type FLOAT32; it must be FLOAT8E8M0", DescriptorTypeError):
        jquant.mx_dequantize(values, x[:1], element_type="FLOAT6E2M3")


def test_sizes():
    values, scale = jquant.mx_quantize(np.zeros((2, 40), FLOAT32), "int8")
    text = "scale has shape (2, 2), values (2, 40); with axis=1 and block_size=64 it must be (2, 1)"
    with raises(f"mx_dequantize: {text}"):
        jquant.mx_dequantize(values, scale, block_size=64)
    with raises("mx_quantize: block_size is 0; it must be a positive integer"):
        jquant.mx_quantize(np.zeros((2, 40), FLOAT32), "int8", block_size=0)
    with raises("mx_quantize: axis is -1, but the input is a scalar, which has no dimensions"):
        jquant.mx_quantize(1.0, "int8")
