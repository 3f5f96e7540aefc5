"""Integer attributes beyond 32 bits: an error, where onnx's shape inference reads past its arrays and ends the process."""

import copy
import json
import subprocess
import sys

import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

from onnx import parser  # noqa: E402

import jquant.onnx  # noqa: E402
from jquant.onnx import ModelError  # noqa: E402

from .test_malformed import environment  # noqa: E402

NORMALIZATION = """<ir_version: 8, opset_import: ["" : 17]> net (float[3, 4] x, float[4] w, float[4] b) => (float[3, 4] y) {
  y = LayerNormalization <axis = 1> (x, w, b)
}"""


def with_value(proto: onnx.ModelProto, value: int) -> onnx.ModelProto:
    proto.graph.node[0].attribute[0].i = value
    return proto


def in_branch(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The node of `proto` in both branches of an If."""
    inner = copy.deepcopy(proto.graph)
    del inner.input[:]
    helper = onnx.helper
    node = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    condition = helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, [])
    graph = helper.make_graph([node], "net", [*proto.graph.input, condition], proto.graph.output)
    return helper.make_model(graph, opset_imports=proto.opset_import, ir_version=8)


def in_function(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The node of `proto` in a function."""
    helper, sets = onnx.helper, [*proto.opset_import, onnx.helper.make_opsetid("local", 1)]
    function = helper.make_function("local", "f", ["x", "w", "b"], ["y"], proto.graph.node, proto.opset_import)
    call = helper.make_node("f", ["x", "w", "b"], ["y"], domain="local")
    graph = helper.make_graph([call], "net", proto.graph.input, proto.graph.output)
    return helper.make_model(graph, functions=[function], opset_imports=sets, ir_version=8)


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("place", [lambda proto: proto, in_branch, in_function], ids=["graph", "branch", "function"])
def test_refused(place, value):
    proto = place(with_value(parser.parse_model(NORMALIZATION), value))
    message = rf"node 'y' \(LayerNormalization\): its attribute axis has {value}; it must be from -2147483648 to 2147483647"
    with pytest.raises(ModelError, match=message):
        jquant.onnx.load(proto)


def test_lists():
    proto = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> net (float[3, 4] x) => (float[n, m] y) {
      y = Transpose <perm = [1, 0]> (x)
    }""")
    proto.graph.node[0].attribute[0].ints[1] = 2**40
    with pytest.raises(ModelError, match=r"node 'y' \(Transpose\): its attribute perm has 1099511627776; it must be from"):
        jquant.onnx.load(proto)


def test_elements_and_ends_may_be_large():
    """A Constant, and the ends of Slice and Shape, which exporters write as the largest integer."""
    proto = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 9]> net (float[3, 4] x) => (float[2, 4] y) {{
      y = Slice <axes = [0], starts = [1], ends = [{2**63 - 1}]> (x)
    }}""")
    model = jquant.onnx.load(proto)
    assert model.outputs["y"].shape == (2, 4)
    proto = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> net (float[3, 4] x) => (int64[n] y, int64 z) {{
      y = Shape <start = 1, end = {2**63 - 1}> (x)
      z = Constant <value_int = {2**40}> ()
    }}""")
    assert set(jquant.onnx.load(proto).outputs) == {"y", "z"}


VALUES = [2**31 - 1, -(2**31), 2**31, -(2**31) - 1, 2**32 + 1, -(2**63), 2**63 - 1]
PROGRAM = f"""
import json, resource, sys, warnings
import jax, onnx
import jquant.onnx
from importer.test_node_cases import node_cases
jax.config.update("jax_platforms", "cpu")
warnings.simplefilter("ignore")
part, parts = map(int, sys.argv[1:])
seen, refused, loaded = set(), 0, 0
def attributes(graph):
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type in (onnx.AttributeProto.INT, onnx.AttributeProto.INTS):
                yield node, attribute
            yield from attributes(attribute.g)
for case in node_cases().values():
    for node, attribute in attributes(case.model.graph):
        key = node.domain, node.op_type, attribute.name
        if key in seen:
            continue
        seen.add(key)
        if len(seen) % parts != part:
            continue
        kept = onnx.AttributeProto()
        kept.CopyFrom(attribute)
        for value in {VALUES}:
            if attribute.type == onnx.AttributeProto.INT:
                attribute.i = value
            else:
                attribute.ints[:] = [value] * len(attribute.ints)
            print(*key, value, file=sys.stderr, flush=True)
            try:
                jquant.onnx.load(case.model)
                loaded += 1
            except jquant.onnx.ModelError as error:
                refused += 1
        attribute.CopyFrom(kept)
print(json.dumps([refused, loaded]))
"""
PARTS = 4


@pytest.mark.full
@pytest.mark.parametrize("part", range(PARTS))
def test_every_attribute(part, count):
    """Each integer attribute of the node cases with numbers at the limits and beyond: a model or an error."""
    command = [sys.executable, "-c", PROGRAM, str(part), str(PARTS)]
    run = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    assert run.returncode == 0, run.stderr[-500:]
    refused, loaded = json.loads(run.stdout)
    assert refused > loaded
    count("integer attributes out of range", refused)
    count("integer attributes at the limits of 32 bits, or past the end, that are loaded", loaded)
