"""The onnx package's own node cases: every operator that has a converter, and what is left out with its reason."""

import functools
import re
import warnings

import jax
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

import jquant.onnx  # noqa: E402
from jquant.onnx import ModelError  # noqa: E402

LEFT_OUT: dict[str, str] = {}
NO_CONVERTER: dict[str, str] = {}


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
        names = set(re.findall(r"fix it by constants=\{'([^']+)'", str(error)))
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
        np.testing.assert_allclose(*given, rtol=case.rtol, atol=case.atol, err_msg=place)


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
            results = jax.jit(model)(model.params, rest)
            for output, expected in zip(case.model.graph.output, map(array, outputs), strict=True):
                assert_close(results[output.name], expected, case, f"{case.name}: {output.name}")


def left_out(name: str) -> str | None:
    return next((reason for pattern, reason in LEFT_OUT.items() if re.fullmatch(pattern, name)), None)


@pytest.mark.parametrize("operator", ["Add", "Reshape", "MatMulInteger"])
def test_cases_of(operator):
    """A draft: three operators."""
    for case in node_cases().values():
        if case.model.graph.node[0].op_type == operator and left_out(case.name) is None:
            run(case)
