"""Networks that end in transposed convolutions, with random weights, and how much of them is computed from integers."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen

from jquant import transform

BATCH = 2


class Decoder(NamedTuple):
    """A function of parameters and an input, with both."""

    function: Callable[..., jax.Array]
    params: Any
    x: np.ndarray


class _Generator(linen.Module):
    """DCGAN's generator: each layer doubles the image, and has half as many channels."""

    width: int
    layers: int = 3

    @linen.compact
    def __call__(self, z):
        x = linen.ConvTranspose(self.width, (4, 4), padding="VALID", use_bias=False)(z[:, None, None, :])
        for layer in range(self.layers):
            x = jax.nn.relu(linen.GroupNorm(num_groups=4)(x))
            x = linen.ConvTranspose(self.width >> (layer + 1), (4, 4), strides=(2, 2), use_bias=False)(x)
        x = jax.nn.relu(linen.GroupNorm(num_groups=4)(x))
        return jnp.tanh(linen.ConvTranspose(3, (4, 4), strides=(2, 2), use_bias=False)(x))


class _UNet(linen.Module):
    """A U-Net whose images grow by transposed convolutions of 2 x 2, beside what it had before they shrank."""

    width: int
    levels: int = 3

    @linen.compact
    def __call__(self, x):
        before = []
        for level in range(self.levels):
            before.append(x := self.twice(x, level))
            x = linen.max_pool(x, (2, 2), strides=(2, 2))
        x = self.twice(x, self.levels)
        for level in reversed(range(self.levels)):
            x = linen.ConvTranspose(self.width << level, (2, 2), strides=(2, 2))(x)
            x = self.twice(jnp.concatenate([before[level], x], -1), level)
        return linen.Conv(2, (1, 1))(x)

    def twice(self, x, level):
        for _ in range(2):
            x = jax.nn.relu(linen.GroupNorm(num_groups=4)(linen.Conv(self.width << level, (3, 3))(x)))
        return x


def generator(width: int = 64, inputs: int = 16) -> Decoder:
    return _decoder(_Generator(width), (BATCH, inputs))


def u_net(width: int = 8, size: int = 16) -> Decoder:
    return _decoder(_UNet(width), (BATCH, size, size, 3))


DECODERS = {"DCGAN generator": generator, "U-Net": u_net}


def _decoder(module: linen.Module, shape: tuple[int, ...]) -> Decoder:
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape).astype(np.float32)

    def drawn(path, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        """A filter, whose results are as large as its inputs, or scales around 1, or biases around 0."""
        if len(leaf.shape) > 1:
            return (rng.normal(size=leaf.shape) * math.prod(leaf.shape[:-1]) ** -0.5).astype(leaf.dtype)
        return (0.1 * rng.normal(size=leaf.shape) + ("scale" in jax.tree_util.keystr(path))).astype(leaf.dtype)

    shapes = jax.eval_shape(module.init, jax.random.key(0), x)
    return Decoder(module.apply, jax.tree_util.tree_map_with_path(drawn, shapes), x)


def shares(decoder: Decoder, recipe: transform.Recipe) -> tuple[float, float]:
    """The shares of the multiply-adds that integers compute, and that transposed convolutions have; none with zeros."""
    program = jax.make_jaxpr(decoder.function)(decoder.params, decoder.x)
    equations = [each for each in program.eqns if each.primitive.name == "conv_general_dilated"]
    sites = transform.sites(decoder.function, decoder.params, decoder.x, recipe=recipe)
    assert len(sites) == len(equations)
    numbers, integers, transposed = [], [], []
    for site, equation in zip(sites, equations, strict=True):
        filter, strides = equation.invars[1].aval.shape, equation.params["lhs_dilation"]
        filters = filter[equation.params["dimension_numbers"].rhs_spec[0]]
        products = math.prod(equation.outvars[0].aval.shape) * math.prod(filter) // filters
        numbers.append(products / math.prod(strides))
        integers.append(site.reason is None)
        transposed.append(max(strides) > 1)
    return tuple(float(np.average(which, weights=numbers)) for which in (integers, transposed))
