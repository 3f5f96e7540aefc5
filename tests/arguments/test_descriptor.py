"""The descriptors' checks, through the public functions: every row of every table, on both sides of its edge.

The rows come from the code here; conformance/test_tables.py compares them with the documents. What must follow
from them is worked out here once more, without the code that the functions use.
"""

import contextlib

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.sampling import one_in
from support.signatures import (
    CONVOLUTIONS,
    DATA_TYPES,
    DESCRIPTORS,
    MAIN,
    MAIN_OF_CONVOLUTIONS,
    NAMED_SIZES,
    OPERATORS,
    OUTPUTS,
    PRODUCTS,
    TAKE_OUTPUT_DTYPE,
    changed,
    f32,
    i8,
    level_name,
    of,
    outcome,
    output_of,
    parameter,
    public,
    result_of,
    rows,
    shape,
    told,
    told_of_type,
    u8,
    valid,
)
from support.signatures import x64 as x64

import jquant
from jquant import DescriptorError, DescriptorTypeError, FeatureLevel

SAME_DATA_TYPE = {
    "dequantize_linear": ({"InputTensor", "ZeroPointTensor"}, {"ScaleTensor", "OutputTensor"}),
    "quantize_linear": ({"InputTensor", "ScaleTensor"}, {"ZeroPointTensor", "OutputTensor"}),
    "matmul_integer": ({"ATensor", "AZeroPointTensor"}, {"BTensor", "BZeroPointTensor"}),
    "clip": ({"InputTensor", "OutputTensor"},),
    "clip1": ({"InputTensor", "OutputTensor"},),
    "clip_gradient": ({"InputTensor", "InputGradientTensor", "OutputGradientTensor"},),
    "clip_gradient1": ({"InputTensor", "InputGradientTensor", "OutputGradientTensor"},),
    "convolution_integer": ({"InputTensor", "InputZeroPointTensor"}, {"FilterTensor", "FilterZeroPointTensor"}),
    "convolution_integer_to_float": (
        *({"InputTensor", "InputZeroPointTensor"}, {"FilterTensor", "FilterZeroPointTensor"}),
        {"InputScaleTensor", "FilterScaleTensor", "BiasTensor", "OutputTensor"},
    ),
    "quantized_linear_convolution": (
        *({"InputTensor", "InputZeroPointTensor"}, {"FilterTensor", "FilterZeroPointTensor"}, {"InputScaleTensor"}),
        *({"FilterScaleTensor"}, {"OutputScaleTensor"}, {"OutputTensor", "OutputZeroPointTensor"}, {"BiasTensor"}),
    ),
    "quantized_linear_add": (
        *({"ATensor", "AZeroPointTensor"}, {"BTensor", "BZeroPointTensor"}, {"AScaleTensor"}, {"BScaleTensor"}),
        *({"OutputScaleTensor"}, {"OutputTensor", "OutputZeroPointTensor"}),
    ),
    "quantized_linear_average_pool": (
        *({"InputTensor", "InputZeroPointTensor"}, {"InputScaleTensor"}, {"OutputScaleTensor"}),
        {"OutputTensor", "OutputZeroPointTensor"},
    ),
    "matmul_integer_to_float": (
        *({"ATensor", "AZeroPointTensor"}, {"BTensor", "BZeroPointTensor"}),
        {"AScaleTensor", "BScaleTensor", "BiasTensor", "OutputTensor"},
    ),
    "quantized_linear_matmul": (
        *({"ATensor", "AZeroPointTensor"}, {"BTensor", "BZeroPointTensor"}, {"AScaleTensor"}, {"BScaleTensor"}),
        *({"OutputScaleTensor"}, {"OutputTensor", "OutputZeroPointTensor"}),
    ),
}
FLOATS = ("float32", "float16", "bfloat16")
MODELS = {  # whose data type a tensor must have, where a message names one of the two as the wrong one
    "dequantize_linear": {"ZeroPointTensor": "InputTensor"},
    "quantize_linear": {},
    "matmul_integer": {"AZeroPointTensor": "ATensor", "BZeroPointTensor": "BTensor"},
    "clip": {},
    "clip1": {},
    "clip_gradient": {"InputGradientTensor": "InputTensor"},
    "clip_gradient1": {"InputGradientTensor": "InputTensor"},
    "convolution_integer": {"InputZeroPointTensor": "InputTensor", "FilterZeroPointTensor": "FilterTensor"},
    "convolution_integer_to_float": {
        **{"InputZeroPointTensor": "InputTensor", "FilterZeroPointTensor": "FilterTensor"},
        **{"FilterScaleTensor": "InputScaleTensor", "BiasTensor": "InputScaleTensor"},
    },
    "quantized_linear_convolution": {
        **{"InputZeroPointTensor": "InputTensor", "FilterZeroPointTensor": "FilterTensor"},
        "OutputZeroPointTensor": "OutputTensor",
    },
    "quantized_linear_add": {
        **{"AZeroPointTensor": "ATensor", "BZeroPointTensor": "BTensor", "OutputZeroPointTensor": "OutputTensor"},
    },
    "quantized_linear_average_pool": {"InputZeroPointTensor": "InputTensor", "OutputZeroPointTensor": "OutputTensor"},
    "matmul_integer_to_float": {
        **{"AZeroPointTensor": "ATensor", "BZeroPointTensor": "BTensor"},
        **{"BScaleTensor": "AScaleTensor", "BiasTensor": "AScaleTensor"},
    },
    "quantized_linear_matmul": {
        **{"AZeroPointTensor": "ATensor", "BZeroPointTensor": "BTensor", "OutputZeroPointTensor": "OutputTensor"},
    },
}


