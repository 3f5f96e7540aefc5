"""Quantized weights: their packed forms, products with these, and weights as pytrees."""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("safetensors", reason="safetensors is not installed (extra: recipes)")

import jquant
import jquant.checkpoints
from jquant.checkpoints import CheckpointError, PackedWeight, QuantizedWeight

from . import files

BLOCKS = {
    "GPTQ": files.gptq,
    "GPTQ of 8 bits": functools.partial(files.gptq, bits=8, format_="gptq_v2"),
    "GPTQ with zero points of 0": functools.partial(files.gptq, zeros=np.zeros((4, 32), int)),
    "GPTQ in the order of activations": functools.partial(files.gptq, order=True, k=72, group_size=32),
    "AWQ": files.awq,
    "pack-quantized": files.pack_quantized,
    "pack-quantized, zero points": functools.partial(files.pack_quantized, sym=False, group_size=None),
    "int-quantized by groups": functools.partial(files.naive_quantized, strategy="group"),
    "int-quantized by blocks": functools.partial(files.naive_quantized, strategy="block", sym=False),
}


@pytest.fixture
def rng() -> np.random.Generator:
    """A new generator for each test, whose numbers then do not depend on other tests."""
    return np.random.default_rng(0)


def load_weight(model, folder) -> QuantizedWeight:
    weight = jquant.checkpoints.load(model.write(folder))["layer.weight"]
    assert isinstance(weight, QuantizedWeight)
    return weight


@pytest.mark.parametrize("name", BLOCKS)
def test_packed_blocks(name, tmp_path, rng):
    """A packed matrix has the integers, scales and zero points of the weight; the permutation is returned with it."""
    weight = load_weight(BLOCKS[name](rng), tmp_path)
    matrix, scale, permutation = weight.pack()
    assert isinstance(matrix, jquant.PackedBlockMatrix)
    assert scale is None
    assert matrix.block_size == weight.block_size
    np.testing.assert_array_equal(matrix.unpack(), weight.values, strict=True)
    np.testing.assert_array_equal(matrix.scale, weight.scale, strict=True)
    if weight.zero_point is None:
        assert matrix.zero_point is None
    else:
        np.testing.assert_array_equal(matrix.zero_point.astype(int), weight.zero_point.astype(int))
    if weight.permutation is None:
        assert permutation is None
    else:
        np.testing.assert_array_equal(permutation, weight.permutation, strict=True)


@pytest.mark.parametrize("name", ["GPTQ of 8 bits", "GPTQ in the order of activations", "pack-quantized, zero points"])
def test_products_of_blocks(name, tmp_path, rng):
    """Integer activations times packed blocks: the exact sum of each block is scaled and added in float32."""
    weight = load_weight(BLOCKS[name](rng), tmp_path)
    matrix, _, permutation = weight.pack()
    a = rng.integers(-128, 128, (3, weight.shape[0]), np.int8)
    actual = jquant.block_scaled_matmul(a if permutation is None else a[:, permutation], np.float32(0.5), None, matrix)
    expected = np.zeros((3, weight.shape[1]), np.float32)
    for block, (scale, zero_point) in enumerate(zip(weight.scale, weight.zero_point, strict=True)):
        rows = slice(block * weight.block_size, (block + 1) * weight.block_size)
        columns = np.arange(weight.shape[0])[rows] if permutation is None else weight.permutation[rows]
        sums = a[:, columns].astype(np.int64) @ (weight.values[rows].astype(np.int64) - zero_point.astype(np.int64))
        expected += sums.astype(np.float32) * scale.astype(np.float32)
    np.testing.assert_array_equal(actual, expected * np.float32(0.5), strict=True)


def test_one_scale_per_tensor(tmp_path, rng):
    """A packed matrix repeats it for each column."""
    model = files.pack_quantized(rng, group_size=None)
    model.tensors["layer.weight_scale"] = model.tensors["layer.weight_scale"][:1]
    model.config["config_groups"]["group_0"]["weights"]["strategy"] = "tensor"
    matrix = load_weight(model, tmp_path).pack().matrix
    np.testing.assert_array_equal(matrix.scale, np.broadcast_to(model.tensors["layer.weight_scale"].T, (1, 20)), strict=True)


def test_permutation(tmp_path, rng):
    """Permuted activations times the packed matrix equal activations times the weight in the order of the file."""
    model = files.gptq(rng, order=True)
    model.tensors["layer.scales"] = 2.0 ** rng.integers(-3, 3, (4, 32)).astype(np.float16)  # so that float64 sums exactly
    weight = load_weight(model._replace(expected={}), tmp_path)
    matrix, _, permutation = weight.pack()
    a = rng.integers(-9, 9, (3, 64))
    rows = np.arange(64) // matrix.block_size
    packed = (np.asarray(matrix.unpack(), int) - np.asarray(matrix.zero_point, int)[rows]) * np.float64(matrix.scale)[rows]
    np.testing.assert_array_equal(a[:, permutation] @ packed, a @ np.float64(weight.dequantize()))


