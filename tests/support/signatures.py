"""Calls the operators of DirectML with abstract tensors, for tests of their tables of data types, ranks and shapes."""

import contextlib
import functools
import importlib
import inspect

import jax
import jax.numpy as jnp
import pytest

import jquant
from jquant import DescriptorError, FeatureLevel

OPERATORS = {  # the tensors, in the order of the function's arguments
    "dequantize_linear": ("InputTensor", "ScaleTensor", "ZeroPointTensor"),
    "quantize_linear": ("InputTensor", "ScaleTensor", "ZeroPointTensor"),
    "matmul_integer": ("ATensor", "BTensor", "AZeroPointTensor", "BZeroPointTensor"),
    "clip": ("InputTensor",),
    "clip1": ("InputTensor",),
    "clip_gradient": ("InputTensor", "InputGradientTensor"),
    "clip_gradient1": ("InputTensor", "InputGradientTensor"),
    "convolution_integer": ("InputTensor", "FilterTensor", "InputZeroPointTensor", "FilterZeroPointTensor"),
    "convolution_integer_to_float": (
        *("InputTensor", "InputScaleTensor", "InputZeroPointTensor"),
        *("FilterTensor", "FilterScaleTensor", "FilterZeroPointTensor", "BiasTensor"),
    ),
    "quantized_linear_convolution": (
        *("InputTensor", "InputScaleTensor", "InputZeroPointTensor"),
        *("FilterTensor", "FilterScaleTensor", "FilterZeroPointTensor"),
        *("OutputScaleTensor", "OutputZeroPointTensor", "BiasTensor"),
    ),
    "quantized_linear_add": (
        *("ATensor", "AScaleTensor", "AZeroPointTensor", "BTensor", "BScaleTensor", "BZeroPointTensor"),
        *("OutputScaleTensor", "OutputZeroPointTensor"),
    ),
    "quantized_linear_average_pool": (
        *("InputTensor", "InputScaleTensor", "InputZeroPointTensor", "OutputScaleTensor", "OutputZeroPointTensor"),
    ),
    "matmul_integer_to_float": (
        *("ATensor", "AScaleTensor", "AZeroPointTensor", "BTensor", "BScaleTensor", "BZeroPointTensor", "BiasTensor"),
    ),
    "quantized_linear_matmul": (
        *("ATensor", "AScaleTensor", "AZeroPointTensor", "BTensor", "BScaleTensor", "BZeroPointTensor"),
        *("OutputScaleTensor", "OutputZeroPointTensor"),
    ),
}
DOCUMENTS = {  # the operators' names in DirectML
    "dequantize_linear": "DML_ELEMENT_WISE_DEQUANTIZE_LINEAR",
    "quantize_linear": "DML_ELEMENT_WISE_QUANTIZE_LINEAR",
    "matmul_integer": "DML_MATRIX_MULTIPLY_INTEGER",
    "clip": "DML_ELEMENT_WISE_CLIP",
    "clip1": "DML_ELEMENT_WISE_CLIP1",
    "clip_gradient": "DML_ELEMENT_WISE_CLIP_GRAD",
    "clip_gradient1": "DML_ELEMENT_WISE_CLIP_GRAD1",
    "convolution_integer": "DML_CONVOLUTION_INTEGER",
    "quantized_linear_convolution": "DML_QUANTIZED_LINEAR_CONVOLUTION",
    "quantized_linear_add": "DML_ELEMENT_WISE_QUANTIZED_LINEAR_ADD",
    "quantized_linear_average_pool": "DML_QUANTIZED_LINEAR_AVERAGE_POOLING",
    "matmul_integer_to_float": "DML_MATRIX_MULTIPLY_INTEGER_TO_FLOAT",
    "quantized_linear_matmul": "DML_QUANTIZED_LINEAR_MATRIX_MULTIPLY",
}
PRODUCTS = ("matmul_integer", "matmul_integer_to_float", "quantized_linear_matmul")
NAMED_SIZES = (*PRODUCTS, "quantized_linear_average_pool")  # whose main tensors have named sizes, and are no scalars
CONVOLUTIONS = ("convolution_integer", "convolution_integer_to_float", "quantized_linear_convolution")
TAKE_OUTPUT_DTYPE = (
    *("dequantize_linear", "quantize_linear", "quantized_linear_add", "matmul_integer_to_float", "quantized_linear_matmul"),
    *("quantized_linear_average_pool", "convolution_integer_to_float", "quantized_linear_convolution"),
)
TAKE_BOUNDS = ("clip1", "clip_gradient", "clip_gradient1")
OUTPUTS = ("OutputTensor", "OutputGradientTensor")
MAIN = ("InputTensor", "ATensor", "BTensor", *OUTPUTS)  # all other tensors may have rank 0
# The same for convolutions, whose ranks depend on each other: tests/operators/test_convolution_integer.py varies them one
# by one.
MAIN_OF_CONVOLUTIONS = ("InputTensor", "FilterTensor", "BiasTensor", "OutputTensor")
DATA_TYPES = (
    *("bool", "int2", "int4", "int8", "int16", "int32", "int64"),
    *("uint2", "uint4", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64"),
)
DESCRIPTORS = {operator: importlib.import_module(f"jquant.operators.{operator}")._DESCRIPTOR for operator in OPERATORS}
f32, u8, i8 = jnp.float32, jnp.uint8, jnp.int8


def of(*shape, dtype=jnp.uint8):
    """An abstract tensor."""
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


def rows(operator, level):
    """The table's rows at `level`, by tensor; empty before the level that introduces the operator."""
    levels = DESCRIPTORS[operator].levels
    table = ()
    for step in FeatureLevel:
        table = levels.get(step, table)
        if step == level:
            return {row.name: row for row in table}
    raise AssertionError(level)


def shape(operator, name, rank):
    """A shape of `rank` dimensions, which the operator accepts if it accepts the rank."""
    if operator in CONVOLUTIONS:
        sizes = {"InputTensor": (2, 3, 5, 4, 3), "FilterTensor": (4, 3, 1, 1, 1), "OutputTensor": (2, 4, 5, 4, 3)}
        per_filter = (1, 4, 1, 1, 1, 1) if rank > 1 else (4,)
        return sizes.get(name, per_filter if name.startswith(("Filter", "Bias")) else (1,) * rank)[:rank]
    if operator not in PRODUCTS:
        return (2, 3, 1, 2, 1, 3, 1, 2, 1)[:rank] if name in MAIN else (1,) * rank
    m, k, n, batch = 2, 3, 4, (1, 1, 1, 1, 1, 5, 6)
    if name in MAIN:
        matrix = {"ATensor": (m, k), "BTensor": (k, n), "OutputTensor": (m, n)}[name]
        return (*batch, *matrix)[-rank:] if rank else ()
    last = (1, n) if name.startswith("B") else (m, 1)  # one per column of B and of the output, or per row of A
    first = 2 - rank if rank < 2 and last[0] == 1 else 0
    return (*(1,) * max(rank - 2, 0), *last[first:][:rank])


def valid(operator, level):
    """Tensors of the highest rank that the operator accepts at `level`."""

    def dtype(row):
        first = ["UINT8"] if row.name == "ATensor" else []  # which may also be of floats, but not beside a zero point
        return next(name.lower() for name in (*first, "FLOAT32", "UINT8", "INT32") if name in row.data_types.split())

    return {
        row.name: of(*shape(operator, row.name, row.ranks[1]), dtype=dtype(row)) for row in rows(operator, level).values()
    }


def result_of(tensors):
    """The shape and dtype of the output among `tensors`, which the operator must return."""
    output = tensors[output_of(tensors)]
    return output.shape, output.dtype


def output_of(tensors):
    """The name of the output."""
    return next(name for name in OUTPUTS if name in tensors)


def changed(tensors, *names, dtype):
    return tensors | {name: of(*tensors[name].shape, dtype=dtype) for name in names}


def public(operator, level, tensors):
    """The public function, with the options that these tensors need."""
    options = {"output_dtype": tensors["OutputTensor"].dtype} if operator in TAKE_OUTPUT_DTYPE else {}
    if operator in TAKE_BOUNDS:
        options |= {"min": 0, "max": 1}
    if operator == "quantized_linear_average_pool":
        options["window_sizes"] = (1,) * len(tensors["InputTensor"].shape[2:])
    return functools.partial(getattr(jquant, operator), feature_level=level, **options)


def call(operator, level, tensors):
    """The shape and dtype of the result of the public function, which is not computed."""
    function = public(operator, level, tensors)
    return jax.eval_shape(function, *[tensors[name] for name in OPERATORS[operator]])


def outcome(operator, level, tensors):
    """The shape and dtype of the result, or the type and message of the error."""
    try:
        result = call(operator, level, tensors)
    except DescriptorError as error:
        return type(error), str(error)
    return result.shape, result.dtype


@contextlib.contextmanager
def raises(text, error=DescriptorError):
    """Expects an error of exactly this type and message."""
    with pytest.raises(error) as raised:
        yield
    assert (type(raised.value), str(raised.value)) == (error, text)


def parameter(operator, name):
    """The parameter of the public function that takes a tensor."""
    parameters = inspect.signature(getattr(jquant, operator)).parameters
    return dict(zip(OPERATORS[operator], parameters, strict=False)).get(name, "the output")


def told(operator, subject, text, *tensors):
    """A message in full: about the parameter `subject`, and DirectML's names of the `tensors`."""
    document = DOCUMENTS.get(operator)
    end = f" ({' and '.join(tensors)} of {document})" if tensors else f" ({document})"
    return f"{operator}: {subject} {text}{end if document else ''}"


def told_of_type(operator, name, data_type, text, *others):
    """A message in full about a tensor's data type; that of the output is an argument of its own."""
    if name in OUTPUTS:
        return told(operator, "output_dtype", f"is {data_type}; {text}", name, *others)
    return told(operator, parameter(operator, name), f"has data type {data_type}; {text}", name, *others)


def level_name(level):
    return "FeatureLevel.EXTENDED" if level == FeatureLevel.EXTENDED else f"DML_FEATURE_LEVEL_{level}"


@pytest.fixture
def x64():
    """Enables 64-bit types, so that the operator's table rejects them, not JAX."""
    with jax.enable_x64(True):
        yield
