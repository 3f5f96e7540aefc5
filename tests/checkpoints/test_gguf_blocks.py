"""Weights in the blocks of GGUF's types: the same values as the package gguf dequantizes, and their packed forms."""

import tracemalloc

import jax
import numpy as np
import pytest

gguf = pytest.importorskip("gguf", reason="gguf is not installed (extra: checkpoints)")

from gguf import GGMLQuantizationType as Type  # noqa: E402

import jquant  # noqa: E402
import jquant.checkpoints  # noqa: E402
from jquant import transform  # noqa: E402
from jquant.checkpoints import QuantizedWeight, rows  # noqa: E402

from .gguf_files import dequantized, finite_blocks, random_blocks, write  # noqa: E402

# The type of the integers, how many share a scale, whether they share a minimum, and the bytes of a packed weight.
BLOCKS = {
    Type.Q8_0: ("int8", 32, False, 1 + 2 / 32),
    Type.Q4_0: ("int4", 32, False, 0.5 + 2 / 32),
    Type.Q4_1: ("uint4", 32, True, 0.5 + 4 / 32),
    Type.Q5_0: ("int8", 32, False, 1 + 2 / 32),
    Type.Q5_1: ("int8", 32, True, 1 + 4 / 32),
    Type.Q2_K: ("uint4", 16, True, 1.0),
    Type.Q3_K: ("int4", 16, False, 0.75),
    Type.Q4_K: ("uint4", 32, True, 0.75),
    Type.Q5_K: ("int8", 32, True, 1.25),
    Type.Q6_K: ("int8", 16, False, 1.25),
    Type.IQ4_NL: ("int8", 32, False, 1.0625),
    Type.IQ4_XS: ("int8", 32, False, 1.125),
    Type.MXFP4: ("int8", 32, False, 1.0625),
    Type.NVFP4: ("int8", 16, False, 1.125),
}
OTHERS = sorted(type_ for type_ in gguf.quants._type_traits if type_ not in BLOCKS and gguf.GGML_QUANT_SIZES[type_][0] > 1)
every_type = pytest.mark.parametrize("type_", BLOCKS, ids=lambda type_: type_.name)


def load(path, tensors, type_):
    return jquant.checkpoints.load(write(path / "x.gguf", {name: (data, type_) for name, data in tensors.items()}))


@every_type
def test_random_blocks(type_, full, count, tmp_path):
    """Blocks of random bytes, with NaN and infinities among the scales, of matrices and of a batch of matrices."""
    dtype, block_size, has_minimum, _ = BLOCKS[type_]
    tensors = {
        "matrix": random_blocks(type_, (4000 if full else 40, 512)),
        "experts": random_blocks(type_, (2, 3, 256), seed=1),
    }
    checkpoint = load(tmp_path, tensors, type_)
    assert checkpoint.kinds == dict.fromkeys(tensors, type_.name)
    for name, data in tensors.items():
        weight = checkpoint[name]
        assert (weight.values.dtype.name, weight.block_size) == (dtype, block_size)
        assert (weight.minimum is not None) == has_minimum
        assert weight.packable
        expected = dequantized(data, type_).swapaxes(-1, -2)
        np.testing.assert_array_equal(weight.dequantize(), expected, strict=True)
        count("GGUF weights compared", expected.size)


@pytest.mark.parametrize("type_", [Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1], ids=lambda type_: type_.name)
@pytest.mark.parametrize("shape", [(5, 64), (2, 3, 32)], ids=str)
def test_quantized_floats(type_, shape, tmp_path):
    """Of the types that the package quantizes to; rows may be a single block."""
    data = gguf.quants.quantize(np.random.default_rng(0).normal(size=shape).astype(np.float32), type_)
    weight = load(tmp_path, {"x": data}, type_)["x"]
    np.testing.assert_array_equal(weight.dequantize(), dequantized(data, type_).swapaxes(-1, -2), strict=True)


@every_type
def test_packed_blocks(type_, tmp_path):
    """Floats times packed blocks equal floats times what gguf dequantizes: one row of A selects each row of the weight."""
    data = finite_blocks(type_, (5, 512))
    assert len(data) == 5
    checkpoint = load(tmp_path, {"x": data}, type_)
    weight, matrix = checkpoint["x"], checkpoint.read(pack=True)["x"].matrix
    np.testing.assert_array_equal(matrix.unpack(), weight.values, strict=True)
    assert sum(array.nbytes for array in jax.tree.leaves(matrix)) == BLOCKS[type_][-1] * weight.values.size
    floats = jquant.matmul_n_bits(np.eye(512, dtype=np.float32), matrix)
    np.testing.assert_array_equal(floats, dequantized(data, type_).T, strict=True)


