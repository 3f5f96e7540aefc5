"""Builders of small quantized checkpoints, with the expected weights, which come from the integers before packing."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

import jquant.checkpoints
from jquant.checkpoints import QuantizedWeight

AWQ_ORDER = 0, 2, 4, 6, 1, 3, 5, 7  # the columns of a word, from its lowest bits on
# What GPTQModel subtracts from each word of zero points in format gptq, by the number of bits.
SUBTRAHENDS = {2: 0x55555555, 4: 0x11111111, 8: 0x01010101}


class Model(NamedTuple):
    """A checkpoint of one layer.

    Attributes:
      tensors: the tensors of its file.
      config: its quantization_config.
      expected: the dequantized weights, (K, N), by name.
    """

    tensors: dict[str, np.ndarray]
    config: dict[str, Any] | None
    expected: dict[str, np.ndarray]

    def write(self, folder: Path) -> Path:
        file = folder / "model.safetensors"
        save_file(self.tensors, file)
        if self.config is not None:
            (folder / "config.json").write_text(json.dumps({"quantization_config": self.config}))
        return file


def loaded(model: Model, folder: Path) -> QuantizedWeight:
    """Writes a model to `folder`, loads its only weight, and checks the dequantized values."""
    weight = jquant.checkpoints.load(model.write(folder))["layer.weight"]
    np.testing.assert_array_equal(weight.dequantize(), model.expected["layer.weight"], strict=True)
    return weight


def words(codes: np.ndarray, bits: int, axis: int) -> np.ndarray:
    """Unsigned integers packed along `axis` into 32-bit words, the first in the lowest bits, the last word padded with 0."""
    codes = np.moveaxis(codes, axis, -1).astype(np.uint64)
    per_word = 32 // bits
    codes = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % per_word)])
    parts = codes.reshape(*codes.shape[:-1], -1, per_word) << np.arange(0, 32, bits, dtype=np.uint64)
    return np.ascontiguousarray(np.moveaxis(parts.sum(-1).astype(np.uint32).view(np.int32), -1, axis))


def zero_words(zeros: np.ndarray, bits: int, format_: str | None) -> np.ndarray:
    """Zero points as GPTQModel writes them: packed and, in format gptq, minus 1 by words, so that a 0 borrows."""
    packed = words(zeros, bits, 1)
    return packed if format_ == "gptq_v2" else (packed.view(np.uint32) - np.uint32(SUBTRAHENDS[bits])).view(np.int32)


def floats(rng: np.random.Generator, *shape: int, dtype: Any = np.float16) -> np.ndarray:
    return rng.uniform(1e-3, 1e-1, shape).astype(dtype)


def gptq(
    rng: np.random.Generator,
    bits: int = 4,
    *,
    format_: str | None = "gptq",
    sym: bool = False,
    order: bool = False,
    k: int = 64,
    n: int = 32,
    group_size: int = 16,
    dtype: Any = np.float16,
    zeros: np.ndarray | None = None,
    index: bool = True,
) -> Model:
    """One layer. `order`: whether rows are in an activation order; `zeros`: the zero points, which are random by default."""
    size = k if group_size == -1 else group_size
    blocks = -(-k // size)
    values = rng.integers(0, 2**bits, (k, n))
    if zeros is None:
        zeros = np.full((blocks, n), 2 ** (bits - 1)) if sym else rng.integers(0, 2**bits, (blocks, n))
    scales = floats(rng, blocks, n, dtype=dtype)
    g_idx = np.arange(k) // size
    if order:
        g_idx = rng.permutation(g_idx)
    tensors = {
        "layer.qweight": words(values, bits, 0),
        "layer.qzeros": zero_words(zeros, bits, format_),
        "layer.scales": scales,
        "layer.g_idx": g_idx.astype(np.int32),
        "layer.bias": floats(rng, n),
    }
    if not index:
        del tensors["layer.g_idx"]
    config = {"quant_method": "gptq", "bits": bits, "group_size": group_size, "desc_act": order, "sym": sym}
    if format_ is not None:
        config["checkpoint_format"] = format_
    # In the dtype of the scales, as the libraries compute: the difference is exact, and the product is rounded once.
    expected = scales[g_idx] * (values - zeros[g_idx]).astype(dtype)
    return Model(tensors, config, {"layer.weight": expected})


def auto_round(rng: np.random.Generator, bits: int = 4, *, packing: str = "auto_round:auto_gptq", **options: Any) -> Model:
    """One layer as auto-round packs it: the zero points, minus 1 for GPTQ's kernels, are shifted and added up in 32 bits."""
    zeros = rng.integers(0, 2**bits, (4, 32))
    model = gptq(rng, bits, zeros=zeros, index=False, **options)
    stored = (zeros - ("gptq" in packing.split(":") or "auto_gptq" in packing.split(":"))).reshape(4, -1, 32 // bits)
    with np.errstate(over="ignore"):
        packed = (stored.astype(np.int32) << np.arange(0, 32, bits, dtype=np.int32)).sum(-1, dtype=np.int32)
    config = {"quant_method": "auto-round", "packing_format": packing, "bits": bits, "group_size": 16, "sym": False}
    return model._replace(tensors=model.tensors | {"layer.qzeros": packed}, config={**config, "data_type": "int"})


def awq(rng: np.random.Generator, *, k: int = 64, n: int = 16, group_size: int = 32) -> Model:
    values = rng.integers(0, 16, (k, n))
    zeros = rng.integers(0, 16, (k // group_size, n))
    scales = floats(rng, k // group_size, n)

    def packed(codes: np.ndarray) -> np.ndarray:
        return words(codes.reshape(len(codes), -1, 8)[..., AWQ_ORDER].reshape(codes.shape), 4, 1)

    tensors = {"layer.qweight": packed(values), "layer.qzeros": packed(zeros), "layer.scales": scales}
    config = {"quant_method": "awq", "bits": 4, "group_size": group_size, "zero_point": True, "version": "gemm"}
    groups = np.arange(k) // group_size
    return Model(tensors, config, {"layer.weight": scales[groups] * (values - zeros[groups]).astype(np.float16)})


def compressed_config(format_: str, **weights: Any) -> dict[str, Any]:
    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", **weights}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}
    return {"quant_method": "compressed-tensors", "format": format_, "config_groups": groups, "ignore": ["lm_head"]}


def pack_quantized(
    rng: np.random.Generator,
    bits: int = 4,
    *,
    sym: bool = True,
    order: bool = False,
    k: int = 64,
    n: int = 20,
    group_size: int | None = 16,
    dtype: Any = ml_dtypes.bfloat16,
    packed_zeros: bool = True,
) -> Model:
    size = group_size or k
    blocks = -(-k // size)
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1)
    values = rng.integers(low, high, (n, k))
    zeros = np.zeros((n, blocks), np.int64) if sym else rng.integers(low, high, (n, blocks))
    scale = floats(rng, n, blocks, dtype=dtype)
    g_idx = np.arange(k) // size
    if order:
        g_idx = rng.permutation(g_idx)
    tensors = {
        "layer.weight_packed": words(values - low, bits, 1),
        "layer.weight_scale": scale,
        "layer.weight_shape": np.array([n, k], np.int64),
    }
    if not sym:
        tensors["layer.weight_zero_point"] = words(zeros - low, bits, 0) if packed_zeros else zeros.astype(np.int8)
    if order:
        tensors["layer.weight_g_idx"] = g_idx.astype(np.int32)
    strategy = "group" if group_size else "channel"
    config = compressed_config("pack-quantized", num_bits=bits, symmetric=sym, strategy=strategy, group_size=group_size)
    expected = (values - zeros[:, g_idx]).astype(dtype) * scale[:, g_idx]
    return Model(tensors, config, {"layer.weight": expected.T})


def naive_quantized(
    rng: np.random.Generator,
    dtype: Any = np.int8,
    *,
    sym: bool = True,
    strategy: str = "channel",
    k: int = 24,
    n: int = 10,
    block: tuple[int, int] = (4, 8),
    scales: Any = ml_dtypes.bfloat16,
) -> Model:
    """8-bit values, not packed, with scales per tensor, channel, group or block."""
    is_integer = np.dtype(dtype) == np.int8
    values = rng.integers(-128, 128, (n, k), np.int8) if is_integer else rng.normal(0, 50, (n, k)).astype(dtype)
    rows, columns = block
    shape = {"tensor": (1,), "channel": (n, 1), "group": (n, -(-k // columns)), "block": (-(-n // rows), -(-k // columns))}[
        strategy
    ]
    scale = floats(rng, *shape, dtype=scales)
    zeros = None if sym else rng.integers(-128, 128, shape).astype(np.int8)
    tensors = {"layer.weight": values, "layer.weight_scale": scale}
    if zeros is not None:
        tensors["layer.weight_zero_point"] = zeros
    options = {"group": {"group_size": columns}, "block": {"block_structure": list(block)}}.get(strategy, {})
    type_ = "int" if is_integer else "float"
    config = compressed_config(f"{type_}-quantized", type=type_, symmetric=sym, strategy=strategy, **options)

    def spread(array: np.ndarray) -> np.ndarray:
        """Scales or zero points, one for each element of the weight."""
        if strategy == "block":
            array = array.repeat(rows, 0)[:n]
        if strategy in ("group", "block"):
            array = array.repeat(columns, 1)[:, :k]
        return np.broadcast_to(array, (n, k))

    wide = values.astype(np.int64) - spread(zeros) if zeros is not None else values
    return Model(tensors, config, {"layer.weight": (wide.astype(scales) * spread(scale)).T})
