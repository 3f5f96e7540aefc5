"""8-bit floats compared with onnxruntime's Cast, for all 16-bit inputs and ties, and zero points with ONNX's reference."""

import jax.numpy as jnp
import numpy as np
import pytest
from support.comparison import assert_equal
from support.narrow_samples import FLOATS_OF_8_BITS, every, ties

from jquant.reference import narrow_floats as reference

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: oracle)")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

FLOAT32 = np.float32
# Without saturation, in a range of magnitudes: the range, onnxruntime's result, and that of ONNX's table.
ONNXRUNTIME_DEVIATIONS = {
    "float8_e4m3fn": (480, 496, FLOAT32(448), FLOAT32(np.nan)),
    "float8_e5m2": (61440, 65536, FLOAT32(np.nan), FLOAT32(np.inf)),
}


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("name", FLOATS_OF_8_BITS)
def test_cast(name, saturate):
    """Without saturation, onnxruntime deviates in a range above the largest number."""
    to = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(name))
    make = onnx.helper.make_tensor_value_info
    nodes = [
        onnx.helper.make_node("Cast", ["x"], ["narrow"], to=to, saturate=int(saturate)),
        onnx.helper.make_node("Cast", ["narrow"], ["y"], to=onnx.TensorProto.FLOAT),
    ]
    graph = onnx.helper.make_graph(
        nodes, "cast", [make("x", onnx.TensorProto.FLOAT, [None])], [make("y", onnx.TensorProto.FLOAT, [None])]
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 19)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    with np.errstate(invalid="ignore"):
        x = np.concatenate([*(every(dtype).astype(FLOAT32) for dtype in (np.float16, jnp.bfloat16)), ties(name)])
    theirs = session.run(None, {"x": x})[0]
    ours = reference.decode(reference.encode(x, name, saturate=saturate), name)
    magnitude = abs(x)
    if not saturate and name in ONNXRUNTIME_DEVIATIONS:
        low, high, their_value, table_value = ONNXRUNTIME_DEVIATIONS[name]
        deviates = (magnitude >= low) & (magnitude < high)
        assert_equal(theirs[deviates], np.copysign(their_value, x[deviates]))
        assert_equal(ours[deviates], np.copysign(table_value, x[deviates]))
        x, ours, theirs = x[~deviates], ours[~deviates], theirs[~deviates]
    assert_equal(ours, theirs)


@pytest.mark.parametrize(
    ("name", "zero_point", "expected"),
    [
        ("float8_e4m3fn", 0, [-0.0, 1, 3]),
        ("float8_e4m3fn", 2, [-0.0, 1, 3]),
        ("float4_e2m1fn", 0, [0.0, 1, 3]),
        ("float4_e2m1fn", 2, [2, 3, 4]),
    ],
)
def test_zero_points_of_the_reference(name, zero_point, expected):
    """ONNX's reference ignores zero points of 8-bit floats, and adds those of 4-bit floats, which turns -0 into 0.

    `quantize_linear` adds zero points other than 0 for all of them.
    """
    from onnx.reference.ops.op_quantize_linear import _CommonQuantizeLinear

    x = np.array([-0.0, 1, 3], FLOAT32)
    (actual,) = _CommonQuantizeLinear._run(None, x, FLOAT32(1).reshape(()), np.array(zero_point, name))
    assert_equal(actual.astype(FLOAT32), np.array(expected, FLOAT32))
