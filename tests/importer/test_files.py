"""Loading what cannot be trusted: broken models, data outside of the model's folder, results that are too large."""

import collections
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

from onnx import TensorProto, helper, parser  # noqa: E402

import jquant.onnx  # noqa: E402
from jquant.onnx import ModelError  # noqa: E402

from . import malformed  # noqa: E402

BATCH = 100  # models a process


def outcomes(first: int, count: int) -> list[dict]:
    """Of a process of its own; a process that dies has a model without an end."""
    command = [sys.executable, str(Path(malformed.__file__)), str(first), str(count)]
    seconds = 60 + malformed.SECONDS * 10
    run = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment(), check=False)
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    ended = {line["number"]: line for line in lines if "found" in line}
    started = {line["number"]: line["what"] for line in lines if "what" in line}
    assert len(started) == count, run.stderr[-2000:]
    return [{"what": what, "found": "died", **ended.get(number, {})} for number, what in started.items()]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "JAX_PLATFORMS": "cpu"}


def broken(first: int, count: int, record) -> None:
    found = outcomes(first, count)
    bad = [each for each in found if each["found"] not in ("error", "result")]
    assert not bad, "\n".join(map(str, bad))
    for kind, number in collections.Counter(each["found"] for each in found).items():
        record(f"broken models that give a{'n' if kind == 'error' else ''} {kind}", number)


def test_broken_models(count):
    """Each gives a result, or an error that names the file or the node; in 10 s and 2 GiB of memory."""
    broken(0, BATCH, count)


@pytest.mark.full
@pytest.mark.parametrize("first", range(BATCH, 2000, BATCH))
def test_many_broken_models(first, count):
    broken(first, BATCH, count)


@pytest.mark.parametrize("number", range(4))
def test_the_models_before_they_are_broken(number, tmp_path):
    """Otherwise, that broken ones give errors would say nothing."""
    bases = [malformed.quantized_convolutions, malformed.integer_products, malformed.control_flow]
    model = [*bases, lambda: malformed.external(tmp_path)][number]()
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    assert malformed.outcome(path) == "result"


def with_external(location: str, **entries: object):
    """A model that adds four numbers of another file."""
    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        entry = weights.external_data.add()
        entry.key, entry.value = key, str(value)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "one", [x], [y], [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def folder(tmp_path):
    """The model's, with the data in it, outside of it, and links from the one to the other."""
    inside = tmp_path / "model"
    inside.mkdir()
    data = np.arange(4, dtype=np.float32).tobytes()
    for place in (tmp_path / "weights", inside / "weights"):
        place.write_bytes(data)
    (inside / "link").symlink_to(tmp_path / "weights")
    (inside / "outside").symlink_to(tmp_path)
    return inside


def saved(folder: Path, model) -> Path:
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return folder / "model.onnx"


def test_data_beside_the_model(folder):
    model = jquant.onnx.load(saved(folder, with_external("weights")))
    np.testing.assert_array_equal(model(model.params, {"x": np.ones(4, np.float32)})["y"], [1, 2, 3, 4])


@pytest.mark.parametrize("location", ["../weights", "{folder}/weights", "link", "outside/weights", "nobody", "", "."])
def test_data_outside_of_the_models_folder(folder, location):
    path = saved(folder, with_external(location.format(folder=folder)))
    with pytest.raises(ModelError, match=f"^{path}: "):
        jquant.onnx.load(path)


@pytest.mark.parametrize("entries", [{"offset": -4}, {"offset": 8}, {"length": 2**50}, {"length": 8}, {"offset": "x"}])
def test_parts_of_a_file_that_there_are_not(folder, entries):
    path = saved(folder, with_external("weights", **entries))
    with pytest.raises(ModelError, match=f"^{path}: "):
        jquant.onnx.load(path)


def test_bytes_and_messages_read_no_other_files(folder, monkeypatch):
    """Not even from the folder that happens to be the current one."""
    monkeypatch.chdir(folder)
    for location in ("weights", "nobody", "../weights"):
        model = with_external(location)
        for source in (model, model.SerializeToString()):
            message = "^the model: tensor 'w': its data is in another file; load the model from its path$"
            with pytest.raises(ModelError, match=message):
                jquant.onnx.load(source)


def test_tensors_of_subgraphs_and_attributes_that_are_elsewhere():
    branch = with_external("nobody").graph
    branch.ClearField("input")
    constant = helper.make_node("Constant", [], ["c"], value=branch.initializer[0])
    x, y, condition = (helper.make_tensor_value_info(*each) for each in (("x", 1, [4]), ("y", 1, [4]), ("condition", 9, [])))
    decided = helper.make_node("If", ["condition"], ["y"], then_branch=branch, else_branch=branch)
    for nodes in ([decided], [constant, helper.make_node("Add", ["x", "c"], ["y"])]):
        model = helper.make_model(helper.make_graph(nodes, "one", [x, condition], [y]), ir_version=8)
        with pytest.raises(ModelError, match=r"^the model: tensor 'w': its data is in another file"):
            jquant.onnx.load(model)


def test_operators_that_onnx_does_not_have():
    """onnx's checker names the operator, and not the node: each is named, those of subgraphs as well."""
    text = """net (float[n] x, bool condition) => (float[n] y) {
      [first] z = Relux (x)
      y = If (condition) <then_branch = t () => (float[n] t) { t = Reluy (z) },
                          else_branch = e () => (float[n] e) { e = Abs (z) }>
    }"""
    with pytest.raises(ModelError) as raised:
        jquant.onnx.load(parser.parse_model('<ir_version: 8, opset_import: ["" : 17]>\n' + text))
    lines = [f"node {node} (version 17): there is no such operator in ONNX" for node in ("'first' (Relux", "'t' (Reluy")]
    assert str(raised.value) == "the model: " + "\n".join(lines).replace(" (version", ", version")


@pytest.mark.parametrize("data", [b"", b"\x00", b"no model", b"\x08\x08"])
def test_what_is_no_model(data):
    with pytest.raises(ModelError, match="the model is not an ONNX model"):
        jquant.onnx.load(data)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 2\n", "but a pointer of Git LFS to one"),
        (b"GGUF\3\0\0\0", "but a GGUF file"),
        (b"PK\3\4\0\0", "but a zip archive, as PyTorch writes"),
        (b"<!doctype html>", "but a page in HTML or XML"),
        (b"\x40\0\0\0\0\0\0\0{}", "but a safetensors file"),
        (b"\x0a\x7f", "or is truncated"),
    ],
)
def test_other_formats(data, what):
    with pytest.raises(ModelError, match=f"the model is not an ONNX model, {what}"):
        jquant.onnx.load(data)


