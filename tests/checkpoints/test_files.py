"""Folders and files: which are read, errors in their headers and configurations, and reading on demand."""

import json
import os
import tracemalloc
from unittest import mock

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("safetensors", reason="safetensors is not installed (extra: recipes)")

from safetensors.numpy import load_file, save_file

import jquant.checkpoints
from jquant.checkpoints import CheckpointError, QuantizedWeight
from jquant.files import safetensors
from jquant.files.stored_tensor import StoredTensor

from . import files

INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
DTYPES = ["bool", *INTEGERS, "float16", "bfloat16", "float32", "float64", "complex64"]
FLOATS8 = [f"float8_{name}" for name in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0fnu")]


def test_every_type(tmp_path):
    """The same arrays as the package safetensors reads, except for 8-bit floats, which it can only write."""
    rng = np.random.default_rng(0)
    tensors = {
        name: rng.integers(0, 2, (3, 5)).astype(name if name != "bfloat16" else ml_dtypes.bfloat16) for name in DTYPES
    }
    tensors |= {"scalar": np.array(3, np.float32), "nothing": np.zeros((0, 7), np.int8)}
    floats8 = {name: rng.uniform(0.5, 2, (3, 5)).astype(getattr(ml_dtypes, name)) for name in FLOATS8}
    save_file(tensors, tmp_path / "a.safetensors", metadata={"format": "np"})
    save_file(floats8, tmp_path / "b.safetensors")
    checkpoint = jquant.checkpoints.load(tmp_path / "a.safetensors")
    arrays = checkpoint.read()
    expected = load_file(tmp_path / "a.safetensors")
    assert arrays.keys() == expected.keys() == tensors.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(arrays[name], tensor, strict=True)
        assert checkpoint.kinds[name] == tensor.dtype.name
    assert checkpoint.metadata == {"format": "np"}
    arrays = jquant.checkpoints.load(tmp_path / "b.safetensors").read()
    for name, tensor in floats8.items():
        np.testing.assert_array_equal(arrays[name].view(np.uint8), tensor.view(np.uint8), strict=True)
        assert arrays[name].dtype == tensor.dtype


def test_shards(tmp_path):
    """The tensors of one weight may be in several files."""
    model = files.gptq(np.random.default_rng(0))
    model.write(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    names = sorted(model.tensors)
    by_name = {name: f"model-{number % 2 + 1}-of-2.safetensors" for number, name in enumerate(names)}
    for file in set(by_name.values()):
        save_file({name: model.tensors[name] for name in names if by_name[name] == file}, tmp_path / file)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": by_name}))
    with mock.patch.object(safetensors, "read_header", wraps=safetensors.read_header) as read_header:
        checkpoint = jquant.checkpoints.load(tmp_path)
    assert read_header.call_count == 2
    np.testing.assert_array_equal(checkpoint["layer.weight"].dequantize(), model.expected["layer.weight"], strict=True)

    for wrong, message in (
        ({**by_name, "layer.bias": "../model-1-of-2.safetensors"}, "which is not the name of a file in this folder"),
        ({**by_name, "layer.bias": ".."}, "which is not the name of a file in this folder"),
        ({**by_name, "layer.bias": "model-3-of-2.safetensors"}, "model-3-of-2.safetensors: is not a file"),
        ({**by_name, "layer.other": "model-1-of-2.safetensors"}, "1-of-2.safetensors: tensor 'layer.other': is missing"),
        ({**by_name, "layer.bias": "x" * 100_000}, "which is not the name of a file in this folder"),
        ({**by_name, "layer.bias": "ä" * 200}, "which is not the name of a file in this folder"),
        ({**by_name, "x" * 100_000: "model-1-of-2.safetensors"}, "tensor 'xxx.*xxx...: is missing"),
        ({**by_name, "layer.bias": "\ud800"}, "which is not the name of a file in this folder"),
        ({**by_name, "layer.bias": 1}, "must map tensor names"),
        ({}, "its weight_map is empty"),
        (None, "must map tensor names"),
    ):
        index.write_text(json.dumps({"weight_map": wrong}))
        with pytest.raises(CheckpointError, match=message) as error:
            jquant.checkpoints.load(tmp_path)
        assert len(str(error.value)) < 1000


def test_the_index_decides(tmp_path):
    """The index decides which file a tensor is read from. Others may hold copies of it, and tensors that are not named."""
    tensors = {name: np.full(3, number) for number, name in enumerate("abc")}
    stale = {name: np.full(4, -1) for name in tensors}
    by_name = {"a": "1.safetensors", "b": "2.safetensors", "c": "1.safetensors"}
    for file in ("1.safetensors", "2.safetensors"):
        save_file({name: (tensors if by_name[name] == file else stale)[name] for name in tensors}, tmp_path / file)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": by_name}))
    arrays = jquant.checkpoints.load(tmp_path).read()
    assert arrays.keys() == tensors.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(arrays[name], tensor, strict=True)

    index.write_text(json.dumps({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}))
    with pytest.warns(UserWarning, match=r"does not name 1 of the tensors in its files, such as 'c' in 1.safetensors"):
        assert list(jquant.checkpoints.load(tmp_path)) == ["a", "b"]
    save_file({name: stale[name] for name in "bc"}, tmp_path / "1.safetensors")
    index.write_text(json.dumps({"weight_map": by_name}))
    message = r"1.safetensors: tensor 'a': is missing, but .* says that this file has it; there is one in 2.safetensors"
    with pytest.raises(CheckpointError, match=message):
        jquant.checkpoints.load(tmp_path)


def test_folders(tmp_path):
    with pytest.raises(CheckpointError, match="has no safetensors or GGUF file"):
        jquant.checkpoints.load(tmp_path)
    save_file({"x": np.zeros(3)}, tmp_path / "a.safetensors")
    assert list(jquant.checkpoints.load(str(tmp_path))) == ["x"]
    save_file({"y": np.zeros(3)}, tmp_path / "b.safetensors")
    with pytest.raises(CheckpointError, match=r"has a.safetensors, b.safetensors, and no model.safetensors.index.json"):
        jquant.checkpoints.load(tmp_path)
    save_file({"z": np.zeros(3)}, tmp_path / "model.safetensors")
    assert list(jquant.checkpoints.load(tmp_path)) == ["z"]
    with pytest.raises(FileNotFoundError):
        jquant.checkpoints.load(tmp_path / "missing")
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(CheckpointError, match="is neither a file nor a directory"):
        jquant.checkpoints.load(tmp_path / "pipe.safetensors")
    (tmp_path / "model.safetensors").unlink()
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="is not a file"):
        jquant.checkpoints.load(tmp_path)


def test_configurations(tmp_path):
    """Older GPTQ files have `quantize_config.json`; the argument takes precedence over any file."""
    model = files.gptq(np.random.default_rng(0))
    file = model.write(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(CheckpointError, match="the argument quantization_config, must say"):
        jquant.checkpoints.load(file)
    assert isinstance(jquant.checkpoints.load(file, quantization_config=model.config)["layer.weight"], QuantizedWeight)
    old = {name: value for name, value in model.config.items() if name not in ("quant_method", "checkpoint_format")}
    (tmp_path / "quantize_config.json").write_text(json.dumps(old))
    assert jquant.checkpoints.load(file).kinds["layer.weight"] == "GPTQ of 4 bits (gptq)"
    for wrong in ([], "gptq"):
        with pytest.raises(TypeError, match="it must be a mapping"):
            jquant.checkpoints.load(file, quantization_config=wrong)
    for text, message in (
        ("[]", "its JSON must be an object"),
        ("{", "its JSON is invalid"),
        ('{"quantization_config": 3}', "its quantization_config is 3"),
        ("[" * 100_000, "its JSON is invalid"),
        ('{"a": ' + "9" * 5000 + "}", "its JSON is invalid"),
        ('{"a": 1, "a": 2}', "'a': appears twice"),
        ("\ud800", "its JSON is invalid"),
    ):
        (tmp_path / "config.json").write_text(text, errors="surrogatepass")
        with pytest.raises(CheckpointError, match=message):
            jquant.checkpoints.load(file)


def header(tensors, data=b"", length=None) -> bytes:
    text = tensors if isinstance(tensors, bytes) else json.dumps(tensors).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def tensor(shape=(4,), begin=0, end=4, dtype="I8"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


ONCE = json.dumps(tensor()).encode()
TWICE = b'{"x": ' + ONCE + b', "x": ' + ONCE + b"}"
WRONG = {
    "empty": (b"", "a header of 0 bytes in a file of 0"),
    "another format": (b"PK\3\4" * 9, "is not a safetensors or GGUF file"),
    "short": (b"\0\0\0", "a header of 0 bytes in a file of 3"),
    "length": (header({}, length=2**63), "a header of 9223372036854775808 bytes in a file of 10"),
    "length by one": (header({}, length=3), "a header of 3 bytes in a file of 10"),
    "no JSON": (header(b"{]"), "its JSON is invalid"),
    "no UTF-8": (header(b'{"\xff": 1}'), "its JSON is invalid"),
    "brackets": (header(b"[" * 200_000), "its JSON is invalid"),
    "list": (header([]), "its JSON must be an object"),
    "metadata": (header({"__metadata__": {"a": 1}}), "__metadata__ of the header"),
    "tensor twice": (header(TWICE, bytes(4)), "'x': appears twice"),
    "no entry": (header({"x": 1}), "'x': its entry in the header must have"),
    "another key": (header({"x": {**tensor(), "y": 1}}), "'x': its entry in the header must have"),
    "type": (header({"x": tensor(dtype="I4")}, bytes(4)), "'x': its type is I4; it must be one of BOOL"),
    "type of the type": (header({"x": tensor(dtype=["I8"])}, bytes(4)), "'x': its type is"),
    "negative size": (header({"x": tensor((-4,))}, bytes(4)), "'x': its shape is [-4]"),
    "size of float": (header({"x": tensor((4.0,))}, bytes(4)), "'x': its shape is [4.0]"),
    "size of bool": (header({"x": tensor((True, 4))}, bytes(4)), "'x': its shape is [True, 4]"),
    "no list": (header({"x": {**tensor(), "shape": "4"}}, bytes(4)), "'x': its shape is 4"),
    "sizes": (header({"x": tensor((2**32, 2**32))}, bytes(4)), "which has too many elements"),
    "sizes beside 0": (header({"x": tensor((0, 2**63), 0, 0)}), "which has too many elements"),
    "dimensions": (header({"x": tensor((1,) * 65, 0, 1)}, bytes(1)), "which has too many elements"),
    "offsets": (header({"x": {**tensor(), "data_offsets": [0]}}, bytes(4)), "'x': its data_offsets are [0]"),
    "negative offset": (header({"x": tensor(begin=-4, end=0)}, bytes(4)), "'x': its data_offsets are [-4, 0]"),
    "huge offsets": (header({"x": tensor(begin=10**4300 - 5, end=10**4300 - 1)}, bytes(4)), "its data_offsets are [9999"),
    "bytes": (header({"x": tensor((5,))}, bytes(4)), "'x': has 4 bytes, according to its data_offsets; I8[5] has 5"),
    "more bytes": (header({"x": tensor((3,))}, bytes(4)), "'x': has 4 bytes, according to its data_offsets; I8[3] has 3"),
    "backwards": (header({"x": tensor(begin=4, end=0)}, bytes(4)), "'x': has -4 bytes"),
    "behind the end": (header({"x": tensor(begin=4, end=8)}, bytes(4)), "'x': lies at bytes"),
    "truncated": (header({"x": tensor()}, bytes(3)), "of the file; it may be truncated"),
    "overlapping": (header({"x": tensor(), "y": tensor(begin=2, end=6)}, bytes(6)), "'y': lies at bytes"),
    "hole": (header({"x": tensor(), "y": tensor(begin=5, end=9)}, bytes(9)), "where the previous tensor ends"),
    "rest": (header({"x": tensor()}, bytes(5)), "its tensors end at byte"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_invalid_headers(name, tmp_path):
    """Each error names the file, and the tensor where there is one."""
    data, message = WRONG[name]
    file = tmp_path / "x.safetensors"
    file.write_bytes(data)
    with pytest.raises(CheckpointError) as error:
        jquant.checkpoints.load(file)
    assert str(file) in str(error.value)
    assert message in str(error.value)


def test_a_file_that_becomes_shorter(tmp_path):
    """Reading raises an error; with a memory-mapped file, a signal would end the process."""
    file = tmp_path / "x.safetensors"
    save_file({"a": np.zeros(1000, np.float32), "b": np.zeros(10_000, np.float32)}, file)
    checkpoint = jquant.checkpoints.load(file)
    os.truncate(file, 8000)
    assert checkpoint["a"].shape == (1000,)
    with pytest.raises(CheckpointError, match=r"tensor 'b': has .* the file has become shorter"):
        checkpoint["b"]
    file.unlink()
    with pytest.raises(CheckpointError, match="tensor 'a': cannot be read"):
        checkpoint["a"]


def test_one_tensor_at_a_time(tmp_path):
    """Reading a tensor of 40 kB from a file of 64 MB allocates less than 1 MB."""
    file = tmp_path / "x.safetensors"
    save_file({"large": np.zeros(2**24, np.float32), "small": np.arange(10_000, dtype=np.float32)}, file)
    tracemalloc.start()
    try:
        small = jquant.checkpoints.load(file)["small"]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(small, np.arange(10_000, dtype=np.float32))
    assert peak < 10**6


def test_mapping(tmp_path):
    model = files.gptq(np.random.default_rng(0))
    model.write(tmp_path)
    checkpoint = jquant.checkpoints.load(tmp_path)
    assert len(checkpoint) == 2
    assert "layer.qweight" not in checkpoint
    assert None not in checkpoint
    with mock.patch.object(StoredTensor, "read", side_effect=AssertionError):  # a look-up of the name reads nothing
        assert "layer.weight" in checkpoint
    with pytest.raises(KeyError, match=r"'layer.qweight', but there is 'layer.weight'"):
        checkpoint["layer.qweight"]
    with pytest.raises(KeyError, match=r"^'other.qweight'$"):
        checkpoint["other.qweight"]
    assert repr(checkpoint) == f"Checkpoint({str(tmp_path)!r}, 2 tensors)"
    assert str(checkpoint).splitlines() == [
        str(tmp_path),
        "  GPTQ of 4 bits (gptq)      1           1,600 bytes",
        "  float16                    1              64 bytes",
    ]


def test_progress(tmp_path, capsys):
    pytest.importorskip("tqdm", reason="tqdm is not installed (extra: checkpoints)")
    files.gptq(np.random.default_rng(0)).write(tmp_path)
    jquant.checkpoints.load(tmp_path).read()
    assert capsys.readouterr() == ("", "")
    jquant.checkpoints.load(tmp_path).read(progress=True)
    assert "100%" in capsys.readouterr().err
