"""Weights of 4- and 8-bit floats: NVFP4, MXFP4 and fp8 in blocks, of matrices and of experts."""

import json

import jax
import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("safetensors", reason="safetensors is not installed (extra: recipes)")

from safetensors.numpy import save_file

import jquant
import jquant.checkpoints
from jquant import transform
from jquant.checkpoints import CheckpointError, QuantizedWeight

from . import narrow_files
from .narrow_files import MODELS

NAME = narrow_files.NAMES[0]
OF_4_BITS = [name for name in MODELS if "fp8" not in name]
PACKED_BYTES = {16: 1.25, 32: 1.0625}  # of a weight, by the size of a block: int8, with scales of float32 or bfloat16


def write(model, folder):
    tensors = {name: np.ascontiguousarray(tensor) for name, tensor in model.tensors.items()}
    return model._replace(tensors=tensors).write(folder)


@pytest.mark.parametrize("name", MODELS)
def test_values(name, count, tmp_path):
    """Those by hand, with the configuration and, where names and shapes tell all, without."""
    model = MODELS[name](np.random.default_rng(0))
    file = write(model, tmp_path)
    loads = [jquant.checkpoints.load(tmp_path)]
    if name != "fp8 of e5m2 in blocks of 16 x 48":
        loads.append(jquant.checkpoints.load(file, quantization_config={}))
    for checkpoint in loads:
        weights = {key: value for key, value in checkpoint.items() if isinstance(value, QuantizedWeight)}
        assert weights.keys() == model.expected.keys()
        for key, weight in weights.items():
            np.testing.assert_array_equal(weight.dequantize(), model.expected[key], strict=True)
            count("4- and 8-bit floats of checkpoints", weight.values.size)
            assert weight.packable == (name in OF_4_BITS)


def test_extreme_powers_of_two(tmp_path):
    """The smallest, whose half is subnormal, the largest, and NaN."""
    model = narrow_files.mxfp4_pack_quantized(np.random.default_rng(0), n=4, k=32)
    codes = np.arange(32, dtype=np.uint8) % 16
    model.tensors[f"{NAME}.weight_packed"] = np.tile(narrow_files.pairs(codes), (4, 1))
    model.tensors[f"{NAME}.weight_scale"] = np.uint8([[0], [1], [254], [255]])
    write(model, tmp_path)
    real = np.float64([2.0**-127, 2.0**-126, 2.0**127, np.nan])
    with np.errstate(over="ignore"):
        expected = (narrow_files.FLOATS_OF_4_BITS[codes][:, None].astype(np.float64) * real).astype(np.float32)
    actual = jquant.checkpoints.load(tmp_path)[f"{NAME}.weight"].dequantize()
    np.testing.assert_array_equal(actual, expected, strict=True)


def test_the_configuration_of_modelopt(tmp_path):
    """ModelOpt writes a file of its own, and config.json has nothing of it."""
    model = narrow_files.modelopt_nvfp4(np.random.default_rng(0))
    write(model._replace(config=None), tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    own = tmp_path / "hf_quant_config.json"
    own.write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}}))
    assert set(jquant.checkpoints.load(tmp_path).kinds.values()) == {"NVFP4 of ModelOpt", "float32"}
    own.write_text(json.dumps({"quantization": {"quant_algo": "W4A8_AWQ"}}))
    with pytest.raises(CheckpointError, match="its quant_algo is 'W4A8_AWQ', which TensorRT-LLM reads; supported are NVFP4"):
        jquant.checkpoints.load(tmp_path)
    own.write_text(json.dumps({"quantization": "NVFP4"}))
    with pytest.raises(CheckpointError, match="its quantization is NVFP4; it must be an object"):
        jquant.checkpoints.load(tmp_path)


@pytest.mark.parametrize("name", OF_4_BITS)
def test_products(name, tmp_path):
    """A packed matrix has twice each float, so that a block of it, times integers, is an exact sum, which is scaled once."""
    model = MODELS[name](np.random.default_rng(0))
    write(model, tmp_path)
    params = jquant.checkpoints.load(tmp_path).read(pack=True)
    (key, expected), *_ = model.expected.items()
    matrix = params[key].matrix
    size = matrix.block_size
    assert sum(array.nbytes for array in jax.tree.leaves(matrix)) == PACKED_BYTES[size] * expected.size
    rng = np.random.default_rng(1)
    a = rng.integers(-128, 128, (*expected.shape[:-2], 2, expected.shape[-2]), np.int8)
    product = np.zeros((*a.shape[:-1], expected.shape[-1]), np.float32)
    floats = np.asarray(matrix.unpack()).astype(np.int64)
    for block, scale in enumerate(np.moveaxis(np.asarray(matrix.scale, np.float32), -2, 0)):
        rows = slice(block * size, (block + 1) * size)
        sums = a[..., rows].astype(np.int64) @ floats[..., rows, :]
        product += sums.astype(np.float32) * scale[..., None, :]
    np.testing.assert_array_equal(jquant.block_scaled_matmul(a, np.float32(1), None, matrix), product, strict=True)
    rows = np.eye(expected.shape[-2], dtype=np.float32)
    np.testing.assert_array_equal(
        jquant.matmul_n_bits(np.broadcast_to(rows, (*a.shape[:-2], *rows.shape)), matrix), expected
    )


