"""A Flax Linen convolutional network with batch norm in int8, with ranges from a data set.

pip install ".[recipes]"
python examples/recipes/transform_linen.py
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from jquant import transform


class Network(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        for features in (16, 32):
            x = nn.Conv(features, (3, 3), use_bias=False)(x)
            x = nn.max_pool(nn.relu(nn.BatchNorm(use_running_average=not train)(x)), (2, 2), (2, 2))
        return nn.Dense(10)(x.reshape(x.shape[0], -1))


def main() -> None:
    batches = [jax.random.normal(key, (16, 16, 16, 3)) for key in jax.random.split(jax.random.key(1), 4)]
    model = Network()
    variables = jax.jit(model.init)(jax.random.key(0), batches[0])
    train = jax.jit(lambda variables, images: model.apply(variables, images, train=True, mutable=["batch_stats"]))
    for images in batches:
        _, statistics = train(variables, images)
        variables = variables | statistics

    def apply(variables, images):
        return model.apply(variables, images, train=False)

    recipe = transform.static_int8
    calibration = transform.calibrate(apply, variables, batches, recipe)
    quantized_apply, quantized_variables = transform.quantize(apply, variables, recipe, images, calibration=calibration)
    int8_logits = jax.jit(quantized_apply)(quantized_variables, images)

    print(transform.sites(apply, variables, images, recipe=recipe))
    logits = jax.jit(apply)(variables, images)
    assert jax.jit(quantized_apply)(quantized_variables, images[:1]).shape == (1, 10)
    ratio = 10 * jnp.log10(jnp.sum(logits**2) / jnp.sum((int8_logits - logits) ** 2))
    before, after = (sum(leaf.nbytes for leaf in jax.tree.leaves(tree)) for tree in (variables, quantized_variables))
    assert ratio > 30
    assert after < 0.4 * before
    print(f"{before:,} bytes of parameters -> {after:,}; {ratio:.0f} dB")


if __name__ == "__main__":
    main()
