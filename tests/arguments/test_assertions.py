"""The constraints of the tables are chex's assertions: which ones each table implies, and that chex decides about each."""

import contextlib
import functools
import inspect
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import signatures
from support.documents import OPERATORS, generated_pages

import jquant
from jquant import DescriptorError, FeatureLevel
from jquant.arguments import assertions, constraints
from jquant.arguments.descriptor import Descriptor, Signature
from jquant.cases import CASES

TABLES = sorted({table.operator for name in OPERATORS if (table := generated_pages.descriptor_of(name))})


def implied(descriptor: Descriptor, level: FeatureLevel | None) -> set[str]:
    """What the rows and the other fields of a table ask for, without "assert_"."""
    rows = descriptor.rows(level)
    sizes = [size.strip("[]") for row in rows for size in (row.sizes or "").split()]
    elsewhere = {descriptor.output, *descriptor.one_element, *descriptor.per_channel}
    fitted = [row.name for row in rows if row.sizes is None and row.name not in elsewhere]
    aligns = level in (None, FeatureLevel.EXTENDED)
    asked = {
        "type": True,
        "tree_no_nones": True,
        "rank": any(row.ranks for row in rows),
        "scalar_in": descriptor.levels and min(descriptor.levels) > min(FeatureLevel),
        "size": descriptor.one_element,
        "shape": descriptor.per_channel or "1" in sizes or len(sizes) > len({*sizes}),
        "is_broadcastable": fitted,
        "equal_rank": (descriptor.same_rank and level != FeatureLevel.EXTENDED)
        or any(not (aligns and name in descriptor.broadcast) for name in fitted),
    }
    return {name for name, is_asked in asked.items() if is_asked}


@functools.cache
def valid_calls() -> dict[str, list[tuple]]:
    """For each function with a table: its descriptor, the level, and the tensors, as its cases have them."""
    calls, check = {}, constraints.check

    def record(descriptor, level, tensors):
        check(descriptor, level, tensors)
        signatures = {name: None if x is None else Signature(x.shape, x.dtype) for name, x in tensors.items()}
        calls.setdefault(descriptor.operator, []).append((descriptor, level, signatures))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constraints, "check", record)
        for case in CASES.values():
            jax.eval_shape(lambda *arguments, case=case: case.function(*arguments), *case.shapes(2))
    return calls


def mutations(descriptor, level, tensors):
    """What is wrong, and the call: before the operator's introduction; a tensor missing, or of another type or shape."""
    if descriptor.levels and min(descriptor.levels) > min(FeatureLevel):
        yield "feature_level", min(FeatureLevel), tensors
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if name != descriptor.output:
            yield name, level, {**tensors, name: None}
        shape = tensor.shape
        shapes = (), (1,), (7,), (1, 7), (1, 7, 1, 1), (7, *shape), shape[1:], (*shape[:-1], 1009), (1,) * 12
        for other in shapes:
            yield name, level, {**tensors, name: tensor._replace(shape=other)}
        for dtype in ("complex64", "int8", "uint8", "float32", "float16", "int32"):
            yield name, level, {**tensors, name: tensor._replace(dtype=np.dtype(dtype))}


def first_failure(descriptor, level, tensors) -> tuple[constraints.Constraint, DescriptorError] | None:
    for constraint in constraints.constraints(descriptor, level, tensors):
        try:
            constraint.check()
        except DescriptorError as error:
            return constraint, error
    return None


@functools.cache
def refusals(operator: str) -> list[tuple[str, dict, constraints.Constraint, DescriptorError]]:
    """What is wrong in each mutation of the operator's calls, its tensors, and what refuses it."""
    mutants = [(call[0], *mutation) for call in valid_calls()[operator] for mutation in mutations(*call)]
    outcomes = ((wrong, tensors, first_failure(descriptor, level, tensors)) for descriptor, wrong, level, tensors in mutants)
    return [(wrong, tensors, *outcome) for wrong, tensors, outcome in outcomes if outcome is not None]


def failures(operator: str) -> list[tuple[constraints.Constraint, DescriptorError]]:
    return [(constraint, error) for _, _, constraint, error in refusals(operator)]


def implied_by_calls(operator: str) -> list[str]:
    return sorted(set().union(*(implied(descriptor, level) for descriptor, level, _ in valid_calls()[operator])))


def test_every_table_is_asked():
    without = [operator for operator in TABLES if operator not in valid_calls()]
    assert not without, f"no case in jquant/cases makes a call that is checked by the table of {', '.join(without)}"
    assert sorted(valid_calls()) == TABLES


@pytest.mark.parametrize("operator", TABLES)
def test_what_a_table_implies(operator):
    names = {constraint.assertion for constraint, _ in failures(operator)}
    assert names == {f"assert_{name}" for name in implied_by_calls(operator)}
    assert all(first_failure(*call) is None for call in valid_calls()[operator])


