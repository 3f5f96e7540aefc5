"""Large initializers, which `jquant.onnx.load` takes out of a file before onnx sees it: the same model, in less memory."""

import io
import os
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

from google.protobuf.message import DecodeError  # noqa: E402
from onnx import ModelProto, TensorProto, helper, numpy_helper  # noqa: E402

import jquant.onnx  # noqa: E402
from benchmarks.models import widened  # noqa: E402
from jquant.onnx import ModelError  # noqa: E402
from jquant.onnx.reading import files, large_tensors  # noqa: E402

NUMBERS = [
    name
    for name, number in TensorProto.DataType.items()
    if name not in ("UNDEFINED", "STRING") and number in helper.get_all_tensor_dtypes()
]
COUNTS = 0, 1, 511, 512, 1023, 1024, 1025, 4095, 4096, 4097, 8191, 8192, 8193, 16384  # below and above what is large


def random_tensor(rng: np.random.Generator, name: str) -> TensorProto:
    """Of any type and size, its elements in bytes or in a field of their type."""
    data_type = TensorProto.DataType.Value(rng.choice(NUMBERS))
    dtype = helper.tensor_dtype_to_np_dtype(data_type)
    count = int(rng.choice(COUNTS))
    shape = (count,) if count % 4 else (4, count // 4) if rng.random() < 0.5 else (count // 4, 1, 4)
    array = rng.integers(0, 2, shape).astype(dtype)
    tensor = numpy_helper.from_array(array, name)
    if rng.random() < 0.25 and dtype in (np.float32, np.float64, np.int32, np.int64):
        tensor = helper.make_tensor(name, data_type, shape, array.ravel())
    if rng.random() < 0.25:
        tensor.doc_string = "as it was"
    if rng.random() < 0.25:
        tensor.data_location = TensorProto.DEFAULT
    return tensor


def random_model(seed: int) -> ModelProto:
    """A model whose nodes, and those of a branch, hand on initializers of all kinds."""
    rng = np.random.default_rng(seed)
    tensors = [random_tensor(rng, f"tensor{i}") for i in range(int(rng.integers(1, 12)))]
    outputs = [helper.make_empty_tensor_value_info(f"{tensor.name}/out") for tensor in tensors]
    nodes = [
        helper.make_node("Identity", [tensor.name], [output.name]) for tensor, output in zip(tensors, outputs, strict=True)
    ]
    inside = random_tensor(rng, "inside")
    result = helper.make_tensor_value_info("result", inside.data_type, None)
    branch = helper.make_graph([helper.make_node("Identity", ["inside"], ["result"])], "branch", [], [result], [inside])
    nodes.append(helper.make_node("If", ["condition"], ["chosen"], then_branch=branch, else_branch=branch))
    constant = random_tensor(rng, "constant")
    nodes.append(helper.make_node("Constant", [], ["constant"], value=constant))
    for tensor, output in zip(tensors, outputs, strict=True):
        output.type.CopyFrom(helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims)))
    condition = helper.make_tensor_value_info("condition", TensorProto.BOOL, [])
    declared = [
        helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims) for tensor in tensors if rng.random() < 0.3
    ]
    outputs.append(helper.make_tensor_value_info("chosen", inside.data_type, None))
    graph = helper.make_graph(nodes, "random", [condition, *declared], outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=12)


def as_pipe(path: Path) -> Path:
    """A pipe with the bytes of a file, in which nobody can seek."""
    pipe = path.with_suffix(".pipe")
    os.mkfifo(pipe)
    threading.Thread(target=lambda: pipe.write_bytes(path.read_bytes())).start()
    return pipe


SOURCES = {
    "path": lambda path: path,
    "bytes": lambda path: path.read_bytes(),
    "bytearray": lambda path: bytearray(path.read_bytes()),
    "memoryview": lambda path: memoryview(path.read_bytes()),
    "file": lambda path: io.BytesIO(path.read_bytes()),
    "pipe": as_pipe,
    "message": lambda path: onnx.load(path),
}


@pytest.mark.parametrize("source", SOURCES)
def test_nothing_is_lost(source, tmp_path):
    """The elements of every tensor are those that onnx reads, and the whole is the message that it was."""
    large = 0
    for seed in range(20):
        path = tmp_path / f"{seed}.onnx"
        model = random_model(seed)
        path.write_bytes(model.SerializeToString())
        file = files.read(SOURCES[source](path))
        large += len(file.large)
        read = file.arrays() | {tensor.name: numpy_helper.to_array(tensor) for tensor in file.model.graph.initializer}
        assert read.keys() == {tensor.name for tensor in model.graph.initializer}
        for tensor in model.graph.initializer:
            expected = numpy_helper.to_array(tensor)
            assert read[tensor.name].dtype == expected.dtype
            assert read[tensor.name].shape == expected.shape
            assert read[tensor.name].tobytes() == expected.tobytes()
        assert_equal(file.whole(), model)
    assert large > 20


