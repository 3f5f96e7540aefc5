"""A Flax NNX layer in int8: an `nnx.Linear`, quantized, under `nnx.jit`.

pip install ".[recipes]"
python examples/recipes/flax_nnx.py
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import jquant


class Quantized(nnx.Variable):
    """Variables that optimizers, which take `nnx.Param`, do not update."""


class Int8Linear(nnx.Module):
    """int8 in, int8 out. The weights have a scale for each column, the activations one for all."""

    def __init__(self, linear: nnx.Linear, input_scale: jax.Array, output_scale: jax.Array):
        kernel = linear.kernel[...]
        low, high = kernel.min(axis=0), kernel.max(axis=0)
        weight, _, weight_max = jquant.quantize(
            kernel, low, high, "qint8", mode="SCALED", narrow_range=True, axis=1, ensure_minimum_range=0
        )
        self.weight = Quantized(jquant.pack_matrix(weight))
        self.weight_scale = Quantized(weight_max[None, :] / 127)
        self.input_scale, self.output_scale = Quantized(input_scale), Quantized(output_scale)

    def __call__(self, x: jax.Array) -> jax.Array:
        weight, weight_scale = self.weight.get_value(), self.weight_scale[...]
        return jquant.quantized_linear_matmul(
            x, self.input_scale[...], None, weight, weight_scale, None, self.output_scale[...]
        )


def main() -> None:
    linear = nnx.Linear(256, 64, use_bias=False, rngs=nnx.Rngs(0))
    image = jax.random.normal(jax.random.key(1), (32, 256))
    input_scale, output_scale = abs(image).max() / 127, abs(linear(image)).max() / 127
    layer = Int8Linear(linear, input_scale, output_scale)
    x = jquant.quantize_linear(image, input_scale, output_dtype="INT8")

    y = nnx.jit(lambda layer, x: layer(x))(layer, x)

    weight = layer.weight.get_value().unpack()
    plain = jquant.quantized_linear_matmul(x, input_scale, None, weight, layer.weight_scale[...], None, output_scale)
    np.testing.assert_array_equal(y, plain)
    graph, state = nnx.split(layer)
    np.testing.assert_array_equal(nnx.merge(graph, state)(x), plain)
    assert not jax.tree.leaves(nnx.state(layer, nnx.Param))
    error = abs(jquant.dequantize_linear(y, output_scale) - linear(image)).max() / output_scale
    print(f"{layer.weight.get_value()}: {x.dtype}{list(x.shape)} -> {y.dtype}{list(y.shape)}")
    print(f"bit-identical with the operator; {jnp.ceil(error):.0f} steps or less from the float layer")


if __name__ == "__main__":
    main()
