"""Builders of small checkpoints of 4- and 8-bit floats, laid out as their makers do, with the expected weights by hand."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from .files import Model, compressed_config

FLOATS_OF_4_BITS = np.float32([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
NAMES = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.experts.0.up_proj", "model.layers.0.mlp.experts.1.up_proj"


def pairs(codes: np.ndarray) -> np.ndarray:
    """Two codes in a byte, the first in the lower half."""
    return codes[..., 0::2] | codes[..., 1::2] << 4


def random_codes(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(0, 16, shape, np.uint8)


def powers(rng: np.random.Generator, *shape: int) -> tuple[np.ndarray, np.ndarray]:
    """Biased exponents, and the powers of two that they stand for."""
    exponents = rng.integers(-20, 20, shape)
    exponents.flat[:2] = -100, 100
    return (exponents + 127).astype(np.uint8), np.float32(2.0) ** exponents.astype(np.float32)


def nvfp4_scales(rng: np.random.Generator, n: int, blocks: int) -> np.ndarray:
    return rng.uniform(0.01, 448, (n, blocks)).astype(ml_dtypes.float8_e4m3fn)


def in_blocks(codes: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """The floats, of shape (..., K, N)."""
    size = codes.shape[-1] // scale.shape[-1]
    return (FLOATS_OF_4_BITS[codes] * np.repeat(scale, size, -1)).swapaxes(-1, -2)


def nvfp4_pack_quantized(rng: np.random.Generator, *, n: int = 12, k: int = 64) -> Model:
    """compressed-tensors: the scale of a block is divided by that of the tensor."""
    tensors, expected = {}, {}
    for name in NAMES:
        codes, scale, divisor = random_codes(rng, n, k), nvfp4_scales(rng, n, k // 16), np.float32([rng.uniform(100, 9000)])
        tensors |= {f"{name}.weight_packed": pairs(codes), f"{name}.weight_scale": scale}
        tensors |= {f"{name}.weight_global_scale": divisor, f"{name}.input_global_scale": np.float32([3])}
        expected[f"{name}.weight"] = in_blocks(codes, scale.astype(np.float32) / divisor)
    options = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    return Model(tensors, compressed_config("nvfp4-pack-quantized", **options), expected)


def mxfp4_pack_quantized(rng: np.random.Generator, *, n: int = 12, k: int = 64) -> Model:
    """compressed-tensors: the scales are biased exponents."""
    tensors, expected = {}, {}
    for name in NAMES:
        codes, (scale, real) = random_codes(rng, n, k), powers(rng, n, k // 32)
        tensors |= {f"{name}.weight_packed": pairs(codes), f"{name}.weight_scale": scale}
        expected[f"{name}.weight"] = in_blocks(codes, real)
    options = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}
    return Model(tensors, compressed_config("mxfp4-pack-quantized", **options), expected)


def modelopt_nvfp4(rng: np.random.Generator, *, n: int = 12, k: int = 64) -> Model:
    """ModelOpt: the scale of a block is multiplied by that of the tensor; some of its weights may be in 8 bits."""
    tensors, expected = {}, {}
    for name in NAMES:
        codes, scale, factor = random_codes(rng, n, k), nvfp4_scales(rng, n, k // 16), np.float32(rng.uniform(1e-4, 1e-2))
        tensors |= {f"{name}.weight": pairs(codes), f"{name}.weight_scale": scale}
        tensors |= {f"{name}.weight_scale_2": np.array(factor), f"{name}.input_scale": np.array(np.float32(0.5))}
        expected[f"{name}.weight"] = in_blocks(codes, scale.astype(np.float32) * factor)
    weights = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}
    groups = {"group_0": {"input_activations": weights, "weights": weights, "targets": ["Linear"]}}
    config = {"config_groups": groups, "ignore": ["lm_head"], "quant_algo": "NVFP4", "quant_method": "modelopt"}
    return Model(tensors, config, expected)


def modelopt_fp8(rng: np.random.Generator, *, n: int = 12, k: int = 64) -> Model:
    """ModelOpt: 8-bit floats with one scale for a matrix."""
    values, scale = rng.normal(0, 50, (n, k)).astype(ml_dtypes.float8_e4m3fn), np.float32(0.0125)
    tensors = {"layer.weight": values, "layer.weight_scale": np.array(scale), "layer.input_scale": np.array(np.float32(1))}
    weights = {"dynamic": False, "num_bits": 8, "type": "float"}
    config = {"config_groups": {"group_0": {"weights": weights}}, "quant_algo": "FP8", "quant_method": "modelopt"}
    return Model(tensors, config, {"layer.weight": values.astype(np.float32).T * scale})


def gpt_oss(rng: np.random.Generator, *, dot: str = "_", e: int = 3, n: int = 12, k: int = 96) -> Model:
    """gpt-oss: the experts of a layer in two tensors, (E, N, K / 32, 16) and (E, N, K / 32), and floats beside them."""
    base = "model.layers.0.mlp.experts.gate_up_proj" if dot == "_" else "block.0.mlp.mlp1_weight"
    codes, (scale, real) = random_codes(rng, e, n, k), powers(rng, e, n, k // 32)
    tensors = {
        f"{base}{dot}blocks": pairs(codes).reshape(e, n, k // 32, 16),
        f"{base}{dot}scales": scale,
        f"{base}_bias": rng.normal(size=(e, n)).astype(ml_dtypes.bfloat16),
    }
    config = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    return Model(tensors, config, {base: in_blocks(codes, real)})


def fp8(
    rng: np.random.Generator,
    *,
    block: tuple[int, int] = (128, 128),
    shape: tuple[int, ...] = (200, 300),
    dtype: Any = ml_dtypes.float8_e4m3fn,
    scales: Any = np.float32,
    configured: bool = True,
    name: str = "layer.weight",
) -> Model:
    """DeepSeek and Qwen: what the blocks of a matrix are multiplied by is called the inverse of their scale."""
    *batch, n, k = shape
    (rows, columns), values = block, rng.normal(0, 50, shape).astype(dtype)
    scale = rng.uniform(1e-3, 1e-1, (*batch, -(-n // rows), -(-k // columns))).astype(scales)
    spread = scale.astype(np.float32).repeat(rows, -2)[..., :n, :].repeat(columns, -1)[..., :k]
    config: dict[str, Any] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
    if configured:
        config["weight_block_size"] = list(block)
    expected = (values.astype(np.float32) * spread).swapaxes(-1, -2)
    return Model({name: values, f"{name}_scale_inv": scale}, config, {name: expected})


def fp8_of_one_scale(rng: np.random.Generator) -> Model:
    model = fp8(rng, block=(200, 300))
    config = {**model.config, "weight_block_size": None, "activation_scheme": "static"}
    tensors = {**model.tensors, "layer.weight_scale_inv": model.tensors["layer.weight_scale_inv"].reshape(())}
    return model._replace(tensors=tensors, config=config)


MODELS: dict[str, Callable[[np.random.Generator], Model]] = {
    "nvfp4-pack-quantized": nvfp4_pack_quantized,
    "mxfp4-pack-quantized": mxfp4_pack_quantized,
    "NVFP4 of ModelOpt": modelopt_nvfp4,
    "fp8 of ModelOpt": modelopt_fp8,
    "gpt-oss": gpt_oss,
    "gpt-oss, its authors' names": lambda rng: gpt_oss(rng, dot="."),
    "fp8": fp8,
    "fp8, whole blocks": lambda rng: fp8(rng, shape=(256, 256), configured=False),
    "fp8 of e5m2 in blocks of 16 x 48": lambda rng: fp8(rng, block=(16, 48), dtype=ml_dtypes.float8_e5m2),
    "fp8, experts": lambda rng: fp8(rng, shape=(3, 130, 257), name="layers.0.mlp.experts.gate_up_proj"),
    "fp8, one scale": fp8_of_one_scale,
}
