"""A Haiku convolutional network with batch norm in int8.

pip install ".[recipes]"
python examples/recipes/transform_haiku.py
"""

import haiku as hk
import jax
import jax.numpy as jnp

from jquant import transform


def forward(x: jax.Array, is_training: bool) -> jax.Array:
    for features in (16, 32):
        x = hk.Conv2D(features, 3, stride=2, with_bias=False)(x)
        x = jax.nn.relu(hk.BatchNorm(create_scale=True, create_offset=True, decay_rate=0.9)(x, is_training))
    return hk.nets.MLP([64, 10])(x.reshape(x.shape[0], -1))


def main() -> None:
    network = hk.without_apply_rng(hk.transform_with_state(forward))
    images = jax.random.normal(jax.random.key(1), (16, 16, 16, 3))
    params, state = jax.jit(network.init, static_argnums=2)(jax.random.key(0), images, True)
    for _ in range(4):
        _, state = jax.jit(network.apply, static_argnums=3)(params, state, images, True)

    def apply(variables, images):
        params, state = variables
        return network.apply(params, state, images, is_training=False)[0]

    variables = (params, state)
    quantized_apply, quantized_params = transform.quantize(apply, variables, transform.dynamic_int8, images)
    int8_logits = jax.jit(quantized_apply)(quantized_params, images)

    print(transform.sites(apply, variables, images))
    logits = jax.jit(apply)(variables, images)
    assert jax.jit(quantized_apply)(quantized_params, images[:1]).shape == (1, 10)
    ratio = 10 * jnp.log10(jnp.sum(logits**2) / jnp.sum((int8_logits - logits) ** 2))
    before, after = (sum(leaf.nbytes for leaf in jax.tree.leaves(tree)) for tree in (variables, quantized_params))
    assert ratio > 30
    assert after < 0.4 * before
    print(f"{before:,} bytes of parameters -> {after:,}; {ratio:.0f} dB")


if __name__ == "__main__":
    main()