@pytest.mark.parametrize("recipe", ["weight_only_int4", "int4_by_rows"])
@pytest.mark.parametrize("name", ["NVFP4 of ModelOpt", "gpt-oss"])
def test_sites_of_blocks(name, recipe, tmp_path):
    """In the places of the weights of a transformed function, experts included."""
    model = MODELS[name](np.random.default_rng(0))
    write(model, tmp_path)
    (key, expected), *_ = model.expected.items()
    matrix = jquant.checkpoints.load(tmp_path)[key].pack().matrix
    x = np.random.default_rng(1).normal(size=(*expected.shape[:-2], 5, expected.shape[-2])).astype(np.float32)
    types = {"w": jax.ShapeDtypeStruct(expected.shape, np.float32)}
    apply, target = transform.quantize(lambda params, x: x @ params["w"], types, getattr(transform, recipe), x)
    target["sites"]["w"] = {"values": matrix}
    if recipe == "weight_only_int4":
        product = jquant.matmul_n_bits(x, matrix)
    else:
        level = "EXTENDED"
        values, scale, _ = jquant.dynamic_quantize_linear(
            x, axis=-1, symmetric=True, output_dtype="INT8", feature_level=level
        )
        product = jquant.block_scaled_matmul(values, scale, None, matrix)
    np.testing.assert_array_equal(jax.jit(apply)(target, x), product, strict=True)


def test_sites_of_8_bit_floats(tmp_path):
    """Codes and scales as they are in the file, but for the scale of a block of columns, which each of them has."""
    model = narrow_files.fp8(np.random.default_rng(0), shape=(200, 256))
    write(model, tmp_path)
    weight, x = jquant.checkpoints.load(tmp_path)["layer.weight"], np.eye(256, dtype=np.float32)
    scheme = transform.Scheme(weight_type="FLOAT8E4M3FN", activations="FLOAT", block_size=128)
    types = {"w": jax.ShapeDtypeStruct(weight.shape, np.float32)}
    apply, target = transform.quantize(lambda params, x: x @ params["w"], types, transform.Recipe([("*", scheme)]), x)
    stored = {"values": weight.values.view(np.uint8), "scale": weight.scale}
    assert jax.tree.map(lambda x: (x.shape, x.dtype), target["sites"]["w"]) == jax.tree.map(
        lambda x: (x.shape, x.dtype), stored
    )
    target["sites"]["w"] = stored
    np.testing.assert_array_equal(jax.jit(apply)(target, x), model.expected["layer.weight"], strict=True)


def full(shape, dtype):
    return lambda _: np.ones(shape, dtype)


