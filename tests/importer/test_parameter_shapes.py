"""Weights, biases, scales and zero points in other shapes than the usual one: refused where onnxruntime refuses them."""

import re

import jax
import numpy as np
import pytest
from support.sampling import one_in

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

import jquant.onnx  # noqa: E402
from jquant.onnx import ModelError  # noqa: E402

from .parameter_cases import Case, arrangements, cases  # noqa: E402
from .quantized_nodes import onnx_type  # noqa: E402

# Of several elements, onnxruntime reads the first, whatever the others are.
READS_THE_FIRST = {"QLinearConcat", "QLinearSoftmax", "QLinearWhere"}
CASES = {case.name: case for case in cases()}


def model_of(case: Case, parameters: list[np.ndarray | None]) -> onnx.ModelProto:
    """A node whose first operand is the input `x0`; the others are initializers."""
    helper, names = onnx.helper, ["" if x is None else f"x{i}" for i, x in enumerate([case.operands[0], *parameters])]
    operands = [*names[1 : 1 + case.first], names[0], *names[1 + case.first :]]
    domain = "com.microsoft" if case.microsoft else ""
    graph = helper.make_graph(
        [helper.make_node(case.operator, operands, ["y"], domain=domain, **case.attributes)],
        "graph",
        [helper.make_tensor_value_info("x0", onnx_type(case.operands[0]), case.operands[0].shape)],
        [helper.make_empty_tensor_value_info("y")],
        [onnx.numpy_helper.from_array(np.asarray(x), f"x{i}") for i, x in enumerate(parameters, 1) if x is not None],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def theirs(proto: onnx.ModelProto, x: np.ndarray) -> np.ndarray | None:
    """onnxruntime's result; None if it refuses the model."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return session.run(None, {"x0": x})[0]
    except Exception:  # it has classes of its own for each of its errors
        return None


def check(case: Case, parameters: list[np.ndarray | None], *, compute: bool, expected: str = "") -> bool:
    """Whether both refuse a node. Otherwise both give the same result, which is computed if asked for."""
    x, proto = case.operands[0], model_of(case, parameters)
    wanted = theirs(proto, x)

    def ours():
        model = jquant.onnx.load(proto)
        return jax.jit(model)(model.params, {"x0": x}) if compute else jax.eval_shape(model, model.params, {"x0": x})

    if wanted is None:
        with pytest.raises(ModelError) as caught:
            ours()
        assert f"node 'y' ({'com.microsoft.' * case.microsoft}{case.operator}" in str(caught.value), expected
        return True
    actual = ours()
    assert actual["y"].shape == wanted.shape, expected
    if compute and wanted.dtype.kind == "f":
        np.testing.assert_allclose(actual["y"], wanted, rtol=1e-5, atol=1e-5, err_msg=expected)  # float sums, in any order
    elif compute:
        np.testing.assert_array_equal(actual["y"], wanted, expected)
    return False


@one_in(6, "name", CASES, gate=3, others="gate")
def test_other_shapes(name, count, full):
    """Transposed, flat, with dimensions and elements more and less: the outcome is that of onnxruntime."""
    case = CASES[name]
    parameters = list(case.operands[1:])
    assert not check(case, parameters, compute=True, expected="as it is")
    refused = taken = 0
    for position in case.parameters:
        for what, changed in arrangements(case.operands[position]):
            if case.operator in READS_THE_FIRST and changed.size > 1:
                continue
            other = [*parameters]
            other[position - 1] = changed
            expected = f"operand {position} {what}, {np.shape(changed)}"
            is_refused = check(case, other, compute=full or taken == 0, expected=expected)
            refused, taken = refused + is_refused, taken + (not is_refused)
    assert refused or case.operator in READS_THE_FIRST  # of which others are refused: see below
    count("parameters of other shapes that are refused", refused)
    count("parameters of other shapes that are taken", taken)


def test_message_of_a_body():
    """A node of the body that replaces an operator is in no file: the message names the operator first."""
    case = CASES["GroupNormalization"]
    values, scale, bias = case.operands
    model = jquant.onnx.load(model_of(case, [scale[:-1], bias]))
    with pytest.raises(ModelError, match=r"^[^:]*node 'y' \(GroupNormalization, version 21\): in its body, node 'y/"):
        jax.eval_shape(model, model.params, {"x0": values})


def test_several_where_one_is_read():
    """jquant refuses them, although onnxruntime takes the first one."""
    for name in READS_THE_FIRST:
        case = CASES[name]
        for position in case.parameters:
            parameters = list(case.operands[1:])
            parameters[position - 1] = np.stack([parameters[position - 1]] * 2)
            with pytest.raises(ModelError, match=r"has shape \(2,\); it must have shape \(\) or \(1,\)"):
                jquant.onnx.load(model_of(case, parameters))


@pytest.mark.parametrize(
    ("position", "message"),
    [
        (2, r"its operand scales, 'x2', has shape (4, 8); it must have shape (32,) or (8, 4)"),
        (3, r"its operand zero_points, 'x3', has shape (2, 8); it must have shape (16,) or (8, 2)"),
    ],
)
def test_message(position, message):
    """A file is refused when it is loaded, and an array of the caller, in the place of one of the file, in the call."""
    case = CASES["MatMulNBits of 4 bits"]
    parameters, names = list(case.operands[1:]), ["x1", "x2", "x3"]
    as_stored = dict(zip(names, parameters, strict=False))
    model = jquant.onnx.load(model_of(case, parameters))
    expected = model(model.params, {"x0": case.operands[0]})["y"]
    stored = model.params | as_stored
    np.testing.assert_allclose(model(stored, {"x0": case.operands[0]})["y"], expected, rtol=1e-5)  # another order of sums
    changed = np.ascontiguousarray(parameters[position - 1].T)
    with pytest.raises(ModelError, match=re.escape(f"node 'y' (com.microsoft.MatMulNBits, version 1): {message}")):
        model(stored | {f"x{position}": changed}, {"x0": case.operands[0]})
    parameters[position - 1] = changed
    with pytest.raises(ModelError, match=re.escape(f"node 'y' (com.microsoft.MatMulNBits, version 1): {message}")):
        jquant.onnx.load(model_of(case, parameters))


def test_replaced_operators_take_any_shape():
    """A caller's function takes the operands as the file has them."""
    case = CASES["MatMulNBits of 4 bits"]
    parameters = [None if x is None else np.ascontiguousarray(x.T) for x in case.operands[1:]]

    def shapes(a, b, scales, zero_points, g_idx, bias, *, K, N, bits, block_size):
        return jax.numpy.asarray([*b.shape, *scales.shape, *zero_points.shape])

    model = jquant.onnx.load(model_of(case, parameters), overrides={"com.microsoft.MatMulNBits": shapes})
    np.testing.assert_array_equal(model(model.params, {"x0": case.operands[0]})["y"], [8, 4, 8, 4, 8, 2, 8])
