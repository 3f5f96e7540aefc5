"""Writing safetensors files, and reading parts of tensors."""

import itertools

import ml_dtypes
import numpy as np
import pytest

from jquant.checkpoints import CheckpointError
from jquant.files import safetensors
from jquant.files.safetensors import NewTensor

DTYPES = "bool", "int8", "uint16", "int32", "uint64", "float16", "float32", "float64", "complex64"
NARROW = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu


def drawn() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = [(), (0,), (3,), (2, 0, 3), (3, 5), (2, 3, 4)]
    pairs = zip(itertools.cycle(shapes), (*map(np.dtype, DTYPES), *map(np.dtype, NARROW)), strict=False)
    return {f"{number}/{dtype}": (rng.random(shape) * 8).astype(dtype) for number, (shape, dtype) in enumerate(pairs)}


def written(path, arrays):
    tensors = [NewTensor(name, each.dtype, each.shape, lambda each=each: each) for name, each in arrays.items()]
    safetensors.write(path, tensors, {"format": "np", "said": "ä"})
    return safetensors.read_header(path)


@pytest.mark.gate  # where the package safetensors is installed
def test_written(tmp_path):
    """Each type, scalars and empty arrays: as this package and the package safetensors read them."""
    numpy = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed (extra: recipes)")
    arrays = drawn()
    tensors, metadata = written(tmp_path / "a", arrays)
    assert metadata == {"format": "np", "said": "ä"}
    for name, array in arrays.items():
        read = tensors[name].read()
        assert (read.dtype, read.shape, read.tobytes()) == (array.dtype, array.shape, array.tobytes())
        assert tensors[name].offset % array.dtype.itemsize == 0
    narrow = {np.dtype(dtype).name for dtype in NARROW[1:]}
    plain = {name: array for name, array in arrays.items() if array.dtype.name not in narrow}
    written(tmp_path / "b", plain)
    for name, array in numpy.load_file(tmp_path / "b").items():
        assert (array.dtype, array.tobytes()) == (plain[name].dtype, plain[name].tobytes())


def test_parts(tmp_path, count):
    """Every part of arrays of up to three dimensions."""
    arrays = {name: array for name, array in drawn().items() if array.ndim}
    tensors, _ = written(tmp_path / "a", arrays)
    for name, array in arrays.items():
        ranges = [[slice(i, j) for i in range(size + 1) for j in range(i, size + 1)] for size in array.shape]
        for index in itertools.product(*([*each[::3], slice(None)] for each in ranges)):
            part = tensors[name].read_part(index)
            assert (part.dtype, part.shape, part.tobytes()) == (array.dtype, array[index].shape, array[index].tobytes())
            count("parts of tensors", 1)


def test_shorter_file(tmp_path):
    tensors, _ = written(tmp_path / "a", {"x": np.arange(100, dtype=np.float32).reshape(10, 10)})
    data = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(data[:-50])
    assert tensors["x"].read_part((slice(0, 2), slice(3, 7))).tolist() == [[3, 4, 5, 6], [13, 14, 15, 16]]
    with pytest.raises(CheckpointError, match="tensor 'x': ends before its last element: the file has become shorter"):
        tensors["x"].read_part((slice(8, 10), slice(0, 10)))