# A model, what becomes of a tensor (None: it is removed), and of the configuration, and part of the message.
SCALE, SECOND, CODES = f"{NAME}.weight_scale", f"{NAME}.weight_global_scale", f"{NAME}.weight_packed"
BLOCKS, SCALES = (f"model.layers.0.mlp.experts.gate_up_proj_{name}" for name in ("blocks", "scales"))
INVERSE = "layer.weight_scale_inv"
ERRORS = {
    "no scale": ("nvfp4-pack-quantized", {SCALE: None}, {}, "there is no"),
    "no second scale": ("nvfp4-pack-quantized", {SECOND: None}, {}, "_global_scale"),
    "second scales": ("nvfp4-pack-quantized", {SECOND: full(2, np.float32)}, {}, "has shape (2,); it must be one number"),
    "type of the second": ("nvfp4-pack-quantized", {SECOND: full(1, np.int32)}, {}, "is I32; it must be float32"),
    "shape of scales": ("nvfp4-pack-quantized", {SCALE: lambda t: t[:, :3]}, {}, "has shape (12, 3); blocks of 16 in"),
    "type of scales": ("mxfp4-pack-quantized", {SCALE: full((12, 2), np.float16)}, {}, "must be uint8 or float8_e8m0fnu"),
    "rank": ("mxfp4-pack-quantized", {CODES: lambda t: t[0]}, {}, "it must have 2 dimensions"),
    "integers": (
        "mxfp4-pack-quantized",
        {},
        {"config_groups": {"": {"weights": {"type": "int"}}}},
        "type int is configured",
    ),
    "no scale, ModelOpt": ("NVFP4 of ModelOpt", {SCALE: None}, {}, "there is no"),
    "no second, ModelOpt": ("NVFP4 of ModelOpt", {f"{NAME}.weight_scale_2": None}, {}, "is U8; it must be int8"),
    "scales, ModelOpt": ("NVFP4 of ModelOpt", {SCALE: full((12, 4), np.uint8)}, {}, "is U8; it must be float8_e4m3fn"),
    "blocks": ("gpt-oss", {BLOCKS: lambda t: t[..., :8]}, {}, "MXFP4 has blocks of U8, (..., N, K / 32, 16)"),
    "scales of experts": ("gpt-oss", {SCALES: lambda t: t[:2]}, {}, "U8 of shape (3, 12, 3, 16) and U8 of shape (2, 12, 3)"),
    "no rows": ("gpt-oss", {BLOCKS: lambda t: t[:, :0], SCALES: lambda t: t[:, :0]}, {}, "(3, 0, 3, 16)"),
    "fp8 without scales": ("fp8", {INVERSE: None}, {}, "is F8_E4M3, but there is no layer.weight_scale"),
    "fp8, scales": ("fp8", {INVERSE: full((2, 2), np.float32)}, {}, "blocks of 128 x 128 in (200, 300) need (2, 3)"),
    "fp8, type of scales": ("fp8", {INVERSE: full((2, 3), np.int32)}, {}, "is I32"),
    "a vector": ("fp8", {"layer.weight": lambda t: t[0]}, {}, "it must be a matrix"),
    "an empty matrix": ("fp8", {"layer.weight": lambda t: t[:0]}, {}, "none of size 0"),
    "block": ("fp8", {}, {"weight_block_size": [128, 0]}, "weight_block_size is [128, 0]; it must be two sizes"),
    "block of text": ("fp8", {}, {"weight_block_size": "128x128"}, "weight_block_size is 128x128"),
    "another method": ("fp8", {}, {"quant_method": "torchao"}, "'torchao', which the package torchao reads"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name, tmp_path):
    """Each error names the file, and the tensor where there is one."""
    kind, changes, settings, message = ERRORS[name]
    model = MODELS[kind](np.random.default_rng(0))
    for key, change in changes.items():
        tensor = model.tensors.pop(key)
        if change is not None:
            model.tensors[key] = change(tensor)
    write(model._replace(config=model.config | settings), tmp_path)
    with pytest.raises(CheckpointError) as error:
        jquant.checkpoints.load(tmp_path).read()
    assert str(tmp_path) in str(error.value)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"l.weight": np.zeros((32, 1), np.uint8), "l.weight.absmax": np.zeros(1, np.uint8)}, "the package bitsandbytes"),
        ({"l.weight": np.zeros((8, 8), np.int8), "l.SCB": np.ones(8, np.float32)}, "the package bitsandbytes"),
        ({"l.W_q": np.zeros((8, 8), np.uint8), "l.meta": np.zeros(1)}, "is from HQQ, .* the package hqq reads it"),
        ({"l.q_weight": np.zeros((8, 8), np.int32), "l.q_scale": np.zeros(1)}, "is from EXL2, .* the package exllamav2"),
        ({"l.codes": np.zeros((8, 8, 1), np.int8), "l.codebooks": np.zeros((1, 256))}, "is from AQLM, .* the package aqlm"),
    ],
)
def test_other_formats(tensors, message, tmp_path):
    """Codes of a format that is not supported are no arrays, even where no configuration says what they are."""
    save_file(tensors, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match=message):
        jquant.checkpoints.load(tmp_path / "x.safetensors")


def test_arrays_with_the_names_of_weights(tmp_path):
    """Blocks and scales of other shapes, and scales of no 8-bit floats, are arrays."""
    tensors = {
        "grid_blocks": np.zeros((3, 4, 16), np.uint8),
        "grid_scales": np.ones((3, 5), np.uint8),
        "codes.blocks": np.zeros((3, 4, 16), np.float32),
        "codes.scales": np.ones((3, 4), np.float32),
        "act": np.zeros(3, np.float32),
        "act_scale_inv": np.ones(3, np.float32),
        "alone.weight": np.zeros((4, 4), ml_dtypes.float8_e4m3fn),
    }
    save_file(tensors, tmp_path / "x.safetensors")
    checkpoint = jquant.checkpoints.load(tmp_path / "x.safetensors")
    assert checkpoint.keys() == tensors.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(checkpoint[name].view(np.uint8), tensor.view(np.uint8), strict=True)
