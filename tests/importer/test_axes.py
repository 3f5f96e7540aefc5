"""Axes out of range, for every operator that has an axis: both ends of the allowed range, and the numbers beyond them."""

import re
from typing import NamedTuple

import jax
import ml_dtypes
import numpy as np
import pytest
from support.sampling import one_in

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

from onnx import helper, parser  # noqa: E402

import jquant.onnx  # noqa: E402
from jquant.onnx import ModelError  # noqa: E402
from jquant.onnx.running import axes, registry  # noqa: E402

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 8
LEVELS = X.astype(np.uint8)
CUBE = np.arange(8, dtype=np.float32).reshape(2, 2, 2) + 1  # the same scales fit each of its dimensions
POINT = np.ones((1, 1, 1), np.float32)
ONE, ZERO = np.float32(1), np.uint8(0)
PER_AXIS = [np.float32([1, 2]), np.int8([0, 1])]
ZEROS = np.zeros((1, 1, 1), np.int64)
BODY = parser.parse_graph("body (float[a, b] e) => (float[a, b] f) { f = Neg (e) }")
SCAN = {"body": BODY, "num_scan_inputs": 1}
BLOCKS = [np.ones((16, 16, 16), ml_dtypes.uint4), np.array([0]), np.ones((16, 16, 1), np.float32)]
RUNTIME_ERRORS = tuple(
    getattr(onnxruntime.capi.onnxruntime_pybind11_state, name) for name in ("Fail", "InvalidArgument", "RuntimeException")
)
REDUCTIONS = ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"]


class Case(NamedTuple):
    """An operator whose axis is an attribute, or the operand that is None here.

    Attributes:
      version: that of the operator set of its domain.
      operands: arrays, and "" for one that is left out. All but the first are initializers.
      first, last: the ends of the allowed range.
      listed: whether the axis is in a list.
      theirs: whether onnxruntime has a kernel that refuses axes out of range.
    """

    operator: str
    version: int
    operands: list
    axis: str = "axis"
    first: int = -3
    last: int = 2
    listed: bool = False
    attributes: dict = {}  # noqa: RUF012
    outputs: int = 1
    theirs: bool = True

    @property
    def domain(self):
        return "com.microsoft" if self.operator.startswith("com.") else ""

    @property
    def position(self):
        """The position of the operand that is the axis; None if the axis is an attribute."""
        return next((i for i, each in enumerate(self.operands) if each is None), None)


