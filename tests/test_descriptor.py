"""The descriptors' checks, through the public functions: every row of every table, on both sides of its edge.

The rows come from the code here; conformance/test_tables.py compares them with the documents. What must follow
from them is worked out here once more, without the code that the functions use.
"""

import contextlib
import functools
import importlib
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jquant
from jquant import DescriptorError, DescriptorTypeError, FeatureLevel

OPERATORS = {  # the tensors, in the order of the function's arguments
    "dequantize_linear": ("InputTensor", "ScaleTensor", "ZeroPointTensor"),
    "quantize_linear": ("InputTensor", "ScaleTensor", "ZeroPointTensor"),
    "matmul_integer": ("ATensor", "BTensor", "AZeroPointTensor", "BZeroPointTensor"),
    "clip": ("InputTensor",),
    "clip1": ("InputTensor",),
    "clip_gradient": ("InputTensor", "InputGradientTensor"),
    "clip_gradient1": ("InputTensor", "InputGradientTensor"),
    "convolution_integer": ("InputTensor", "FilterTensor", "InputZeroPointTensor", "FilterZeroPointTensor"),
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
PRODUCTS = ("matmul_integer", "matmul_integer_to_float", "quantized_linear_matmul")
NAMED_SIZES = (*PRODUCTS, "quantized_linear_average_pool")  # of the main tensors, which are no scalars then
CONVOLUTIONS = ("convolution_integer", "quantized_linear_convolution")
TAKE_OUTPUT_DTYPE = (
    *("dequantize_linear", "quantize_linear", "quantized_linear_add", "matmul_integer_to_float", "quantized_linear_matmul"),
    *("quantized_linear_average_pool", "quantized_linear_convolution"),
)
TAKE_BOUNDS = ("clip1", "clip_gradient", "clip_gradient1")
OUTPUTS = ("OutputTensor", "OutputGradientTensor")
MAIN = ("InputTensor", "ATensor", "BTensor", *OUTPUTS)  # the others may have rank 0 beside them
# The same for convolutions, whose dimension counts go together: tests/test_convolution.py changes them one by one.
MAIN_OF_CONVOLUTIONS = ("InputTensor", "FilterTensor", "BiasTensor", "OutputTensor")
SAME_DATA_TYPE = {
    "dequantize_linear": ({"InputTensor", "ZeroPointTensor"}, {"ScaleTensor", "OutputTensor"}),
    "quantize_linear": ({"InputTensor", "ScaleTensor"}, {"ZeroPointTensor", "OutputTensor"}),
    "matmul_integer": ({"ATensor", "AZeroPointTensor"}, {"BTensor", "BZeroPointTensor"}),
    "clip": ({"InputTensor", "OutputTensor"},),
    "clip1": ({"InputTensor", "OutputTensor"},),
    "clip_gradient": ({"InputTensor", "InputGradientTensor", "OutputGradientTensor"},),
    "clip_gradient1": ({"InputTensor", "InputGradientTensor", "OutputGradientTensor"},),
    "convolution_integer": ({"InputTensor", "InputZeroPointTensor"}, {"FilterTensor", "FilterZeroPointTensor"}),
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
MODELS = {  # whose data type a tensor must have, where a message names one of the two as the wrong one
    "dequantize_linear": {"ZeroPointTensor": "InputTensor"},
    "quantize_linear": {},
    "matmul_integer": {"AZeroPointTensor": "ATensor", "BZeroPointTensor": "BTensor"},
    "clip": {},
    "clip1": {},
    "clip_gradient": {"InputGradientTensor": "InputTensor"},
    "clip_gradient1": {"InputGradientTensor": "InputTensor"},
    "convolution_integer": {"InputZeroPointTensor": "InputTensor", "FilterZeroPointTensor": "FilterTensor"},
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
DATA_TYPES = (
    *("bool", "int2", "int4", "int8", "int16", "int32", "int64"),
    *("uint2", "uint4", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64"),
)
DESCRIPTORS = {operator: importlib.import_module(f"jquant.operators.{operator}")._DESCRIPTOR for operator in OPERATORS}

f32, u8, i8 = jnp.float32, jnp.uint8, jnp.int8


def of(*shape, dtype=jnp.uint8):
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


def rows(operator, level):
    """The rows that hold at `level`, by name; empty before the level of introduction."""
    levels = DESCRIPTORS[operator].levels
    found = ()
    for other in FeatureLevel:
        found = levels.get(other, found)
        if other == level:
            return {row.name: row for row in found}
    raise AssertionError(level)


def edges(operator):
    """The first and the last level of each row; after the last row, the latest level and jquant's own."""
    available = [level for level in FeatureLevel if rows(operator, level)]
    firsts = [level for level in available if level in DESCRIPTORS[operator].levels]
    lasts = [available[available.index(level) - 1] for level in firsts[1:]]
    return sorted({*firsts, *lasts, FeatureLevel.LATEST, FeatureLevel.EXTENDED})


def level_name(level):
    return "FeatureLevel.EXTENDED" if level == FeatureLevel.EXTENDED else f"DML_FEATURE_LEVEL_{level}"


def later_levels(level):
    return [later for later in FeatureLevel if later > level]


def from_level(levels, what):
    """How a message ends: with the first of the later levels that allow what was given."""
    return f"; {what} from {level_name(levels[0])} on" if levels else ""


def shape(operator, name, rank):
    """Sizes of a tensor: one that the operator accepts, if it accepts the rank."""
    if operator in CONVOLUTIONS:
        sizes = {"InputTensor": (2, 3, 5, 4, 3), "FilterTensor": (4, 3, 1, 1, 1), "OutputTensor": (2, 4, 5, 4, 3)}
        of_filters = (1, 4, 1, 1, 1, 1) if rank > 1 else (4,)
        return sizes.get(name, of_filters if name.startswith(("Filter", "Bias")) else (1,) * rank)[:rank]
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
    """Tensors that the operator accepts at `level`, of the largest rank."""

    def dtype(row):
        return next(name.lower() for name in ("FLOAT32", "UINT8", "INT32") if name in row.data_types.split())

    return {
        row.name: of(*shape(operator, row.name, row.ranks[1]), dtype=dtype(row)) for row in rows(operator, level).values()
    }


def result_of(tensors):
    """What an operator that accepts `tensors` must return."""
    output = tensors[output_of(tensors)]
    return output.shape, output.dtype


def output_of(tensors):
    """The name of the output."""
    return next(name for name in OUTPUTS if name in tensors)


def changed(tensors, *names, dtype):
    return tensors | {name: of(*tensors[name].shape, dtype=dtype) for name in names}


def public(operator, level, tensors):
    """The public function, for tensors such as these."""
    options = {"output_dtype": tensors["OutputTensor"].dtype} if operator in TAKE_OUTPUT_DTYPE else {}
    if operator in TAKE_BOUNDS:
        options |= {"min": 0, "max": 1}
    if operator == "quantized_linear_average_pool":
        options["window_sizes"] = (1,) * len(tensors["InputTensor"].shape[2:])
    return functools.partial(getattr(jquant, operator), feature_level=level, **options)


def call(operator, level, tensors):
    """The shape and dtype of what the public function returns, without computing it."""
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
def raises(text, kind=DescriptorError):
    """Expects an error of exactly this type and message."""
    with pytest.raises(kind) as raised:
        yield
    assert (type(raised.value), str(raised.value)) == (kind, text)


def is_given(operator, name):
    """Whether the data type of a tensor is the caller's choice."""
    return name in OPERATORS[operator] or (name == "OutputTensor" and operator in TAKE_OUTPUT_DTYPE)


def tensors_where(holds):
    """Parametrizes over the tensors of each row's first and last level."""
    cases = [
        pytest.param(operator, level, name, id=f"{operator}-{level}-{name}")
        for operator in OPERATORS
        for level in edges(operator)
        for name in rows(operator, level)
        if holds(operator, name)
    ]
    return pytest.mark.parametrize(("operator", "level", "name"), cases)


@pytest.fixture
def x64():
    """Makes 64-bit types possible, so that it is the table that rejects them."""
    with jax.enable_x64(True):
        yield


# The tables: data types, dimension counts, optional tensors, levels.


def data_types(operator, level, name):
    names = rows(operator, level)[name].data_types.split()
    return [*names, "BFLOAT16"] if level == FeatureLevel.EXTENDED and "FLOAT16" in names else names


def of_the_same_data_type(operator, name, data_type):
    if (operator, name, data_type) == ("quantize_linear", "InputTensor", "int32"):
        return {name}  # beside FLOAT32 scales
    return next(same for same in SAME_DATA_TYPE[operator] if name in same)


@pytest.mark.usefixtures("x64")
@tensors_where(is_given)
def test_data_types(operator, level, name):
    allowed = data_types(operator, level, name)
    got, expected = {}, {}
    for dtype in DATA_TYPES:
        given = dtype.upper()
        if given in allowed:
            tensors = changed(valid(operator, level), *of_the_same_data_type(operator, name, dtype), dtype=dtype)
            expected[dtype] = result_of(tensors)
        else:
            tensors = changed(valid(operator, level), name, dtype=dtype)
            right = [later for later in later_levels(level) if given in data_types(operator, later, name)]
            text = f"{level_name(level)} allows {', '.join(allowed)}{from_level(right, f'{given} is allowed')}"
            if name in MODELS[operator]:
                model = MODELS[operator][name]
                text = f"it must have that of {model}, {tensors[model].dtype.name.upper()}"
            text = f"{DESCRIPTORS[operator].operator}: {name} has data type {given}; {text}"
            expected[dtype] = DescriptorTypeError, text
        got[dtype] = outcome(operator, level, tensors)
    assert got == expected


def ranks(operator, level, name):
    low, high = rows(operator, level)[name].ranks
    return range(low, high + 1)


@tensors_where(
    lambda operator, name: (
        name not in OUTPUTS  # whose dimension count follows
        and not (operator in CONVOLUTIONS and name in MAIN_OF_CONVOLUTIONS)
    )
)
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
            text = f"{name} has {rank} dimensions, sizes {tensors[name].shape}; {level_name(level)} allows {low}"
            text = f"{text} to {high}" if low < high else text
            text = f"{DESCRIPTORS[operator].operator}: {text}{from_level(right, f'{rank} is allowed')}"
            if name == "BiasTensor" and rank == 1:
                text = f"{text}; reshape it to (1, 4)"
            elif is_parameter and rank == 1:
                text = f"{text}; reshape it to (1, -1)"
            expected[rank] = DescriptorError, text
        got[rank] = outcome(operator, level, tensors)
    assert got == expected


@tensors_where(lambda _, name: "ZeroPoint" in name or name == "BiasTensor")
def test_optional_tensors(operator, level, name):
    tensors = valid(operator, level)
    expected = result_of(tensors)
    if rows(operator, level)[name].kind != "Optional input":
        text = f"{DESCRIPTORS[operator].operator}: {name} is None, but {level_name(level)} requires it"
        expected = DescriptorError, f"{text}; it may be None from DML_FEATURE_LEVEL_6_2 on"
    assert outcome(operator, level, {**tensors, name: None}) == expected


@pytest.mark.parametrize(
    ("operator", "level", "introduced"),
    [
        (operator, level, "2_1")
        for operator in ("matmul_integer", "quantized_linear_matmul", *CONVOLUTIONS)
        for level in ("1_0", "2_0")
    ]
    + [
        (operator, level, "6_2")
        for operator in ("matmul_integer_to_float", "quantized_linear_average_pool")
        for level in ("1_0", "5_2", "6_1")
    ]
    + [("quantized_linear_add", level, "4_0") for level in ("1_0", "2_0", "2_1", "3_0", "3_1")]
    + [("clip_gradient", level, "3_1") for level in ("1_0", "3_0")]
    + [(operator, level, "5_0") for operator in ("clip1", "clip_gradient1") for level in ("1_0", "4_1")],
)
def test_before_the_introduction(operator, level, introduced):
    text = f"not available before DML_FEATURE_LEVEL_{introduced}; DML_FEATURE_LEVEL_{level} was given"
    expected = DescriptorError, f"{DESCRIPTORS[operator].operator}: {text}"
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
        found = set()
        for operator, names in OPERATORS.items():
            for same in map(frozenset, SAME_DATA_TYPE[operator]):
                tensors = changed(valid(operator, FeatureLevel.LATEST), *same, dtype=jnp.bfloat16)
                if isinstance(outcome(operator, level, tensors)[1], np.dtype):
                    found |= {(operator, name) for name in same & set(names)}
        return found

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
        ("quantized_linear_matmul", "AZeroPointTensor", "ATensor", "AZeroPointTensor"),
        ("quantized_linear_matmul", "BZeroPointTensor", "BTensor", "BZeroPointTensor"),
        ("quantized_linear_matmul", "OutputZeroPointTensor", "OutputTensor", "OutputZeroPointTensor"),
    ],
)
def test_same_data_type(operator, wrong, one, other):
    tensors = changed(valid(operator, FeatureLevel.LATEST), wrong, dtype=jnp.int8)
    text = f"has data type {tensors[other].dtype.name.upper()}; it must have that of {one}, "
    expected = f"{DESCRIPTORS[operator].operator}: {other} {text}{tensors[one].dtype.name.upper()}"
    assert outcome(operator, FeatureLevel.LATEST, tensors) == (DescriptorTypeError, expected)


@pytest.mark.parametrize(
    ("operator", "wrong", "scale"),
    [
        *(("matmul_integer_to_float", wrong, "AScaleTensor") for wrong in ("BScaleTensor", "BiasTensor", "OutputTensor")),
        ("dequantize_linear", "OutputTensor", "ScaleTensor"),
    ],
)
def test_one_float_type(operator, wrong, scale):
    """The output's may differ from the scales' at jquant's own level."""
    tensors = changed(valid(operator, FeatureLevel.LATEST), wrong, dtype=jnp.float16)
    text = f"{DESCRIPTORS[operator].operator}: {wrong} has data type FLOAT16; it must have that of {scale}, FLOAT32"
    kept = DescriptorTypeError, text
    if wrong == "OutputTensor":
        latest = DescriptorTypeError, f"{text}; they may differ from FeatureLevel.EXTENDED on"
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


@pytest.mark.parametrize(("input", "scale"), [("float32", "float16"), ("float16", "float32"), ("int32", "float16")])
def test_quantize_linear_scale_has_the_data_type_of_the_input(input, scale):
    """They may differ at jquant's own level, as in ONNX."""
    tensors = valid("quantize_linear", FeatureLevel.LATEST)
    tensors |= {"InputTensor": of(2, dtype=input), "ScaleTensor": of(2, dtype=scale), "ZeroPointTensor": None}
    tensors["OutputTensor"] = of(2)
    text = (
        f"ScaleTensor has data type {scale.upper()}, InputTensor {input.upper()}; they must be the same, or FLOAT32 beside"
    )
    expected = f"DML_ELEMENT_WISE_QUANTIZE_LINEAR: {text} INT32; they may differ from FeatureLevel.EXTENDED on"
    assert outcome("quantize_linear", FeatureLevel.LATEST, tensors) == (DescriptorTypeError, expected)
    assert outcome("quantize_linear", FeatureLevel.EXTENDED, tensors) == result_of(tensors)


# Constraints between tensors: sizes.


@pytest.mark.parametrize("tensor", ["ScaleTensor", "ZeroPointTensor"])
@pytest.mark.parametrize("operator", ["dequantize_linear", "quantize_linear"])
class TestAffineSizes:
    def outcome(self, operator, tensor, input, other):
        tensors = valid(operator, FeatureLevel.LATEST)
        tensors = {name: of(dtype=t.dtype) for name, t in tensors.items()}
        tensors["InputTensor"] = of(*input, dtype=tensors["InputTensor"].dtype)
        tensors[tensor] = of(*other, dtype=tensors[tensor].dtype)
        return outcome(operator, FeatureLevel.LATEST, tensors)

    @pytest.mark.parametrize(
        ("input", "other"),
        [
            ((2, 3), ()),
            ((2, 3), (1,)),
            ((2, 3), (1, 1)),
            ((2, 3), (1, 1, 1)),
            ((), (1,)),
            ((2, 3), (1, 3)),
            ((2, 3), (2, 1)),
            ((2, 3), (2, 3)),
            ((1, 3), (1, 1)),
            ((0, 3), (0, 3)),
            ((0, 3), (1, 3)),
            ((), ()),
            ((3,), (1,)),
            ((2, 1, 3, 1, 2, 1, 3, 1), (1, 1, 3, 1, 1, 1, 1, 1)),
        ],
        ids=str,
    )
    def test_accepted(self, operator, tensor, input, other):
        shape, dtype = self.outcome(operator, tensor, input, other)
        assert shape == input
        assert dtype == (f32 if operator == "dequantize_linear" else u8)

    @pytest.mark.parametrize(
        ("input", "other"),
        [
            ((2, 3), (4,)),
            ((3,), (1, 3)),
            ((2, 3), (1, 1, 3)),
            ((), (2,)),
            ((1, 3), (2, 3)),  # above the input's
            ((2, 1), (2, 3)),
            ((2, 3), (3, 3)),
            ((2, 3), (2, 2)),
            ((4, 3), (2, 3)),  # a divisor is no broadcast
            ((1, 3), (0, 3)),
            ((0, 3), (2, 3)),
        ],
        ids=str,
    )
    def test_rejected(self, operator, tensor, input, other):
        text = f"{tensor} has sizes {other}, InputTensor has {input}: the dimension counts must be the same, and each size"
        expected = f"{DESCRIPTORS[operator].operator}: {text} 1 or that of the output (a rank of 0 stands for one element)"
        assert self.outcome(operator, tensor, input, other) == (DescriptorError, expected)

    @pytest.mark.parametrize(
        ("input", "size", "ways"),
        [
            ((2, 3), 2, "dimension 0 pass axis=0, or shape (2, 1)"),
            ((2, 3), 3, "dimension 1 pass axis=1, or shape (1, 3)"),
            ((3, 3), 3, "dimension 0 pass axis=0, or shape (3, 1); of dimension 1 pass axis=1, or shape (1, 3)"),
        ],
    )
    def test_no_guess_at_an_axis(self, operator, tensor, input, size, ways):
        text = f"{tensor} has sizes ({size},), InputTensor has {input}: for a value for each index of {ways}"
        expected = DescriptorError, f"{DESCRIPTORS[operator].operator}: {text}"
        assert self.outcome(operator, tensor, input, (size,)) == expected


def add_outcome(level=FeatureLevel.LATEST, **shapes):
    tensors = valid("quantized_linear_add", FeatureLevel.LATEST)
    tensors = {name: of(*shapes.get(name, ()), dtype=tensor.dtype) for name, tensor in tensors.items()}
    return outcome("quantized_linear_add", level, tensors)


@pytest.mark.parametrize(
    ("a", "b", "output"),
    [
        ((2, 3), (2, 3), (2, 3)),
        ((2, 1), (1, 3), (2, 3)),
        ((2, 3), (1, 1), (2, 3)),
        ((1, 3), (2, 3), (2, 3)),
        ((2, 3), (), (2, 3)),
        ((), (2, 3), (2, 3)),
        ((), (), ()),
        ((1,), (0,), (0,)),
        ((2, 1, 2, 1, 2, 1, 2, 1), (1, 3, 1, 3, 1, 3, 1, 3), (2, 3, 2, 3, 2, 3, 2, 3)),
    ],
    ids=str,
)
def test_add_broadcasts_sizes_of_1(a, b, output):
    assert add_outcome(ATensor=a, BTensor=b) == (output, u8)


@pytest.mark.parametrize(
    ("a", "b", "named", "output"),
    [
        ((3,), (2,), "BTensor", (3,)),
        ((2, 3), (2,), "BTensor", (2, 3)),
        ((2, 3), (3, 3), "BTensor", (2, 3)),
        ((2,), (0,), "BTensor", (2,)),
    ],
    ids=str,
)
def test_add_broadcasts_nothing_else(a, b, named, output):
    sizes, other, to = (a, "BTensor", b) if named == "ATensor" else (b, "ATensor", a)
    text = f"{named} has sizes {sizes}, {other} has {to}: the dimension counts must be"
    text = f"{text} the same, and each size 1 or that of the output (a rank of 0 stands for one element)"
    expected = DescriptorError, f"DML_ELEMENT_WISE_QUANTIZED_LINEAR_ADD: {text}"
    assert add_outcome(ATensor=a, BTensor=b) == expected
    assert add_outcome("EXTENDED", ATensor=a, BTensor=b) == expected


@pytest.mark.parametrize(
    ("a", "b", "output", "aligned"),
    [
        ((2, 3), (3,), (2, 3), "BTensor has sizes (3,), ATensor has (2, 3)"),
        ((3,), (2, 3), (2, 3), "ATensor has sizes (3,), BTensor has (2, 3)"),
        ((1,), (2, 3), (2, 3), "ATensor has sizes (1,), BTensor has (2, 3)"),
        ((2, 3), (5, 1, 3), (5, 2, 3), "ATensor has sizes (2, 3), OutputTensor has (5, 2, 3)"),
    ],
    ids=str,
)
def test_add_aligns_ranks_at_jquants_own_level(a, b, output, aligned):
    assert add_outcome("EXTENDED", ATensor=a, BTensor=b) == (output, u8)
    shorter = min(a, b, key=len)
    text = f"{aligned}: the dimension counts must be the same, and each size 1 or that of the output (a rank of 0 stands"
    remedy = f"reshape it to {(1,) * (len(output) - len(shorter)) + shorter}, or take FeatureLevel.EXTENDED, which aligns"
    expected = f"DML_ELEMENT_WISE_QUANTIZED_LINEAR_ADD: {text} for one element); {remedy} ranks as NumPy does"
    assert add_outcome(ATensor=a, BTensor=b) == (DescriptorError, expected)


@pytest.mark.parametrize("tensor", [name for name in OPERATORS["quantized_linear_add"] if name not in MAIN])
class TestAddScalesAndZeroPoints:
    @pytest.mark.parametrize("sizes", [(), (1,), (1, 1), (1, 1, 1)], ids=str)
    def test_one_element(self, tensor, sizes):
        assert add_outcome(ATensor=(2, 3), BTensor=(2, 3), **{tensor: sizes}) == ((2, 3), u8)

    @pytest.mark.parametrize("sizes", [(3,), (2,), (1, 3), (2, 1), (2, 3), (1, 0)], ids=str)
    def test_more_or_fewer(self, tensor, sizes):
        expected = f"DML_ELEMENT_WISE_QUANTIZED_LINEAR_ADD: {tensor} has sizes {sizes}, but must have 1 element"
        assert add_outcome(ATensor=(2, 3), BTensor=(2, 3), **{tensor: sizes}) == (DescriptorError, expected)


class TestMatmulSizes:
    def outcome(self, a, b, a_zero_point=None, b_zero_point=None, level="6_4"):
        tensors = {"ATensor": of(*a), "BTensor": of(*b)}
        tensors["AZeroPointTensor"] = None if a_zero_point is None else of(*a_zero_point)
        tensors["BZeroPointTensor"] = None if b_zero_point is None else of(*b_zero_point)
        return outcome("matmul_integer", level, tensors)

    @pytest.mark.parametrize(
        ("a", "b", "output"),
        [
            ((2, 3), (3, 4), (2, 4)),
            ((5, 2, 3), (5, 3, 4), (5, 2, 4)),
            ((1, 2, 3), (5, 3, 4), (5, 2, 4)),
            ((5, 2, 3), (1, 3, 4), (5, 2, 4)),
            ((5, 6, 2, 3), (5, 6, 3, 4), (5, 6, 2, 4)),
            ((5, 1, 2, 3), (1, 6, 3, 4), (5, 6, 2, 4)),
            ((1, 6, 2, 3), (5, 1, 3, 4), (5, 6, 2, 4)),
            ((2, 0), (0, 4), (2, 4)),
            ((0, 3), (3, 4), (0, 4)),
            ((1, 2, 3), (0, 3, 4), (0, 2, 4)),
        ],
        ids=str,
    )
    def test_accepted(self, a, b, output):
        assert self.outcome(a, b) == (output, jnp.int32)

    @pytest.mark.parametrize(
        ("a", "b", "text"),
        [
            ((2, 3), (4, 3), "dimension 0 of BTensor, sizes (4, 3), must be 3: K is 3 in ATensor"),
            ((2, 1), (3, 4), "dimension 0 of BTensor, sizes (3, 4), must be 1: K is 1 in ATensor"),
            ((2, 3), (1, 4), "dimension 0 of BTensor, sizes (1, 4), must be 3: K is 3 in ATensor"),
            ((5, 2, 3), (5, 4, 4), "dimension 1 of BTensor, sizes (5, 4, 4), must be 3: K is 3 in ATensor"),
            ((5, 6, 2, 3), (5, 6, 4, 4), "dimension 2 of BTensor, sizes (5, 6, 4, 4), must be 3: K is 3 in ATensor"),
        ],
        ids=str,
    )
    def test_rejected(self, a, b, text):
        for level in ("6_4", "EXTENDED"):
            assert self.outcome(a, b, level=level) == (DescriptorError, f"DML_MATRIX_MULTIPLY_INTEGER: {text}")

    @pytest.mark.parametrize(
        ("a", "b", "output", "remedy"),
        [
            ((2, 3), (5, 3, 4), (5, 2, 4), "ATensor to (1, 2, 3)"),
            ((5, 2, 3), (3, 4), (5, 2, 4), "BTensor to (1, 3, 4)"),
            ((1, 5, 2, 3), (5, 3, 4), (1, 5, 2, 4), "BTensor to (1, 5, 3, 4)"),
            ((6, 5, 2, 3), (3, 4), (6, 5, 2, 4), "BTensor to (1, 1, 3, 4)"),
        ],
        ids=str,
    )
    def test_ranks_align_at_jquants_own_level(self, a, b, output, remedy):
        text = f"ATensor has sizes {a}, BTensor has {b}: the dimension counts must be the same; reshape {remedy}, or take"
        text = f"DML_MATRIX_MULTIPLY_INTEGER: {text} FeatureLevel.EXTENDED, which aligns ranks as NumPy does"
        assert self.outcome(a, b) == (DescriptorError, text)
        assert self.outcome(a, b, level="EXTENDED") == (output, jnp.int32)

    @pytest.mark.parametrize(
        ("a", "b", "text"),
        [
            ((5, 2, 3), (6, 3, 4), "dimension 0 of BTensor, sizes (6, 3, 4), must be "),
            ((5, 6, 2, 3), (7, 6, 3, 4), "dimension 0 of BTensor, sizes (7, 6, 3, 4), must be "),
            ((5, 6, 2, 3), (5, 7, 3, 4), "dimension 1 of BTensor, sizes (5, 7, 3, 4), must be "),
            ((5, 6, 2, 3), (1, 7, 3, 4), "dimension 1 of BTensor, sizes (1, 7, 3, 4), must be "),
            ((5, 2, 3), (0, 3, 4), "dimension 0 of BTensor, sizes (0, 3, 4), must be "),
        ],
        ids=str,
    )
    def test_batches(self, a, b, text):
        kind, message = self.outcome(a, b)
        assert kind is DescriptorError
        assert message.startswith(f"DML_MATRIX_MULTIPLY_INTEGER: {text}")

    def test_batches_broadcast_from_the_first_level_on(self):
        assert self.outcome((5, 1, 2, 3), (1, 6, 3, 4), level="2_1") == ((5, 6, 2, 4), jnp.int32)

    @pytest.mark.parametrize("a", [(2, 3), (5, 2, 3), (5, 6, 2, 3)], ids=str)
    @pytest.mark.parametrize("sizes", [(), (1,), (2,), (1, 1), (2, 1), (1, 2, 1), (1, 1, 1, 1), (1, 1, 2, 1)], ids=str)
    def test_a_zero_point(self, a, sizes):
        """Per tensor or per row, in a rank of its own; a vector is per row."""
        assert self.outcome(a, (*a[:-2], 3, 4), sizes) == ((*a[:-1], 4), jnp.int32)

    @pytest.mark.parametrize("b", [(3, 4), (5, 3, 4), (5, 6, 3, 4)], ids=str)
    @pytest.mark.parametrize("sizes", [(), (1,), (4,), (1, 1), (1, 4), (1, 1, 4), (1, 1, 1, 1), (1, 1, 1, 4)], ids=str)
    def test_b_zero_point(self, b, sizes):
        """Per tensor or per column, in a rank of its own."""
        assert self.outcome((*b[:-2], 2, 3), b, None, sizes) == ((*b[:-2], 2, 4), jnp.int32)

    @pytest.mark.parametrize(
        ("sizes", "axis", "text"),
        [
            ((1, 2), 1, "must be 1: the sizes are (AZeroPointCount, 1)"),
            ((2, 2), 1, "must be 1: the sizes are (AZeroPointCount, 1)"),
            ((3,), 0, "must be 1 or 2: AZeroPointCount is 1 or M, which is 2 in ATensor"),
            ((0,), 0, "must be 1 or 2: AZeroPointCount is 1 or M, which is 2 in ATensor"),
            ((4, 1), 0, "must be 1 or 2: AZeroPointCount is 1 or M, which is 2 in ATensor"),
            ((5, 2, 1), 0, "must be 1: the sizes are (1, AZeroPointCount, 1)"),  # batches come through vmap
            ((1, 1, 2), 2, "must be 1: the sizes are (1, AZeroPointCount, 1)"),
            ((5, 1, 2, 1), 0, "must be 1: the sizes are (1, 1, AZeroPointCount, 1)"),
            ((1, 6, 2, 1), 1, "must be 1: the sizes are (1, 1, AZeroPointCount, 1)"),
            ((1, 1, 1, 2), 3, "must be 1: the sizes are (1, 1, AZeroPointCount, 1)"),
        ],
        ids=str,
    )
    def test_wrong_a_zero_point(self, sizes, axis, text):
        expected = f"DML_MATRIX_MULTIPLY_INTEGER: dimension {axis} of AZeroPointTensor, sizes {sizes}, {text}"
        assert self.outcome((5, 6, 2, 3), (5, 6, 3, 4), sizes) == (DescriptorError, expected)

    @pytest.mark.parametrize(
        ("sizes", "axis", "text"),
        [
            ((4, 1), 0, "must be 1: the sizes are (1, BZeroPointCount)"),
            ((4, 4), 0, "must be 1: the sizes are (1, BZeroPointCount)"),
            ((3,), 0, "must be 1 or 4: BZeroPointCount is 1 or N, which is 4 in BTensor"),
            ((2,), 0, "must be 1 or 4: BZeroPointCount is 1 or N, which is 4 in BTensor"),
            ((1, 3), 1, "must be 1 or 4: BZeroPointCount is 1 or N, which is 4 in BTensor"),
            ((5, 1, 4), 0, "must be 1: the sizes are (1, 1, BZeroPointCount)"),
            ((1, 4, 1), 1, "must be 1: the sizes are (1, 1, BZeroPointCount)"),
            ((5, 1, 1, 4), 0, "must be 1: the sizes are (1, 1, 1, BZeroPointCount)"),
            ((1, 6, 1, 4), 1, "must be 1: the sizes are (1, 1, 1, BZeroPointCount)"),
            ((1, 1, 4, 1), 2, "must be 1: the sizes are (1, 1, 1, BZeroPointCount)"),
        ],
        ids=str,
    )
    def test_wrong_b_zero_point(self, sizes, axis, text):
        expected = f"DML_MATRIX_MULTIPLY_INTEGER: dimension {axis} of BZeroPointTensor, sizes {sizes}, {text}"
        assert self.outcome((5, 6, 2, 3), (5, 6, 3, 4), None, sizes) == (DescriptorError, expected)

    @pytest.mark.parametrize("level", ["4_0", "5_1"])
    def test_b_zero_point_before_5_2(self, level):
        text = f"BZeroPointTensor has 1 dimensions, sizes (4,); DML_FEATURE_LEVEL_{level} allows 2 to 4"
        text = f"{text}; 1 is allowed from DML_FEATURE_LEVEL_5_2 on; reshape it to (1, -1)"
        expected = f"DML_MATRIX_MULTIPLY_INTEGER: {text}"
        assert self.outcome((2, 3), (3, 4), None, (4,), level=level) == (DescriptorError, expected)
        assert self.outcome((2, 3), (3, 4), None, (1, 4), level=level) == ((2, 4), jnp.int32)
        assert self.outcome((2, 3), (3, 4), None, (4,), level="5_2") == ((2, 4), jnp.int32)
        assert self.outcome((2, 3), (3, 4), (2,), None, level=level) == ((2, 4), jnp.int32)  # A's was never forbidden

    def test_counts_follow_the_matrix(self):
        """AZeroPointCount is M, not K or N; BZeroPointCount is N."""
        assert self.outcome((7, 3), (3, 4), (7,), (4,)) == ((7, 4), jnp.int32)
        assert self.outcome((7, 3), (3, 4), (3,))[0] is DescriptorError
        assert self.outcome((7, 3), (3, 4), None, (7,))[0] is DescriptorError


@pytest.mark.parametrize("operator", ["matmul_integer_to_float", "quantized_linear_matmul"])
class TestFusedSizes:
    def outcome(self, operator, **shapes):
        tensors = {name: of(dtype=tensor.dtype) for name, tensor in valid(operator, FeatureLevel.LATEST).items()}
        shapes = {"ATensor": (2, 3), "BTensor": (3, 4), **shapes}
        tensors |= {name: of(*sizes, dtype=tensors[name].dtype) for name, sizes in shapes.items()}
        return outcome(operator, FeatureLevel.LATEST, tensors)

    def dtype(self, operator):
        return f32 if operator == "matmul_integer_to_float" else u8

    def vectors(self, operator):
        """The scales and zero points, and the size that they may have besides 1."""
        names = [name for name in OPERATORS[operator] if name not in (*MAIN, "BiasTensor")]
        return [(name, 4 if name.startswith("B") else 2) for name in names]

    def test_a_vector_is_per_row_of_a_and_of_the_output_and_per_column_of_b(self, operator):
        for name, size in self.vectors(operator):
            assert self.outcome(operator, **{name: (size,)}) == ((2, 4), self.dtype(operator))
            expected = f"dimension 0 of {name}, sizes ({6 - size},), must be 1 or {size}: "
            kind, message = self.outcome(operator, **{name: (6 - size,)})
            assert kind is DescriptorError
            assert message.startswith(f"{DESCRIPTORS[operator].operator}: {expected}")

    def test_one_dimension_count(self, operator):
        """Scales and zero points have one dimension count, but for scalars."""
        names = [name for name, _ in self.vectors(operator)]
        for one, other in itertools.pairwise(names):
            for sizes in ((), (1,), (1, 1), (1, 1, 1, 1)):  # one element has no dimensions
                assert self.outcome(operator, **{one: (1,), other: sizes}) == ((2, 4), self.dtype(operator))
            sizes = (1, 4) if one.startswith("B") else (2, 1)
            vector = (4,) if other.startswith("B") else (2,)
            text = f"{one} has sizes {sizes}, {other} has {vector}: the dimension counts must be the same"
            expected = DescriptorError, f"{DESCRIPTORS[operator].operator}: {text}"
            assert self.outcome(operator, **{one: sizes, other: vector}) == expected


@pytest.mark.parametrize("sizes", [(), (1, 1), (2, 1), (1, 4), (2, 4)], ids=str)
def test_bias(sizes):
    assert TestFusedSizes().outcome("matmul_integer_to_float", BiasTensor=sizes) == ((2, 4), f32)


@pytest.mark.parametrize("sizes", [(4, 1), (1, 2), (3, 4), (1, 1, 4)], ids=str)
def test_wrong_bias(sizes):
    text = f"BiasTensor has sizes {sizes}, OutputTensor has (2, 4): the dimension counts must be the same, and each size"
    text = f"{text} 1 or that of the output (a rank of 0 stands for one element)"
    expected = DescriptorError, f"DML_MATRIX_MULTIPLY_INTEGER_TO_FLOAT: {text}"
    assert TestFusedSizes().outcome("matmul_integer_to_float", BiasTensor=sizes) == expected


# Arguments that are no tensors of the tables.


def test_matmul_implementation():
    a, b = jnp.ones((2, 3), u8), jnp.ones((3, 4), i8)
    with pytest.raises(ValueError, match=r"^unknown implementation 'tpu'; choose one of xla, mosaic_tpu, mosaic_gpu$"):
        jquant.matmul_integer(a, b, implementation="tpu")


@pytest.mark.parametrize("name", ["Min", "Max", "ScaleBias.Scale", "ScaleBias.Bias"])
class TestClipBounds:
    def clip(self, name, value):
        floats = {"Min": 0.0, "Max": 1.0, "ScaleBias.Scale": 1.0, "ScaleBias.Bias": 0.0, name: value}
        scale_bias = jquant.ScaleBias(floats["ScaleBias.Scale"], floats["ScaleBias.Bias"])
        return jquant.clip(jnp.ones(2, jnp.float16), floats["Min"], floats["Max"], scale_bias=scale_bias)

    @pytest.mark.parametrize("value", [0, 1.5, np.float32(1), jnp.float32(1), np.zeros((), np.float32)], ids=repr)
    def test_accepted(self, name, value):
        assert self.clip(name, value).dtype == jnp.float16

    @pytest.mark.parametrize("sizes", [(1,), (1, 1)], ids=str)
    def test_one_element(self, name, sizes):
        assert self.clip(name, jnp.zeros(sizes, f32)).shape == (2,)

    @pytest.mark.parametrize("sizes", [(2,), (1, 2), (0,)], ids=str)
    def test_one_element_only(self, name, sizes):
        with raises(f"DML_ELEMENT_WISE_CLIP: {name} has sizes {sizes}, but must have 1 element"):
            self.clip(name, jnp.zeros(sizes, f32))

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32", "uint8", "bool", "complex64"])
    def test_floats_only(self, name, dtype):
        with raises(f"DML_ELEMENT_WISE_CLIP: {name} has data type {dtype.upper()}, but is a FLOAT", DescriptorTypeError):
            self.clip(name, jnp.zeros((), dtype))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_scale_bias_is_for_floats(dtype):
    x = jnp.ones(2, dtype)
    assert jquant.clip(x, 0, 1).dtype == x.dtype
    text = f"ScaleBias is defined for float types; InputTensor has data type {dtype.upper()}"
    with raises(f"DML_ELEMENT_WISE_CLIP: {text}", DescriptorTypeError):
        jquant.clip(x, 0, 1, scale_bias=jquant.ScaleBias(2, 1))


def wrong_axis(axis, rank):
    """Of TensorFlow's operators."""
    return (
        f"axis is {axis}; it must be a dimension of the input, from 0 to {rank - 1}, or None (a negative axis means none to "
        "TensorFlow, and counts from the end elsewhere, so that it raises here)"
    )


@pytest.mark.parametrize("operator", ["dequantize_linear", "quantize_linear"])
class TestAxis:
    def outcome(self, operator, axis, scale=(), zero_point=None, block_size=None):
        input, output = (u8, f32) if operator == "dequantize_linear" else (f32, u8)
        tensors = [of(2, 3, 4, dtype=input), of(*scale, dtype=f32), None if zero_point is None else of(*zero_point)]
        function = functools.partial(getattr(jquant, operator), axis=axis, block_size=block_size)
        try:
            result = jax.eval_shape(function, *tensors)
        except DescriptorError as error:
            return type(error), str(error)
        assert (result.shape, result.dtype) == ((2, 3, 4), output)
        return "accepted"

    def error(self, operator, text):
        return DescriptorError, f"{DESCRIPTORS[operator].operator}: {text}"

    @pytest.mark.parametrize(("axis", "size"), [(0, 2), (1, 3), (2, 4)])
    def test_accepted(self, operator, axis, size):
        for scale in ((), (1,), (size,)):
            for zero_point in (None, (), (1,), (size,)):
                assert self.outcome(operator, axis, scale, zero_point) == "accepted"
                assert self.outcome(operator, axis - 3, scale, zero_point) == "accepted"

    @pytest.mark.parametrize("axis", [-5, -4, 3, 4])
    def test_is_a_dimension(self, operator, axis):
        text = f"axis is {axis}; it must be a dimension of the input, from -3 to 2, or None"
        expected = self.error(operator, text)
        assert self.outcome(operator, axis) == self.outcome(operator, axis, block_size=2) == expected

    @pytest.mark.parametrize("sizes", [(1, 3), (1, 3, 1)], ids=str)
    def test_vectors_only(self, operator, sizes):
        text = f"Tensor has {len(sizes)} dimensions, sizes {sizes}; with axis=1 and no block_size it must have 1, of size 3"
        text = f"{text}: InputTensor has shape (2, 3, 4)"
        assert self.outcome(operator, 1, sizes) == self.error(operator, f"Scale{text}")
        assert self.outcome(operator, 1, (), sizes) == self.error(operator, f"ZeroPoint{text}")

    @pytest.mark.parametrize("axis", [0, 1])
    def test_size_along_the_axis(self, operator, axis):
        text = f"Tensor has 1 dimensions, sizes (4,); with axis={axis} and no block_size it must have 1, of size {2 + axis}"
        text = f"{text}: InputTensor has shape (2, 3, 4)"
        assert self.outcome(operator, axis, (4,)) == self.error(operator, f"Scale{text}")
        assert self.outcome(operator, axis, (), (4,)) == self.error(operator, f"ZeroPoint{text}")

    def test_none_is_none(self, operator):
        assert self.outcome(operator, None, (4,))[0] is DescriptorError
        assert self.outcome(operator, None, (1, 1, 4)) == "accepted"

    @pytest.mark.parametrize(
        ("axis", "block_size", "sizes"),
        [
            *((2, block_size, (2, 3, blocks)) for block_size, blocks in ((1, 4), (2, 2), (3, 2), (4, 1), (5, 1), (99, 1))),
            *((1, block_size, (2, blocks, 4)) for block_size, blocks in ((1, 3), (2, 2), (3, 1))),
            (0, 2, (1, 3, 4)),
            (1, 2, (1, 2, 4)),
            (1, 2, (1, 2, 1)),
        ],
    )
    def test_blocks(self, operator, axis, block_size, sizes):
        for scale, zero_point in ((sizes, None), (sizes, ()), (sizes, sizes), ((), sizes)):
            assert self.outcome(operator, axis, scale, zero_point, block_size) == "accepted"

    @pytest.mark.parametrize("sizes", [(2,), (3,), (2, 2), (2, 3), (2, 1, 4), (2, 3, 4), (2, 0, 4), (1, 2, 2, 4)], ids=str)
    def test_wrong_number_of_blocks(self, operator, sizes):
        text = (
            f"Tensor has {len(sizes)} dimensions, sizes {sizes}; with axis=1 and block_size=2 it must have 3, and a size of"
        )
        there = "2 there: InputTensor has shape (2, 3, 4)"
        assert self.outcome(operator, 1, sizes, None, 2) == self.error(operator, f"Scale{text} {there}")
        assert self.outcome(operator, 1, (), sizes, 2) == self.error(operator, f"ZeroPoint{text} {there}")

    @pytest.mark.parametrize("sizes", [(3, 2, 4), (2, 2, 3), (0, 2, 4), (2, 2, 2)], ids=str)
    def test_other_sizes_beside_blocks(self, operator, sizes):
        """The message names the sizes that are covered."""
        covered = sizes[0], 3, sizes[2]
        text = f"ScaleTensor has sizes {covered}, InputTensor has (2, 3, 4): the dimension counts must be the same, and each"
        text = f"{text} size 1 or that of the output (a rank of 0 stands for one element)"
        assert self.outcome(operator, 1, sizes, None, 2) == self.error(operator, text)

    @pytest.mark.parametrize("block_size", [0, -1])
    def test_block_size_is_positive(self, operator, block_size):
        text = f"block_size is {block_size}; it must be a positive integer, or None"
        assert self.outcome(operator, 1, (), None, block_size) == self.error(operator, text)

    def test_blocks_need_an_axis(self, operator):
        text = "block_size=2 needs the axis of the blocks"
        assert self.outcome(operator, None, (2, 2, 4), None, 2) == self.error(operator, text)


class TestDynamicQuantizeLinear:
    """Its outputs are more than one: of one row of tests each, not of the table's."""

    def outcome(self, level="6_4", shape=(2, 3), dtype="float32", output="uint8"):
        function = functools.partial(jquant.dynamic_quantize_linear, output_dtype=output, feature_level=level)
        try:
            result = jax.eval_shape(function, of(*shape, dtype=dtype))
        except DescriptorError as error:
            return type(error), str(error).removeprefix("DML_DYNAMIC_QUANTIZE_LINEAR: ")
        return [(x.shape, x.dtype.name) for x in result]

    @pytest.mark.usefixtures("x64")
    @pytest.mark.parametrize("level", ["4_0", "6_4", "EXTENDED"])
    def test_data_types(self, level):
        name = level_name(FeatureLevel(level))
        inputs = {"float32", "float16", *(["bfloat16"] if level == "EXTENDED" else [])}
        names = "FLOAT32, FLOAT16, BFLOAT16" if level == "EXTENDED" else "FLOAT32, FLOAT16"
        for dtype in DATA_TYPES:
            expected = [((2, 3), "uint8"), ((), "float32"), ((), "uint8")]
            if dtype not in inputs:
                hint = "; BFLOAT16 is allowed from FeatureLevel.EXTENDED on" if dtype == "bfloat16" else ""
                text = f"InputTensor has data type {dtype.upper()}; {name} allows {names}{hint}"
                expected = DescriptorTypeError, text
            assert self.outcome(level, dtype=dtype) == expected
            expected = [((2, 3), dtype), ((), "float32"), ((), dtype)]
            if dtype not in ("int8", "uint8"):
                text = f"OutputTensor has data type {dtype.upper()}; {name} allows INT8, UINT8"
                expected = DescriptorTypeError, text
            assert self.outcome(level, output=dtype) == expected

    @pytest.mark.parametrize("rank", [0, 1, 8, 9])
    def test_ranks(self, rank):
        expected = [((2,) * rank, "uint8"), ((), "float32"), ((), "uint8")]
        if rank == 9:
            text = f"InputTensor has 9 dimensions, sizes {(2,) * 9}; DML_FEATURE_LEVEL_6_4 allows 1 to 8"
            expected = DescriptorError, text
        assert self.outcome(shape=(2,) * rank) == expected

    @pytest.mark.parametrize("level", ["1_0", "3_1"])
    def test_levels(self, level):
        text = f"not available before DML_FEATURE_LEVEL_4_0; DML_FEATURE_LEVEL_{level} was given"
        assert self.outcome(level) == (DescriptorError, text)


class TestPackedIntegers:
    @pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "int32", "float32", "bfloat16"])
    def test_data_types(self, dtype):
        text = "it must be INT4, UINT4, INT2, UINT2"
        with raises(f"pack_integers: x has data type {dtype.upper()}; {text}", DescriptorTypeError):
            jquant.pack_integers(jnp.zeros(3, dtype))
        with raises(f"unpack_integers: dtype is {dtype.upper()}; {text}", DescriptorTypeError):
            jquant.unpack_integers(jnp.zeros(3, u8), dtype)
        if dtype != "uint8":
            with raises(f"unpack_integers: packed has data type {dtype.upper()}; it must be UINT8", DescriptorTypeError):
                jquant.unpack_integers(jnp.zeros(3, dtype), "INT4")

    def test_scalars(self):
        with raises("pack_integers: x is a scalar; its last dimension is packed"):
            jquant.pack_integers(jnp.zeros((), jnp.int4))
        with raises("unpack_integers: packed is a scalar; its last dimension is that of the bytes"):
            jquant.unpack_integers(jnp.zeros((), u8), "INT4")

    @pytest.mark.parametrize(("dtype", "right"), [("int4", (5, 6)), ("uint2", (9, 10, 11, 12))])
    def test_sizes(self, dtype, right):
        for size in right:
            assert jquant.unpack_integers(jnp.zeros((2, 3), u8), dtype, size=size).shape == (2, size)
        for size, count in ((right[0] - 1, 2), (right[-1] + 1, 4)):
            text = f"size is {size}: {size} integers of dtype {dtype.upper()} need {count} bytes; packed has 3"
            with raises(f"unpack_integers: {text}"):
                jquant.unpack_integers(jnp.zeros((2, 3), u8), dtype, size=size)


