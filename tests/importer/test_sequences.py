"""The operators on sequences of tensors."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

from jquant.onnx import ModelError  # noqa: E402

from .node_models import floats, int64, model_of, run_model  # noqa: E402

pytestmark = pytest.mark.gate  # on the newest JAX alone


def test_sequences():
    make = onnx.helper.make_node
    nodes = [
        make("SequenceConstruct", ["a", "b"], ["pair"]),
        make("SequenceInsert", ["pair", "c", "zero"], ["three"]),
        make("SequenceErase", ["three", "minus_one"], ["two"]),
        make("SequenceLength", ["three"], ["length"]),
        make("ConcatFromSequence", ["two"], ["joined"], axis=0),
        make("ConcatFromSequence", ["three"], ["stacked"], axis=1, new_axis=1),
        make("SequenceAt", ["three", "minus_one"], ["last"]),
        make("SequenceAt", ["three", "position"], ["picked"]),
        make("SplitToSequence", ["a"], ["scalars"], axis=0, keepdims=0),
        make("SequenceAt", ["scalars", "zero"], ["scalar"]),
        make("Unsqueeze", ["length", "axis"], ["length_row"]),
        make("Concat", ["length_row", "inferred"], ["length_first"], axis=0),
        make("Reshape", ["stacked", "length_first"], ["by_length"]),
    ]
    a, b, c = floats(4), floats(4), floats(4)
    inputs = {"a": a, "b": b, "c": c, "position": np.array(-2)}
    constants = {"zero": np.array(0), "minus_one": np.array(-1), "axis": int64(0), "inferred": int64(-1)}
    outputs = ["joined", "stacked", "last", "picked", "scalar", "length", "by_length"]
    results = run_model(model_of(nodes, inputs, outputs, initializers=constants), inputs)
    expected = {
        "joined": np.concatenate([c, a]),
        "stacked": np.stack([c, a, b], 1),
        "last": b,
        "picked": a,
        "scalar": a[0],
        "length": 3,
        "by_length": np.stack([c, a, b], 1).reshape(3, -1),
    }
    for name, value in expected.items():
        np.testing.assert_array_equal(results[name], value, name)


def test_positions_that_depend_on_data_need_tensors_of_one_shape():
    make = onnx.helper.make_node
    nodes = [make("SequenceConstruct", ["a", "b"], ["pair"]), make("SequenceAt", ["pair", "position"], ["y"])]
    inputs = {"a": floats(4), "b": floats(3), "position": np.array(0)}
    with pytest.raises(ModelError, match=r"node 'y' .*: its position depends on data"):
        run_model(model_of(nodes, inputs, ["y"]), inputs)
