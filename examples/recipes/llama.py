"""A Llama of sixty lines: a bfloat16 checkpoint with the names of Hugging Face, in int4, which writes by an int8 cache.

pip install ".[recipes]"
python examples/recipes/llama.py
"""

import functools
import json
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save_file

import jquant.checkpoints
from jquant import kv_cache, transform

CONFIG = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rope_theta": 10_000.0,
    "rms_norm_eps": 1e-5,
}


def read(folder):
    """The configuration, the types of parameters, and what reads one. Layers are stacked: one program serves them all."""
    config, checkpoint = json.loads(Path(folder, "config.json").read_text()), jquant.checkpoints.load(folder)
    first, numbers = "model.layers.0.", range(config["num_hidden_layers"])

    def load(name):
        if name.startswith("layers/"):
            return np.stack([checkpoint[name.replace("layers/", f"model.layers.{n}.")] for n in numbers])
        return checkpoint[name]

    def types(names, prefix=""):
        return {name: jax.eval_shape(functools.partial(load, prefix + name)) for name in names}

    layers = types([name.removeprefix(first) for name in checkpoint if name.startswith(first)], "layers/")
    return config, types([name for name in checkpoint if ".layers." not in name]) | {"layers": layers}, load


def norm(x, weight, epsilon):
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + epsilon) * weight


def rotate(x, positions, base):
    """Rotary embeddings of (batch, tokens, heads, width), whose halves are the two coordinates."""
    first, second = jnp.split(x, 2, axis=-1)
    angles = positions[:, None, None] * base ** (-jnp.arange(first.shape[-1]) / first.shape[-1])
    cosine, sine = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


def new_cache(config, batch, length, dtype="INT8"):
    width = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    return kv_cache.init(config["num_hidden_layers"], batch, config["num_key_value_heads"], length, width, dtype)


def llama(config, params, tokens, cache, position):
    """Logits of (batch, tokens), which follow the first `position` tokens in the cache; and the new cache."""
    positions, epsilon = position + jnp.arange(tokens.shape[1]), config["rms_norm_eps"]
    turn = functools.partial(rotate, positions=positions, base=config["rope_theta"])

    def layer(carry, numbered):
        (x, cache), (number, weights) = carry, numbered

        def linear(x, name):
            return x @ weights[f"{name}_proj.weight"].T

        y = norm(x, weights["input_layernorm.weight"], epsilon)
        heads = (linear(y, f"self_attn.{name}").reshape(*y.shape[:2], -1, cache.width) for name in "qkv")
        query, key, value = heads
        cache = kv_cache.append(cache, turn(key), value, position, layer=number)
        attended = kv_cache.attend(turn(query), cache, position, layer=number)
        x = x + linear(attended.reshape(*y.shape[:2], -1), "self_attn.o")
        y = norm(x, weights["post_attention_layernorm.weight"], epsilon)
        return (x + linear(jax.nn.silu(linear(y, "mlp.gate")) * linear(y, "mlp.up"), "mlp.down"), cache), None

    table = params["model.embed_tokens.weight"]
    carry = table[tokens].astype(jnp.float32), cache
    (x, cache), _ = jax.lax.scan(layer, carry, (jnp.arange(config["num_hidden_layers"]), params["layers"]))
    return norm(x, params["model.norm.weight"], epsilon) @ params.get("lm_head.weight", table).T, cache


@functools.partial(jax.jit, static_argnums=(0, 4))
def write(apply, params, prompt, cache, count):
    """The `count` likeliest tokens after a prompt of (batch, tokens)."""

    def step(state, _):
        logits, cache, position = state
        token = logits[:, -1:].argmax(-1)
        return (*apply(params, token, cache, position), position + 1), token[:, 0]

    logits, cache = apply(params, prompt, cache, 0)
    _, tokens = jax.lax.scan(step, (logits[:, -1:], cache, prompt.shape[1]), length=count)
    return tokens.T


def make_checkpoint(folder):
    """Random weights, with the names and in the types that models are published in."""
    rng, width, hidden = np.random.default_rng(0), CONFIG["hidden_size"], CONFIG["intermediate_size"]
    keys = width * CONFIG["num_key_value_heads"] // CONFIG["num_attention_heads"]
    shapes = {f"self_attn.{name}_proj": (size, width) for name, size in zip("qkvo", (width, keys, keys, width), strict=True)}
    shapes |= {"mlp.gate_proj": (hidden, width), "mlp.up_proj": (hidden, width), "mlp.down_proj": (width, hidden)}
    norms = {"input_layernorm": (width,), "post_attention_layernorm": (width,)}
    layers = range(CONFIG["num_hidden_layers"])
    shapes = {f"model.layers.{n}.{name}.weight": shape for n in layers for name, shape in (shapes | norms).items()}
    shapes |= {"model.embed_tokens.weight": (CONFIG["vocab_size"], width), "model.norm.weight": (width,)}
    weights = {name: rng.normal(len(shape) == 1, shape[-1] ** -0.5, shape) for name, shape in shapes.items()}
    Path(folder, "config.json").write_text(json.dumps(CONFIG))
    save_file({name: x.astype(jnp.bfloat16) for name, x in weights.items()}, Path(folder, "model.safetensors"))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        make_checkpoint(folder)  # in place of one that was published
        config, types, load = read(folder)
        apply = functools.partial(llama, config)
        prompt = jax.random.randint(jax.random.key(0), (1, 16), 0, config["vocab_size"])
        inputs = prompt, new_cache(config, 1, 32), 0
        quantized_apply, quantized_params = transform.quantize(apply, types, transform.weight_only_int4, *inputs, load=load)
        tokens = write(quantized_apply, quantized_params, prompt, new_cache(config, 1, 32), 16)
        params = {name: load(name) for name in types if name != "layers"}
        params["layers"] = {name: load(f"layers/{name}") for name in types["layers"]}
    assert tokens.shape == (1, 16)

    before, after = (sum(x.nbytes for x in jax.tree.leaves(tree)) for tree in (params, quantized_params))
    exact, _ = jax.jit(apply)(params, prompt, new_cache(config, 1, 32, "FLOAT32"), 0)
    logits, _ = jax.jit(quantized_apply)(quantized_params, prompt, new_cache(config, 1, 32), 0)
    ratio = 10 * jnp.log10(jnp.sum(exact**2) / jnp.sum((logits - exact) ** 2))
    print(f"{before:,} bytes in bfloat16 -> {after:,}; {ratio:.0f} dB")


if __name__ == "__main__":
    main()