def assert_equal(actual: ModelProto, expected: ModelProto) -> None:
    """Equal messages but for the order of initializers, which means nothing."""
    first, second = ModelProto.FromString(actual.SerializeToString()), ModelProto.FromString(expected.SerializeToString())
    for model in (first, second):
        for tensor in model.graph.initializer:
            tensor.ClearField("data_location")
        kept = onnx.GraphProto(initializer=sorted(model.graph.initializer, key=TensorProto.SerializeToString))
        model.graph.ClearField("initializer")
        model.graph.initializer.extend(kept.initializer)
    assert first == second


@pytest.mark.parametrize("size", [1, 4096])
@pytest.mark.parametrize("piece", [4096, 5000, 2**22])
def test_data_in_other_files(size, piece, tmp_path, monkeypatch):
    """Of tensors small and large, each with its own part of the file, which is read in pieces."""
    monkeypatch.setattr(large_tensors, "_PIECE", piece)
    large = 0
    for seed in range(10):
        path = tmp_path / f"{seed}.onnx"
        onnx.save(random_model(seed), path, save_as_external_data=True, location=f"data{seed}", size_threshold=size)
        file = files.read(path)
        large += len(file.large)
        assert_equal(file.whole(), onnx.load(path))
    assert large > 10


@pytest.mark.parametrize("entries", [{}, {"length": 4096}, {"length": 8196}, {"length": 2**40}, {"length": "x"}])
@pytest.mark.parametrize("offset", [-4, 0, 4, 2**40, "x"])
def test_places_in_other_files(entries, offset, tmp_path):
    """A large tensor is read from where onnx would read it, or refused as onnx would refuse it."""
    b = TensorProto(name="b", data_type=TensorProto.FLOAT, dims=[2048], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": "data", "offset": offset, **entries}.items():
        b.external_data.add(key=key, value=str(value))
    model = two_tensors(numpy_helper.from_array(np.zeros(2048, np.float32), "a"), b)
    (tmp_path / "data").write_bytes(np.arange(2049, dtype=np.float32).tobytes())
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    try:
        expected = numpy_helper.to_array(onnx.load(tmp_path / "model.onnx").graph.initializer[1])
    except Exception:
        expected = None
    if expected is None or expected.size != 2048:
        with pytest.raises(ModelError):
            jquant.onnx.load(tmp_path / "model.onnx")
    else:
        loaded = jquant.onnx.load(tmp_path / "model.onnx", fold=False)
        np.testing.assert_array_equal(loaded.params["b"], expected)


def test_a_model_computes_with_all_of_them():
    """Through `load`, with the results of onnx's own evaluator."""
    from onnx.reference import ReferenceEvaluator

    rng = np.random.default_rng(0)
    weights = rng.standard_normal((64, 64)).astype(np.float32)
    bias = rng.standard_normal((3, 1024)).astype(jnp.bfloat16)
    small = rng.standard_normal(64).astype(np.float32)
    nodes = [
        helper.make_node("Gather", ["weights", "x"], ["rows"], axis=0),
        helper.make_node("Add", ["rows", "small"], ["y"]),
        helper.make_node("Gather", ["bias", "x"], ["z"], axis=1),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.INT64, ["n"])
    y, z = helper.make_tensor_value_info("y", 1, ["n", 64]), helper.make_tensor_value_info("z", 16, [3, "n"])
    arrays = {"weights": weights, "bias": bias, "small": small}
    tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "rows", [x], [y, z], tensors)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    assert len(files.read(proto).large) == 2
    model = jquant.onnx.load(proto)
    assert model.inputs.keys() == {"x"}
    inputs = {"x": np.array([5, 0, 63])}
    for actual, expected in zip(
        model(model.params, inputs).values(), ReferenceEvaluator(proto).run(None, inputs), strict=True
    ):
        np.testing.assert_array_equal(np.asarray(actual, np.float32), expected.astype(np.float32))


def test_damaged_files_are_read_as_protocol_buffers_read_them():
    """Bytes that were changed, removed or added: the same message, or none from either."""
    rng = np.random.default_rng(0)
    outcomes = {"read": 0, "left": 0, "refused": 0}
    for seed in range(40):
        whole = random_model(seed).SerializeToString()
        for _ in range(50):
            data = damaged(rng, whole)
            try:
                expected = ModelProto.FromString(data)
            except DecodeError:
                expected = None
            try:
                rest, large = large_tensors.taken_out(io.BytesIO(data))
            except large_tensors.NotRead:
                outcomes["left"] += 1
                continue
            try:
                actual = ModelProto.FromString(rest)
            except DecodeError:
                actual = None
            assert (actual is None) == (expected is None)
            if actual is not None and expected is not None:
                actual.graph.initializer.extend(each.whole() for each in large)
                assert_equal(actual, expected)
            outcomes["refused" if expected is None else "read"] += 1
    assert min(outcomes.values()) > 20, outcomes