def edges(operator):
    """The first and the last level of each row; after the last row, the latest level and jquant's own."""
    available = [level for level in FeatureLevel if rows(operator, level)]
    firsts = [level for level in available if level in DESCRIPTORS[operator].levels]
    lasts = [available[available.index(level) - 1] for level in firsts[1:]]
    return sorted({*firsts, *lasts, FeatureLevel.LATEST, FeatureLevel.EXTENDED})


def later_levels(level):
    return [later for later in FeatureLevel if later > level]


def from_level(levels, what):
    """The end of a message: the first of the later levels that allow the tensor."""
    return f"; {what} from {level_name(levels[0])} on" if levels else ""


def is_given(operator, name):
    """Whether the data type of a tensor is the caller's choice."""
    return name in OPERATORS[operator] or (name == "OutputTensor" and operator in TAKE_OUTPUT_DTYPE)


def tensors_where(holds, sample=1):
    """Parametrizes over the tensors of each row's first and last level; in everybody's suite, over one of `sample`."""
    cases = [
        (operator, level, name)
        for operator in OPERATORS
        for level in edges(operator)
        for name in rows(operator, level)
        if holds(operator, name)
    ]
    return one_in(sample, ("operator", "level", "name"), cases)


# The tables: data types, dimension counts, optional tensors, levels.


def type_name(dtype):
    """In a table: those of floats of 8 and 4 bits are ONNX's."""
    return dtype.upper().replace("FLOAT8_", "FLOAT8").replace("FLOAT4_E2M1FN", "FLOAT4E2M1")


def data_types(operator, level, name):
    names = rows(operator, level)[name].data_types.split()
    return [*names, "BFLOAT16"] if level == FeatureLevel.EXTENDED and "FLOAT16" in names else names


def of_the_same_data_type(operator, name, data_type):
    if (operator, name, data_type) == ("quantize_linear", "InputTensor", "int32"):
        return {name}  # beside FLOAT32 scales
    return next(same for same in SAME_DATA_TYPE[operator] if name in same)


@pytest.mark.usefixtures("x64")
@tensors_where(is_given, sample=3)
def test_data_types(operator, level, name):
    allowed = data_types(operator, level, name)
    got, expected = {}, {}
    for dtype in (*DATA_TYPES, "float8_e4m3fn", "float8_e5m2fnuz", "float4_e2m1fn"):
        type_ = type_name(dtype)
        if type_ in allowed:
            tensors = changed(valid(operator, level), *of_the_same_data_type(operator, name, dtype), dtype=dtype)
            if (operator, name) == ("matmul_integer_to_float", "ATensor") and dtype in FLOATS:
                tensors["AZeroPointTensor"] = None
            expected[dtype] = result_of(tensors)
        else:
            tensors = changed(valid(operator, level), name, dtype=dtype)
            right = [later for later in later_levels(level) if type_ in data_types(operator, later, name)]
            text = f"{level_name(level)} allows {', '.join(allowed)}{from_level(right, f'{type_} is allowed')}"
            models = [MODELS[operator][name]] if name in MODELS[operator] else []
            for model in models:
                model_type = tensors[model].dtype.name.upper()
                text = f"it must match the data type of {parameter(operator, model)}, {model_type}"
            expected[dtype] = DescriptorTypeError, told_of_type(operator, name, type_, text, *models)
        got[dtype] = outcome(operator, level, tensors)
    assert got == expected


