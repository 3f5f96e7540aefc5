"""Decoding with an int8 cache of keys and values, in plain JAX and in a Flax NNX module.

pip install ".[recipes]"
python examples/recipes/key_value_cache.py
"""

import jax
import jax.numpy as jnp
from flax import nnx

from jquant import kv_cache

HEADS, KEY_HEADS, WIDTH, LENGTH = 8, 2, 64, 128
FEATURES = HEADS * WIDTH


class CacheVariable(nnx.Variable):
    """The state of decoding, which optimizers do not update."""


class Attention(nnx.Module):
    """Causal attention with grouped heads, whose cache grows with every call."""

    def __init__(self, rngs: nnx.Rngs, dtype: str = "INT8"):
        self.query = nnx.LinearGeneral(FEATURES, (HEADS, WIDTH), rngs=rngs)
        self.key_and_value = nnx.LinearGeneral(FEATURES, (2, KEY_HEADS, WIDTH), rngs=rngs)
        self.output = nnx.LinearGeneral((HEADS, WIDTH), FEATURES, axis=(-2, -1), rngs=rngs)
        self.cache = CacheVariable(kv_cache.init(1, 1, KEY_HEADS, LENGTH, WIDTH, dtype))

    def __call__(self, x: jax.Array, position: jax.Array) -> jax.Array:
        key, value = jnp.moveaxis(self.key_and_value(x), 2, 0)
        cache = kv_cache.append(self.cache.get_value(), key, value, position)
        self.cache.set_value(cache)
        return self.output(kv_cache.attend(self.query(x), cache, position))


@nnx.jit
def decode(model: Attention, x: jax.Array) -> jax.Array:
    """Token by token, in one program."""

    @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0))
    def step(state, token):
        model, position = state
        return (model, position + 1), model(token[None, None], position)[0, 0]

    return step((model, jnp.int32(0)), x)[1]


@jax.jit
def attention(queries: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
    """The same loop in plain JAX, for one token at a time of (tokens, heads, width)."""

    def step(cache: kv_cache.KeyValueCache, token: tuple) -> tuple[kv_cache.KeyValueCache, jax.Array]:
        position, query, key, value = token
        cache = kv_cache.append(cache, key[None, None], value[None, None], position)
        return cache, kv_cache.attend(query[None, None], cache, position)[0, 0]

    cache = kv_cache.init(layers=1, batch=1, heads=keys.shape[1], length=LENGTH, width=WIDTH)
    return jax.lax.scan(step, cache, (jnp.arange(len(keys)), queries, keys, values))[1]


def decibels(exact: jax.Array, output: jax.Array) -> float:
    return float(10 * jnp.log10(jnp.var(exact) / jnp.var(output - exact)))


def main() -> None:
    x = jax.random.normal(jax.random.key(0), (LENGTH, FEATURES))
    model, in_floats = (Attention(nnx.Rngs(0), dtype) for dtype in ("INT8", "FLOAT32"))
    print(f"{model.cache.get_value()}: {model.cache.get_value().nbytes:,} bytes")
    print(f"{in_floats.cache.get_value()}: {in_floats.cache.get_value().nbytes:,} bytes")
    outputs, exact = decode(model, x), in_floats(x[None], 0)[0]
    ratio = decibels(exact, outputs)
    assert ratio > 30

    keys, values = jnp.moveaxis(model.key_and_value(x), 1, 0)
    of_heads = attention(model.query(x), keys, values)
    assert decibels(model.output(of_heads), outputs) > 100
    print(f"token by token in int8, at once in float32: {ratio:.0f} dB apart")


if __name__ == "__main__":
    main()
