"""An int8 residual network for the scikit-learn digits, quantized after training.

Trains a small float network in plain JAX, quantizes its weights per column and its activations by calibration on
the training set, and runs the test set through one jitted int8 function. Prints how the two networks compare, and
draws the errors of the int8 activations and the digits on which the networks disagree, or nearly do. With --onnx, it also
writes the int8 network as an ONNX model.

    pip install ".[examples]"
    python examples/digits_int8.py --output digits_int8.png
"""

import argparse
import functools
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure  # without pyplot, it draws with Agg and needs no display
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import trange

import jquant

WIDTH, CLASSES, STEPS, LEARNING_RATE, MOMENTUM = 64, 10, 400, 0.1, 0.9
HARD_SIGMOID = jquant.ScaleBias(1 / 6, 1 / 2)  # followed by a clip to [0, 1]

# SCALED keeps real 0 at integer 0, so that no operator below needs a zero point.
quantize_int8 = functools.partial(jquant.quantize, dtype="qint8", mode="SCALED", ensure_minimum_range=0)


class Dense(NamedTuple):
    weight: jax.Array  # float32 (inputs, outputs)
    bias: jax.Array  # float32 (outputs,)


class Int8Dense(NamedTuple):
    weight: jax.Array  # int8 (inputs, outputs)
    scale: jax.Array  # float32 (1, outputs)
    bias: jax.Array  # float32 (1, outputs)


Layer = TypeVar("Layer", Dense, Int8Dense)


class Layers(NamedTuple, Generic[Layer]):
    stem: Layer
    hidden: Layer
    branch: Layer
    head: Layer


class Activations(NamedTuple):
    """The tensors that the int8 network keeps in int8, or their scales."""

    image: jax.Array
    stem: jax.Array
    hidden: jax.Array
    branch: jax.Array
    residual: jax.Array


class Int8Network(NamedTuple):
    layers: Layers[Int8Dense]
    scales: Activations
    image_range: tuple[jax.Array, jax.Array]


def initial_layers(key: jax.Array) -> Layers[Dense]:
    shapes = (64, WIDTH), (WIDTH, WIDTH), (WIDTH, WIDTH), (WIDTH, CLASSES)
    weights = map(jax.nn.initializers.he_normal(), jax.random.split(key, len(shapes)), shapes)
    return Layers(*(Dense(weight, jnp.zeros(weight.shape[1])) for weight in weights))


@jax.jit
def float_network(layers: Layers[Dense], image: jax.Array) -> tuple[jax.Array, Activations]:
    stem = jax.nn.relu6(image @ layers.stem.weight + layers.stem.bias)
    hidden = jax.nn.hard_sigmoid(stem @ layers.hidden.weight + layers.hidden.bias)
    branch = hidden @ layers.branch.weight + layers.branch.bias
    residual = stem + branch
    logits = residual @ layers.head.weight + layers.head.bias
    return logits, Activations(image, stem, hidden, branch, residual)


def loss(layers: Layers[Dense], images: jax.Array, labels: jax.Array) -> jax.Array:
    log_probability = jax.nn.log_softmax(float_network(layers, images)[0])
    return -jnp.mean(jnp.take_along_axis(log_probability, labels[:, None], axis=1))


def train(layers: Layers[Dense], images: jax.Array, labels: jax.Array) -> Layers[Dense]:
    """Gradient descent with momentum on the whole training set, which is small."""

    @jax.jit
    def step(layers: Layers[Dense], velocity: Layers[Dense]) -> tuple[Layers[Dense], Layers[Dense]]:
        gradient = jax.grad(loss)(layers, images, labels)
        velocity = jax.tree.map(lambda v, g: MOMENTUM * v - LEARNING_RATE * g, velocity, gradient)
        return jax.tree.map(jnp.add, layers, velocity), velocity

    velocity = jax.tree.map(jnp.zeros_like, layers)
    for _ in trange(STEPS, desc="training", unit="step"):
        layers, velocity = step(layers, velocity)
    return layers


def calibrated_scale(activation: jax.Array) -> jax.Array:
    """The scale that the `_linear` operators take: the reciprocal of the factor by which `quantize` multiplies."""
    _, _, output_max = quantize_int8(activation, activation.min(), activation.max())
    return output_max / 127  # `quantize` takes output_max to 127, the largest qint8


def quantized_dense(layer: Dense) -> Int8Dense:
    low, high = layer.weight.min(axis=0), layer.weight.max(axis=0)
    weight, _, weight_max = quantize_int8(layer.weight, low, high, narrow_range=True, axis=1)  # a range for each column
    return Int8Dense(weight, weight_max[None, :] / 127, layer.bias[None, :])


def quantized_network(layers: Layers[Dense], calibration_images: jax.Array) -> Int8Network:
    _, activations = float_network(layers, calibration_images)
    scales = jax.tree.map(calibrated_scale, activations)
    return Int8Network(Layers(*map(quantized_dense, layers)), scales, (calibration_images.min(), calibration_images.max()))


def int8_dense(layer: Int8Dense, x: jax.Array, x_scale: jax.Array) -> jax.Array:
    """A dense layer with an int8 input and a float32 output."""
    return jquant.matmul_integer_to_float(x, x_scale, None, layer.weight, layer.scale, None, layer.bias)