def ranks(operator, level, name):
    low, high = rows(operator, level)[name].ranks
    return range(low, high + 1)


def goes_with_others(operator, name):
    """Whether a tensor of a convolution has the dimension count of others."""
    is_bias_of_floats = (operator, name) == ("convolution_integer_to_float", "BiasTensor")  # in the shapes of a scale
    return operator in CONVOLUTIONS and name in MAIN_OF_CONVOLUTIONS and not is_bias_of_floats


@tensors_where(lambda operator, name: not (name in OUTPUTS or goes_with_others(operator, name)))
def test_dimension_counts(operator, level, name):
    main = MAIN_OF_CONVOLUTIONS if operator in CONVOLUTIONS else MAIN
    allowed = ranks(operator, level, name)
    low, high = allowed[0], allowed[-1]
    may_be_scalar = not (operator in NAMED_SIZES and name in MAIN)
    got, expected = {}, {}
    for rank in sorted({0, low - 1, low, high, high + 1}):
        tensors = {other: of(dtype=tensor.dtype) for other, tensor in valid(operator, level).items()}
        for other in tensors.keys() & main:
            others = ranks(operator, level, other)
            nearest = min(max(rank, others[0]), others[-1])
            tensors[other] = of(*shape(operator, other, nearest), dtype=tensors[other].dtype)
        tensors[name] = of(*shape(operator, name, rank), dtype=tensors[name].dtype)
        if name == "InputTensor":
            output = output_of(tensors)
            tensors[output] = of(*tensors[name].shape, dtype=tensors[output].dtype)
        is_parameter = "Scale" in name or "ZeroPoint" in name
        is_one_element = is_parameter and set(tensors[name].shape) <= {1}  # whose rank makes no difference
        if rank in allowed or (rank == 0 and may_be_scalar) or is_one_element:
            expected[rank] = result_of(tensors)
        else:
            right = [later for later in later_levels(level) if rank in ranks(operator, later, name)]
            text = f"has rank {rank} (shape {tensors[name].shape}); {level_name(level)} allows {low}"
            text = f"{text} to {high}" if low < high else text
            text = f"{text}{from_level(right, f'{rank} is allowed')}"
            if name == "BiasTensor" and rank == 1:
                text = f"{text}; reshape it to (1, 4)"
            elif is_parameter and rank == 1:
                text = f"{text}; reshape it to (1, -1)"
            expected[rank] = DescriptorError, told(operator, parameter(operator, name), text, name)
        got[rank] = outcome(operator, level, tensors)
    assert got == expected


@tensors_where(lambda _, name: "ZeroPoint" in name or name == "BiasTensor")
def test_optional_tensors(operator, level, name):
    tensors = valid(operator, level)
    expected = result_of(tensors)
    if rows(operator, level)[name].kind != "Optional input":
        text = f"is None, but {level_name(level)} requires it; it may be None from DML_FEATURE_LEVEL_6_2 on"
        expected = DescriptorError, told(operator, parameter(operator, name), text, name)
    assert outcome(operator, level, {**tensors, name: None}) == expected


@pytest.mark.parametrize(
    ("operator", "level", "introduced"),
    [
        (operator, level, "2_1")
        for operator in ("matmul_integer", "quantized_linear_matmul", "convolution_integer", "quantized_linear_convolution")
        for level in ("1_0", "2_0")
    ]
    + [
        (operator, level, "6_2")
        for operator in ("matmul_integer_to_float", "convolution_integer_to_float", "quantized_linear_average_pool")
        for level in ("1_0", "5_2", "6_1")
    ]
    + [("quantized_linear_add", level, "4_0") for level in ("1_0", "2_0", "2_1", "3_0", "3_1")]
    + [("clip_gradient", level, "3_1") for level in ("1_0", "3_0")]
    + [(operator, level, "5_0") for operator in ("clip1", "clip_gradient1") for level in ("1_0", "4_1")],
)
def test_before_the_introduction(operator, level, introduced):
    text = f"is DML_FEATURE_LEVEL_{level}; the operator is available from DML_FEATURE_LEVEL_{introduced} on"
    expected = DescriptorError, told(operator, "feature_level", text)
    assert outcome(operator, level, valid(operator, FeatureLevel(introduced))) == expected


