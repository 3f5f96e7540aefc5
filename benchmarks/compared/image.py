"""An image through MobileNetV3-Large in float32, with random weights, which the contestants quantize."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.compared.flax_networks import FloatNetwork
from benchmarks.compared.workload import Workload
from benchmarks.program_size.network import BLOCKS

SIZE, CLASSES = 224, 1_000
CALIBRATING, JUDGED = 16, 32  # images


class MobileNetV3(nn.Module):
    """The blocks of the network of integers, with batch norm folded into filters and biases."""

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        def convolution(x: jax.Array, channels: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> jax.Array:
            options = {"padding": kernel // 2, "feature_group_count": groups}
            return nn.Conv(channels, (kernel, kernel), stride, **options)(x)

        def pooled(x: jax.Array) -> jax.Array:
            return x.mean((1, 2), keepdims=True)

        x = nn.hard_swish(convolution(images, 16, 3, 2))
        for block in BLOCKS:
            activation, channels = nn.hard_swish if block.is_hard_swish else nn.relu, x.shape[-1]
            branch = x if block.inner == channels else activation(convolution(x, block.inner))
            branch = activation(convolution(branch, block.inner, block.kernel, block.stride, block.inner))
            if block.squeezes:
                factors = nn.relu(convolution(pooled(branch), -(-block.inner // 32) * 8))
                branch *= nn.hard_sigmoid(convolution(factors, block.inner))
            branch = convolution(branch, block.outer)
            x = x + branch if block.stride == 1 and block.outer == channels else branch
        x = pooled(nn.hard_swish(convolution(x, 960))).reshape(-1, 960)
        return nn.Dense(CLASSES)(nn.hard_swish(nn.Dense(1_280)(x)))


def random_variables(model: nn.Module, image: np.ndarray) -> Any:
    """Filters that keep the variance of what a ReLU leaves, and biases of 0.1."""
    rng = np.random.default_rng(0)

    def draw(like: jax.ShapeDtypeStruct) -> jax.Array:  # of JAX, because Qwix looks for the very arrays
        spread = 0.1 if len(like.shape) == 1 else np.sqrt(2 / np.prod(like.shape[:-1]))
        return jnp.asarray(np.float32(spread) * rng.standard_normal(like.shape, np.float32))

    return jax.tree.map(draw, jax.eval_shape(model.init, jax.random.key(0), image))


def images(count: int) -> list[np.ndarray]:
    """Random colours in 7 x 7 fields, smoothed, and noise."""
    fields, noise = jax.random.split(jax.random.key(0))
    smooth = jax.image.resize(jax.random.normal(fields, (count, 7, 7, 3)), (count, SIZE, SIZE, 3), "linear")
    pixels = smooth + 0.1 * jax.random.normal(noise, smooth.shape)
    return [np.asarray(image[None]) for image in jnp.float32(pixels)]


def workload() -> Workload:
    model, every = MobileNetV3(), images(CALIBRATING + JUDGED)
    params = random_variables(model, every[0])
    network = FloatNetwork(model, params, every[CALIBRATING:], every[:CALIBRATING])
    return Workload("an image through MobileNetV3-Large", f"decibels, same class of {JUDGED} images", network.makers())
