"""A convolutional network for the scikit-learn digits, quantized by `jquant.transform` with several recipes.

Trains a small residual network in plain JAX, lists its sites, calibrates, and quantizes it with each recipe. Prints the
noise of each site and how the recipes compare, and draws both.

    pip install ".[examples]"
    python examples/transform_digits.py --output transform_digits.png
"""

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from digits_int8 import digits
from jax import lax
from matplotlib.axes import Axes
from matplotlib.figure import Figure  # without pyplot, it draws with Agg and needs no display
from tqdm import trange

from jquant import transform

STEPS, BATCH, CALIBRATION_BATCHES = 400, 128, 4
SHAPES = {
    "stem": (3, 3, 1, 32),
    "block/first": (3, 3, 32, 32),
    "block/second": (3, 3, 32, 32),
    "down": (3, 3, 32, 64),
    "hidden": (64, 128),
    "head": (128, 10),
}
SYMMETRIC = {"activations": "STATIC", "activation_type": "INT8", "observer": ("percentile", 99.99)}
RECIPES = {
    "static": transform.static_int8,
    "static, stem and head float": transform.Recipe([("stem/*", None), ("head/*", None), *transform.static_int8.rules]),
    "static, symmetric, one scale a tensor": transform.Recipe([("*", transform.Scheme(weights="PER_TENSOR", **SYMMETRIC))]),
    "dynamic": transform.dynamic_int8,
    "weight only": transform.weight_only_int8,
}


def initial_params(key: jax.Array) -> dict[str, dict[str, jax.Array]]:
    make = jax.nn.initializers.he_normal()
    keys = jax.random.split(key, len(SHAPES))
    return {
        name: {"kernel": make(key, shape), "bias": jnp.zeros(shape[-1])}
        for key, (name, shape) in zip(keys, SHAPES.items(), strict=True)
    }


def convolution(layer: dict[str, jax.Array], x: jax.Array, stride: int = 1) -> jax.Array:
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, layer["kernel"], (stride, stride), "SAME", dimension_numbers=layout) + layer["bias"]


def network(params: dict[str, dict[str, jax.Array]], images: jax.Array) -> jax.Array:
    """The logits of images of shape (batch, 64), in float."""
    x = jax.nn.relu(convolution(params["stem"], images.reshape(images.shape[0], 8, 8, 1)))
    branch = convolution(params["block/second"], jax.nn.relu(convolution(params["block/first"], x)))
    x = jax.nn.relu(convolution(params["down"], jax.nn.relu(x + branch), stride=2)).mean((1, 2))
    x = jax.nn.relu(x @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    return x @ params["head"]["kernel"] + params["head"]["bias"]


def train(params: Any, images: np.ndarray, labels: np.ndarray) -> Any:
    optimizer = optax.adam(2e-3)

    @jax.jit
    def step(params: Any, state: Any, images: jax.Array, labels: jax.Array) -> tuple[Any, Any]:
        def loss(params: Any) -> jax.Array:
            return optax.softmax_cross_entropy_with_integer_labels(network(params, images), labels).mean()

        updates, state = optimizer.update(jax.grad(loss)(params), state)
        return optax.apply_updates(params, updates), state

    state, rng = optimizer.init(params), np.random.default_rng(0)
    for _ in trange(STEPS, desc="training", unit="step"):
        batch = rng.integers(len(images), size=BATCH)
        params, state = step(params, state, images[batch], labels[batch])
    return params


def draw_noise(axes: Axes, reports: dict[str, transform.Report]) -> None:
    names = [site.name for site in next(iter(reports.values())).sites]
    height = 0.8 / len(reports)
    for index, (recipe, report) in enumerate(reports.items()):
        places = [names.index(site.name) + (index - (len(reports) - 1) / 2) * height for site in report.sites]
        axes.barh(places, [site.snr for site in report.sites], height=height, label=recipe, color=f"C{index}")
    axes.set(yticks=range(len(names)), yticklabels=names, xlabel="signal to quantization noise of the output, dB")
    axes.set_title("Noise of each site")
    axes.invert_yaxis()


def draw_recipes(axes: Axes, accuracies: dict[str, float], sizes: dict[str, int]) -> None:
    for index, recipe in enumerate(RECIPES):
        axes.plot(sizes[recipe] / 1e3, 100 * accuracies[recipe], "o", markersize=9, color=f"C{index}")
    axes.plot(sizes["float32"] / 1e3, 100 * accuracies["float32"], "ks", markersize=8)
    axes.annotate(
        "float32", (sizes["float32"] / 1e3, 100 * accuracies["float32"]), (-8, 8), textcoords="offset points", ha="right"
    )
    low, high = min(accuracies.values()), max(accuracies.values())
    axes.set(xlabel="parameters, kB", ylabel="test accuracy, %", ylim=(100 * low - 0.4, 100 * high + 0.4))
    axes.set(xlim=(0, 1.08 * sizes["float32"] / 1e3), title="Accuracy against bytes")
    axes.grid(alpha=0.3)


def main() -> None:
    parser = argparse.ArgumentParser(description="A network for the digits, transformed to int8.")
    parser.add_argument("--output", type=Path, default=Path("transform_digits.png"), help="the PNG to write")
    arguments = parser.parse_args()

    train_images, test_images, train_labels, test_labels = digits(0)
    params = train(initial_params(jax.random.key(0)), train_images, train_labels)
    batches = [train_images[index * BATCH : (index + 1) * BATCH] for index in range(CALIBRATION_BATCHES)]
    print(transform.sites(network, params, test_images))

    float_digits = jax.jit(network)(params, test_images).argmax(-1)
    accuracies = {"float32": float(np.mean(float_digits == test_labels))}
    sizes = {"float32": sum(leaf.nbytes for leaf in jax.tree.leaves(params))}
    agreement, reports = {"float32": 1.0}, {}
    for name, recipe in RECIPES.items():
        calibration = None
        if name.startswith("static"):
            calibration = transform.calibrate(network, params, batches, recipe, progress=True)
        quantized_network, quantized_params = transform.quantize(
            network, params, recipe, test_images, calibration=calibration
        )
        int8_digits = jax.jit(quantized_network)(quantized_params, test_images).argmax(-1)
        accuracies[name] = float(np.mean(int8_digits == test_labels))
        agreement[name] = float(np.mean(int8_digits == float_digits))
        sizes[name] = sum(leaf.nbytes for leaf in jax.tree.leaves(quantized_params))
        reports[name] = transform.report(network, params, recipe, test_images, calibration=calibration)

    print(f"\nstatic, on the test set:\n{reports['static']}\n")
    print(f"{'':<38}{'test accuracy':>14}{'as float':>10}{'bytes':>9}{'SNR, dB':>9}")
    for name, accuracy in accuracies.items():
        snr = f"{reports[name].snr:.1f}" if name in reports else ""
        print(f"{name:<38}{accuracy:>14.2%}{agreement[name]:>10.2%}{sizes[name]:>9,}{snr:>9}")

    figure = Figure(figsize=(12, 5), layout="constrained")
    noise, recipes = figure.subplots(1, 2, width_ratios=(1.3, 1))
    draw_noise(noise, reports)
    draw_recipes(recipes, accuracies, sizes)
    figure.legend(*noise.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(arguments.output, dpi=150)


if __name__ == "__main__":
    main()