def test_other_kinds_of_sources(tmp_path):
    with pytest.raises(TypeError, match="source is a int; it must be a path, bytes, a binary file or a ModelProto"):
        jquant.onnx.load(1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(FileNotFoundError):
        jquant.onnx.load(tmp_path / "nobody.onnx")


def test_outputs_that_nothing_computes():
    model = with_external("weights")
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.ones(4, np.float32), "w"))
    model.graph.output[0].name = "z"
    with pytest.raises(ModelError, match=r"^the model: .*'z'"):
        jquant.onnx.load(model)


UNSORTED = """<ir_version: 10, opset_import: ["" : 21, "local" : 1]>
net (float[n] x, bool condition) => (float[n] y) {
  y = Add (chosen, twice)
  chosen = If (condition) <
    then_branch = t () => (float[n] t) { t = Sub (t1, twice) t1 = Mul (x, inverse) },
    else_branch = e () => (float[n] e) { e = local.both (twice) }>
  inverse = Neg (x)
  twice = Add (x, x)
}
<domain: "local", opset_import: ["" : 21]> both (a) => (c) { c = Add (b, a) b = Neg (a) }"""


def test_nodes_that_are_not_sorted():
    """Also in branches, which read values from around them, and in functions."""
    proto, x = parser.parse_model(UNSORTED), np.float32([1, 2, 3])
    model = jquant.onnx.load(proto)
    for condition, chosen in ((np.array(True), x * -x - 2 * x), (np.array(False), -2 * x + 2 * x)):
        y = jax.jit(model)(model.params, {"x": x, "condition": condition})["y"]
        np.testing.assert_array_equal(y, chosen + 2 * x)
    assert proto == parser.parse_model(UNSORTED)


