"""MobileNetV3-Large in integers, whose parameters are arguments of the program."""

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

import jquant


class Block(NamedTuple):
    """An inverted residual block.

    Attributes:
      kernel: the size of the depthwise filter.
      inner: the channels in the block.
      outer: the channels after it.
      squeezes: whether it has a squeeze-and-excite part.
      is_hard_swish: whether its activation functions are hard-swish, or else ReLU.
      stride: of the depthwise convolution.
    """

    kernel: int
    inner: int
    outer: int
    squeezes: bool
    is_hard_swish: bool
    stride: int


BLOCKS = [  # Howard et al., Searching for MobileNetV3, table 1
    Block(3, 16, 16, False, False, 1),
    Block(3, 64, 24, False, False, 2),
    Block(3, 72, 24, False, False, 1),
    Block(5, 72, 40, True, False, 2),
    Block(5, 120, 40, True, False, 1),
    Block(5, 120, 40, True, False, 1),
    Block(3, 240, 80, False, True, 2),
    Block(3, 200, 80, False, True, 1),
    Block(3, 184, 80, False, True, 1),
    Block(3, 184, 80, False, True, 1),
    Block(3, 480, 112, True, True, 1),
    Block(3, 672, 112, True, True, 1),
    Block(5, 672, 160, True, True, 2),
    Block(5, 960, 160, True, True, 1),
    Block(5, 960, 160, True, True, 1),
]
IMAGE = (1, 3, 224, 224)


def random_image() -> np.ndarray:
    return np.random.default_rng(1).normal(size=IMAGE).astype(np.float32)


class Quantized(NamedTuple):
    """A quantized tensor."""

    values: jax.Array
    scale: jax.Array
    zero_point: jax.Array


class Network:
    """MobileNetV3-Large, or its first blocks, in the public operators.

    Attributes:
      blocks: the blocks.
      take: gives the next parameter, from the function that would draw it at random.
      nodes: how often each operator was called.
    """

    def __init__(self, blocks: int, take: Callable[[Callable[[np.random.Generator], np.ndarray]], jax.Array]):
        self.blocks, self.take = BLOCKS[:blocks], take
        self.nodes: Counter[str] = Counter()

    def __call__(self, image: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The logits and the probabilities. All 1000 probabilities may be the same integer, and then say little."""
        scale, zero_point = self.quantization()
        x = Quantized(self.node(jquant.quantize_linear, image, scale, zero_point), scale, zero_point)
        x = self.hard_swish(self.convolution(x, 16, 3, stride=2))
        for block in self.blocks:
            x = self.block(x, block)
        x = self.hard_swish(self.convolution(x, 960))
        x = self.global_average_pool(x)
        x = x._replace(values=x.values.reshape(1, 960))
        logits = self.dense(self.hard_swish(self.dense(x, 1280)), 1000)
        scale, zero_point = self.quantization()
        return logits.values, self.node(jquant.quantized_linear_softmax, *logits, scale, zero_point, axis=1)

    def node(self, operator: Callable[..., jax.Array], *operands: Any, **options: Any) -> jax.Array:
        self.nodes[operator.__name__] += 1
        return operator(*operands, **options)

    def quantization(self) -> tuple[jax.Array, jax.Array]:
        """A scale and a zero point."""
        scale = self.take(lambda rng: np.float32(rng.uniform(0.01, 0.05)))
        return scale, self.take(lambda rng: rng.integers(100, 156, (), np.uint8))

    def block(self, x: Quantized, block: Block) -> Quantized:
        channels = x.values.shape[1]
        activation = self.hard_swish if block.is_hard_swish else self.relu
        branch = x if block.inner == channels else activation(self.convolution(x, block.inner))
        branch = activation(self.convolution(branch, block.inner, block.kernel, stride=block.stride, groups=block.inner))
        if block.squeezes:
            branch = self.squeeze_and_excite(branch)
        branch = self.convolution(branch, block.outer)
        is_residual = block.stride == 1 and block.outer == channels
        return self.binary(jquant.quantized_linear_add, x, branch) if is_residual else branch

    def squeeze_and_excite(self, x: Quantized) -> Quantized:
        channels = x.values.shape[1]
        factors = self.convolution(self.global_average_pool(x), -(-channels // 32) * 8)
        return self.binary(jquant.quantized_linear_multiply, x, self.hard_sigmoid(self.convolution(factors, channels)))

    def relu(self, x: Quantized) -> Quantized:
        return x._replace(values=self.node(jquant.clip1, x.values, x.zero_point, np.uint8(255)))

    def hard_swish(self, x: Quantized) -> Quantized:
        return self.binary(jquant.quantized_linear_multiply, x, self.hard_sigmoid(x))

    def hard_sigmoid(self, x: Quantized) -> Quantized:
        value = self.node(jquant.dequantize_linear, *x)
        value = self.node(jquant.clip, value, 0.0, 1.0, scale_bias=jquant.ScaleBias(np.float32(1 / 6), np.float32(0.5)))
        scale, zero_point = self.quantization()
        return Quantized(self.node(jquant.quantize_linear, value, scale, zero_point), scale, zero_point)

    def binary(self, operator: Callable[..., jax.Array], a: Quantized, b: Quantized) -> Quantized:
        output = self.quantization()
        return Quantized(self.node(operator, *a, *b, *output), *output)

    def global_average_pool(self, x: Quantized) -> Quantized:
        output = self.quantization()
        return Quantized(self.node(jquant.quantized_linear_global_average_pool, *x, *output), *output)

    def weights(self, *sizes: int, channels: int) -> tuple[jax.Array, jax.Array]:
        """Symmetric weights, and the scale of each channel."""
        values = self.take(lambda rng: rng.integers(-127, 128, sizes, np.int8))
        return values, self.take(lambda rng: rng.uniform(1e-3, 1e-2, channels).astype(np.float32))

    def convolution(self, x: Quantized, channels: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> Quantized:
        weights, scales = self.weights(channels, x.values.shape[1] // groups, kernel, kernel, channels=channels)
        bias = self.take(lambda rng: rng.integers(-1000, 1000, (1, channels, 1, 1), np.int32))
        output = self.quantization()
        windows = {"strides": (stride, stride), "padding": ((kernel // 2, kernel // 2),) * 2, "groups": groups}
        operands = *x, weights, scales, None, *output, bias
        return Quantized(self.node(jquant.quantized_linear_convolution, *operands, **windows), *output)

    def dense(self, x: Quantized, channels: int) -> Quantized:
        weights, scales = self.weights(x.values.shape[1], channels, channels=channels)
        bias = self.take(lambda rng: rng.integers(-1000, 1000, channels, np.int32))
        output = self.quantization()
        return Quantized(self.node(jquant.quantized_gemm, *x, weights, scales, None, bias, *output), *output)


def draw(blocks: int) -> tuple[list[np.ndarray], Counter[str]]:
    """Random parameters, and how many nodes there are of each operator. Leaves nothing in JAX's caches."""
    rng, parameters = np.random.default_rng(0), []

    def take(make: Callable[[np.random.Generator], np.ndarray]) -> np.ndarray:
        parameters.append(make(rng))
        return parameters[-1]

    network = Network(blocks, take)
    jax.eval_shape(network, jax.ShapeDtypeStruct(IMAGE, np.float32))
    jax.clear_caches()
    return parameters, network.nodes


def program(blocks: int, parameters: list[jax.Array], image: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The network as a function of its parameters."""
    remaining = iter(parameters)
    return Network(blocks, lambda make: next(remaining))(image)
