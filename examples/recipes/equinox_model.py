"""An Equinox model in int8: every `eqx.nn.Linear` in it is replaced, and the rest of the model is left as it is.

pip install ".[recipes]"
python examples/recipes/equinox_model.py
"""

import equinox as eqx
import jax
import numpy as np

import jquant


class Int8Linear(eqx.Module):
    """int8 in, int8 out. The weights have a scale for each output, the activations one for all."""

    weight: jquant.PackedMatrix
    weight_scale: jax.Array
    input_scale: jax.Array
    output_scale: jax.Array

    def __init__(self, linear: eqx.nn.Linear, input_scale: jax.Array, output_scale: jax.Array):
        kernel = linear.weight.T  # Equinox has (outputs, inputs)
        low, high = kernel.min(axis=0), kernel.max(axis=0)
        weight, _, weight_max = jquant.quantize(
            kernel, low, high, "qint8", mode="SCALED", narrow_range=True, axis=1, ensure_minimum_range=0
        )
        self.weight, self.weight_scale = jquant.pack_matrix(weight), weight_max[None, :] / 127
        self.input_scale, self.output_scale = input_scale, output_scale

    def __call__(self, x: jax.Array, *, key: jax.Array | None = None) -> jax.Array:
        scales = self.weight_scale, None, self.output_scale
        return jquant.quantized_linear_matmul(x[None], self.input_scale, None, self.weight, *scales)[0]


def linear_layers(model: eqx.Module) -> list[eqx.nn.Linear]:
    def is_linear(node):
        return isinstance(node, eqx.nn.Linear)

    return [node for node in jax.tree.leaves(model, is_leaf=is_linear) if is_linear(node)]


def plain(layer: Int8Linear, x: jax.Array) -> jax.Array:
    """The operator on all rows, with unpacked weights."""
    scales = layer.weight_scale, None, layer.output_scale
    return jquant.quantized_linear_matmul(x, layer.input_scale, None, layer.weight.unpack(), *scales)


def main() -> None:
    model = eqx.nn.MLP(128, 10, 64, depth=1, use_bias=False, use_final_bias=False, key=jax.random.key(0))
    images = jax.random.normal(jax.random.key(1), (32, 128))
    first, last = linear_layers(model)
    activations = images, jax.nn.relu(jax.vmap(first)(images)), jax.vmap(model)(images)
    scales = [abs(activation).max() / 127 for activation in activations]

    layers = [Int8Linear(first, *scales[:2]), Int8Linear(last, *scales[1:])]
    quantized_model = eqx.tree_at(linear_layers, model, layers)  # its relu stays: int8 0 is real 0 here
    x = jquant.quantize_linear(images, scales[0], output_dtype="INT8")
    y = eqx.filter_jit(lambda model, x: jax.vmap(model)(x))(quantized_model, x)

    first, last = quantized_model.layers
    np.testing.assert_array_equal(y, plain(last, jax.nn.relu(plain(first, x))))
    same = (y.argmax(axis=1) == activations[-1].argmax(axis=1)).sum()
    print(f"{first.weight}, {last.weight}: {x.dtype} -> {y.dtype}")
    print(f"bit-identical with the operators; {same} of {len(y)} predictions are those of the float model")


if __name__ == "__main__":
    main()