@pytest.mark.parametrize(
    ("operator", "level"),
    [(operator, level) for operator, descriptor in DESCRIPTORS.items() for level in descriptor.levels],
    ids=str,
)
def test_runs(operator, level):
    """What is accepted is also computed."""
    tensors = valid(operator, level)
    arguments = [jnp.ones(tensors[name].shape, tensors[name].dtype) for name in OPERATORS[operator]]
    result = public(operator, level, tensors)(*arguments)
    assert (result.shape, result.dtype) == result_of(tensors)


def test_extended():
    """bfloat16, exactly where a row has FLOAT16, and at no level of DirectML."""

    def accepted(level):
        bfloat16 = set()
        for operator, names in OPERATORS.items():
            for same in map(frozenset, SAME_DATA_TYPE[operator]):
                tensors = changed(valid(operator, FeatureLevel.LATEST), *same, dtype=jnp.bfloat16)
                if isinstance(outcome(operator, level, tensors)[1], np.dtype):
                    bfloat16 |= {(operator, name) for name in same & set(names)}
        return bfloat16

    assert accepted(FeatureLevel.LATEST) == set()
    assert accepted(FeatureLevel.EXTENDED) == {
        ("dequantize_linear", "ScaleTensor"),
        ("quantize_linear", "InputTensor"),
        ("quantize_linear", "ScaleTensor"),
        ("clip", "InputTensor"),
        ("clip1", "InputTensor"),
        *(("clip_gradient", name) for name in ("InputTensor", "InputGradientTensor")),
        *(("clip_gradient1", name) for name in ("InputTensor", "InputGradientTensor")),
        *(("matmul_integer_to_float", name) for name in ("AScaleTensor", "BScaleTensor", "BiasTensor")),
        *(("convolution_integer_to_float", name) for name in ("InputScaleTensor", "FilterScaleTensor", "BiasTensor")),
        *(("quantized_linear_matmul", name) for name in ("AScaleTensor", "BScaleTensor", "OutputScaleTensor")),
    }


def test_the_default_is_the_latest_level():
    with pytest.raises(DescriptorTypeError, match="DML_FEATURE_LEVEL_6_4 allows FLOAT32, FLOAT16"):
        jquant.dequantize_linear(jnp.ones(2, u8), jnp.ones(2, jnp.bfloat16))


@pytest.mark.parametrize("level", [FeatureLevel.LEVEL_2_1, "2_1", "DML_FEATURE_LEVEL_2_1"])
def test_spellings_of_a_level(level):
    with pytest.raises(DescriptorError, match="DML_FEATURE_LEVEL_2_1 allows 4"):
        jquant.clip(jnp.ones(2), feature_level=level)


def test_the_types_of_the_errors():
    assert issubclass(DescriptorError, ValueError)
    assert not issubclass(DescriptorError, TypeError)
    assert issubclass(DescriptorTypeError, DescriptorError)
    assert issubclass(DescriptorTypeError, TypeError)


# Constraints between tensors: data types.


