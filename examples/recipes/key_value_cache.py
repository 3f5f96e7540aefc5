"""Attention with an int8 cache of keys and values, with a scale for each token.

python examples/recipes/key_value_cache.py
"""

import jax
import jax.numpy as jnp
import numpy as np

import jquant


def quantize_rows(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """int8 values, and a scale for each row."""
    largest = jnp.max(jnp.abs(x), axis=-1)
    scale, _ = jquant.scale_and_zero_point(-largest, largest, "INT8", symmetric=True, narrow_range=True)
    return jquant.quantize_linear(x, scale[:, None], output_dtype="INT8"), scale


def appended(cache, position, key: jax.Array, value: jax.Array):
    """The cache of one head, extended by the key and the value of a token, of shape (1, width)."""
    token = *quantize_rows(key), *quantize_rows(value)
    return jax.tree.map(lambda x, row: jax.lax.dynamic_update_slice_in_dim(x, row, position, 0), cache, token)


def attend(cache, length, query: jax.Array) -> jax.Array:
    """Attention of queries, of shape (rows, width), to the first `length` tokens of one head."""
    keys, key_scale, values, value_scale = cache
    query, query_scale = quantize_rows(query / np.sqrt(query.shape[1]))
    scores = jquant.matmul_integer_to_float(query, query_scale, None, keys.T, key_scale, None)
    scores = jnp.where(jnp.arange(len(keys))[None] < length, scores, -jnp.inf)
    shares = jax.nn.softmax(scores) * value_scale[None]  # the values' scales, applied before the sum
    shares, share_scale = quantize_rows(shares)
    return jquant.matmul_integer_to_float(shares, share_scale, None, values, 1.0, None)


def main() -> None:
    heads, tokens, width, room = 4, 48, 64, 128
    rng = np.random.default_rng(0)
    keys, values, queries = rng.standard_normal((3, heads, tokens, width), np.float32)
    zeros, ones = jnp.zeros((heads, room, width), jnp.int8), jnp.ones((heads, room))
    cache = zeros, ones, zeros, ones

    @jax.jit
    def step(cache, token):
        position, key, value, query = token
        cache = jax.vmap(appended, (0, None, 0, 0))(cache, position, key, value)
        return cache, jax.vmap(attend, (0, None, 0))(cache, position + 1, query)

    one_by_one = [x.swapaxes(0, 1)[:, :, None] for x in (keys, values, queries)]
    cache, outputs = jax.lax.scan(step, cache, (jnp.arange(tokens), *one_by_one))
    outputs = outputs[:, :, 0].swapaxes(0, 1)

    scores = np.where(np.tri(tokens, dtype=bool), queries @ keys.swapaxes(1, 2) / np.sqrt(width), -np.inf)
    exact = np.asarray(jax.nn.softmax(scores)) @ values
    ratio = 10 * np.log10(np.sum(exact**2) / np.sum((outputs - exact) ** 2))
    assert ratio > 30
    at_once = jax.vmap(attend, (0, None, 0))(cache, tokens, queries[:, -1:])
    np.testing.assert_array_equal(at_once[:, 0], outputs[:, -1])
    size, float_size = sum(x.nbytes for x in cache), 2 * 4 * heads * room * width
    print(f"{size:,} bytes of {float_size:,} in float32; {ratio:.0f} dB")


if __name__ == "__main__":
    main()
