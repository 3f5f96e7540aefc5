"""GGUF files: what the package gguf writes, element by element as it dequantizes it."""

import contextlib
import struct
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

gguf = pytest.importorskip("gguf", reason="gguf is not installed (extra: checkpoints)")

from gguf import GGMLQuantizationType as Type  # noqa: E402

import jquant.checkpoints  # noqa: E402
from jquant.checkpoints import CheckpointError, QuantizedWeight  # noqa: E402

BLOCKS = {Type.Q8_0: "int8", Type.Q4_0: "int4", Type.Q4_1: "uint4", Type.Q5_0: "int8", Type.Q5_1: "int8"}
OTHERS = sorted(kind for kind in gguf.quants._type_traits if kind not in BLOCKS and gguf.GGML_QUANT_SIZES[kind][0] > 1)


def write(path, tensors, *, endianness=None, **keys):
    """`tensors`: arrays, or bytes and their type, by name."""
    writer = gguf.GGUFWriter(path, "test", **({} if endianness is None else {"endianess": endianness}))
    for name, value in keys.items():
        add = {str: writer.add_string, int: writer.add_uint32}.get(type(value), writer.add_array)
        add(name, value)
    for name, value in tensors.items():
        data, kind = value if isinstance(value, tuple) else (value, None)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def samples(kind, shape, seed=0):
    """Random bytes in the place of blocks."""
    rng = np.random.default_rng(seed)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    return rng.integers(0, 256, (*shape[:-1], shape[-1] // block * size), np.uint8)


@pytest.mark.parametrize("kind", BLOCKS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("shape", [(5, 64), (2, 3, 32)], ids=str)
def test_blocks(kind, shape, tmp_path):
    """The integers and scales of simple blocks: of quantized floats, and of random bytes, NaN among the scales."""
    data = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    tensors = {
        "quantized": gguf.quants.quantize(data, kind),
        "random": samples(kind, (40, 256)),
    }
    file = write(tmp_path / "x.gguf", {name: (tensor, kind) for name, tensor in tensors.items()})
    checkpoint = jquant.checkpoints.load(file)
    assert checkpoint.kinds == dict.fromkeys(tensors, kind.name)
    for name, tensor in tensors.items():
        weight = checkpoint[name]
        assert weight.values.dtype.name == BLOCKS[kind]
        assert weight.block_size == 32
        assert (weight.minimum is not None) == (kind in (Type.Q4_1, Type.Q5_1)) == (not weight.packable)
        with np.errstate(all="ignore"):
            wanted = gguf.quants.dequantize(tensor, kind)
        np.testing.assert_array_equal(weight.dequantize(), wanted.swapaxes(-1, -2), strict=True)


@pytest.mark.parametrize("kind", OTHERS, ids=lambda kind: kind.name)
def test_other_blocks(kind, tmp_path):
    """Dequantized by the package gguf, as the file has them: (N, K)."""
    data = samples(kind, (3, 512))
    checkpoint = jquant.checkpoints.load(write(tmp_path / "x.gguf", {"x": (data, kind)}))
    assert checkpoint.kinds == {"x": f"{kind.name}, dequantized to float32"}
    with np.errstate(all="ignore"):
        wanted = gguf.quants.dequantize(data, kind)
    np.testing.assert_array_equal(checkpoint["x"], wanted, strict=True)


def test_a_type_that_the_package_does_not_dequantize(tmp_path):
    checkpoint = jquant.checkpoints.load(write(tmp_path / "x.gguf", {"x": (samples(Type.Q8_K, (1, 256)), Type.Q8_K)}))
    with pytest.raises(CheckpointError, match=r"tensor 'x': is Q8_K, which the package gguf does not dequantize"):
        checkpoint["x"]


def test_floats_and_integers(tmp_path):
    rng = np.random.default_rng(0)
    tensors = {
        name: rng.integers(-9, 9, (3, 5)).astype(name)
        for name in ("float32", "float16", "float64", "int8", "int16", "int32", "int64")
    }
    bfloat16 = rng.normal(size=(3, 5)).astype(ml_dtypes.bfloat16)
    file = write(tmp_path / "x.gguf", {**tensors, "bfloat16": (bfloat16.view(np.uint8), Type.BF16)})
    checkpoint = jquant.checkpoints.load(file)
    for name, tensor in {**tensors, "bfloat16": bfloat16}.items():
        assert checkpoint.kinds[name] == name
        np.testing.assert_array_equal(checkpoint[name], tensor, strict=True)


def test_a_row_of_blocks(tmp_path):
    """A vector is no weight."""
    data = samples(Type.Q8_0, (64,))
    found = jquant.checkpoints.load(write(tmp_path / "x.gguf", {"x": (data, Type.Q8_0)}))["x"]
    assert not isinstance(found, QuantizedWeight)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found, gguf.quants.dequantize(data, Type.Q8_0), strict=True)


def test_metadata(tmp_path):
    file = write(tmp_path / "x.gguf", {}, words=["a", "ü"], numbers=[1.5, 2.5], name="nothing")
    metadata = jquant.checkpoints.load(file).metadata
    assert metadata["general.architecture"] == "test"
    assert metadata["words"] == ["a", "ü"]
    assert metadata["name"] == "nothing"
    np.testing.assert_array_equal(metadata["numbers"], np.float32([1.5, 2.5]))


def test_arrays_of_arrays(tmp_path):
    """Of numbers, of strings and of arrays, of several lengths, some of them empty; and the tensors after them."""
    nested = {
        "numbers": [[1, 2, 3], [4]],
        "words": [["a", "ü"], ["b"], [""]],
        "deep": [[[[0.5]], [[1.5, 2.5], [3.5]]]],
        "bools": [[True, False], [True]],
    }
    file = write(tmp_path / "x.gguf", {"x": np.arange(3, dtype=np.float32)}, **nested)
    checkpoint = jquant.checkpoints.load(file)
    np.testing.assert_array_equal(checkpoint["x"], np.arange(3, dtype=np.float32), strict=True)

    def plain(value):
        return [plain(each) for each in value] if isinstance(value, list) else getattr(value, "tolist", lambda: value)()

    assert {name: plain(checkpoint.metadata[name]) for name in nested} == nested
    assert checkpoint.metadata["numbers"][0].dtype == np.int32
    empty = Written(keys=2).string(b"a").pack("IIQIQIQ", 9, 9, 2, 9, 0, 4, 0).string(b"b").pack("IB", 0, 7)
    file.write_bytes(empty.ending(0).data)
    found = jquant.checkpoints.load(file).metadata
    assert plain(found["a"]) == [[], []]
    assert found["b"] == 7


def test_one_file_of_several(tmp_path):
    """A warning: it has only some of the tensors."""
    for count in (0, 1, 3):
        file = write(tmp_path / f"{count}.gguf", {"x": np.zeros(3, np.float32)}, **{"split.count": count})
        expected = pytest.warns(UserWarning, match="one of 3 files") if count == 3 else contextlib.nullcontext()
        with expected:
            assert list(jquant.checkpoints.load(file)) == ["x"]


def test_a_file_of_the_other_byte_order(tmp_path):
    file = write(tmp_path / "x.gguf", {"x": np.zeros(3, np.float32)}, endianness=gguf.GGUFEndian.BIG)
    with pytest.raises(CheckpointError, match="or the opposite byte order; it must be 2 or 3"):
        jquant.checkpoints.load(file)


def test_without_gguf(tmp_path):
    """What a GGUF file needs is said; and `import jquant` imports no reader."""
    file = write(tmp_path / "x.gguf", {"x": np.zeros(3, np.float32)})
    code = "import sys; sys.modules['gguf'] = None; import jquant; print('jquant.checkpoints' in sys.modules)"
    code = f"{code}; jquant.checkpoints.load({str(file)!r})"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    expected = "ModuleNotFoundError: GGUF files need the package gguf: install the extra `checkpoints` of jquant-jax"
    assert finished.stderr.strip().splitlines()[-1] == expected
    assert finished.stdout.split() == ["False"]


class Written:
    """A file by hand, as no writer would write it."""

    def __init__(self, *, magic=b"GGUF", version=3, tensors=None, keys=0):
        self.data = magic + struct.pack("<IQQ", version, tensors or 0, keys)

    def string(self, text):
        self.data += struct.pack("<Q", len(text)) + text
        return self

    def pack(self, form, *values):
        self.data += struct.pack(f"<{form}", *values)
        return self

    def tensor(self, name=b"x", dims=(32,), kind=0, offset=0):
        return self.string(name).pack("I", len(dims)).pack(f"{len(dims)}Q", *dims).pack("IQ", kind, offset)

    def ending(self, size):
        self.data += bytes(-len(self.data) % 32) + bytes(size)
        return self


WRONG = {
    "version": (Written(version=1), "has GGUF version 1; it must be 2 or 3"),
    "short": (Written(keys=1), "ends within its header: it needs 8 more bytes at byte 24 of 24"),
    "keys": (Written(keys=2**64 - 1), "ends within its header"),
    "tensors": (Written(tensors=2**64 - 1), "ends within its header"),
    "length of a string": (Written(keys=1).pack("Q", 2**63).ending(64), "header: it needs 9223372036854775808 more bytes"),
    "no UTF-8": (Written(keys=1).string(b"\xff"), "a string that is not UTF-8"),
    "type of a value": (Written(keys=1).string(b"a").pack("I", 13), "'a' has type 13"),
    "length of an array": (Written(keys=1).string(b"a").pack("IIQ", 9, 5, 2**62).ending(64), "'a' has 46116860184273"),
    "length of strings": (Written(keys=1).string(b"a").pack("IIQ", 9, 8, 2**62).ending(64), "ends within its header"),
    "type in an array": (Written(keys=1).string(b"a").pack("IIQ", 9, 13, 0), "'a' has type 13"),
    "type in an inner array": (Written(keys=1).string(b"a").pack("IIQIQ", 9, 9, 1, 13, 0), "'a' has type 13"),
    "length of arrays": (Written(keys=1).string(b"a").pack("IIQ", 9, 9, 2**62).ending(64), "ends within its header"),
    "length of an inner array": (Written(keys=1).string(b"a").pack("IIQIQ", 9, 9, 1, 5, 2**62).ending(64), "'a' has 461168"),
    "inner array cut off": (Written(keys=1).string(b"a").pack("IIQIQI", 9, 9, 2, 4, 1, 7), "ends within its header"),
    "deep arrays": (Written(keys=1).string(b"a").pack("I", 9).pack("IQ" * 5000, *[9, 1] * 5000), "more than 32 deep"),
    "key twice": (Written(keys=2).string(b"a").pack("IB", 0, 1).string(b"a").pack("IB", 0, 1), "'a' appears twice"),
    "alignment": (Written(keys=1).string(b"general.alignment").pack("II", 4, 24), "general.alignment is 24"),
    "alignment 0": (Written(keys=1).string(b"general.alignment").pack("II", 4, 0), "general.alignment is 0"),
    "dimensions": (Written(tensors=1).tensor(dims=(1,) * 5).ending(64), "'x': has 5 dimensions"),
    "many dimensions": (Written(tensors=1).string(b"x").pack("I", 2**32 - 1), "'x': has 4294967295 dimensions"),
    "sizes": (Written(tensors=1).tensor(dims=(2**32, 2**32, 2**32)).ending(64), "'x': its shape is"),
    "sizes beside 0": (Written(tensors=1).tensor(dims=(0, 2**63)).ending(64), "'x': its shape is"),
    "tensor twice": (Written(tensors=2).tensor().tensor(offset=128).ending(256), "'x': appears twice"),
    "type": (Written(tensors=1).tensor(kind=4).ending(128), "'x': has type 4, which the package gguf does not know"),
    "blocks": (Written(tensors=1).tensor(dims=(33,), kind=8).ending(128), "rows of Q8_0 consist of blocks of 32"),
    "no blocks": (Written(tensors=1).tensor(dims=(0, 4), kind=8).ending(128), "rows of Q8_0 consist of blocks of 32"),
    "unaligned": (Written(tensors=1).tensor(offset=4).ending(256), "'x': lies 4 bytes into the data"),
    "behind the end": (Written(tensors=1).tensor(offset=2**63).ending(128), "'x': lies at bytes"),
    "across the end": (Written(tensors=1).tensor().ending(124), "'x': lies at bytes"),
    "overlapping": (Written(tensors=2).tensor().tensor(b"y", offset=96).ending(512), "'y': lies at bytes"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_errors(name, tmp_path):
    """Each names the file, and the tensor where there is one."""
    written, message = WRONG[name]
    file = tmp_path / "x.gguf"
    file.write_bytes(written.data)
    with pytest.raises(CheckpointError) as error:
        jquant.checkpoints.load(file)
    assert str(file) in str(error.value)
    assert message in str(error.value)
