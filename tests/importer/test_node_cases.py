"""The onnx package's own node cases: every operator that has a converter, and what is left out with its reason.

`python tests/importer/test_node_cases.py` prints how many pass, and the others by their reasons.
"""

import collections
import functools
import re
import warnings

import jax
import numpy as np
import pytest
from support.sampling import one_in

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

import jquant.onnx  # noqa: E402
from jquant.onnx import ModelError  # noqa: E402

_STRINGS = "strings, for which JAX has no arrays"
_LEARNING = "the domain of classical machine learning is not supported"
_TRAINING = "the domain of training is not supported"

# Patterns of cases that fail, and operators that have neither a converter nor a body, with the reasons. Both are exact.
LEFT_OUT: dict[str, str] = {
    r"test_attention_.*bf16": "one or two units of bfloat16 off: where the reference rounds is its own",
    r"test_attention_local_window_gqa_rank4_mask": "its softmax is of float64, for which JAX has a mode of its own",
    r"test_equal_string(_broadcast)?": _STRINGS,
    r"test_not_\dd": "they declare operator set 1; those from 7 on are supported",
    r"test_resize_downsample_scales_(linear|cubic)_align_corners": "onnxruntime's corners are those of the result",
    r"test_training_dropout(_default)?(_mask)?": "draws random numbers",
}
NO_CONVERTER: dict[str, str] = {
    "Bernoulli": "draws random numbers",
    "NonMaxSuppression": "the shape of its result depends on data",
    "ImageDecoder": "decodes files of images",
    "RegexFullMatch": _STRINGS,
    "StringConcat": _STRINGS,
    "StringNormalizer": _STRINGS,
    "StringSplit": _STRINGS,
    "TfIdfVectorizer": "looks up strings and groups of integers, and is not supported",
    "ai.onnx.ml.ArrayFeatureExtractor": _LEARNING,
    "ai.onnx.ml.Binarizer": _LEARNING,
    "ai.onnx.ml.LabelEncoder": _LEARNING,
    "ai.onnx.ml.TreeEnsemble": _LEARNING,
    "ai.onnx.preview.training.Adagrad": _TRAINING,
    "ai.onnx.preview.training.Adam": _TRAINING,
    "ai.onnx.preview.training.Momentum": _TRAINING,
}
# Patterns of cases whose absolute tolerance is below the rounding of their own float32 sums, with one that is not.
ROUNDING: dict[str, float] = {r"test_dft(_axis|_inverse|_rfft)?(_opset19)?": 5e-5}

# Hundreds of small programs, each compiled to be called once: what LLVM makes faster takes longer than they do.
UNOPTIMIZED = {"xla_backend_optimization_level": 0}


@functools.cache
def node_cases() -> dict:
    """By name, without those that are another's function body. The generator runs once a process."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    return {case.name: case for case in found if not re.search(r"_expanded(_ver\d+)?$", case.name)}


def array(value):
    """The package has arrays of the types of NumPy, and messages of the others."""
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    if isinstance(value, list):
        return [array(each) for each in value]
    return None if value is None else np.asarray(value)


def load(model, inputs: dict):
    """The model, and the inputs that remain where those that shapes depend on are constants."""
    try:
        return jquant.onnx.load(model), inputs
    except ModelError as error:
        names = set(re.findall(r"fix it with constants=\{'([^']+)'", str(error)))
        if not names:
            raise
    constants = {name: value for name, value in inputs.items() if name in names}
    return jquant.onnx.load(model, constants=constants), {name: x for name, x in inputs.items() if name not in names}


def assert_close(actual, expected, case, place: str):
    """Equal integers, whatever their number of bits; floats within the case's tolerance."""
    if isinstance(expected, list):
        assert len(actual) == len(expected), place
        for index, pair in enumerate(zip(actual, expected, strict=True)):
            assert_close(*pair, case, f"{place}[{index}]")
        return
    actual = np.asarray(actual)
    assert actual.shape == expected.shape, place
    if expected.dtype.kind in "biu" or "int" in expected.dtype.name:
        assert actual.dtype.kind in "biuV", place
        np.testing.assert_array_equal(actual.astype(np.int64), expected.astype(np.int64), place)
    else:
        assert actual.dtype == expected.dtype, place
        given = [each if each.dtype.kind in "fc" else each.astype(np.float32) for each in (actual, expected)]
        atol = next((each for pattern, each in ROUNDING.items() if re.fullmatch(pattern, case.name)), case.atol)
        np.testing.assert_allclose(*given, rtol=case.rtol, atol=atol, err_msg=place)


