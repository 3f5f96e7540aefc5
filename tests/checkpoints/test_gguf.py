"""GGUF files: arrays, metadata, and invalid files."""

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
from jquant.checkpoints import CheckpointError  # noqa: E402

from .gguf_files import random_blocks, write  # noqa: E402


def test_a_type_that_the_package_does_not_dequantize(tmp_path):
    checkpoint = jquant.checkpoints.load(write(tmp_path / "x.gguf", {"x": (random_blocks(Type.Q8_K, (1, 256)), Type.Q8_K)}))
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


def test_metadata(tmp_path):
    file = write(tmp_path / "x.gguf", {}, words=["a", "ü"], numbers=[1.5, 2.5], name="nothing")
    metadata = jquant.checkpoints.load(file).metadata
    assert metadata["general.architecture"] == "test"
    assert metadata["words"] == ["a", "ü"]
    assert metadata["name"] == "nothing"
    np.testing.assert_array_equal(metadata["numbers"], np.float32([1.5, 2.5]))


def test_arrays_of_arrays(tmp_path):
    """Metadata arrays of arrays of numbers, strings and arrays, of several lengths, some empty, followed by tensors."""
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
        if isinstance(value, list):
            return [plain(element) for element in value]
        return value.tolist() if isinstance(value, np.ndarray) else value

    assert {name: plain(checkpoint.metadata[name]) for name in nested} == nested
    assert checkpoint.metadata["numbers"][0].dtype == np.int32
    empty = Header(keys=2).string(b"a").pack("IIQIQIQ", 9, 9, 2, 9, 0, 4, 0).string(b"b").pack("IB", 0, 7)
    file.write_bytes(empty.ending(0).data)
    metadata = jquant.checkpoints.load(file).metadata
    assert plain(metadata["a"]) == [[], []]
    assert metadata["b"] == 7


def test_a_part_of_a_split_model(tmp_path):
    """A warning: the file has only some of the tensors."""
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
    """The error names the package that a GGUF file needs; and `import jquant` does not import the module."""
    file = write(tmp_path / "x.gguf", {"x": np.zeros(3, np.float32)})
    code = "import sys; sys.modules['gguf'] = None; import jquant; print('jquant.checkpoints' in sys.modules)"
    code = f"{code}; jquant.checkpoints.load({str(file)!r})"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    expected = "ModuleNotFoundError: GGUF files need the package gguf: install the extra `checkpoints` of jquant-jax"
    assert finished.stderr.strip().splitlines()[-1] == expected
    assert finished.stdout.split() == ["False"]


class Header:
    """The bytes of a file with any header, including those that no writer would write."""

    def __init__(self, *, magic=b"GGUF", version=3, tensors=None, keys=0):
        self.data = magic + struct.pack("<IQQ", version, tensors or 0, keys)

    def string(self, text):
        self.data += struct.pack("<Q", len(text)) + text
        return self

    def pack(self, form, *values):
        self.data += struct.pack(f"<{form}", *values)
        return self

    def tensor(self, name=b"x", dims=(32,), type_number=0, offset=0):
        return self.string(name).pack("I", len(dims)).pack(f"{len(dims)}Q", *dims).pack("IQ", type_number, offset)

    def ending(self, size):
        """Aligns the end of the header, and adds `size` bytes of data."""
        self.data += bytes(-len(self.data) % 32) + bytes(size)
        return self


WRONG = {
    "version": (Header(version=1), "has GGUF version 1; it must be 2 or 3"),
    "short": (Header(keys=1), "ends within its header: it needs 8 more bytes at byte 24 of 24"),
    "keys": (Header(keys=2**64 - 1), "ends within its header"),
    "tensors": (Header(tensors=2**64 - 1), "ends within its header"),
    "length of a string": (Header(keys=1).pack("Q", 2**63).ending(64), "header: it needs 9223372036854775808 more bytes"),
    "no UTF-8": (Header(keys=1).string(b"\xff"), "a string that is not UTF-8"),
    "type of a value": (Header(keys=1).string(b"a").pack("I", 13), "'a' has type 13"),
    "length of an array": (Header(keys=1).string(b"a").pack("IIQ", 9, 5, 2**62).ending(64), "'a' has 46116860184273"),
    "length of strings": (Header(keys=1).string(b"a").pack("IIQ", 9, 8, 2**62).ending(64), "ends within its header"),
    "type in an array": (Header(keys=1).string(b"a").pack("IIQ", 9, 13, 0), "'a' has type 13"),
    "type in an inner array": (Header(keys=1).string(b"a").pack("IIQIQ", 9, 9, 1, 13, 0), "'a' has type 13"),
    "length of arrays": (Header(keys=1).string(b"a").pack("IIQ", 9, 9, 2**62).ending(64), "ends within its header"),
    "length of an inner array": (Header(keys=1).string(b"a").pack("IIQIQ", 9, 9, 1, 5, 2**62).ending(64), "'a' has 461168"),
    "inner array cut off": (Header(keys=1).string(b"a").pack("IIQIQI", 9, 9, 2, 4, 1, 7), "ends within its header"),
    "deep arrays": (Header(keys=1).string(b"a").pack("I", 9).pack("IQ" * 5000, *[9, 1] * 5000), "more than 32 deep"),
    "key twice": (Header(keys=2).string(b"a").pack("IB", 0, 1).string(b"a").pack("IB", 0, 1), "'a' appears twice"),
    "alignment": (Header(keys=1).string(b"general.alignment").pack("II", 4, 24), "general.alignment is 24"),
    "alignment 0": (Header(keys=1).string(b"general.alignment").pack("II", 4, 0), "general.alignment is 0"),
    "dimensions": (Header(tensors=1).tensor(dims=(1,) * 5).ending(64), "'x': has 5 dimensions"),
    "many dimensions": (Header(tensors=1).string(b"x").pack("I", 2**32 - 1), "'x': has 4294967295 dimensions"),
    "sizes": (Header(tensors=1).tensor(dims=(2**32, 2**32, 2**32)).ending(64), "'x': its shape is"),
    "sizes beside 0": (Header(tensors=1).tensor(dims=(0, 2**63)).ending(64), "'x': its shape is"),
    "tensor twice": (Header(tensors=2).tensor().tensor(offset=128).ending(256), "'x': appears twice"),
    "type": (Header(tensors=1).tensor(type_number=4).ending(128), "'x': has type 4, which the package gguf does not know"),
    "blocks": (Header(tensors=1).tensor(dims=(33,), type_number=8).ending(128), "rows of Q8_0 consist of blocks of 32"),
    "no blocks": (Header(tensors=1).tensor(dims=(0, 4), type_number=8).ending(128), "rows of Q8_0 consist of blocks of 32"),
    "unaligned": (Header(tensors=1).tensor(offset=4).ending(256), "'x': lies 4 bytes into the data"),
    "behind the end": (Header(tensors=1).tensor(offset=2**63).ending(128), "'x': lies at bytes"),
    "across the end": (Header(tensors=1).tensor().ending(124), "'x': lies at bytes"),
    "overlapping": (Header(tensors=2).tensor().tensor(b"y", offset=96).ending(512), "'y': lies at bytes"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_errors(name, tmp_path):
    """Each error names the file, and the tensor where there is one."""
    header, message = WRONG[name]
    file = tmp_path / "x.gguf"
    file.write_bytes(header.data)
    with pytest.raises(CheckpointError) as error:
        jquant.checkpoints.load(file)
    assert str(file) in str(error.value)
    assert message in str(error.value)
