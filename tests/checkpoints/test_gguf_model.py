"""A whole model from a GGUF file of K types: a function of floats, with the blocks of the file in place of its weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

gguf = pytest.importorskip("gguf", reason="gguf is not installed (extra: checkpoints)")

from gguf import GGMLQuantizationType as Type  # noqa: E402

import jquant.checkpoints  # noqa: E402
from jquant import transform  # noqa: E402

from .gguf_files import dequantized, random_blocks, write  # noqa: E402

LAYERS, HEADS, WIDTH, TOKENS = 2, 4, 256, 40
# As llama.cpp's mixture Q4_K_M: some of the matrices have more bits.
TYPES = {"attn_q": "Q4_K", "attn_k": "Q4_K", "attn_v": "Q6_K", "attn_output": "Q5_K"}
TYPES |= {"ffn_gate": "Q3_K", "ffn_up": "Q4_K", "ffn_down": "Q2_K"}
# Offsets of the float16 scales of a block, and what they are here, so that weights are about 0.1.
SCALES = {"Q2_K": {80: 0.01, 82: 0.01}, "Q3_K": {108: 0.002}, "Q4_K": {0: 5e-4, 2: 0.004}, "Q5_K": {0: 2e-4, 2: 0.004}}
SCALES |= {"Q6_K": {208: 5e-5}}


def blocks(name: str, seed: int, rows: int = WIDTH) -> tuple[np.ndarray, Type]:
    """Random blocks, but for their scales. The package gguf cannot quantize to these types."""
    data = random_blocks(Type[name], (rows, WIDTH), seed)
    for offset, scale in SCALES[name].items():
        data[:, offset : offset + 2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    return data, Type[name]


def forward(params: dict, tokens: jax.Array) -> jax.Array:
    """The logits of a Llama without rotations, in the names and the layout of GGUF."""
    x = params["token_embd"][tokens]
    for layer in range(LAYERS):
        weight = {name: params[f"blk.{layer}.{name}"] for name in TYPES}
        h = normalized(x)
        q, k, v = ((h @ weight[f"attn_{name}"].T).reshape(len(x), HEADS, -1) for name in "qkv")
        scores = jnp.einsum("thd,shd->hts", q, k) / np.float32(np.sqrt(q.shape[-1]))
        scores = jax.nn.softmax(jnp.where(np.tri(len(x), dtype=bool), scores, np.float32(-1e9)), axis=-1)
        x = x + jnp.einsum("hts,shd->thd", scores, v).reshape(x.shape) @ weight["attn_output"].T
        h = normalized(x)
        x = x + (jax.nn.silu(h @ weight["ffn_gate"].T) * (h @ weight["ffn_up"].T)) @ weight["ffn_down"].T
    return normalized(x) @ params["token_embd"].T


def normalized(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + np.float32(1e-5))


@pytest.mark.gate
def test_logits(tmp_path):
    """Weights in blocks and in float32 differ in how sums are rounded alone: by less than 1e-5 of the largest logit."""
    tensors = {"token_embd.weight": blocks("Q6_K", 0, TOKENS)}
    for layer in range(LAYERS):
        for number, (name, type_) in enumerate(TYPES.items()):
            tensors[f"blk.{layer}.{name}.weight"] = blocks(type_, 100 * layer + number + 1)
    checkpoint = jquant.checkpoints.load(write(tmp_path / "model.gguf", tensors))
    floats = {name.removesuffix(".weight"): dequantized(*tensor) for name, tensor in tensors.items()}
    types = {name: jax.ShapeDtypeStruct(value.shape, np.float32) for name, value in floats.items()}
    tokens = np.random.default_rng(0).integers(0, TOKENS, 7, np.int32)
    apply, params = transform.quantize(forward, types, transform.weight_only_int4, tokens)
    packed = checkpoint.read(pack=True)
    assert set(params["sites"]) == set(floats)
    params["sites"] = {name: {"values": packed[f"{name}.weight"].matrix} for name in params["sites"]}
    expected = np.asarray(jax.jit(forward)(floats, tokens))
    error = np.abs(np.asarray(jax.jit(apply)(params, tokens)) - expected).max() / np.abs(expected).max()
    assert error < 1e-5
