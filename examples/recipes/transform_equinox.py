"""An Equinox convolutional network with batch norm in int8.

pip install ".[recipes]"
python examples/recipes/transform_equinox.py
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp

from jquant import transform


class Network(eqx.Module):
    convolutions: list[eqx.nn.Conv2d]
    norms: list[eqx.nn.BatchNorm]
    head: eqx.nn.Linear
    activation: Callable

    def __init__(self, key: jax.Array):
        first, second, head = jax.random.split(key, 3)
        self.convolutions = [
            eqx.nn.Conv2d(3, 16, 3, padding=1, use_bias=False, key=first),
            eqx.nn.Conv2d(16, 32, 3, stride=2, padding=1, use_bias=False, key=second),
        ]
        self.norms = [eqx.nn.BatchNorm(size, "batch", mode="batch") for size in (16, 32)]
        self.head, self.activation = eqx.nn.Linear(32 * 8 * 8, 10, key=head), jax.nn.relu

    def __call__(self, x: jax.Array, state: eqx.nn.State) -> tuple[jax.Array, eqx.nn.State]:
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x, state = norm(convolution(x), state)
            x = self.activation(x)
        return self.head(x.ravel()), state


def batched(model: Network, state: eqx.nn.State, images: jax.Array) -> tuple[jax.Array, eqx.nn.State]:
    return jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(images, state)


def main() -> None:
    model, state = eqx.nn.make_with_state(Network)(jax.random.key(0))
    images = jax.random.normal(jax.random.key(1), (16, 3, 16, 16))
    for _ in range(4):
        _, state = eqx.filter_jit(batched)(model, state, images)

    params, rest = eqx.partition(eqx.nn.inference_mode(model), eqx.is_array)

    def apply(variables, images):
        params, state = variables
        return batched(eqx.combine(params, rest), state, images)[0]

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