def run(case):
    double = any(
        value.type.tensor_type.elem_type in (onnx.TensorProto.DOUBLE, onnx.TensorProto.COMPLEX128)
        for value in (*case.model.graph.input, *case.model.graph.output)
    )
    names = [value.name for value in case.model.graph.input]
    with jax.enable_x64(double):
        for inputs, outputs in case.data_sets:
            given = dict(zip(names, map(array, inputs), strict=True))
            model, rest = load(case.model, given)
            results = jax.jit(model, compiler_options=UNOPTIMIZED)(model.params, rest)
            for output, expected in zip(case.model.graph.output, map(array, outputs), strict=True):
                assert_close(results[output.name], expected, case, f"{case.name}: {output.name}")


def operator(case) -> str:
    """The operator that a case is of, with its domain if that is not ONNX's own."""
    node = case.model.graph.node[0]
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def left_out(name: str) -> str | None:
    return next((reason for pattern, reason in LEFT_OUT.items() if re.fullmatch(pattern, name)), None)


def problem(case) -> str | None:
    """What keeps a case from passing."""
    try:
        run(case)
    except Exception as error:  # AssertionError, and whatever JAX says of strings
        return " ".join(str(error).split()) or type(error).__name__
    return None


def lacks_converter(found: str | None) -> bool:
    return found is not None and "this operator is not supported" in found


@one_in(9, "name", sorted({schema.name for schema in onnx.defs.get_all_schemas()}))
def test_cases_of_operator(name):
    """All cases pass but those of the lists, which fail. Of some operators, there are no cases."""
    wrong = []
    for case in node_cases().values():
        if operator(case).rpartition(".")[2] != name:
            continue
        found = problem(case)
        if operator(case) in NO_CONVERTER:
            if not lacks_converter(found):
                wrong.append(f"{case.name}: {operator(case)} has a converter, so that NO_CONVERTER must let go of it")
        elif left_out(case.name) is None:
            if found is not None:
                wrong.append(f"{case.name}: {found}")
        elif found is None:
            wrong.append(f"{case.name} passes, so that LEFT_OUT must let go of it")
    assert not wrong, "\n".join(wrong)


def test_lists_name_what_there_is():
    operators = {operator(case) for case in node_cases().values()}
    assert sorted(NO_CONVERTER.keys() - operators) == []
    supported = [case.name for case in node_cases().values() if operator(case) not in NO_CONVERTER]
    assert [pattern for pattern in LEFT_OUT if not any(re.fullmatch(pattern, name) for name in supported)] == []
    schemas = {schema.name for schema in onnx.defs.get_all_schemas()}
    assert {name.rpartition(".")[2] for name in operators} <= schemas


def summary() -> str:
    """How many cases pass, and the others by their reasons."""
    passed, reasons = 0, collections.defaultdict(collections.Counter)
    for case in node_cases().values():
        found = problem(case)
        if found is None:
            passed += 1
        elif operator(case) in NO_CONVERTER or lacks_converter(found):
            reasons["no converter: " + NO_CONVERTER.get(operator(case), "not listed")][operator(case)] += 1
        else:
            reasons["fails: " + (left_out(case.name) or "not listed")][operator(case)] += 1
    lines = [f"{passed} of {len(node_cases())} cases pass, not counting those that repeat one with the operator's body"]
    for reason, counts in sorted(reasons.items()):
        each = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
        lines.append(f"{counts.total():>5}  {reason} ({each})")
    return "\n".join(lines)


if __name__ == "__main__":
    print(summary())
