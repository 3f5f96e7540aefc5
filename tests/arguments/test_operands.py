"""What may be passed for a tensor: Python scalars of the documented type, and arrays, never narrowed."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jquant
from jquant import DescriptorError, DescriptorTypeError
from jquant.arguments.call import Call, output_data_type
from jquant.arguments.descriptor import Descriptor, Tensor
from jquant.arguments.operands import broadcast_shape, operand

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32")
FLOAT_MAX = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38}


def scalar(value, dtype):
    return operand("OPERATOR", "Tensor", value, jnp.dtype(dtype))


def array(*values, dtype="uint8"):
    return jnp.array(values, dtype)


class Wrapped:
    """An array of some other library, as JAX sees it."""

    def __init__(self, value):
        self.value = value

    def __jax_array__(self):
        return self.value


# Python scalars.


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_in_range(dtype):
    limits = np.iinfo(dtype)
    for value in (limits.min, 0, 1, limits.max):
        result = scalar(value, dtype)
        assert (result.dtype, result.shape, int(result)) == (dtype, (), value)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_out_of_range(dtype):
    limits = np.iinfo(dtype)
    for value in (limits.min - 1, limits.max + 1, 2**64, -(2**64)):
        with pytest.raises(DescriptorError) as raised:
            scalar(value, dtype)
        assert type(raised.value) is DescriptorError  # the type is right, the value is not
        text = f"OPERATOR: Tensor is {value}, outside the range of {dtype.upper()}, [{limits.min}, {limits.max}]"
        assert str(raised.value) == text


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("value", [0.0, 1.0, 1.5, float("nan"), float("inf")])
def test_floats_are_no_integers(value, dtype):
    with pytest.raises(DescriptorTypeError) as raised:
        scalar(value, dtype)
    assert str(raised.value) == f"OPERATOR: Tensor is {value!r}, but must be an integer of type {dtype.upper()}"


@pytest.mark.parametrize("dtype", FLOAT_MAX)
@pytest.mark.parametrize("value", [0, 3, -2, 0.5, 0.1, -1e-3], ids=repr)
def test_floats_in_range(value, dtype):
    result = scalar(value, dtype)
    assert (result.dtype, result.shape) == (dtype, ())
    assert result == np.array(value, jnp.dtype(dtype))


@pytest.mark.parametrize(("dtype", "limit"), FLOAT_MAX.items())
def test_the_limits_of_floats(dtype, limit):
    for value in (limit, -limit):
        assert float(scalar(value, dtype)) == value
    for value in (np.nextafter(limit, np.inf).item(), -1.01 * limit, 1e39, -1e300):
        with pytest.raises(DescriptorError) as raised:
            scalar(value, dtype)
        assert type(raised.value) is DescriptorError
        assert str(raised.value).startswith(f"OPERATOR: Tensor is {value!r}, outside the range of {dtype.upper()}, [-")


@pytest.mark.parametrize("dtype", FLOAT_MAX)
def test_infinities_and_nan_are_floats(dtype):
    for value in (float("inf"), float("-inf")):
        assert float(scalar(value, dtype)) == value
    assert np.isnan(float(scalar(float("nan"), dtype)))


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float32"])
@pytest.mark.parametrize("value", [True, False, 1j, [1], (1,), [], "1", b"1", None, {}, range(3), object], ids=repr)
def test_other_objects(value, dtype):
    with pytest.raises(DescriptorTypeError) as raised:
        scalar(value, dtype)
    assert str(raised.value) == f"OPERATOR: Tensor must be an array or a Python int or float, not {type(value).__name__}"


def test_optional_tensors():
    call = Call(Descriptor("OPERATOR", (Tensor("Tensor", "Optional input", None, "INT8"),)))
    assert call.optional_tensor("Tensor", None, jnp.dtype("int8")) is None
    assert call.optional_tensor("Tensor", -3, jnp.dtype("int8")).dtype == jnp.int8
    with pytest.raises(DescriptorTypeError, match=r"^OPERATOR: Tensor must be an array or a Python int or float, not bool$"):
        call.optional_tensor("Tensor", False, jnp.dtype("int8"))


# Where the public functions take no Python scalars.


@pytest.mark.parametrize("value", [1, 1.5, 0], ids=repr)
@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: jquant.dequantize_linear(x, 1.0), "dequantize_linear: input"),
        (lambda x: jquant.quantize_linear(x, 1.0), "quantize_linear: input"),
        (lambda x: jquant.matmul_integer(x, jnp.ones((2, 2), jnp.int8)), "matmul_integer: a"),
        (lambda x: jquant.matmul_integer(jnp.ones((2, 2), jnp.int8), x), "matmul_integer: b"),
        (lambda x: jquant.clip(x, 0, 1), "clip: input"),
        (
            lambda x: jquant.quantized_linear_add(x, 1.0, 0, array(1), 1.0, 0, 1.0),
            "quantized_linear_add: a",
        ),
        (
            lambda x: jquant.quantized_linear_add(array(1), 1.0, 0, x, 1.0, 0, 1.0),
            "quantized_linear_add: b",
        ),
    ],
)
def test_the_data_is_no_python_scalar(function, name, value):
    with pytest.raises(DescriptorTypeError) as raised:
        function(value)
    text = f"{name} is the Python scalar {value!r}; it must be an array, because its data type matters"
    assert re.fullmatch(rf"{re.escape(text)} \([A-Z][A-Za-z]*Tensor of DML_\w+\)", str(raised.value))


def test_a_scalar_beside_booleans():
    """The error names the tensor."""
    with pytest.raises(DescriptorTypeError, match="input has data type BOOL"):
        jquant.dequantize_linear(np.ones(2, np.bool), 0.5, 3)


# Arrays.


@pytest.mark.parametrize(
    "value",
    [
        jnp.ones(2, jnp.int8),
        np.ones(2, np.float32),
        np.uint8(3),
        np.float32(0.5),
        np.bool_(True),
        np.ones((), np.int16),
        jnp.bfloat16(1),
        np.ones(2, jnp.bfloat16),
    ],
    ids=lambda value: f"{type(value).__name__}-{value.dtype}",
)
def test_arrays_stay_as_they_are(value):
    assert scalar(value, "int32") is value
    assert operand("OPERATOR", "Tensor", value) is value


@pytest.mark.parametrize("value", [jnp.asarray(0.5), jnp.full((2,), 3)], ids=str)
def test_arrays_of_weak_type_get_their_own(value):
    """Otherwise an operator that returns its operand would return a weakly typed array."""
    result = operand("OPERATOR", "Tensor", value)
    assert (value.weak_type, result.weak_type, result.dtype, result.shape) == (True, False, value.dtype, value.shape)


@pytest.mark.parametrize(
    "value",
    [
        np.array([1.0]),
        np.array([1]),
        np.array([1], np.uint64),
        np.array([1j]),
        np.float64(1),
        np.int64(1),
        np.uint64(1),
        np.complex128(1),
    ],
    ids=lambda value: f"{type(value).__name__}-{value.dtype}",
)
def test_arrays_that_jax_would_narrow(value):
    with pytest.raises(DescriptorTypeError) as raised:
        scalar(value, "float32")
    type_ = value.dtype.name.upper()
    assert str(raised.value).startswith(f"OPERATOR: Tensor has data type {type_}, which JAX narrows to 32 bits by default; ")
    assert "jax_enable_x64" in str(raised.value)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: jquant.dequantize_linear(x, 1.0), "input"),
        (lambda x: jquant.dequantize_linear(array(1), x), "scale"),
        (lambda x: jquant.dequantize_linear(array(1), 1.0, x), "zero_point"),
        (lambda x: jquant.quantize_linear(x, 1.0), "input"),
        (lambda x: jquant.quantize_linear(jnp.ones(1), x), "scale"),
        (lambda x: jquant.quantize_linear(jnp.ones(1), 1.0, x), "zero_point"),
        (lambda x: jquant.matmul_integer(x, jnp.ones((1, 1), jnp.int8)), "a"),
        (lambda x: jquant.matmul_integer(jnp.ones((1, 1), jnp.int8), x), "b"),
        (lambda x: jquant.matmul_integer(jnp.ones((1, 1), jnp.int8), jnp.ones((1, 1), jnp.int8), x), "a_zero_point"),
        (lambda x: jquant.matmul_integer(jnp.ones((1, 1), jnp.int8), jnp.ones((1, 1), jnp.int8), 1, x), "b_zero_point"),
        (lambda x: jquant.clip(x, 0, 1), "input"),
        (lambda x: jquant.clip(jnp.ones(1), x, 1), "min"),
        (lambda x: jquant.clip(jnp.ones(1), 0, x), "max"),
        (lambda x: jquant.clip(jnp.ones(1), 0, 1, scale_bias=jquant.ScaleBias(x, 0)), "scale_bias.scale"),
        (lambda x: jquant.clip(jnp.ones(1), 0, 1, scale_bias=jquant.ScaleBias(1, x)), "scale_bias.bias"),
        (lambda x: jquant.quantized_linear_add(x, 1, 0, array(1), 1, 0, 1), "a"),
        (lambda x: jquant.quantized_linear_add(array(1), x, 0, array(1), 1, 0, 1), "a_scale"),
        (lambda x: jquant.quantized_linear_add(array(1), 1, x, array(1), 1, 0, 1), "a_zero_point"),
        (lambda x: jquant.quantized_linear_add(array(1), 1, 0, x, 1, 0, 1), "b"),
        (lambda x: jquant.quantized_linear_add(array(1), 1, 0, array(1), x, 0, 1), "b_scale"),
        (lambda x: jquant.quantized_linear_add(array(1), 1, 0, array(1), 1, x, 1), "b_zero_point"),
        (lambda x: jquant.quantized_linear_add(array(1), 1, 0, array(1), 1, 0, x), "output_scale"),
        (lambda x: jquant.quantized_linear_add(array(1), 1, 0, array(1), 1, 0, 1, x), "output_zero_point"),
        (lambda x: jquant.quantize(x, 0, 1, "qint8"), "input"),
        (lambda x: jquant.quantize(jnp.ones(1), x, 1, "qint8"), "min_range"),
        (lambda x: jquant.quantize(jnp.ones(1), 0, x, "qint8"), "max_range"),
        (lambda x: jquant.quantize(jnp.ones(1), 0, 1, "qint8", ensure_minimum_range=x), "ensure_minimum_range"),
    ],
)
def test_no_operand_is_narrowed(function, name):
    for value in (np.float64(1), np.int64(1)):
        with pytest.raises(
            DescriptorTypeError, match=f": {name} has data type {value.dtype.name.upper()}, which JAX narrows"
        ):
            function(value)


def test_64_bits_with_x64():
    with jax.enable_x64(True):
        limit = np.array([2**63 - 1, 5])
        assert jquant.clip(limit, 0).tolist() == limit.tolist()
        assert jquant.clip(limit.astype(np.uint64), 0).dtype == jnp.uint64
        with pytest.raises(DescriptorTypeError, match="input has data type FLOAT64; DML_FEATURE_LEVEL_6_4 allows"):
            jquant.clip(np.ones(2), 0)
        with pytest.raises(DescriptorTypeError, match="scale has data type FLOAT64; DML_FEATURE_LEVEL_6_4 allows"):
            jquant.dequantize_linear(array(1), np.float64(1))
        assert jquant.dequantize_linear(array(3), 0.5, 1).dtype == jnp.float32  # a Python scalar is float32 all the same


def test_objects_with_jax_array():
    x, scale, zero_point = (Wrapped(value) for value in (array(3), jnp.float32(2), jnp.uint8(1)))
    result = jquant.dequantize_linear(x, scale, zero_point)
    assert (result.dtype, result.tolist()) == (jnp.float32, [4.0])
    with pytest.raises(DescriptorTypeError, match="scale has data type UINT8"):
        jquant.dequantize_linear(x, zero_point)


def test_numpy_and_jax_arrays_alike():
    expected = jquant.dequantize_linear(array(1, 2, 250), jnp.float32(0.5), jnp.uint8(3))
    actual = jquant.dequantize_linear(np.array([1, 2, 250], np.uint8), np.float32(0.5), np.uint8(3))
    assert isinstance(actual, jax.Array)
    np.testing.assert_array_equal(actual, expected, strict=True)


def test_python_scalars_through_a_callers_jit():
    """Python scalars arrive as weakly typed arrays, and become floats as they would outside of jit."""
    function = jax.jit(lambda x, scale: jquant.dequantize_linear(x, scale))
    for scale in (0.5, 2):
        result = function(array(3), scale)
        assert (result.dtype, result.weak_type, result.tolist()) == (jnp.float32, False, [3 * scale])
    with pytest.raises(DescriptorTypeError, match="scale has data type INT32"):
        function(array(3), np.int32(2))


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x, zero_point: jquant.dequantize_linear(x, 1.0, zero_point), "zero_point"),
        (lambda x, zero_point: jquant.matmul_integer(x[None], x[:, None], zero_point), "a_zero_point"),
        (
            lambda x, zero_point: jquant.quantized_linear_add(x, 1.0, None, x, 1.0, None, 1.0, zero_point),
            "output_zero_point",
        ),
        (lambda x, zero_point: jquant.quantize_linear(x.astype(jnp.float32), 1.0, zero_point), "zero_point"),
    ],
)
def test_integers_through_a_callers_jit_are_int32(call, name):
    """The range of integers cannot be checked while tracing; the message says what to do."""
    function = jax.jit(call)
    function(array(3), np.uint8(2))
    text = f": {name} has data type INT32, but must have UINT8: a Python int becomes int32 in jnp.array and inside jax.jit"
    for zero_point in (2, jnp.asarray(2)):
        with pytest.raises(DescriptorTypeError, match=re.escape(text)):
            function(array(3), zero_point)
    with pytest.raises(DescriptorTypeError, match=f"{name} has data type INT32; (it must match the data type of|DML)"):
        function(array(3), np.int32(2))  # no Python int


def test_a_bias_through_a_callers_jit_is_int32():
    """The type that the specification demands of the bias, whatever the caller's default integer is."""
    function = jax.jit(lambda c: jquant.quantized_gemm(array(3)[None], 1.0, None, array(3)[None], 1.0, None, c, 1.0))
    assert function(7).tolist() == [[16]]