@pytest.mark.parametrize(
    ("operator", "wrong", "one", "other"),
    [
        ("dequantize_linear", "ZeroPointTensor", "InputTensor", "ZeroPointTensor"),
        ("quantize_linear", "ZeroPointTensor", "ZeroPointTensor", "OutputTensor"),
        ("matmul_integer", "AZeroPointTensor", "ATensor", "AZeroPointTensor"),
        ("matmul_integer", "BZeroPointTensor", "BTensor", "BZeroPointTensor"),
        ("clip_gradient", "InputGradientTensor", "InputTensor", "InputGradientTensor"),
        ("clip_gradient1", "InputGradientTensor", "InputTensor", "InputGradientTensor"),
        ("quantized_linear_add", "AZeroPointTensor", "ATensor", "AZeroPointTensor"),
        ("quantized_linear_add", "BZeroPointTensor", "BTensor", "BZeroPointTensor"),
        ("quantized_linear_add", "OutputZeroPointTensor", "OutputTensor", "OutputZeroPointTensor"),
        ("quantized_linear_average_pool", "InputZeroPointTensor", "InputTensor", "InputZeroPointTensor"),
        ("quantized_linear_average_pool", "OutputZeroPointTensor", "OutputTensor", "OutputZeroPointTensor"),
        ("matmul_integer_to_float", "AZeroPointTensor", "ATensor", "AZeroPointTensor"),
        ("matmul_integer_to_float", "BZeroPointTensor", "BTensor", "BZeroPointTensor"),
        ("convolution_integer_to_float", "InputZeroPointTensor", "InputTensor", "InputZeroPointTensor"),
        ("convolution_integer_to_float", "FilterZeroPointTensor", "FilterTensor", "FilterZeroPointTensor"),
        ("quantized_linear_matmul", "AZeroPointTensor", "ATensor", "AZeroPointTensor"),
        ("quantized_linear_matmul", "BZeroPointTensor", "BTensor", "BZeroPointTensor"),
        ("quantized_linear_matmul", "OutputZeroPointTensor", "OutputTensor", "OutputZeroPointTensor"),
    ],
)
def test_same_data_type(operator, wrong, one, other):
    tensors = changed(valid(operator, FeatureLevel.LATEST), wrong, dtype=jnp.int8)
    text = f"it must match the data type of {parameter(operator, one)}, {tensors[one].dtype.name.upper()}"
    expected = told_of_type(operator, other, tensors[other].dtype.name.upper(), text, one)
    assert outcome(operator, FeatureLevel.LATEST, tensors) == (DescriptorTypeError, expected)


@pytest.mark.parametrize(
    ("operator", "wrong", "scale"),
    [
        *(("matmul_integer_to_float", wrong, "AScaleTensor") for wrong in ("BScaleTensor", "BiasTensor", "OutputTensor")),
        *(
            ("convolution_integer_to_float", wrong, "InputScaleTensor")
            for wrong in ("FilterScaleTensor", "BiasTensor", "OutputTensor")
        ),
        ("dequantize_linear", "OutputTensor", "ScaleTensor"),
    ],
)
def test_one_float_type(operator, wrong, scale):
    """The output's may differ from the scales' at jquant's own level."""
    tensors = changed(valid(operator, FeatureLevel.LATEST), wrong, dtype=jnp.float16)
    text = f"it must match the data type of {parameter(operator, scale)}, FLOAT32"
    text = told_of_type(operator, wrong, "FLOAT16", text, scale)
    kept = DescriptorTypeError, text
    if wrong == "OutputTensor":
        latest = DescriptorTypeError, text.replace("; it must", "; below FeatureLevel.EXTENDED it must")
        extended = result_of(tensors)
    else:
        latest = extended = kept
    assert outcome(operator, FeatureLevel.LATEST, tensors) == latest
    assert outcome(operator, FeatureLevel.EXTENDED, tensors) == extended


@pytest.mark.parametrize("operator", [*PRODUCTS, "quantized_linear_add"])
@pytest.mark.parametrize("a", [i8, u8])
@pytest.mark.parametrize("b", [i8, u8])
def test_a_and_b_may_differ_in_data_type(operator, a, b):
    tensors = changed(valid(operator, FeatureLevel.LATEST), "ATensor", "AZeroPointTensor", dtype=a)
    tensors = changed(tensors, "BTensor", "BZeroPointTensor", dtype=b)
    assert outcome(operator, FeatureLevel.LATEST, tensors) == result_of(tensors)


# Messages in full, as the user sees them.


def test_message_of_a_data_type():
    with pytest.raises(DescriptorTypeError) as raised:
        jquant.dequantize_linear(jnp.ones((1, 1, 1, 2), u8), jnp.ones((1, 1, 1, 2), jnp.float16), 0, feature_level="3_0")
    assert str(raised.value) == (
        "dequantize_linear: scale has data type FLOAT16; DML_FEATURE_LEVEL_3_0 allows FLOAT32; "
        "FLOAT16 is allowed from DML_FEATURE_LEVEL_6_0 on (ScaleTensor of DML_ELEMENT_WISE_DEQUANTIZE_LINEAR)"
    )


