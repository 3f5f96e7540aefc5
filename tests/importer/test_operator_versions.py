"""Older versions of operators, and integer operands, against ONNX's reference evaluator."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

from onnx.reference import ReferenceEvaluator  # noqa: E402

from .node_models import FLOAT, floats, int64, integers, node_model, run_model  # noqa: E402

pytestmark = pytest.mark.gate  # on the newest JAX alone

X = floats(2, 3, 4)
LEVELS = integers(-9, 9, 3, 4, dtype=np.int32)
# Versions that take attributes in the place of operands, or whose results differ, and integer operands.
OLDER = {
    "Clip": [("Clip", 7, [X], {"min": -0.5, "max": 0.5}), ("Clip", 10, [X], {"max": 0.5})],
    "Split": [
        ("Split", 7, [floats(4, 6)], {"axis": 1, "split": [2, 4], "outputs": 2}),
        ("Split", 11, [floats(4, 6)], {"axis": 1, "outputs": 3}),
        ("Split", 13, [floats(4, 6), int64(1, 3)], {"static": [1], "outputs": 2}),
        ("Split", 18, [floats(4, 7)], {"axis": -1, "num_outputs": 3, "outputs": 3}),
    ],
    "Pad": [
        ("Pad", 7, [floats(2, 3)], {"pads": [1, 0, 0, 2], "mode": "constant", "value": 1.5}),
        ("Pad", 10, [floats(3, 4)], {"pads": [1, 1, 2, 1], "mode": "reflect"}),
        ("Pad", 10, [floats(3, 4)], {"pads": [2, 1, 1, 1], "mode": "edge"}),
        ("Pad", 19, [floats(3, 4), int64(4, 5, 6, 7)], {"static": [1], "mode": "wrap"}),
    ],
    "Reduce": [
        (operator, 11, [abs(X)], {"axes": [-2], "keepdims": 0})
        for operator in ("ReduceMean", "ReduceSum", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp")
    ],
    "Reduce integers": [
        (operator, 18, [LEVELS, int64(1)], {"static": [1], "keepdims": 0})
        for operator in ("ReduceMean", "ReduceSum", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceMax", "ReduceSumSquare")
    ],
    "Reduce nothing": [
        (operator, 18, [abs(X)], {"noop_with_empty_axes": 1})
        for operator in ("ReduceSum", "ReduceL2", "ReduceLogSum", "ReduceSumSquare", "ReduceMax", "ReduceMean")
    ],
    "TopK": [
        ("TopK", 7, [floats(3, 5)], {"k": 2, "axis": 1, "outputs": 2}),
        ("TopK", 10, [floats(3, 5), int64(3)], {"static": [1], "outputs": 2}),
        ("TopK", 11, [integers(-128, 128, 300, dtype=np.int8), int64(9)], {"static": [1], "largest": 0, "outputs": 2}),
        ("TopK", 11, [integers(0, 256, 300, dtype=np.uint8), int64(9)], {"static": [1], "largest": 0, "outputs": 2}),
    ],
    "ArgMax": [("ArgMax", 7, [LEVELS], {"axis": 1}), ("ArgMin", 12, [LEVELS], {"axis": -1, "select_last_index": 1})],
    "Squeeze": [("Squeeze", 7, [floats(1, 3, 1)], {"axes": [0]}), ("Unsqueeze", 11, [floats(3)], {"axes": [-1, 0]})],
    "Slice": [
        ("Slice", 7, [floats(5, 6)], {"starts": [1, -3], "ends": [3, 1000], "axes": [0, 1]}),
        ("Slice", 13, [floats(5, 6), int64(-2), int64(-7), int64(1), int64(-2)], {"static": [1, 2, 3, 4]}),
    ],
    "Gather": [
        ("Gather", 11, [floats(4, 5), int64(0, -1)], {"axis": 1}),
        ("GatherElements", 11, [floats(4, 1), integers(-4, 4, 3, 1)], {"axis": 0}),
        ("GatherND", 12, [floats(2, 3, 4, 5), integers(-4, 4, 2, 3, 1)], {"batch_dims": 2}),
    ],
    "Scatter": [
        ("ScatterElements", 16, [floats(3, 4), np.array([[1, 1]]), floats(1, 2)], {"axis": 1, "reduction": "add"}),
        ("ScatterND", 18, [floats(4, 5), np.array([[1], [1]]), floats(2, 5)], {"reduction": "mul"}),
    ],
    "CumSum": [("CumSum", 11, [X, np.array(-1)], {"static": [1], "exclusive": 1, "reverse": 1})],
    "OneHot": [("OneHot", 11, [integers(-6, 7, 3, 4), np.array(5), int64(2, 7)], {"static": [1], "axis": 1})],
    "EyeLike": [("EyeLike", 9, [floats(3, 4)], {"k": 1}), ("EyeLike", 9, [LEVELS], {"dtype": FLOAT, "k": -1})],
    "DepthToSpace": [("DepthToSpace", 7, [floats(2, 8, 2, 3)], {"blocksize": 2})],
    "Dropout": [("Dropout", 7, [X], {"ratio": 0.3}), ("Dropout", 12, [X, np.float32(0.3)], {"static": [1]})],
    "Shrink": [("Shrink", 9, [LEVELS], {"lambd": 2.0, "bias": 1.5})],
    "Pow": [
        ("Pow", 12, [LEVELS, np.full((3, 4), 3, np.float32)], {}),
        ("Pow", 13, [abs(X), integers(0, 4, 3, 4, dtype=np.int32)], {}),
    ],
    "Unique": [("Unique", 11, [integers(0, 5, 20)], {"static": [0], "outputs": 4, "sorted": 0})],
    "Range": [("Range", 11, [np.float32(1), np.float32(9), np.float32(1.5)], {"static": [0, 1, 2]})],
}


@pytest.mark.parametrize("family", OLDER)
def test_older_versions_and_integers(family):
    for operator, version, operands, options in OLDER[family]:
        proto, inputs = node_model(operator, version, operands, **options)
        outputs = run_model(proto, inputs).values()
        for actual, expected in zip(outputs, ReferenceEvaluator(proto).run(None, inputs), strict=True):
            assert actual.shape == np.shape(expected), operator
            if actual.dtype.kind in "iub":
                np.testing.assert_array_equal(actual, expected, operator)
            else:
                assert actual.dtype == expected.dtype
                np.testing.assert_allclose(actual, expected, 1e-6, 1e-6, err_msg=operator)


def test_negative_padding_crops():
    x = floats(3, 4)
    proto, inputs = node_model("Pad", 13, [x, int64(1, -1, 0, 1), np.float32(3)], static=[1])
    np.testing.assert_array_equal(run_model(proto, inputs)["y0"], np.pad(x[:, 1:], ((1, 0), (0, 1)), constant_values=3))
    proto, inputs = node_model("Pad", 18, [x, int64(-1, -2), None, int64(-1)], static=[1, 3], mode="edge")
    np.testing.assert_array_equal(run_model(proto, inputs)["y0"], x[:, 1:2])