@jax.jit
def int8_network(network: Int8Network, images: jax.Array) -> tuple[jax.Array, Activations]:
    """`float_network` with all activations in int8."""
    layers, scales, image_range = network
    requantize = functools.partial(jquant.quantize_linear, output_dtype="INT8")
    image = quantize_int8(images, *image_range).output
    stem = requantize(jquant.clip(int8_dense(layers.stem, image, scales.image), 0, 6), scales.stem)
    hidden = int8_dense(layers.hidden, stem, scales.stem)
    hidden = requantize(jquant.clip(hidden, 0, 1, scale_bias=HARD_SIGMOID), scales.hidden)
    branch = requantize(int8_dense(layers.branch, hidden, scales.hidden), scales.branch)
    residual = jquant.quantized_linear_add(stem, scales.stem, None, branch, scales.branch, None, scales.residual)
    logits = int8_dense(layers.head, residual, scales.residual)
    return logits, Activations(image, stem, hidden, branch, residual)


def error_in_steps(int8_activation: jax.Array, float_activation: jax.Array, scale: jax.Array) -> np.ndarray:
    return np.asarray((jquant.dequantize_linear(int8_activation, scale) - float_activation) / scale)


def draw_errors(axes: Axes, error: np.ndarray, limit: float) -> None:
    axes.axvspan(-0.5, 0.5, color="#e3eaf4", linewidth=0)
    share = np.full(error.size, 1 / error.size)
    axes.hist(error.ravel(), bins=np.linspace(-limit, limit, 81), weights=share, color="#3b6ea8", log=True)
    text = f"{np.mean(np.abs(error) <= 1):.2%}\nwithin 1 step"
    axes.text(0.96, 0.95, text, transform=axes.transAxes, ha="right", va="top", fontsize=9)


def draw_digit(axes: Axes, image: np.ndarray, label: int, float_digit: int, int8_digit: int, margin: float) -> None:
    axes.imshow(image.reshape(8, 8), cmap="gray_r", vmin=0, vmax=1)
    axes.set_title(f"float: {float_digit}\nint8: {int8_digit}", color="black" if float_digit == int8_digit else "#c0392b")
    axes.set(xlabel=f"label: {label}\nmargin: {margin:.2f}", xticks=[], yticks=[])


def draw(path: Path, errors: dict[str, np.ndarray], scales: Activations, digits: list[tuple]) -> None:
    figure = Figure(figsize=(12, 6.8), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(1.3, 1), hspace=0.05)
    top.suptitle("Errors of the int8 activations on the test set (shaded: within reach of one rounding)")
    panels = top.subplots(1, len(errors), sharex=True, sharey=True)
    limit = np.ceil(max(np.abs(error).max() for error in errors.values()))
    for axes, (name, error) in zip(panels, errors.items(), strict=True):
        draw_errors(axes, error, limit)
        axes.set_title(f"{name} (1 step = {getattr(scales, name):.3f})", fontsize=11)
    panels[0].set_ylabel("share of the activations")
    top.supxlabel("int8 minus float, in quantization steps", fontsize=10)
    bottom.suptitle("Digits on which the networks disagree (red), then those of the smallest margin in the float logits")
    for axes, digit in zip(bottom.subplots(1, len(digits)), digits, strict=True):
        draw_digit(axes, *digit)
    figure.savefig(path, dpi=150, bbox_inches="tight", pad_inches=0.2)


def digits(seed: int) -> list[np.ndarray]:
    """Training and test images, of 64 pixels in [0, 1], and training and test labels."""
    pixels, labels = load_digits(return_X_y=True)
    return train_test_split(np.float32(pixels / 16), labels, test_size=1 / 3, random_state=seed, stratify=labels)


def main() -> None:
    parser = argparse.ArgumentParser(description="An int8 network for the scikit-learn digits, quantized after training.")
    parser.add_argument("--output", type=Path, default=Path("digits_int8.png"), help="the PNG to write")
    parser.add_argument(
        "--onnx", type=Path, help="where to write the int8 network as an ONNX model (needs the package onnx)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the initial weights and the train-test split")
    arguments = parser.parse_args()

    train_images, test_images, train_labels, test_labels = digits(arguments.seed)
    layers = train(initial_layers(jax.random.key(arguments.seed)), train_images, train_labels)
    network = quantized_network(layers, train_images)

    float_logits, float_activations = jax.device_get(float_network(layers, test_images))
    int8_logits, int8_activations = jax.device_get(int8_network(network, test_images))
    float_digits, int8_digits = float_logits.argmax(axis=1), int8_logits.argmax(axis=1)
    agree = float_digits == int8_digits
    float_size, int8_size = (sum(array.nbytes for array in jax.tree.leaves(tree)) for tree in (layers, network))
    print(f"{'':<20}{'float32':>10}{'int8':>10}")
    print(f"{'test accuracy':<20}{np.mean(float_digits == test_labels):>10.2%}{np.mean(int8_digits == test_labels):>10.2%}")
    print(f"{'model size, bytes':<20}{float_size:>10,}{int8_size:>10,}  ({float_size / int8_size:.1f} times smaller)")
    print(f"{'same prediction':<20}{np.mean(agree):>20.2%}  ({agree.sum()} of {agree.size} test digits)")

    if arguments.onnx:
        arguments.onnx.write_bytes(jquant.onnx.export(int8_network, network, test_images).SerializeToString())

    errors = jax.tree.map(error_in_steps, int8_activations, float_activations, network.scales)._asdict()
    del errors["image"]  # which is only the rounding of the input
    margin = np.diff(np.sort(float_logits, axis=1))[:, -1]
    shown = np.lexsort((margin, agree))[:8]  # sorts by the last key first
    columns = [array[shown] for array in (test_images, test_labels, float_digits, int8_digits, margin)]
    draw(arguments.output, errors, network.scales, list(zip(*columns, strict=True)))


if __name__ == "__main__":
    main()
