"""Measures convolutions of real models beside the formula in int32 and onnxruntime.

    python -m benchmarks.convolution [--rounds 100] [--output FILE.md]

Prints a table, and writes it to FILE: by default to benchmarks/results/convolution-PLATFORM-jax-VERSION.md.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jquant
from benchmarks import environment
from benchmarks.contestant import Call, Unavailable, jitted
from benchmarks.contestants import onnxruntime
from benchmarks.measure import measure, quartiles
from jquant import reference


class Layer(NamedTuple):
    """A convolution of one image.

    Attributes:
      sizes: of the input, NCHW.
      filter_sizes: OIHW.
      pad: the padding on every side.
      groups: the number of groups of channels.
    """

    sizes: tuple[int, ...]
    filter_sizes: tuple[int, ...]
    pad: int
    groups: int


LAYERS = {
    "ResNet-50, 3 x 3, 56 x 56": Layer((1, 64, 56, 56), (64, 64, 3, 3), pad=1, groups=1),
    "ResNet-50, 3 x 3, 28 x 28": Layer((1, 128, 28, 28), (128, 128, 3, 3), pad=1, groups=1),
    "ResNet-50, 3 x 3, 14 x 14": Layer((1, 256, 14, 14), (256, 256, 3, 3), pad=1, groups=1),
    "ResNet-50, 3 x 3, 7 x 7": Layer((1, 512, 7, 7), (512, 512, 3, 3), pad=1, groups=1),
    "MobileNetV2, depthwise 3 x 3": Layer((1, 144, 56, 56), (144, 1, 3, 3), pad=1, groups=144),
    "ResNet-50, 1 x 1": Layer((1, 256, 56, 56), (64, 256, 1, 1), pad=0, groups=1),
}
BASELINE = "int32 formula"
HEADER = "| | median, ms | quartiles, ms | times the speed of the formula |\n|---|--:|--:|--:|"


def contestants(layer: Layer) -> dict[str, Call]:
    """Calls on uniform uint8 x int8 values: with both zero points, and without that of the filter."""
    sizes, filter_sizes, pad, groups = layer
    rng = np.random.default_rng(0)
    x, w = rng.integers(0, 256, sizes, np.uint8), rng.integers(-128, 128, filter_sizes, np.int8)
    x_zero_point, w_zero_point, y_zero_point = np.uint8(121), np.int8(-3), np.uint8(128)
    x_scale, w_scale, y_scale = np.float32(2**-7), np.float32(2**-8), np.float32(2**-4)
    windows: dict[str, Any] = {"padding": ((pad, pad), (pad, pad)), "groups": groups}

    def formula(x: jax.Array, w: jax.Array, x_zero_point: jax.Array, w_zero_point: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(
            x.astype(jnp.int32) - x_zero_point.astype(jnp.int32),
            w.astype(jnp.int32) - w_zero_point.astype(jnp.int32),
            (1, 1),
            windows["padding"],
            dimension_numbers=("NCHW", "OIHW", "NCHW"),
            feature_group_count=groups,
        )

    def integer(*operands: jax.Array) -> jax.Array:
        return jquant.convolution_integer(*operands, **windows)

    def quantized(*operands: jax.Array) -> jax.Array:
        return jquant.quantized_linear_convolution(*operands, **windows)

    sums = reference.convolution_integer(x, w, x_zero_point, w_zero_point, **windows)
    symmetric_sums = reference.convolution_integer(x, w, x_zero_point, **windows)
    operands = {  # in the order of quantized_linear_convolution and of onnxruntime
        "x": x,
        "x_scale": x_scale,
        "x_zero_point": x_zero_point,
        "w": w,
        "w_scale": w_scale,
        "w_zero_point": w_zero_point,
        "y_scale": y_scale,
        "y_zero_point": y_zero_point,
    }
    requantized = reference.quantized_linear_convolution(*operands.values(), dtype=np.uint8, **windows)
    integers = x, w, x_zero_point, w_zero_point
    calls = {
        BASELINE: Call(jitted(formula, *integers), sums),
        "convolution_integer": Call(jitted(integer, *integers), sums),
        "convolution_integer, symmetric weights": Call(jitted(integer, *integers[:3]), symmetric_sums),
        "quantized_linear_convolution": Call(jitted(quantized, *operands.values()), requantized),
    }
    attributes = {"pads": [pad] * 4, "group": groups}
    named_integers = ("x", x), ("w", w), ("x_zero_point", x_zero_point), ("w_zero_point", w_zero_point)
    try:
        calls["onnxruntime, ConvInteger"] = onnxruntime.run("ConvInteger", named_integers, ("x",), sums, **attributes)
        calls["onnxruntime, QLinearConv"] = onnxruntime.run(
            "QLinearConv", [*operands.items()], ("x",), requantized, **attributes
        )
    except Unavailable as reason:
        print(f"onnxruntime: {reason}")
    return calls


def table(name: str, layer: Layer, rounds: int) -> list[str]:
    """The lines for one layer."""
    calls = contestants(layer)
    for call in calls.values():
        call.check()
    runs: dict[str, Callable] = {contestant: call.run for contestant, call in calls.items()}
    times = {contestant: quartiles(turns.further) for contestant, turns in measure(runs, rounds).items()}
    baseline = times[BASELINE][1]
    shapes = f"{layer.sizes} by {layer.filter_sizes}, padding {layer.pad}, groups {layer.groups}."
    lines = [f"\n## {name}\n", f"{shapes}\n", HEADER]
    for contestant, (low, median, high) in times.items():
        lines.append(f"| {contestant} | {median:.3f} | {low:.3f} to {high:.3f} | {baseline / median:.1f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    arguments = parser.parse_args()
    description = environment.describe(["onnxruntime"])
    name = f"convolution-{environment.file_name(description)}"
    lines = [
        f"# {name}\n",
        f"{environment.summary(description)} uint8 x int8, values uniform over all of each type, both zero points. "
        f"{arguments.rounds} rounds, in each of which every contestant has a turn of at least two calls, in random order; "
        "the first call of each turn does not count. Every result was checked first, by equality.",
    ]
    for layer_name, layer in LAYERS.items():
        lines += table(layer_name, layer, arguments.rounds)
    text = "\n".join(lines) + "\n"
    print(text)
    output = arguments.output or Path(__file__).parent / "results" / f"{name}.md"
    output.write_text(text)


if __name__ == "__main__":
    main()
