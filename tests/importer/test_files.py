"""What `jquant.onnx.load` reads: files with external data, other formats, and declarations that are incomplete."""

from pathlib import Path

import jax
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

from onnx import TensorProto, helper, parser  # noqa: E402

import jquant.onnx  # noqa: E402
from jquant.onnx import ModelError  # noqa: E402


def external_model(location: str, **entries: object):
    """A model that adds four numbers, which are in another file."""
    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        entry = weights.external_data.add()
        entry.key, entry.value = key, str(value)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "one", [x], [y], [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def folder(tmp_path):
    """The folder of the model, with data inside and outside of it, and links to what is outside."""
    inside = tmp_path / "model"
    inside.mkdir()
    data = np.arange(4, dtype=np.float32).tobytes()
    for path in (tmp_path / "weights", inside / "weights"):
        path.write_bytes(data)
    (inside / "link").symlink_to(tmp_path / "weights")
    (inside / "outside").symlink_to(tmp_path)
    return inside


def saved(folder: Path, model) -> Path:
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return folder / "model.onnx"


def test_data_beside_the_model(folder):
    model = jquant.onnx.load(saved(folder, external_model("weights")))
    np.testing.assert_array_equal(model(model.params, {"x": np.ones(4, np.float32)})["y"], [1, 2, 3, 4])


@pytest.mark.parametrize("location", ["../weights", "{folder}/weights", "link", "outside/weights", "nobody", "", "."])
def test_data_outside_of_the_folder_is_refused(folder, location):
    path = saved(folder, external_model(location.format(folder=folder)))
    with pytest.raises(ModelError, match=f"^{path}: "):
        jquant.onnx.load(path)


@pytest.mark.parametrize("entries", [{"offset": -4}, {"offset": 8}, {"length": 2**50}, {"length": 8}, {"offset": "x"}])
def test_parts_beyond_the_end_of_a_file_are_refused(folder, entries):
    path = saved(folder, external_model("weights", **entries))
    with pytest.raises(ModelError, match=f"^{path}: "):
        jquant.onnx.load(path)


def test_bytes_and_messages_read_no_other_files(folder, monkeypatch):
    """Not even from the current folder."""
    monkeypatch.chdir(folder)
    for location in ("weights", "nobody", "../weights"):
        model = external_model(location)
        for source in (model, model.SerializeToString()):
            message = "^the model: tensor 'w': its data is in another file; load the model from its path$"
            with pytest.raises(ModelError, match=message):
                jquant.onnx.load(source)


def test_external_tensors_in_subgraphs_and_attributes():
    branch = external_model("nobody").graph
    branch.ClearField("input")
    constant = helper.make_node("Constant", [], ["c"], value=branch.initializer[0])
    x, y, condition = (helper.make_tensor_value_info(*each) for each in (("x", 1, [4]), ("y", 1, [4]), ("condition", 9, [])))
    conditional = helper.make_node("If", ["condition"], ["y"], then_branch=branch, else_branch=branch)
    for nodes in ([conditional], [constant, helper.make_node("Add", ["x", "c"], ["y"])]):
        model = helper.make_model(helper.make_graph(nodes, "one", [x, condition], [y]), ir_version=8)
        with pytest.raises(ModelError, match=r"^the model: tensor 'w': its data is in another file"):
            jquant.onnx.load(model)


def test_unknown_operators_are_named():
    """Every node with an unknown operator, in subgraphs as well; onnx's checker names the operator alone."""
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
def test_bytes_that_are_no_model(data):
    with pytest.raises(ModelError, match="the model is not an ONNX model"):
        jquant.onnx.load(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 2\n", "but a pointer of Git LFS to one"),
        (b"GGUF\3\0\0\0", "but a GGUF file"),
        (b"PK\3\4\0\0", "but a zip archive, as PyTorch writes"),
        (b"<!doctype html>", "but a page in HTML or XML"),
        (b"\x40\0\0\0\0\0\0\0{}", "but a safetensors file"),
        (b"\x0a\x7f", "or is truncated"),
    ],
)
def test_other_formats(data, message):
    with pytest.raises(ModelError, match=f"the model is not an ONNX model, {message}"):
        jquant.onnx.load(data)


def test_other_kinds_of_sources(tmp_path):
    with pytest.raises(TypeError, match="source is a int; it must be a path, bytes, a binary file or a ModelProto"):
        jquant.onnx.load(1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(FileNotFoundError):
        jquant.onnx.load(tmp_path / "nobody.onnx")


def test_outputs_that_nothing_computes():
    model = external_model("weights")
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.ones(4, np.float32), "w"))
    model.graph.output[0].name = "z"
    with pytest.raises(ModelError, match=r"^the model: .*'z'"):
        jquant.onnx.load(model)


@pytest.mark.parametrize("lacking", ["shape", "element type", "type"])
def test_incomplete_declarations(lacking):
    """The format allows inputs without a shape, and outputs without a type, which follows from the graph."""
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> net (float[n] x) => (int8[n] y) { y = Cast <to = 3> (x) }'
    )
    x, y = proto.graph.input[0], proto.graph.output[0]
    if lacking == "shape":
        x.type.tensor_type.ClearField("shape")
        y.type.tensor_type.ClearField("shape")
    elif lacking == "element type":
        y.CopyFrom(helper.make_empty_tensor_value_info("y"))
    else:
        y.CopyFrom(onnx.ValueInfoProto(name="y"))
    before = proto.SerializeToString()
    model = jquant.onnx.load(proto)
    assert model.outputs["y"].shape is None
    assert "output  y  " in str(model)
    for array in (np.float32([1, -2]), np.float32([[3]]))[: 2 if lacking == "shape" else 1]:
        result = jax.jit(model)(model.params, {"x": array})["y"]
        np.testing.assert_array_equal(result, array.astype(np.int8))
        assert result.dtype == np.int8
    assert proto.SerializeToString() == before
