"""4-bit weights: quantized after training, or by quantization-aware training, on the scikit-learn digits.

Trains the same small network twice from the same weights: in float, and with 4-bit weights (per output column) and 8-bit
activations rounded in the loss, by the straight-through operators `jquant.quantize_and_dequantize` and
`jquant.fake_quantize`. Quantization-aware training also learns the ranges of the activations; for the float network they are
calibrated on the training set. Both networks are tested in integers. Prints how they compare over several seeds, each with
its own initial weights and its own split into training and test set, and draws the learning curves.

    pip install ".[examples]"
    python examples/quantization_aware_training.py --output quantization_aware_training.png
"""

import argparse
import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure  # without pyplot, it draws with Agg and needs no display
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import trange

import jquant

SIZES = (64, 16, 16, 10)  # pixels, two hidden layers, digits
STEPS, STEPS_BETWEEN_TESTS, LEARNING_RATE = 800, 20, 0.02
LARGEST_WEIGHT, LARGEST_ACTIVATION = 7, 255  # 4 bits: -7 to 7; 8 bits: 0 to 255

OPTIMIZER = optax.adam(optax.cosine_decay_schedule(LEARNING_RATE, STEPS))


class Layer(NamedTuple):
    weight: jax.Array  # float32 (inputs, outputs)
    bias: jax.Array  # float32 (outputs,)
    input_max: jax.Array  # float32, the upper end of the range of its input; the lower one is 0


Dense = Callable[[Layer, jax.Array], jax.Array]


def float_dense(layer: Layer, x: jax.Array) -> jax.Array:
    return x @ layer.weight + layer.bias


def simulated_dense(layer: Layer, x: jax.Array) -> jax.Array:
    """A layer of floats that are rounded to what the integers can express, with straight-through derivatives."""
    x = jquant.fake_quantize(x, 0.0, layer.input_max)
    return x @ rounded_weight(layer) + layer.bias


def rounded_weight(layer: Layer) -> jax.Array:
    """The weights rounded to 4 bits, in a symmetric range for each column."""
    return jquant.quantize_and_dequantize(layer.weight, num_bits=4, narrow_range=True, axis=1)


def integer_dense(layer: Layer, x: jax.Array) -> jax.Array:
    """The deployed layer: 4-bit weights in int8, 8-bit activations, and an integer product."""
    weight_scale = abs(layer.weight).max(axis=0, keepdims=True) / LARGEST_WEIGHT
    weight = jquant.quantize_linear(rounded_weight(layer), weight_scale, output_dtype="INT8")
    x_scale = layer.input_max / LARGEST_ACTIVATION
    x = jquant.quantize_linear(x, x_scale, output_dtype="UINT8")
    return jquant.matmul_integer_to_float(x, x_scale, None, weight, weight_scale, None, layer.bias[None, :])


def network(dense: Dense, layers: list[Layer], x: jax.Array) -> jax.Array:
    for layer in layers[:-1]:
        x = jax.nn.relu(dense(layer, x))
    return dense(layers[-1], x)


def calibrated(layers: list[Layer], images: jax.Array) -> list[Layer]:
    """The layers with the ranges that the activations of the float network have."""
    calibrated_layers, x = [], images
    for layer in layers:
        calibrated_layers.append(layer._replace(input_max=x.max()))
        x = jax.nn.relu(float_dense(layer, x))
    return calibrated_layers


def initial_layers(key: jax.Array, images: jax.Array) -> list[Layer]:
    shapes = list(itertools.pairwise(SIZES))
    weights = map(jax.nn.initializers.he_normal(), jax.random.split(key, len(shapes)), shapes)
    return calibrated([Layer(weight, jnp.zeros(weight.shape[1]), jnp.ones(())) for weight in weights], images)


def accuracy(dense: Dense, layers: list[Layer], images: jax.Array, labels: jax.Array) -> jax.Array:
    return jnp.mean(network(dense, layers, images).argmax(axis=1) == labels)


@functools.partial(jax.jit, static_argnums=0)
@functools.partial(jax.vmap, in_axes=(None, 0, 0, 0, 0))  # over the seeds
def train(dense: Dense, layers: list[Layer], state: optax.OptState, images: jax.Array, labels: jax.Array):
    """`STEPS_BETWEEN_TESTS` steps on the whole training set, which is small."""

    def loss(layers: list[Layer]) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(network(dense, layers, images), labels).mean()

    def step(carry, _):
        layers, state = carry
        updates, state = OPTIMIZER.update(jax.grad(loss)(layers), state)
        return (optax.apply_updates(layers, updates), state), None

    return jax.lax.scan(step, (layers, state), length=STEPS_BETWEEN_TESTS)[0]


