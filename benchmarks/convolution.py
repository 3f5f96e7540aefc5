"""Measures convolutions of real models beside the formula in int32 and onnxruntime, all in one run.

    python -m benchmarks.convolution [--rounds 100] [--output FILE.md]

Prints a table, and writes it to FILE: by default to benchmarks/results/convolution-PLATFORM-jax-VERSION.md.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jquant
from benchmarks import environment, report
from benchmarks.contestant import Call, Unavailable, jitted
from benchmarks.contestants import onnxruntime
from benchmarks.measure import measure, quartiles
from jquant import reference

# For one image: the shapes of the input and of the filter, the padding on every side, and the groups.
LAYERS = {
    "ResNet-50, 3 x 3, 56 x 56": ((1, 64, 56, 56), (64, 64, 3, 3), 1, 1),
    "ResNet-50, 3 x 3, 28 x 28": ((1, 128, 28, 28), (128, 128, 3, 3), 1, 1),
    "ResNet-50, 3 x 3, 14 x 14": ((1, 256, 14, 14), (256, 256, 3, 3), 1, 1),
    "ResNet-50, 3 x 3, 7 x 7": ((1, 512, 7, 7), (512, 512, 3, 3), 1, 1),
    "MobileNetV2, depthwise 3 x 3": ((1, 144, 56, 56), (144, 1, 3, 3), 1, 144),
    "ResNet-50, 1 x 1": ((1, 256, 56, 56), (64, 256, 1, 1), 0, 1),
}
BASELINE = "int32 formula"
HEADER = "| | median, ms | quartiles, ms | times the speed of the formula |\n|---|--:|--:|--:|"


def calls(sizes: tuple, filter_sizes: tuple, pad: int, groups: int) -> dict[str, Call]:
    """The contestants, on uniform uint8 x int8 values, with both zero points, and without that of the filter."""
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

    product = reference.convolution_integer(x, w, x_zero_point, w_zero_point, **windows)
    symmetric = reference.convolution_integer(x, w, x_zero_point, **windows)
    both = {
        "x": x,
        **{"x_scale": x_scale, "x_zero_point": x_zero_point, "w": w, "w_scale": w_scale, "w_zero_point": w_zero_point},
        **{"y_scale": y_scale, "y_zero_point": y_zero_point},
    }
    requantized = reference.quantized_linear_convolution(*both.values(), dtype=np.uint8, **windows)
    integers = x, w, x_zero_point, w_zero_point
    found = {
        BASELINE: Call(jitted(formula, *integers), product),
        "convolution_integer": Call(jitted(integer, *integers), product),
        "convolution_integer, symmetric weights": Call(jitted(integer, *integers[:3]), symmetric),
        "quantized_linear_convolution": Call(jitted(quantized, *both.values()), requantized),
    }
    attributes = {"pads": [pad] * 4, "group": groups}
    named = ("x", x), ("w", w), ("x_zero_point", x_zero_point), ("w_zero_point", w_zero_point)
    try:
        found["onnxruntime, ConvInteger"] = onnxruntime.run("ConvInteger", named, ("x",), product, **attributes)
        found["onnxruntime, QLinearConv"] = onnxruntime.run(
            "QLinearConv", [*both.items()], ("x",), requantized, **attributes
        )
    except Unavailable as reason:
        print(f"onnxruntime: {reason}")
    return found


def table(layer: str, rounds: int) -> list[str]:
    """The lines for one layer."""
    contestants = calls(*LAYERS[layer])
    for call in contestants.values():
        call.check()
    runs: dict[str, Callable] = {name: call.run for name, call in contestants.items()}
    times = {name: quartiles(found.further) for name, found in measure(runs, rounds).items()}
    baseline = times[BASELINE][1]
    sizes, filter_sizes, pad, groups = LAYERS[layer]
    lines = [f"\n## {layer}\n", f"{sizes} by {filter_sizes}, padding {pad}, groups {groups}.\n", HEADER]
    for name, (low, median, high) in times.items():
        lines.append(f"| {name} | {median:.3f} | {low:.3f} to {high:.3f} | {baseline / median:.1f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    arguments = parser.parse_args()
    results = {"environment": environment.describe(["onnxruntime"])}
    name = f"convolution-{report.name(results)}"
    load = results["environment"]["load average"]
    lines = [
        f"# {name}\n",
        f"{report.machine(results)}; {report.versions(results)}; load average before the run {load}. uint8 x int8, values "
        f"uniform over all of each type, both zero points. {arguments.rounds} rounds, in each of which every contestant "
        "has a turn of at least two calls, in random order; the first call of each turn does not count. Every result was "
        "checked first, by equality.",
    ]
    for layer in LAYERS:
        lines += table(layer, arguments.rounds)
    text = "\n".join(lines) + "\n"
    print(text)
    output = arguments.output or Path(__file__).parent / "results" / f"{name}.md"
    output.write_text(text)


if __name__ == "__main__":
    main()