@pytest.mark.parametrize("sym", [True, False])
@pytest.mark.parametrize("strategy", ["tensor", "channel"])
def test_products_of_int8(sym, strategy, tmp_path, rng):
    """int8 weights with a scale for each column, or for all, become a `PackedMatrix`."""
    weight = load_weight(files.naive_quantized(rng, sym=sym, strategy=strategy), tmp_path)
    matrix, scale, permutation = weight.pack()
    assert isinstance(matrix, jquant.PackedMatrix)
    assert permutation is None
    np.testing.assert_array_equal(matrix.unpack(), weight.values, strict=True)
    a, a_scale = rng.integers(-128, 128, (4, 24), np.int8), np.float32(0.5)
    actual = jquant.matmul_integer_to_float(a, a_scale, None, matrix, scale, None)
    sums = a.astype(np.int64) @ (weight.values.astype(np.int64) - (0 if sym else weight.zero_point.astype(np.int64)))
    expected = sums.astype(np.float32) * (a_scale * np.float32(weight.scale))
    np.testing.assert_array_equal(actual, expected, strict=True)


def test_matrices_of_one_block_each(rng):
    """A batch of matrices, such as the experts in a GGUF file, has scales per matrix, which only a block matrix can hold."""
    values, scale = rng.integers(-128, 128, (3, 32, 4), np.int8), rng.uniform(0.1, 1, (3, 1, 4)).astype(np.float32)
    weight = QuantizedWeight(values=values, scale=scale, zero_point=None, minimum=None, permutation=None, block_size=32)
    matrix, packed_scale, _ = weight.pack()
    assert packed_scale is None
    np.testing.assert_array_equal(matrix.unpack(), values, strict=True)
    np.testing.assert_array_equal(matrix.scale, scale, strict=True)
    a = rng.integers(-128, 128, (3, 2, 32), np.int8)
    actual = jquant.block_scaled_matmul(a, np.float32(0.5), None, matrix)
    expected = (a.astype(np.int64) @ values.astype(np.int64)).astype(np.float32) * scale * np.float32(0.5)
    np.testing.assert_array_equal(actual, expected, strict=True)


@pytest.mark.parametrize(("dtype", "k"), [(ml_dtypes.uint4, 96), (np.int8, 96), (np.int8, 32), (np.int8, 40)])
@pytest.mark.parametrize("minima", [7, 1])
def test_blocks_with_a_minimum(dtype, k, minima, rng):
    """A weight with a minimum, of all columns or of each, is a block matrix, even if it has 8 bits and one block."""
    values = rng.integers(0, 16, (k, 7)).astype(dtype)
    scale, minimum = rng.uniform(0.1, 1, (-(-k // 32), 7)).astype(np.float32), rng.normal(size=(-(-k // 32), minima))
    weight = QuantizedWeight(
        values=values,
        scale=scale,
        zero_point=None,
        minimum=minimum.astype(np.float32),
        permutation=None,
        block_size=32,
    )
    assert weight.packable
    matrix, packed_scale, permutation = weight.pack()
    assert packed_scale is permutation is None
    assert (matrix.dtype, matrix.block_size) == (values.dtype, 32)
    np.testing.assert_array_equal(matrix.unpack(), values, strict=True)
    np.testing.assert_array_equal(matrix.scale, scale, strict=True)
    np.testing.assert_array_equal(matrix.minimum, np.broadcast_to(weight.minimum, scale.shape), strict=True)
    rows = np.arange(k) // 32
    floats = np.asarray(matrix.unpack(), np.float32) * np.asarray(matrix.scale)[rows] + np.asarray(matrix.minimum)[rows]
    np.testing.assert_array_equal(floats, weight.dequantize(), strict=True)


def small_weight(dtype, *, zero_point=None, minimum=None):
    return QuantizedWeight(
        values=np.zeros((4, 2), dtype),
        scale=np.ones((1, 2), np.float32),
        zero_point=zero_point,
        minimum=minimum,
        permutation=None,
        block_size=4,
    )


@pytest.mark.parametrize(
    ("weight", "reason"),
    [
        (small_weight(ml_dtypes.float8_e4m3fn), "packed matrices cannot be float8_e4m3fn"),
        (
            small_weight(np.int8, zero_point=np.ones((1, 2), np.int8), minimum=np.ones((1, 2), np.float32)),
            "zero points or a minimum, not both",
        ),
        (
            small_weight(np.uint8, zero_point=np.full((1, 2), 256, np.int16)),
            "its zero points are int16, and .* must be uint8",
        ),
    ],
)
def test_no_packed_form(weight, reason):
    assert not weight.packable
    with pytest.raises(CheckpointError, match=reason):
        weight.pack()


def test_read_packed(tmp_path, rng):
    """`pack=True` packs the weights that have a packed form; other weights, and arrays, are returned unpacked."""
    model = files.gptq(rng)
    other = files.naive_quantized(rng, ml_dtypes.float8_e4m3fn)
    renamed = {name.replace("layer", "other"): tensor for name, tensor in other.tensors.items()}
    params = jquant.checkpoints.load(model._replace(tensors=model.tensors | renamed).write(tmp_path)).read(pack=True)
    assert isinstance(params["layer.weight"], PackedWeight)
    assert isinstance(params["other.weight"], QuantizedWeight)
    assert isinstance(params["layer.bias"], np.ndarray)
    moved = jax.device_put(params)
    jax.tree.map(np.testing.assert_array_equal, moved, params)
    shapes = jax.eval_shape(lambda params: params, params)
    assert jax.tree.structure(shapes) == jax.tree.structure(params)


def test_representation(tmp_path, rng):
    weight = load_weight(files.gptq(rng, order=True), tmp_path)
    assert repr(weight) == "QuantizedWeight(uint4[64,32], scale float16, block_size 16, zero_point, permutation)"
    assert repr(jax.tree.map(lambda _: 0, weight)) == "QuantizedWeight(0, 0, 0, None, 0)"
    assert jnp.shape(jax.tree.leaves(weight)[0]) == (64, 32)