def test_sorted_by_onnxruntimes_tools(tmp_path):
    """What quantize_dynamic writes, which appends nodes to the end."""
    quantization = pytest.importorskip("onnxruntime.quantization", reason="onnxruntime's tools are not installed")
    text = "net (float[n, 4] x) => (float[n, 3] y) { h = MatMul (x, w) r = Relu (h) y = MatMul (r, v) }"
    proto, rng = parser.parse_model('<ir_version: 8, opset_import: ["" : 17]>\n' + text), np.random.default_rng(0)
    for name, shape in (("w", (4, 5)), ("v", (5, 3))):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
    quantization.quantize_dynamic(proto, tmp_path / "model.onnx")
    written = onnx.load(tmp_path / "model.onnx")
    nodes = list(written.graph.node)
    del written.graph.node[:]
    written.graph.node.extend(nodes[::-1])
    for source in (tmp_path / "model.onnx", written):
        model, x = jquant.onnx.load(source), rng.normal(size=(2, 4)).astype(np.float32)
        session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
        np.testing.assert_allclose(jax.jit(model)(model.params, {"x": x})["y"], session.run(None, {"x": x})[0], 1e-5)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ("y = Add (x, b) b = Neg (a) a = Relu (b)", "the nodes need each other's results: "),
        ("y = Neg (a) a = Add (x, a)", "the nodes need each other's results: 'a' (Add) reads 'a' of 'a' (Add)"),
        ("y = Add (a, z) a = Neg (x)", "node 'y' (Add): nothing computes 'z'"),
        ("y = Add (x, z)", "'z'"),
        ("y = Neg (a) a = If (c) <then_branch = t () => (float[n] t) { t = Neg (z) }, "
         "else_branch = e () => (float[n] e) { e = Neg (x) }> c = IsNaN (x)", "node 'a' (If): nothing computes 'z'"),
        ("y = Neg (a) a = If (c) <then_branch = t () => (float[n] t) { t = Neg (y) }, "
         "else_branch = e () => (float[n] e) { e = Neg (x) }> c = IsNaN (x)", "'y' (Neg) reads 'a' of 'a' (If)"),
    ],
)  # fmt: skip
def test_nodes_that_cannot_be_sorted(nodes, message):
    with pytest.raises(ModelError, match=r"^the model: ") as raised:
        jquant.onnx.load(
            parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> net (float[n] x) => (float[n] y) {{{nodes}}}')
        )
    assert message in str(raised.value)
    if message.endswith("results: "):
        for part in ("'b' (Neg) reads 'a' of 'a' (Relu)", "'a' (Relu) reads 'b' of 'b' (Neg)"):
            assert part in str(raised.value)


@pytest.mark.parametrize("kind", ["no shape", "no element type", "no type"])
def test_outputs_without_a_shape(kind):
    """The format allows it, also for inputs; the types of outputs follow from the graph."""
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> net (float[n] x) => (int8[n] y) { y = Cast <to = 3> (x) }'
    )
    x, y = proto.graph.input[0], proto.graph.output[0]
    if kind == "no shape":
        x.type.tensor_type.ClearField("shape")
        y.type.tensor_type.ClearField("shape")
    elif kind == "no element type":
        y.CopyFrom(helper.make_empty_tensor_value_info("y"))
    else:
        y.CopyFrom(onnx.ValueInfoProto(name="y"))
    before = proto.SerializeToString()
    model = jquant.onnx.load(proto)
    assert model.outputs["y"].shape is None
    assert "output  y  " in str(model)
    for given in (np.float32([1, -2]), np.float32([[3]]))[: 2 if kind == "no shape" else 1]:
        result = jax.jit(model)(model.params, {"x": given})["y"]
        np.testing.assert_array_equal(result, given.astype(np.int8))
        assert result.dtype == np.int8
    assert proto.SerializeToString() == before


def too_large(text: str, x: np.ndarray, message: str) -> None:
    """Traced, eager, and (if nothing depends on inputs) while it is traced, in NumPy."""
    model = jquant.onnx.load(parser.parse_model('<ir_version: 8, opset_import: ["" : 17]>\n' + text))
    for function in (jax.jit(model), model):
        with pytest.raises(ModelError, match=message):
            function(model.params, {"x": x})


def test_results_that_are_too_large():
    x = np.ones((1, 1), np.float32)
    shape = "<int64[2] shape = {100000, 100000}>"
    message = r"node 'y' \(Expand, version 17\): a result would be float32\[100000, 100000\], which is 40,000,000,000 bytes"
    too_large(f"net (float[1, 1] x) => (float[a, b] y) {shape} {{ y = Expand (x, shape) }}", x, message)
    outer = "net (float[n, 1] x) => (float[a, b] y) { t = Transpose (x) y = Add (x, t) }"
    too_large(outer, np.ones((100_000, 1), np.float32), r"node 'y' \(Add, version 17\): a result would be float")


def test_known_results_that_are_too_large():
    """What a size depends on is computed by NumPy while tracing."""
    text = """net (float[1] x) => (float[n] y) <int64[2] shape = {100000, 100000}, int64[1] axes = {0}, int64[1] one = {1}> {
      many = Expand (one, shape)
      sum = ReduceSum <keepdims = 0> (many)
      wanted = Unsqueeze (sum, axes)
      y = Expand (x, wanted)
    }"""
    too_large(text, np.ones(1, np.float32), r"node 'many' \(Expand, version 17\): a result would be int")