def test_message_of_a_dimension_count():
    with pytest.raises(DescriptorError) as raised:
        jquant.clip(jnp.ones((2, 3)), 0, 1, feature_level="2_1")
    assert str(raised.value) == (
        "clip: input has rank 2 (shape (2, 3)); DML_FEATURE_LEVEL_2_1 allows 4; "
        "2 is allowed from DML_FEATURE_LEVEL_3_0 on (InputTensor of DML_ELEMENT_WISE_CLIP)"
    )


def test_message_of_a_missing_tensor():
    with pytest.raises(DescriptorError) as raised:
        jquant.quantize_linear(jnp.ones((2, 3)), 0.5, feature_level="6_1")
    assert str(raised.value) == (
        "quantize_linear: zero_point is None, but DML_FEATURE_LEVEL_6_1 requires it; it may be None from "
        "DML_FEATURE_LEVEL_6_2 on (ZeroPointTensor of DML_ELEMENT_WISE_QUANTIZE_LINEAR)"
    )


# When the checks run.


BAD_CALLS = {  # each breaks a rule, but could be computed
    "dequantize_linear": lambda: jquant.dequantize_linear(np.ones((2, 3), u8), jnp.ones((2, 3)), feature_level="6_1"),
    "quantize_linear": lambda: jquant.quantize_linear(jnp.ones((2, 3)), 1.0, 1, feature_level="2_1"),
    "matmul_integer": lambda: jquant.matmul_integer(jnp.ones((2, 3), u8), jnp.ones((3, 4), i8), feature_level="2_0"),
    "clip": lambda: jquant.clip(jnp.ones((2, 3), u8), 0, 1, feature_level="1_0"),
    "quantized_linear_add": lambda: jquant.quantized_linear_add(
        jnp.ones(2, u8), 1, 0, jnp.ones(2, i8), 1, 0, np.ones(2, f32)
    ),
    "quantize": lambda: jquant.quantize(jnp.ones((2, 3)), 1, -1, "qint8"),
}


@contextlib.contextmanager
def asserts_disabled():
    chex.disable_asserts()
    try:
        yield
    finally:
        chex.enable_asserts()


@pytest.fixture
def no_asserts():
    with asserts_disabled():
        yield


@pytest.mark.parametrize("operator", BAD_CALLS)
def test_disable_asserts(operator):
    call = BAD_CALLS[operator]
    for _ in range(2):  # a verdict that is remembered is still a verdict
        with pytest.raises(DescriptorError):
            call()
    with asserts_disabled():
        call()
    with pytest.raises(DescriptorError):
        call()


def test_what_passed_unchecked_is_checked_afterwards():
    def call():
        return jquant.clip(jnp.ones((2, 3, 5, 7, 11)), 0, 1, feature_level="2_0")  # sizes of no other test

    with asserts_disabled():
        call()
    with pytest.raises(DescriptorError, match="input has rank 5"):
        call()


@pytest.mark.usefixtures("no_asserts")
@pytest.mark.parametrize("array", [np.array([1]), np.array([1.0]), np.float64(1), np.array([1], np.uint64)], ids=repr)
def test_nothing_is_narrowed_without_asserts_either(array):
    with pytest.raises(DescriptorTypeError, match=f"input has data type {array.dtype.name.upper()}, which JAX narrows"):
        jquant.clip(array, 0, 1)


@pytest.mark.usefixtures("no_asserts")
def test_scalars_are_in_range_without_asserts_either():
    with pytest.raises(DescriptorError, match="zero_point is 256, outside the range of UINT8"):
        jquant.dequantize_linear(jnp.ones(2, u8), 1.0, 256)


def test_while_tracing():
    @jax.jit
    def function(x):
        return jquant.clip(x, 0, 1, feature_level="2_1")

    function.lower(jnp.ones((1, 1, 2, 3)))
    with pytest.raises(DescriptorError, match="input has rank 2"):
        function.lower(jnp.ones((2, 3)))


def test_numpy_arrays_are_checked_alike():
    for module in (np, jnp):
        with pytest.raises(DescriptorError, match="scale has shape"):
            jquant.dequantize_linear(module.ones((2, 3), u8), module.ones(3, f32))