CASES = [
    *(Case(name, 13, [X]) for name in ("ArgMax", "ArgMin")),
    *(Case(f"Reduce{name}", 11, [X], "axes", listed=True) for name in REDUCTIONS),
    *(Case(f"Reduce{name}", 18, [X, None], "axes", listed=True) for name in REDUCTIONS),
    *(Case(name, version, [X]) for version in (11, 13) for name in ("Hardmax", "LogSoftmax", "Softmax")),
    Case("CenterCropPad", 18, [X, np.array([2])], "axes", listed=True),
    Case("Compress", 11, [X, np.array([True])]),
    Case("Concat", 13, [CUBE, CUBE]),
    Case("ConcatFromSequence", 11, [CUBE]),
    Case("ConcatFromSequence", 11, [CUBE], first=-4, last=3, attributes={"new_axis": 1}),
    Case("CumProd", 26, [X, None], theirs=False),
    Case("CumSum", 14, [X, None]),
    Case("DFT", 17, [CUBE], last=1),
    Case("DFT", 20, [CUBE, "", None], last=1),
    Case("DequantizeLinear", 21, [CUBE.astype(np.int8), *PER_AXIS]),
    Case("Flatten", 13, [X], last=3),
    Case("Gather", 13, [X, np.array([0, 1])]),
    Case("GatherElements", 13, [X, np.zeros((2, 3, 4), np.int64)]),
    Case("GatherND", 13, [CUBE, np.zeros((2, 2, 1), np.int64)], "batch_dims", first=0, last=2),
    Case("LayerNormalization", 17, [POINT, POINT[0, 0]]),
    Case("LpNormalization", 13, [X + 1]),
    Case("OneHot", 11, [np.zeros((2, 3), np.int64), np.array(4), np.float32([0, 1])]),
    Case("Pad", 18, [X, np.array([1, 1]), "", None], "axes", listed=True),
    *(Case("QuantizeLinear", version, [CUBE, *PER_AXIS]) for version in (21, 23)),
    Case("RMSNormalization", 23, [POINT, POINT[0, 0]]),
    Case("Resize", 18, [X, "", np.float32([2])], "axes", listed=True),
    Case("ReverseSequence", 10, [CUBE, np.array([1, 2])], "batch_axis", 0, 1, attributes={"time_axis": 0}, theirs=False),
    Case("ReverseSequence", 10, [CUBE, np.array([1, 2])], "time_axis", 0, 1, attributes={"batch_axis": 1}, theirs=False),
    Case("Scan", 9, [X], "scan_input_axes", listed=True, attributes=SCAN),
    Case("Scan", 9, [X], "scan_output_axes", listed=True, attributes=SCAN),
    Case("Scatter", 10, [X, ZEROS, POINT]),
    Case("ScatterElements", 11, [X, ZEROS, POINT]),
    Case("Slice", 9, [X], "axes", listed=True, attributes={"starts": [1], "ends": [2]}),
    Case("Slice", 13, [X, np.array([1]), np.array([2]), None], "axes", listed=True),
    Case("Split", 11, [CUBE], outputs=2),
    Case("Split", 18, [CUBE], attributes={"num_outputs": 2}, outputs=2),
    Case("SplitToSequence", 11, [X]),
    Case("Squeeze", 11, [POINT], "axes", listed=True),
    Case("Squeeze", 13, [POINT, None], "axes", listed=True),
    Case("TensorScatter", 24, [CUBE, CUBE], first=-2),
    Case("TopK", 9, [X], attributes={"k": 2}, outputs=2),
    Case("TopK", 11, [X, np.array([2])], outputs=2),
    Case("Transpose", 13, [X[0, 0]], "perm", 0, 0, listed=True),
    Case("Unique", 11, [X]),
    Case("Unsqueeze", 11, [X], "axes", -4, 3, listed=True),
    Case("Unsqueeze", 13, [X, None], "axes", -4, 3, listed=True),
    Case("com.microsoft.DequantizeLinear", 1, [CUBE.astype(np.int8), *PER_AXIS]),
    Case("com.microsoft.GatherBlockQuantized", 1, BLOCKS, "gather_axis", attributes={"block_size": 16}),
    Case("com.microsoft.GatherBlockQuantized", 1, BLOCKS, "quantize_axis", attributes={"block_size": 16}),
    Case("com.microsoft.LayerNormalization", 1, [POINT, POINT[0, 0]], theirs=False),
    Case("com.microsoft.QLinearConcat", 1, [ONE, ZERO, LEVELS, ONE, ZERO]),
    Case(
        "com.microsoft.QLinearReduceMean", 1, [X.astype(np.uint8), ONE, ZERO, ONE, ZERO], "axes", listed=True, theirs=False
    ),
    Case("com.microsoft.QLinearSoftmax", 1, [LEVELS, ONE, ZERO, ONE, ZERO], attributes={"opset": 13}),
    Case("com.microsoft.QuantizeLinear", 1, [CUBE, *PER_AXIS]),
    Case("com.microsoft.SimplifiedLayerNormalization", 1, [POINT, POINT[0, 0]], theirs=False),
]


def case_id(case):
    kind = "attribute" if case.position is None else "operand"
    return f"{case.operator}-{case.version}, {kind} {case.axis}" + (", new" if case.attributes.get("new_axis") else "")


def model_of(case, axis):
    """A model whose node `node` has this axis, and the inputs of the model."""
    attributes, operands = dict(case.attributes), list(case.operands)
    value = [axis] if case.listed else axis
    if case.position is None:
        attributes[case.axis] = value
    else:
        operands[case.position] = np.array(value)
    if case.operator == "ReverseSequence" and axis in (0, 1):  # the two axes must differ
        attributes["time_axis" if case.axis == "batch_axis" else "batch_axis"] = 1 - axis
    if case.axis == "quantize_axis":  # the axis along which the elements of a block share a scale
        scales = [16, 16, 16]
        scales[axis if -3 <= axis <= 2 else 0] = 1
        operands[2] = np.ones(scales, np.float32)
    elif case.axis == "gather_axis":
        attributes["quantize_axis"] = 2
    names = ["" if isinstance(each, str) else f"x{i}" for i, each in enumerate(operands)]
    # The operand of Unique, and quantized data, have to be initializers.
    traced = [] if case.operator == "Unique" or case.axis.endswith("ize_axis") or case.axis == "gather_axis" else names[:1]
    arrays = dict(zip(names, operands, strict=True))
    results = [f"y{i}" for i in range(case.outputs)]
    operator = case.operator.rpartition(".")[2]
    node_inputs, node_outputs = names, results
    before, after = [], []
    if operator == "ConcatFromSequence":
        before, node_inputs = [helper.make_node("SequenceConstruct", ["x0", "x0"], ["sequence"])], ["sequence"]
    if operator == "SplitToSequence":
        after, node_outputs = [helper.make_node("SequenceLength", ["sequence"], ["y0"])], ["sequence"]
    node = helper.make_node(operator, node_inputs, node_outputs, "node", domain=case.domain, **attributes)
    graph = helper.make_graph(
        [*before, node, *after],
        "graph",
        [helper.make_tensor_value_info(name, onnx_type(arrays[name]), np.shape(arrays[name])) for name in traced],
        [helper.make_empty_tensor_value_info(name) for name in results],
        [onnx.numpy_helper.from_array(np.asarray(x), name) for name, x in arrays.items() if name and name not in traced],
    )
    opset = 17 if case.domain else case.version
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    inputs = {name: np.asarray(arrays[name]) for name in traced}
    return helper.make_model(graph, opset_imports=opsets, ir_version=13 if opset > 24 else 10), inputs