@pytest.mark.parametrize("name", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "MXFP4", "NVFP4"])
def test_integers_times_blocks(name, tmp_path):
    """Each block is an exact sum of integers, which is scaled once; and so are the sums that minima are multiplied by."""
    data = finite_blocks(Type[name], (5, 512))
    weight = load(tmp_path, {"x": data}, Type[name])["x"]
    a = np.random.default_rng(0).integers(-128, 128, (2, 512), np.int8)
    expected = np.zeros((2, 5), np.float32)
    for block in range(512 // weight.block_size):
        part = slice(block * weight.block_size, (block + 1) * weight.block_size)
        sums = a[:, part].astype(np.int64) @ weight.values[part].astype(np.int64)
        term = sums.astype(np.float32) * weight.scale[block].astype(np.float32)
        if weight.minimum is not None:
            row_sums = a[:, part].sum(-1, dtype=np.int64, keepdims=True).astype(np.float32)
            term += row_sums * weight.minimum[block].astype(np.float32)
        expected += term
    actual = jquant.block_scaled_matmul(a, np.float32(1), None, weight.pack().matrix)
    np.testing.assert_array_equal(actual, expected, strict=True)


@pytest.mark.parametrize(
    ("name", "recipe"), [("Q4_K", "int4_by_rows"), ("Q2_K", "weight_only_int4"), ("Q6_K", "int4_by_rows")]
)
def test_sites(name, recipe, tmp_path):
    """In the place of the weights of a transformed function: the operators on the file's own integers and scales."""
    matrix = load(tmp_path, {"x": finite_blocks(Type[name], (5, 512))}, Type[name]).read(pack=True)["x"].matrix
    x = np.random.default_rng(0).normal(size=(2, 512)).astype(np.float32)
    types = {"w": jax.ShapeDtypeStruct((512, 5), np.float32)}
    apply, target = transform.quantize(lambda params, x: x @ params["w"], types, getattr(transform, recipe), x)
    target["sites"]["w"] = {"values": matrix}
    if recipe == "weight_only_int4":
        expected = jquant.matmul_n_bits(x, matrix)
    else:
        by_row = {"axis": -1, "symmetric": True, "output_dtype": "INT8", "feature_level": "EXTENDED"}
        values, scale, _ = jquant.dynamic_quantize_linear(x, **by_row)
        expected = jquant.block_scaled_matmul(values, scale, None, matrix)
    np.testing.assert_array_equal(jax.jit(apply)(target, x), expected, strict=True)


@pytest.mark.parametrize(
    ("type_", "shape"), [(Type.Q4_K, (7, 512)), (Type.Q6_K, (2, 3, 512)), (Type.Q8_0, (5, 32)), (Type.Q8_0, (2, 3, 32))]
)
def test_a_few_rows_at_a_time(type_, shape, tmp_path, monkeypatch):
    """The same arrays as all rows at once, also where a row is a single block."""
    data = random_blocks(type_, shape)
    expected = load(tmp_path, {"x": data}, type_)["x"]
    monkeypatch.setattr(rows, "_AT_ONCE", 2 * data.shape[-1])
    checkpoint = load(tmp_path, {"x": data}, type_)
    jax.tree.map(np.testing.assert_array_equal, checkpoint["x"], expected)
    jax.tree.map(np.testing.assert_array_equal, checkpoint.read(pack=True)["x"], expected.pack())


def test_memory(tmp_path, monkeypatch):
    """Loading packed weights takes a fifth more memory than they have bytes, at most."""
    tensors = {str(number): random_blocks(Type.Q4_K, (512, 2048)) for number in range(8)}
    checkpoint = load(tmp_path, tensors, Type.Q4_K)
    monkeypatch.setattr(rows, "_AT_ONCE", 2**14)
    checkpoint._entries["0"].pack()  # what is compiled stays
    tracemalloc.start()
    try:
        params = checkpoint.read(pack=True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    packed = sum(array.nbytes for array in jax.tree.leaves(params))
    assert packed == 0.75 * 8 * 512 * 2048
    assert packed < peak < 1.2 * packed


@pytest.mark.parametrize("type_", OTHERS, ids=lambda type_: type_.name)
def test_other_blocks(type_, tmp_path):
    """The package gguf dequantizes them; they keep the layout of the file, (N, K)."""
    data = random_blocks(type_, (3, 512))
    checkpoint = load(tmp_path, {"x": data}, type_)
    assert checkpoint.kinds == {"x": f"{type_.name}, dequantized to float32"}
    np.testing.assert_array_equal(checkpoint["x"], dequantized(data, type_), strict=True)


@pytest.mark.parametrize("type_", [Type.Q8_0, Type.Q4_K], ids=lambda type_: type_.name)
def test_a_quantized_vector(type_, tmp_path):
    """A vector is dequantized, because it is no matrix."""
    data = random_blocks(type_, (256,))
    vector = load(tmp_path, {"x": data}, type_)["x"]
    assert not isinstance(vector, QuantizedWeight)
    np.testing.assert_array_equal(vector, dequantized(data, type_), strict=True)
