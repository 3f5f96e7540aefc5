"""The node test cases of the onnx package, for every operator, and the reasons for those that are left out.

`python tests/importer/test_node_cases.py` prints the number of cases that pass, and the others by their reasons.
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
_MACHINE_LEARNING = "the domain of classical machine learning is not supported"
_TRAINING = "the domain of training is not supported"

# Cases that fail, as patterns, and operators that have neither a converter nor a body, with the reasons. Both are exact.
LEFT_OUT: dict[str, str] = {
    r"test_attention_.*bf16": "one or two units of bfloat16 off: the reference rounds elsewhere",
    r"test_attention_local_window_gqa_rank4_mask": "its softmax is float64, which JAX computes only in its 64-bit mode",
    r"test_equal_string(_broadcast)?": _STRINGS,
    r"test_not_\dd": "they declare operator set 1; operator sets from 7 on are supported",
    r"test_resize_downsample_scales_(linear|cubic)_align_corners": "in onnxruntime, the corners are those of the result",
    r"test_training_dropout(_default)?(_mask)?": "draws random numbers",
}
NO_CONVERTER: dict[str, str] = {
    "Bernoulli": "draws random numbers",
    "NonMaxSuppression": "the shape of its result depends on data",
    "ImageDecoder": "decodes image files",
    "RegexFullMatch": _STRINGS,
    "StringConcat": _STRINGS,
    "StringNormalizer": _STRINGS,
    "StringSplit": _STRINGS,
    "TfIdfVectorizer": "looks up n-grams of strings or integers, and is not supported",
    "ai.onnx.ml.ArrayFeatureExtractor": _MACHINE_LEARNING,
    "ai.onnx.ml.Binarizer": _MACHINE_LEARNING,
    "ai.onnx.ml.LabelEncoder": _MACHINE_LEARNING,
    "ai.onnx.ml.TreeEnsemble": _MACHINE_LEARNING,
    "ai.onnx.preview.training.Adagrad": _TRAINING,
    "ai.onnx.preview.training.Adam": _TRAINING,
    "ai.onnx.preview.training.Momentum": _TRAINING,
}
# Cases, as patterns, whose absolute tolerance is below the rounding errors of float32 sums, with one that is not.
ROUNDING: dict[str, float] = {r"test_dft(_axis|_inverse|_rfft)?(_opset19)?": 5e-5}

# Hundreds of small programs are compiled, each for one call: LLVM's optimizations would take longer than the calls.
UNOPTIMIZED = {"xla_backend_optimization_level": 0}


@functools.cache
def node_cases() -> dict:
    """The cases by name, without those that repeat another case with a function body. Generated once per process."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    return {case.name: case for case in cases if not re.search(r"_expanded(_ver\d+)?$", case.name)}


def array(value):
    """A value of a case as NumPy arrays; the package has protocol messages for the types that NumPy lacks."""
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    if isinstance(value, list):
        return [array(each) for each in value]
    return None if value is None else np.asarray(value)


def load(model, inputs: dict):
    """The model, with the inputs on which shapes depend as constants, and the remaining inputs."""
    try:
        return jquant.onnx.load(model), inputs
    except ModelError as error:
        names = set(re.findall(r"fix it with constants=\{'([^']+)'", str(error)))
        if not names:
            raise
    constants = {name: value for name, value in inputs.items() if name in names}
    return jquant.onnx.load(model, constants=constants), {name: x for name, x in inputs.items() if name not in names}


def assert_close(actual, expected, case, title: str):
    """Compares integers of any width for equality, and floats within the case's tolerance."""
    if isinstance(expected, list):
        assert len(actual) == len(expected), title
        for index, (actual_element, expected_element) in enumerate(zip(actual, expected, strict=True)):
            assert_close(actual_element, expected_element, case, f"{title}[{index}]")
        return
    actual = np.asarray(actual)
    assert actual.shape == expected.shape, title
    if expected.dtype.kind in "biu" or "int" in expected.dtype.name:
        assert actual.dtype.kind in "biuV", title
        np.testing.assert_array_equal(actual.astype(np.int64), expected.astype(np.int64), title)
    else:
        assert actual.dtype == expected.dtype, title
        actual, expected = (x if x.dtype.kind in "fc" else x.astype(np.float32) for x in (actual, expected))
        atol = next((each for pattern, each in ROUNDING.items() if re.fullmatch(pattern, case.name)), case.atol)
        np.testing.assert_allclose(actual, expected, rtol=case.rtol, atol=atol, err_msg=title)