def onnx_type(x):
    return helper.np_dtype_to_tensor_dtype(np.asarray(x).dtype)


def theirs(proto, inputs):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def ours(proto, inputs):
    model = jquant.onnx.load(proto)
    return jax.eval_shape(model, model.params, inputs)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_range(case):
    """The ends of the range are accepted. The numbers beyond them are refused, in a message that names the node."""
    for axis in (case.first, case.last):
        ours(*model_of(case, axis))
    kind = "attribute" if case.position is None else "operand"
    for axis in (case.first - 1, case.last + 1):
        value = re.escape(f"[{axis}]" if case.listed else f"{axis}")
        source = rf"node 'node' \({re.escape(case.operator)}, version \d+\): its {kind} {case.axis} is {value}, "
        message = rf"^{source}which is not in the range from {case.first} to {case.last}$"
        if case.axis == "batch_dims" and axis < 0:  # which onnx's own code must not see
            message = rf"node 'node' \(GatherND\): its attribute batch_dims has {axis}; it must be from 0 to 2147483647$"
        with pytest.raises(ModelError, match=message):
            ours(*model_of(case, axis))


@pytest.mark.gate
@one_in(3, "case", [case for case in CASES if case.theirs], others="full", ids=case_id)
def test_onnxruntime(case):
    """onnxruntime gives the same results at both ends of the range, and refuses the numbers beyond them."""
    for axis in (case.first, case.last):
        proto, inputs = model_of(case, axis)
        model = jquant.onnx.load(proto)
        for actual, expected in zip(model(model.params, inputs).values(), theirs(proto, inputs), strict=True):
            if expected.dtype.kind == "f":
                np.testing.assert_allclose(actual, expected, 1e-5, 1e-6)
            else:
                np.testing.assert_array_equal(actual, expected)
    for axis in (case.first - 1, case.last + 1):
        with pytest.raises(RUNTIME_ERRORS):
            theirs(*model_of(case, axis))


def test_every_operator_with_an_axis_is_tested():
    """Every operator that has a converter; the others are functions of these."""
    missing = []
    for domain, operator in registry.operators():
        for entry in registry._TABLE[domain, operator]:
            name = f"{domain}.{operator}" if domain else operator
            tested = {
                case.axis for case in CASES if case.operator == name and entry.since <= case.version <= (entry.until or 99)
            }
            needed = {each for each in (*entry.operands, *entry.attributes) if "axis" in each or "axes" in each}
            needed |= axes.NAMES & {*entry.operands, *entry.attributes}
            missing += [(name, entry.since, each) for each in needed - tested - NO_AXES]
    assert missing == []


NO_AXES = {"new_axis", "noop_with_empty_axes"}


def test_one_of_several_axes():
    proto, inputs = model_of(Case("ReduceSum", 11, [X], "axes", listed=True), 0)
    proto.graph.node[0].attribute[0].ints[:] = [0, 5]
    with pytest.raises(ModelError, match=r"its attribute axes is \[0, 5\], of which 5 is not in the range from -3 to 2$"):
        ours(proto, inputs)


def test_axis_of_a_scalar():
    with pytest.raises(ModelError, match=r"its attribute axis is 0, but there are no dimensions$"):
        ours(*model_of(Case("Softmax", 13, [ONE]), 0))


def test_axis_of_a_single_scale():
    """It is ignored, as in onnxruntime."""
    for scale in (np.float32(0.5), np.float32([0.5])):
        proto, inputs = model_of(Case("QuantizeLinear", 21, [X[0, 0], scale]), 7)
        model = jquant.onnx.load(proto)
        np.testing.assert_array_equal(model(model.params, inputs)["y0"], theirs(proto, inputs)[0])


@pytest.mark.parametrize("qdq", ["as_written", "fused"])
def test_transposed_weights(qdq):
    """Fusion transposes weights when the model is loaded, but not along axes out of range."""
    proto = parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
    net (float[n, 2] x) => (float[n, 2] y) <int8[2, 2] w = {1, 2, 3, 4}, float[2] s = {0.5, 0.25}, float t = {0.5}> {
      q = QuantizeLinear (x, t)
      d = DequantizeLinear (q, t)
      v = DequantizeLinear <axis = 0> (w, s)
      [node] u = Transpose <perm = [-1, 0]> (v)
      p = MatMul (d, u)
      r = QuantizeLinear (p, t)
      y = DequantizeLinear (r, t)
    }""")
    model = jquant.onnx.load(proto, qdq=qdq)
    with pytest.raises(ModelError, match=r"attribute perm is \[-1, 0\], of which -1 is not in the range from 0 to 1$"):
        jax.eval_shape(model, model.params, {"x": np.ones((1, 2), np.float32)})