class TestQuantize:
    """TensorFlow's own validation."""

    def quantize(self, low, high, dtype="qint8", input=(2, 3), **options):
        x = jnp.zeros(input, f32) if isinstance(input, tuple) else input
        return jquant.quantize(x, low, high, dtype, **options)

    def shapes(self, low, high, **options):
        """The shapes of the outputs, for ranges of these shapes."""

        def function(low, high):
            return self.quantize(low, high, **options)

        return jax.tree.map(lambda x: x.shape, tuple(jax.eval_shape(function, of(*low, dtype=f32), of(*high, dtype=f32))))

    def raises(self, text, kind=DescriptorError):
        return raises(f"QuantizeV2: {text}", kind)

    @pytest.mark.parametrize(
        ("t", "stored"),
        [("qint8", "int8"), ("quint8", "uint8"), ("qint16", "int16"), ("quint16", "uint16"), ("qint32", "int32")],
    )
    def test_data_types(self, t, stored):
        for dtype in (t, stored, stored.upper(), jnp.dtype(stored), getattr(jnp, stored)):
            result = jax.eval_shape(functools.partial(self.quantize, 0, 1, dtype))
            assert [x.dtype for x in result] == [stored, f32, f32]

    @pytest.mark.usefixtures("x64")
    @pytest.mark.parametrize("dtype", [t for t in DATA_TYPES if t not in ("int8", "uint8", "int16", "uint16", "int32")])
    def test_other_data_types(self, dtype):
        types = "qint8 (INT8), quint8 (UINT8), qint32 (INT32), qint16 (INT16), quint16 (UINT16)"
        with self.raises(f"dtype is {dtype.upper()}; the document has {types}", DescriptorTypeError):
            self.quantize(0, 1, jnp.dtype(dtype))

    @pytest.mark.usefixtures("x64")
    @pytest.mark.parametrize("dtype", [t for t in DATA_TYPES if t != "float32"])
    @pytest.mark.parametrize("name", ["input", "low", "high", "ensure_minimum_range"])
    def test_floats_only(self, name, dtype):
        document_name = {"low": "min_range", "high": "max_range"}.get(name, name)
        operands = {"input": jnp.zeros((), f32), "low": 0, "high": 1, name: jnp.zeros((), dtype)}
        with self.raises(f"{document_name} has data type {dtype.upper()}, but is a FLOAT", DescriptorTypeError):
            self.quantize(**operands)

    def test_ensure_minimum_range_is_one_element(self):
        assert self.quantize(0, 1, ensure_minimum_range=np.zeros(1, np.float32)).output.dtype == i8
        with self.raises("ensure_minimum_range has sizes (2,), but must have 1 element"):
            self.quantize(0, 1, ensure_minimum_range=np.zeros(2, np.float32))

    @pytest.mark.parametrize("mode", ["MIN_COMBINED", "MIN_FIRST"])
    def test_half_to_even_is_for_scaled(self, mode):
        self.shapes((), (), mode="SCALED", round_mode="HALF_TO_EVEN")
        self.shapes((), (), mode=mode, round_mode="HALF_AWAY_FROM_ZERO")
        with self.raises(f"round_mode HALF_TO_EVEN is for mode SCALED only, not {mode}"):
            self.shapes((), (), mode=mode, round_mode="HALF_TO_EVEN")

    @pytest.mark.parametrize("axis", [-1, -2, -3, 2, 3])
    def test_axis_is_a_dimension(self, axis):
        with self.raises(wrong_axis(axis, 2)):
            self.shapes((3,), (3,), axis=axis)

    def test_a_scalar_has_no_axis(self):
        assert self.shapes((), (), input=()) == ((), (), ())
        with pytest.raises(DescriptorError, match="QuantizeV2: axis is 0"):
            self.shapes((1,), (1,), input=(), axis=0)

    @pytest.mark.parametrize("low", [(), (1,), (1, 1)], ids=str)
    @pytest.mark.parametrize("high", [(), (1,), (1, 1)], ids=str)
    @pytest.mark.parametrize("mode", ["MIN_COMBINED", "MIN_FIRST", "SCALED"])
    def test_one_range(self, low, high, mode):
        assert self.shapes(low, high, mode=mode) == ((2, 3), (), ())

    @pytest.mark.parametrize("sizes", [(2,), (3,), (0,), (1, 2), (2, 3)], ids=str)
    def test_one_range_only(self, sizes):
        with self.raises(f"min_range has sizes {sizes}; without axis it must have 1 element"):
            self.shapes(sizes, ())
        with self.raises(f"max_range has sizes {sizes}; without axis it must have 1 element"):
            self.shapes((), sizes)

    @pytest.mark.parametrize("mode", ["MIN_COMBINED", "SCALED"])
    @pytest.mark.parametrize(("axis", "size"), [(0, 2), (1, 3), (2, 1), (3, 0)])
    def test_ranges_along_an_axis(self, mode, axis, size):
        assert self.shapes((size,), (size,), axis=axis, mode=mode, input=(2, 3, 1, 0)) == ((2, 3, 1, 0), (size,), (size,))

    @pytest.mark.parametrize("sizes", [(), (1,), (2,), (3, 1), (1, 3), (0,)], ids=str)
    def test_one_range_for_each_slice(self, sizes):
        with self.raises(f"min_range has sizes {sizes}; with axis=1 they must be (3,): input has shape (2, 3)"):
            self.shapes(sizes, (3,), axis=1)
        with self.raises(f"max_range has sizes {sizes}; with axis=1 they must be (3,): input has shape (2, 3)"):
            self.shapes((3,), sizes, axis=1)

    def test_a_slice_of_size_1_needs_a_vector(self):
        with self.raises("min_range has sizes (); with axis=0 they must be (1,): input has shape (1, 3)"):
            self.shapes((), (1,), axis=0, input=(1, 3))

    @pytest.mark.parametrize(("axis", "size"), [(0, 2), (1, 3), (3, 0)])
    def test_min_first_has_one_range(self, axis, size):
        with self.raises(f"MIN_FIRST has one range: axis={axis} must be a dimension of size 1 or None"):
            self.shapes((size,), (size,), axis=axis, mode="MIN_FIRST", input=(2, 3, 1, 0))

    def test_min_first_along_a_size_of_1(self):
        assert self.shapes((1,), (1,), axis=1, mode="MIN_FIRST", input=(2, 1)) == ((2, 1), (1,), (1,))

    @pytest.mark.parametrize(
        ("low", "high"),
        [(2, 1), (2.0, 1), (0.0, -1e-30), (np.float32(2), 1), (2, np.float32([1])), (np.float32([[2]]), np.float32(1))],
        ids=repr,
    )
    def test_a_range_that_ends_before_it_begins(self, low, high):
        low_text, high_text = (value if isinstance(value, np.ndarray) else np.float32(value) for value in (low, high))
        with self.raises(f"max_range, {high_text}, is less than min_range, {low_text}"):
            self.quantize(low, high)

    def test_one_slice_that_ends_before_it_begins(self):
        with self.raises("max_range, [1. 1. 0.], is less than min_range, [0. 1. 1.]"):
            self.quantize(np.float32([0, 1, 1]), np.float32([1, 1, 0]), axis=1)

    @pytest.mark.parametrize(
        ("low", "high"), [(1, 1), (0, 0), (np.nan, 1), (1, np.nan), (np.nan, np.nan), (-np.inf, np.inf)]
    )
    def test_ranges_of_python_numbers(self, low, high):
        assert jax.eval_shape(functools.partial(self.quantize, low, high)).output.dtype == i8

    def test_arrays_of_jax_are_not_read_back(self):
        two, one = jnp.float32(2), jnp.float32(1)
        for low, high in ((two, one), (two, 1), (2, one), (two, np.float32(1))):
            assert self.quantize(low, high).output.dtype == i8

    def test_traced_ranges_are_not_read_back(self):
        assert self.shapes((), ()) == ((2, 3), (), ())
        result = jax.jit(lambda low, high: self.quantize(low, high))(2.0, 1.0)
        assert result.output_min.item() == 0  # a range with zero inside

    def test_a_constant_range_is_read_while_tracing(self):
        with self.raises("max_range, 1.0, is less than min_range, 2.0"):
            jax.jit(lambda x: self.quantize(2, 1, input=x))(jnp.zeros(2))

    @pytest.mark.parametrize("input", [(0,), (2, 0), (0, 3)], ids=str)
    @pytest.mark.parametrize("mode", ["MIN_COMBINED", "MIN_FIRST", "SCALED"])
    def test_empty_inputs(self, input, mode):
        assert self.shapes((), (), mode=mode, input=input) == (input, (), ())

    @pytest.mark.parametrize("rank", [0, 1, 8, 9])
    def test_any_rank(self, rank):
        assert self.shapes((), (), input=(1,) * rank) == ((1,) * rank, (), ())