def run(case):
    is_double = any(
        value.type.tensor_type.elem_type in (onnx.TensorProto.DOUBLE, onnx.TensorProto.COMPLEX128)
        for value in (*case.model.graph.input, *case.model.graph.output)
    )
    names = [value.name for value in case.model.graph.input]
    with jax.enable_x64(is_double):
        for inputs, outputs in case.data_sets:
            model, remaining = load(case.model, dict(zip(names, map(array, inputs), strict=True)))
            results = jax.jit(model, compiler_options=UNOPTIMIZED)(model.params, remaining)
            for output, expected in zip(case.model.graph.output, map(array, outputs), strict=True):
                assert_close(results[output.name], expected, case, f"{case.name}: {output.name}")


def operator(case) -> str:
    """The operator of a case, with its domain if that is not ONNX's own."""
    node = case.model.graph.node[0]
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def left_out(name: str) -> str | None:
    return next((reason for pattern, reason in LEFT_OUT.items() if re.fullmatch(pattern, name)), None)


def failure(case) -> str | None:
    """The error of a case; None if it passes."""
    try:
        run(case)
    except Exception as error:  # AssertionError, and whatever JAX raises for strings
        return " ".join(str(error).split()) or type(error).__name__
    return None


def lacks_converter(error: str | None) -> bool:
    return error is not None and "this operator is not supported" in error


@one_in(9, "name", sorted({schema.name for schema in onnx.defs.get_all_schemas()}))
def test_cases_of_operator(name):
    """All cases pass except those in `LEFT_OUT` and `NO_CONVERTER`, which fail. Some operators have no cases."""
    problems = []
    for case in node_cases().values():
        if operator(case).rpartition(".")[2] != name:
            continue
        error = failure(case)
        if operator(case) in NO_CONVERTER:
            if not lacks_converter(error):
                problems.append(f"{case.name}: {operator(case)} has a converter; remove it from NO_CONVERTER")
        elif left_out(case.name) is None:
            if error is not None:
                problems.append(f"{case.name}: {error}")
        elif error is None:
            problems.append(f"{case.name} passes; remove it from LEFT_OUT")
    assert not problems, "\n".join(problems)


def test_lists_name_existing_cases():
    operators = {operator(case) for case in node_cases().values()}
    assert sorted(NO_CONVERTER.keys() - operators) == []
    supported = [case.name for case in node_cases().values() if operator(case) not in NO_CONVERTER]
    assert [pattern for pattern in LEFT_OUT if not any(re.fullmatch(pattern, name) for name in supported)] == []
    schemas = {schema.name for schema in onnx.defs.get_all_schemas()}
    assert {name.rpartition(".")[2] for name in operators} <= schemas


def summary() -> str:
    """The number of cases that pass, and the others by their reasons."""
    passed, reasons = 0, collections.defaultdict(collections.Counter)
    for case in node_cases().values():
        error = failure(case)
        if error is None:
            passed += 1
        elif operator(case) in NO_CONVERTER or lacks_converter(error):
            reasons["no converter: " + NO_CONVERTER.get(operator(case), "not listed")][operator(case)] += 1
        else:
            reasons["fails: " + (left_out(case.name) or "not listed")][operator(case)] += 1
    lines = [f"{passed} of {len(node_cases())} cases pass, not counting those that repeat one with the operator's body"]
    for reason, counts in sorted(reasons.items()):
        operators = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
        lines.append(f"{counts.total():>5}  {reason} ({operators})")
    return "\n".join(lines)


if __name__ == "__main__":
    print(summary())