UNARY = "X X_scale X_zero_point Y_scale Y_zero_point"
DOCUMENTED = {  # the operator in its specification, and the tensors that the function's parameters take, in their order
    **{function: (signatures.DOCUMENTS.get(function, ""), tensors) for function, tensors in signatures.OPERATORS.items()},
    "dynamic_quantize_linear": ("DML_DYNAMIC_QUANTIZE_LINEAR", ("InputTensor",)),
    "gather_block_quantized": ("GatherBlockQuantized", ["data", "indices", "scales", "zero_points"]),
    "matmul_n_bits": ("MatMulNBits", ["A", "B", "scales", "zero_points", "g_idx", "bias"]),
    "quantized_gemm": (
        "QGemm",
        ["A", "a_scale", "a_zero_point", "B", "b_scale", "b_zero_point", "C", "y_scale", "y_zero_point"],
    ),
    "quantized_linear_concat": ("QLinearConcat", ["inputs", "Y_scale", "Y_zero_point"]),
    "quantized_linear_multiply": (
        *("QLinearMul", ["A", "A_scale", "A_zero_point", "B", "B_scale", "B_zero_point", "C_scale", "C_zero_point"]),
    ),
    "quantized_linear_global_average_pool": ("QLinearGlobalAveragePool", UNARY.split()),
    "quantized_linear_leaky_relu": ("QLinearLeakyRelu", UNARY.split()),
    "quantized_linear_sigmoid": ("QLinearSigmoid", UNARY.split()),
    "quantized_linear_softmax": ("QLinearSoftmax", UNARY.split()),
    "block_scaled_matmul": ("", ["a", "a_scale", "a_zero_point", "b", "b_scale", "b_zero_point", "bias"]),
    "pack_matrix": ("", ["b", "zero_point", "scale", "minimum"]),
}


@pytest.mark.parametrize("operator", TABLES)
def test_errors_name_the_function_its_argument_and_the_document(operator, count):
    """The function first, then one of its parameters, and at the end the operator in its specification, each once."""
    parameters = list(inspect.signature(getattr(jquant, operator)).parameters)
    document, tensors = DOCUMENTED[operator]
    takes = dict(zip(tensors, parameters, strict=False))
    calls = {parameter: tensor for tensor, parameter in takes.items()}
    descriptor, *_ = valid_calls()[operator][0]
    outputs = {row.name for row in (descriptor.table or descriptor.levels[max(descriptor.levels)]) if row.kind == "Output"}
    for wrong, call, constraint, error in refusals(operator):
        if wrong in outputs and "output_dtype" not in parameters:
            continue  # no caller can make it wrong
        function, text = str(error).split(": ", 1)
        text, end = text.rsplit(" (", 1) if document else (text, "")
        first, words = re.match(r"the output|\w+", text)[0], set(re.findall(r"[a-z]\w*", text))
        assert function == operator
        said = re.match(r"(the output|[\w\[\]]+) has (?:shape|rank \d+ \(shape) (\([^)]*\))", text)
        tensor = {**calls, "the output": descriptor.output}.get(said[1], said[1]) if said else None
        if said and tensor in call:
            assert said[2] == str(call[tensor].shape), error
        if first == "the output" or (end.split(" ")[0] in outputs and first not in parameters):
            continue  # which follows from the inputs of a call
        assert first in parameters, error
        name = takes.get(wrong.partition("[")[0] if wrong.startswith("inputs") else wrong, wrong)
        assert name in words or wrong in outputs, error
        assert not re.search(r"[a-z]Tensor\b|\bDML_(?!FEATURE)", text), error
        assert end == f"{document})" or end.endswith(f" of {document})") or not document, error
        count(f"messages, {constraint.assertion}", 1)


@pytest.mark.parametrize("operator", TABLES)
def test_chex_decides(monkeypatch, operator):
    """An assertion that chex lets pass does not fail, and one that chex has fail refuses a valid call."""
    for name in implied_by_calls(operator):
        constraint, error = next(each for each in failures(operator) if each[0].assertion == f"assert_{name}")
        with monkeypatch.context() as patch:
            patch.setattr(chex, constraint.assertion, lambda *arguments: None)
            constraint.check()

        def fail(*arguments):
            raise AssertionError("Chex's own words")

        with monkeypatch.context() as patch:
            patch.setattr(chex, constraint.assertion, fail)
            with pytest.raises(type(error)) as caught:
                constraint.check()
            assert str(caught.value) == str(error)
            assert caught.value.__cause__ is None
            assert caught.value.__suppress_context__


@pytest.mark.parametrize("name", CASES)
def test_public_functions_ask_chex(monkeypatch, name):
    """With every assertion of chex failing, no operator accepts a signature that it does not remember."""

    def fail(*arguments):
        raise AssertionError

    case = CASES[name]
    assertions.forget()
    for assertion in dir(chex):
        if assertion.startswith("assert_"):
            monkeypatch.setattr(chex, assertion, fail)
    with pytest.raises(DescriptorError):
        jax.eval_shape(lambda *arguments: case.function(*arguments), *case.shapes(2))  # a function that JAX has not traced
    monkeypatch.undo()
    jax.eval_shape(lambda *arguments: case.function(*arguments), *case.shapes(2))