# Messages in full, as the user sees them.


def test_message_of_a_data_type():
    with pytest.raises(DescriptorTypeError) as raised:
        jquant.dequantize_linear(jnp.ones((1, 1, 1, 2), u8), jnp.ones((1, 1, 1, 2), jnp.float16), 0, feature_level="3_0")
    assert str(raised.value) == (
        "DML_ELEMENT_WISE_DEQUANTIZE_LINEAR: ScaleTensor has data type FLOAT16; "
        "DML_FEATURE_LEVEL_3_0 allows FLOAT32; FLOAT16 is allowed from DML_FEATURE_LEVEL_6_0 on"
    )


def test_message_of_a_dimension_count():
    with pytest.raises(DescriptorError) as raised:
        jquant.clip(jnp.ones((2, 3)), 0, 1, feature_level="2_1")
    assert str(raised.value) == (
        "DML_ELEMENT_WISE_CLIP: InputTensor has 2 dimensions, sizes (2, 3); "
        "DML_FEATURE_LEVEL_2_1 allows 4; 2 is allowed from DML_FEATURE_LEVEL_3_0 on"
    )


def test_message_of_a_missing_tensor():
    with pytest.raises(DescriptorError) as raised:
        jquant.quantize_linear(jnp.ones((2, 3)), 0.5, feature_level="6_1")
    assert str(raised.value) == (
        "DML_ELEMENT_WISE_QUANTIZE_LINEAR: ZeroPointTensor is None, but DML_FEATURE_LEVEL_6_1 "
        "requires it; it may be None from DML_FEATURE_LEVEL_6_2 on"
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
    with pytest.raises(DescriptorError, match="InputTensor has 5 dimensions"):
        call()


@pytest.mark.usefixtures("no_asserts")
@pytest.mark.parametrize("array", [np.array([1]), np.array([1.0]), np.float64(1), np.array([1], np.uint64)], ids=repr)
def test_nothing_is_narrowed_without_asserts_either(array):
    with pytest.raises(
        DescriptorTypeError, match=f"InputTensor has data type {array.dtype.name.upper()}, which JAX narrows"
    ):
        jquant.clip(array, 0, 1)


@pytest.mark.usefixtures("no_asserts")
def test_scalars_are_in_range_without_asserts_either():
    with pytest.raises(DescriptorError, match="ZeroPointTensor is 256, outside of UINT8"):
        jquant.dequantize_linear(jnp.ones(2, u8), 1.0, 256)


def test_while_tracing():
    @jax.jit
    def function(x):
        return jquant.clip(x, 0, 1, feature_level="2_1")

    function.lower(jnp.ones((1, 1, 2, 3)))
    with pytest.raises(DescriptorError, match="InputTensor has 2 dimensions"):
        function.lower(jnp.ones((2, 3)))


def test_numpy_arrays_are_checked_alike():
    for module in (np, jnp):
        with pytest.raises(DescriptorError, match="ScaleTensor has sizes"):
            jquant.dequantize_linear(module.ones((2, 3), u8), module.ones(3, f32))
