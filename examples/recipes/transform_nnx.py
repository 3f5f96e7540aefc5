"""A Flax NNX transformer in int8, int4 and MXFP4: scanned layers, rematerialization, one table for embeddings and logits.

pip install ".[recipes]"
python examples/recipes/transform_nnx.py
"""

import jax
import jax.numpy as jnp
from flax import nnx

from jquant import transform

VOCABULARY, WIDTH, HEADS, LAYERS = 512, 128, 4, 3


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.attention_norm, self.mlp_norm = nnx.RMSNorm(WIDTH, rngs=rngs), nnx.RMSNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs), nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.attention_norm(x), mask=nnx.make_causal_mask(x[..., 0]))
        return x + self.down(jax.nn.gelu(self.up(self.mlp_norm(x))))


class Transformer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.embed, self.norm = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs), nnx.RMSNorm(WIDTH, rngs=rngs)
        self.blocks = nnx.vmap(Block)(rngs.split(LAYERS))

    def __call__(self, tokens: jax.Array) -> jax.Array:
        @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
        @nnx.remat
        def layer(block, x):
            return block(x)

        return self.embed.attend(self.norm(layer(self.blocks, self.embed(tokens))))


def num_bytes(tree) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def signal_to_noise(signal: jax.Array, other: jax.Array) -> float:
    return float(10 * jnp.log10(jnp.sum(signal**2) / jnp.sum((other - signal) ** 2)))


def main() -> None:
    model, tokens = nnx.jit(Transformer)(nnx.Rngs(0)), jax.random.randint(jax.random.key(1), (4, 64), 0, VOCABULARY)

    graph, params = nnx.split(model)

    def apply(params, tokens):
        return nnx.merge(graph, params)(tokens)

    by_row = transform.Recipe([("*", transform.Scheme(activations="DYNAMIC_ROW"))])
    quantized_apply, quantized_params = transform.quantize(apply, params, by_row, tokens)
    int8_logits = jax.jit(quantized_apply)(quantized_params, tokens)

    print(transform.sites(apply, params, tokens, recipe=by_row))
    assert jnp.isfinite(int8_logits).all()
    before, after = num_bytes(params), num_bytes(quantized_params)
    assert after <= 0.4 * before
    print(f"{before:,} bytes of parameters -> {after:,}: {after / before:.2f}")
    one = jax.jit(quantized_apply)(quantized_params, tokens[:1, :10])  # another batch, and another length
    assert one.shape == (1, 10, VOCABULARY)
    assert jnp.allclose(one, int8_logits[:1, :10], atol=1e-3)  # a row is quantized independently of the others
    logits = jax.jit(apply)(params, tokens)
    others = {"a scale for each token": by_row, "for each tensor": transform.dynamic_int8}
    for name, recipe in (others | {"float inputs": transform.weight_only_int8}).items():
        quantized_apply, quantized_params = transform.quantize(apply, params, recipe, tokens)
        ratio = signal_to_noise(logits, jax.jit(quantized_apply)(quantized_params, tokens))
        assert ratio > 25
        print(f"{name}: {ratio:.0f} dB")
    few_bits = {"int4 in blocks": transform.weight_only_int4, "by int8 rows": transform.int4_by_rows}
    for name, recipe in (few_bits | {"MXFP4": transform.weight_only_mxfp4}).items():
        quantized_apply, quantized_params = transform.quantize(apply, params, recipe, tokens)
        ratio, after = (
            signal_to_noise(logits, jax.jit(quantized_apply)(quantized_params, tokens)),
            num_bytes(quantized_params),
        )
        assert ratio > 8
        print(f"{name}: {ratio:.0f} dB, {after / before:.3f} of the bytes")


if __name__ == "__main__":
    main()