# Weakly typed arrays: scalars are Python's, and others are tensors of a dtype of their own.


def test_weakly_typed_numbers_of_other_kinds():
    """A complex number would lose its imaginary part."""
    text = "scale has data type COMPLEX64; DML_FEATURE_LEVEL_6_4 allows FLOAT32, FLOAT16"
    for function in (jquant.quantize_linear, jax.jit(jquant.quantize_linear)):
        with pytest.raises(DescriptorTypeError, match=text):
            function(jnp.ones(3), jnp.asarray(1j))
    with pytest.raises(DescriptorTypeError, match="min has data type COMPLEX64; it must be FLOAT32"):
        jax.jit(jquant.clip)(jnp.ones(3), 1j, 2.0)


def test_weakly_typed_tensors_are_not_narrowed():
    with jax.enable_x64(True):
        assert jquant.fake_quantize(np.ones(3, np.float32), jnp.asarray(-1.0), jnp.asarray(1.0)).dtype == jnp.float32
        with pytest.raises(DescriptorTypeError, match="input has data type FLOAT64; it must be FLOAT32"):
            jquant.fake_quantize(jnp.full((3,), 0.1), -1, 1)
        with pytest.raises(DescriptorTypeError, match="scale has data type FLOAT64"):
            jquant.quantize_linear(np.ones((6,), np.float32), jnp.full((6,), 1e-60), axis=0)
    half = jnp.ones((2, 2), jnp.float16)
    with pytest.raises(DescriptorTypeError, match="scale has data type FLOAT32, input has FLOAT16"):
        jquant.quantize_linear(half, jnp.full((2,), 0.1), axis=0)
    assert jquant.quantize_linear(half, jnp.asarray(0.1)).dtype == jnp.uint8