def damaged(rng: np.random.Generator, data: bytes) -> bytes:
    start = int(rng.integers(len(data)))
    if rng.random() < 0.7:  # near the beginning of a field, where sizes are
        start = max(0, data.find(b"tensor", start) - int(rng.integers(0, 16)))
    kind = rng.integers(4)
    if kind == 0:
        return data[:start]
    if kind == 1:
        return data[:start] + bytes([int(rng.integers(256))]) + data[start + 1 :]
    if kind == 2:
        return data[:start] + data[start + int(rng.integers(1, 4)) :]
    return data[:start] + rng.bytes(int(rng.integers(1, 4))) + data[start:]


def two_tensors(first: TensorProto, second: TensorProto, ir_version: int = 8) -> ModelProto:
    """The sum of two initializers, neither of which is an input."""
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2048])
    graph = helper.make_graph([helper.make_node("Add", [first.name, second.name], ["y"])], "sum", [], [y], [first, second])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=ir_version)


@pytest.mark.parametrize("sizes", [(2048, 2048), (2048, 1), (1, 2048)])
def test_names_are_unique(sizes):
    tensors = (numpy_helper.from_array(np.zeros(size, np.float32), "w") for size in sizes)
    with pytest.raises(ModelError, match=r"^the model: initializer 'w': its name is not unique$"):
        jquant.onnx.load(two_tensors(*tensors))


def test_version_3_of_the_format_wants_them_among_the_inputs():
    a, b = (numpy_helper.from_array(np.zeros(2048, np.float32), name) for name in "ab")
    message = r"^the model: initializer 'a': before version 4 of the format it must be an input, too$"
    with pytest.raises(ModelError, match=message):
        jquant.onnx.load(two_tensors(a, b, ir_version=3))
    assert jquant.onnx.load(two_tensors(a, b, ir_version=4)).inputs == {}


@pytest.mark.parametrize("size", [4096, 8188, 8196])
def test_sizes_that_do_not_match(size):
    """onnx says what is wrong with a tensor of more or fewer bytes than its elements have."""
    a, b = (numpy_helper.from_array(np.zeros(2048, np.float32), name) for name in "ab")
    b.raw_data = bytes(size)
    with pytest.raises(ModelError, match=r"^the model: .*b"):
        jquant.onnx.load(two_tensors(a, b))


@pytest.mark.parametrize("other", [{"float_data": [1]}, {"data_location": TensorProto.EXTERNAL}])
def test_two_places_for_the_elements(other):
    a, b = (numpy_helper.from_array(np.zeros(2048, np.float32), name) for name in "ab")
    b.MergeFrom(TensorProto(**other))
    with pytest.raises(ModelError, match=r"^the model: .*b"):
        jquant.onnx.load(two_tensors(a, b))


def test_text_is_not_a_file():
    with pytest.raises(ModelError, match="open it in binary mode"):
        jquant.onnx.load(io.StringIO("model"))


def test_nobody_writes_to_arrays_that_parameters_share():
    a, b = (numpy_helper.from_array(np.ones(2048, np.float32), name) for name in "ab")
    file = files.read(two_tensors(a, b))
    assert not any(array.flags.writeable for array in file.arrays().values())


@pytest.mark.parametrize("mode", [jax.debug_nans, jax.transfer_guard, jax.disable_jit])
def test_debugging_modes(mode):
    """A file may have NaN, and parameters are put on a device because `load` says so."""
    a, b = (numpy_helper.from_array(np.full(2048, value, np.float32), name) for name, value in (("a", np.nan), ("b", 1)))
    with mode("disallow" if mode is jax.transfer_guard else True):
        model = jquant.onnx.load(two_tensors(a, b), fold=False)
    assert np.all(np.isnan(model.params["a"]))
    np.testing.assert_array_equal(model.params["b"], 1)


@pytest.fixture(scope="module")
def large_files(tmp_path_factory):
    """Of 95 MB: 82 of them one matrix of floats, 13 of them int8. In one file, and with the tensors in another."""
    folder = tmp_path_factory.mktemp("large")
    model = widened.encoder(widened.Sizes(1, 1024, 4096, 16, 20000, 128))
    onnx.save(model, folder / "one.onnx")
    onnx.save(model, folder / "two.onnx", save_as_external_data=True, location="tensors")
    return folder


@pytest.mark.parametrize(("name", "qdq"), [("one", "fused"), ("one", "as_written"), ("two", "fused")])
def test_the_memory_of_loading(name, qdq, large_files):
    """At its peak, 1.3 times what the model keeps: the parameters, and what `jquant.onnx.export` writes in their places."""
    loaded = widened.loading(large_files / f"{name}.onnx", qdq)
    assert loaded.parameters > 9e7
    assert loaded.peak <= 1.3 * loaded.kept, loaded
