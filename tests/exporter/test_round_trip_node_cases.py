"""The node cases of the onnx package, loaded and exported again, through onnxruntime: the same nodes, and the same bits."""

import re

import jax
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

import jquant.onnx  # noqa: E402
from jquant.onnx import ModelError  # noqa: E402

from ..importer import test_node_cases as cases  # noqa: E402
from .round_trips import operators, outputs, same  # noqa: E402

# Cases, as patterns, whose models are not checked with the types and shapes that onnx infers.
UNCHECKED = {
    r"test_mvn.*": "onnx fails to infer the shape in the body of MeanVarianceNormalization, also of the case itself",
    r"test_stft(_with_window)?": "onnx infers a wrong shape where the frame's length is known, as an initializer is",
}
# What is known while tracing, or a list, is in no node.
OTHER_NODES = {
    "Shape": "known while tracing",
    "Size": "known while tracing",
    "SequenceInsert": "a list",
    "SequenceMap": "a list",
    "SplitToSequence": "a list",
    "OptionalGetElement": "a value that there may not be",
    "OptionalHasElement": "a value that there may not be",
}
# Cases that have an input or an output that is a list or may not be there, beside a node that is written as it is.
WITH_LISTS = r"test_(identity_sequence|identity_opt|loop13_seq|loop16_seq_none)"

REFUSED = (np.float64, np.complex64, np.complex128)  # types of inputs


def is_listed(name: str, patterns) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)


def apart(values: dict) -> dict:
    """Values by name, with lists taken apart: in functions of JAX, they are several arrays."""
    arrays = {}
    for name, value in values.items():
        if isinstance(value, list):
            arrays |= apart({f"{name}.{index}": each for index, each in enumerate(value)})
        elif value is not None:
            arrays[name] = value
    return arrays


def narrow(array):
    return array.astype(np.int32) if array.dtype == np.int64 else array


def problem(case) -> str | None:
    """What differs between the file and the model exported again; None if nothing does."""
    names = [value.name for value in case.model.graph.input]
    is_double = any(
        value.type.tensor_type.elem_type in (onnx.TensorProto.DOUBLE, onnx.TensorProto.COMPLEX128)
        for value in (*case.model.graph.input, *case.model.graph.output)
    )
    for inputs, _ in case.data_sets:
        arrays = dict(zip(names, map(cases.array, inputs), strict=True))
        with jax.enable_x64(is_double):
            model, remaining = cases.load(case.model, arrays)
            if not remaining:
                return None
            domains = sorted({node.domain for node in case.model.graph.node} - {""})
            if any(np.asarray(each).dtype in REFUSED for each in jax.tree.leaves(remaining)):
                with pytest.raises(ModelError, match=r"(float64|complex64|complex128) is not supported"):
                    jquant.onnx.export(model, model.params, remaining, domains=domains)
                return None
            exported = jquant.onnx.export(model, model.params, remaining, domains=domains)
        onnx.checker.check_model(exported, full_check=not is_listed(case.name, UNCHECKED))
        before, after = operators(case.model), operators(exported)
        lists = case.model.graph.node[-1].op_type in OTHER_NODES or re.fullmatch(WITH_LISTS, case.name)
        if before != after and not lists:
            return f"{before} became {after}"
        try:
            expected = outputs(case.model, arrays)
        except (ModelError, TypeError):  # onnxruntime lacks a kernel, or NumPy lacks a type
            continue
        actual, expected = outputs(exported, apart(remaining)), apart(expected)
        if lists:  # whose integers have the types of JAX
            actual, expected = ({name: narrow(each) for name, each in values.items()} for values in (actual, expected))
        if not all(same(actual.get(name), value) for name, value in expected.items()):
            return "other bits"
    return None


OPERATORS = sorted({schema.name for schema in onnx.defs.get_all_schemas()})
MARKED = [
    pytest.param(name, marks=pytest.mark.full if index % 9 else pytest.mark.gate) for index, name in enumerate(OPERATORS)
]


@pytest.mark.parametrize("name", MARKED)
def test_cases_of_operator(name):
    problems = []
    for case in cases.node_cases().values():
        is_other = cases.operator(case) in cases.NO_CONVERTER or cases.left_out(case.name)
        if is_other or cases.operator(case).rpartition(".")[2] != name:
            continue
        try:
            error = problem(case)
        except Exception as raised:
            error = " ".join(str(raised).split())[:300] or type(raised).__name__
        if error is not None:
            problems.append(f"{case.name}: {error}")
    assert not problems, "\n".join(problems)