@jax.jit
@jax.vmap
def test(float_layers, aware_layers, train_images, images, labels) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The accuracies of the float network, of the float network quantized, and of quantization-aware training."""
    return (
        accuracy(float_dense, float_layers, images, labels),
        accuracy(integer_dense, calibrated(float_layers, train_images), images, labels),
        accuracy(integer_dense, aware_layers, images, labels),
    )


@jax.jit
@jax.vmap
def agreement(layers: list[Layer], images: jax.Array) -> jax.Array:
    """Whether the integers predict the same digits as the simulation that was trained."""
    digits = (network(dense, layers, images).argmax(axis=1) for dense in (integer_dense, simulated_dense))
    return jnp.equal(*digits)


def dataset(seeds: int) -> list[np.ndarray]:
    """Training and test images, training and test labels, each stacked over the seeds."""
    pixels, labels = load_digits(return_X_y=True)
    images = np.float32(pixels / 16)
    split = functools.partial(train_test_split, images, labels, test_size=1 / 3, stratify=labels)
    return [np.stack(parts) for parts in zip(*(split(random_state=seed) for seed in range(seeds)), strict=True)]


def print_row(name: str, values: np.ndarray, digits: str = "") -> None:
    mean, low, high = (format(value, f"{digits}.2f") for value in (values.mean(), values.min(), values.max()))
    print(f"{name:<38}{mean:>8}{values.std(ddof=1):>8.2f}{low:>10} to {high}")


def draw(path: Path, steps: np.ndarray, curves: dict[str, np.ndarray]) -> None:
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    colours = "#8a8a8a", "#c0392b", "#3b6ea8"
    for (name, accuracies), colour in zip(curves.items(), colours, strict=True):
        mean, deviation = accuracies.mean(axis=1), accuracies.std(axis=1, ddof=1)
        axes.plot(steps, mean, color=colour, linewidth=1.8, label=f"{name}: {mean[-1]:.2f} % at the end")
        axes.fill_between(steps, mean - deviation, mean + deviation, color=colour, alpha=0.2, linewidth=0)
    axes.set(xlabel="training step", ylabel="test accuracy (%)", xlim=(0, steps[-1]), ylim=(84, 100))
    axes.set_yticks(range(84, 101, 2))
    seeds = next(iter(curves.values())).shape[1]
    axes.set_title(
        f"Digits in 4-bit weights and 8-bit activations: mean of {seeds} seeds (shaded: \u00b11 standard deviation)",
        fontsize=11,
    )
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.legend(loc="lower right", framealpha=1, edgecolor="none")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="4-bit weights: quantized after training, or with quantization-aware training."
    )
    parser.add_argument("--output", type=Path, default=Path("quantization_aware_training.png"), help="the PNG to write")
    parser.add_argument("--seeds", type=int, default=10, help="how many networks of each kind to train (default 10)")
    arguments = parser.parse_args()
    if arguments.seeds < 2:
        parser.error("--seeds must be at least 2, because the spread is taken over them")

    train_images, test_images, train_labels, test_labels = dataset(arguments.seeds)
    keys = jax.random.split(jax.random.key(0), arguments.seeds)
    layers = jax.vmap(initial_layers)(keys, train_images)
    in_float = aware = layers, jax.vmap(OPTIMIZER.init)(layers)
    steps, accuracies = [0], [test(layers, layers, train_images, test_images, test_labels)]
    for chunk in trange(1, STEPS // STEPS_BETWEEN_TESTS + 1, desc="training", unit_scale=STEPS_BETWEEN_TESTS, unit="step"):
        in_float = train(float_dense, *in_float, train_images, train_labels)
        aware = train(simulated_dense, *aware, train_images, train_labels)
        steps.append(chunk * STEPS_BETWEEN_TESTS)
        accuracies.append(test(in_float[0], aware[0], train_images, test_images, test_labels))
    by_network = 100 * np.array(accuracies).swapaxes(0, 1)  # (networks, tests, seeds)
    curves = dict(zip(("float32", "quantized after training", "quantization-aware training"), by_network, strict=True))

    print(f"test accuracy in %, {arguments.seeds} seeds{'':<15}{'mean':>8}{'std':>8}{'min':>10} to max")
    for name, curve in curves.items():
        print_row(name, curve[-1])
    difference = by_network[2, -1] - by_network[1, -1]
    print_row("aware, less after training", difference, "+")
    print(f"aware better on {np.sum(difference > 0)}, worse on {np.sum(difference < 0)} of {difference.size} seeds")
    same = np.asarray(agreement(aware[0], test_images))
    print(f"the integers predict the same as the simulation on {same.sum():,} of {same.size:,} test digits")
    draw(arguments.output, np.array(steps), curves)


if __name__ == "__main__":
    main()