# Numbers that a type makes 0 of.


@pytest.mark.parametrize(
    ("dtype", "kept", "lost"),
    [
        ("float32", (1.2e-38, -1.2e-38, 0, -0.0), (1e-46, -1e-46, 1e-39, 5e-324)),
        ("bfloat16", (1.2e-38, 0.0), (1e-41, 1e-39)),
        ("float16", (6e-8, -1e-7, 0), (1e-8, -2e-8)),
    ],
)
def test_small_numbers(dtype, kept, lost):
    """A scale that becomes 0 would saturate everything in silence."""
    for value in kept:
        assert float(scalar(value, dtype)) == float(np.array(value, jnp.dtype(dtype)))
    for value in lost:
        with pytest.raises(DescriptorError) as raised:
            scalar(value, dtype)
        assert str(raised.value).startswith(
            f"OPERATOR: Tensor is {value!r}, which becomes 0: the smallest normal {dtype.upper()}"
        )


# Arrays that are no arrays of JAX's.


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.array([1.0], ">f4"), "has byte order '>f4'; convert it with .astype(np.float32)"),
        (np.array(1, ">i2"), "has byte order '>i2'; convert it with .astype(np.int16)"),
        (np.ma.array([1.0, 2.0], mask=[True, False], dtype=np.float32), "is a masked array; fill in the masked elements"),
        (np.array([None, 1]), "has data type object, which JAX does not support"),
        (np.array(["1"]), "has data type <U1, which JAX does not support"),
        (np.datetime64("2020-01-01"), "has data type datetime64[D], which JAX does not support"),
        (np.zeros(2, [("a", np.int8)]), "has data type [('a', 'i1')], which JAX does not support"),
        (jax.random.key(0), "is an array of key<fry>; it must be an array of numbers"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_arrays_that_jax_does_not_have(value, text):
    for dtype in (None, jnp.dtype("float32")):
        with pytest.raises(DescriptorTypeError) as raised:
            operand("OPERATOR", "Tensor", value, dtype)
        assert str(raised.value).startswith(f"OPERATOR: Tensor {text}")


def test_huge_integers():
    """Of more digits than Python prints, too."""
    for value in (10**400, -(10**400), 10**5000):
        for dtype in ("float32", "int8"):
            with pytest.raises(DescriptorError, match=rf"^OPERATOR: Tensor is .*, outside the range of {dtype.upper()}, \["):
                scalar(value, dtype)


# The types and shapes that follow.


def test_output_data_type():
    uint8, int8, int16 = map(jnp.dtype, ("uint8", "int8", "int16"))
    assert output_data_type(None, None, uint8) == uint8
    assert output_data_type(None, 5, uint8) == uint8
    assert output_data_type(None, np.int8(5), uint8) == int8
    assert output_data_type(None, jnp.int8(5), uint8) == int8
    assert output_data_type("INT16", np.int8(5), uint8) == int16
    assert output_data_type("qint8", None, uint8) == int8


def test_broadcast_shape():
    assert broadcast_shape((2, 1), (1, 3)) == (2, 3)
    assert broadcast_shape((2, 1), ()) == (2, 1)
    assert broadcast_shape((3,), (2,)) == (3,)