X, I8 = np.ones((3, 4), np.float32), np.ones((3, 4), np.int8)
ARGUMENTS = {  # constraints of documented arguments
    "axis": (lambda: jquant.quantize_linear(X, 0.5, axis=2), "axis is 2"),
    "axis of the wrong type": (lambda: jquant.quantize_linear(X, 0.5, axis="0"), "axis is the str '0'"),
    "block_size": (lambda: jquant.mx_quantize(X, "int8", block_size=0), "block_size is 0"),
    "block_size without axis": (lambda: jquant.quantize_linear(X, 0.5, block_size=2), "needs the axis"),
    "dtype": (lambda: jquant.quantize(X, 0.0, 1.0, "float32"), "dtype is FLOAT32"),
    "element_type": (lambda: jquant.mx_quantize(X, "float16"), "element_type is FLOAT16"),
    "mode": (
        lambda: jquant.quantize(X, 0.0, 1.0, "qint8", round_mode="HALF_TO_EVEN"),
        "round_mode is HALF_TO_EVEN",
    ),
    "bounds": (lambda: jquant.quantize(X, 2.0, 1.0, "qint8"), "which is less than"),
    "shape of a bound": (lambda: jquant.quantize(X, np.zeros(2, np.float32), 1.0, "qint8"), "min_range has shape (2,)"),
    "saturate": (lambda: jquant.quantize_linear(X, 0.5, saturate=False), "saturate is False"),
    "strides": (lambda: jquant.convolution_integer(I8[None, None], I8[None, None, :1, :1], strides=(1,)), "strides"),
    "groups": (lambda: jquant.convolution_integer(I8[None, None], I8[None, None, :1, :1], groups=2), "groups is 2"),
    "size": (lambda: jquant.unpack_integers(I8.view(np.uint8), "INT4", size=9), "size is 9"),
    "shapes": (lambda: jquant.scale_and_zero_point(X, X[0], "INT8"), "they must be the same"),
    "symmetric": (lambda: jquant.dynamic_quantize_linear(X, symmetric=True), "symmetric is True"),
    "k_parts": (lambda: jquant.block_scaled_matmul(I8, 1.0, None, I8.T, X[:2, :3], k_parts=3), "k_parts is 3"),
    "exact": (lambda: jquant.exact.sum(X, X[:2]), "they must broadcast"),
}


@contextlib.contextmanager
def asserts_disabled():
    chex.disable_asserts()
    try:
        yield
    finally:
        chex.enable_asserts()


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_documented_arguments(argument):
    """They are refused, not refused while assertions are disabled, and refused again afterwards."""
    call, message = ARGUMENTS[argument]

    def refusal() -> str | None:
        try:
            call()
        except DescriptorError as error:
            return str(error)
        except Exception:  # JAX's own, for what nobody has checked
            return None
        return None

    first = refusal()
    assert first is not None
    assert message in first
    with asserts_disabled():
        assert refusal() is None
    assert refusal() == first


CORRUPTING = {  # raises in any case
    "a narrowed array": lambda: jquant.quantize_linear(np.ones(2), 0.5),
    "a scalar out of range": lambda: jquant.dequantize_linear(I8, 0.5, 300),
    "a masked array": lambda: jquant.quantize_linear(np.ma.masked_array(X), 0.5),
    "a cast matrix": lambda: jquant.matmul_integer(
        I8, jax.tree.map(lambda x: x.astype(jnp.bfloat16), jquant.pack_matrix(np.ones((4, 2), np.int8)))
    ),
    "another zero point than the packed one": lambda: jquant.matmul_integer(
        I8, jquant.pack_matrix(np.ones((4, 2), np.int8), 1), b_zero_point=2
    ),
}


@pytest.mark.parametrize("what", CORRUPTING)
def test_what_would_corrupt_a_result_raises_always(what):
    with asserts_disabled(), pytest.raises(DescriptorError):
        CORRUPTING[what]()


@pytest.mark.parametrize("wrong", [(1.0, 1), (True, 1), (np.float32(1), 1)], ids=str)
def test_equal_integers_of_another_type_are_not_remembered(wrong):
    """(1.0, 1) equals (1, 1), which is remembered as right."""
    image, filters = I8[None, None], I8[None, None, :1, :1]
    jquant.convolution_integer(image, filters, strides=(1, 1))
    with pytest.raises(DescriptorError, match="strides must be 2 positive Python ints"):
        jquant.convolution_integer(image, filters, strides=wrong)
    jquant.quantize_linear(X, X[0], axis=1)
    with pytest.raises(DescriptorError, match="axis is the"):
        jquant.quantize_linear(X, X[0], axis=wrong[0])
