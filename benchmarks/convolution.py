"""Measures convolutions of real models beside the formula in int32 and onnxruntime.

    python -m benchmarks.convolution [--rounds 100] [--batch 1] [--layers 'ResNet*'] [--contestants 'q*'] [--output FILE]

Prints a table. A run of one image with all layers and contestants, or one with --output, also writes it to FILE: by default
to benchmarks/results/convolution-PLATFORM-jax-VERSION.md.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jquant
from benchmarks import environment
from benchmarks.contestant import Call, Unavailable, jitted
from benchmarks.contestants import onnxruntime
from benchmarks.measure import measure, quartiles
from benchmarks.selection import select
from benchmarks.shapes import CONVOLUTIONS, Convolution, tagged
from jquant.kernels import implementations
from jquant.kernels.native.shared_library import CONVOLUTION
from jquant.modes import Implementation
from jquant.reference import convolutions as reference

LAYERS = tagged(CONVOLUTIONS, "timed")
FORMULA, QLINEAR = "int32 formula", "onnxruntime, QLinearConv"
HEADER = "| | median, ms | quartiles, ms | times the speed of the formula | time over QLinearConv's |\n|---|--:|--:|--:|--:|"
NHWC = "NHWC", "HWIO", "NHWC"


class Problem:
    """Uniform random operands of a layer, uint8 x int8, and the windows.

    The scales are powers of two, so that the requantized values are the same in whatever order they are multiplied. The ends
    of uint8 are about three standard deviations of the sums away.
    """

    x_zero_point, w_zero_point, y_zero_point = np.uint8(121), np.int8(-3), np.uint8(128)
    x_scale, w_scale = np.float32(2**-7), np.float32(2**-8)

    def __init__(self, layer: Convolution, batch: int) -> None:
        rng = np.random.default_rng(0)
        self.x = rng.integers(0, 256, (batch, *layer.image_shape), np.uint8)
        self.w = rng.integers(-128, 128, layer.filter_shape, np.int8)
        reach = 3 * 256**2 / 12 * np.prod(layer.filter_shape[1:]) ** 0.5 * float(self.x_scale * self.w_scale)
        self.y_scale = np.float32(2 ** np.ceil(np.log2(reach / 128)))
        self.pad, self.stride, self.groups = layer.padding, layer.stride, layer.groups

    @property
    def integers(self) -> tuple[Any, ...]:
        return self.x, self.w, self.x_zero_point, self.w_zero_point

    @property
    def quantized(self) -> tuple[Any, ...]:
        """The operands of `quantized_linear_convolution` with symmetric weights, as networks have."""
        image = self.x, self.x_scale, self.x_zero_point
        return *image, self.w, self.w_scale, None, self.y_scale, self.y_zero_point

    @property
    def windows(self) -> dict[str, Any]:
        """Keyword arguments of jquant's functions."""
        return {"strides": (self.stride,) * 2, "padding": ((self.pad, self.pad),) * 2, "groups": self.groups}

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes of ONNX's operators."""
        return {"strides": [self.stride] * 2, "pads": [self.pad] * 4, "group": self.groups}


def formula(problem: Problem) -> Callable[..., jax.Array]:
    """The formula as written, of int32."""

    def function(x: jax.Array, w: jax.Array, x_zero_point: jax.Array, w_zero_point: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(
            x.astype(jnp.int32) - x_zero_point.astype(jnp.int32),
            w.astype(jnp.int32) - w_zero_point.astype(jnp.int32),
            (problem.stride,) * 2,
            ((problem.pad, problem.pad),) * 2,
            dimension_numbers=("NCHW", "OIHW", "NCHW"),
            feature_group_count=problem.groups,
        )

    return function


def by_xla(function: Callable[..., jax.Array], *operands: Any) -> Callable[[], jax.Array]:
    """A call of the jitted function in which XLA computes convolutions, whatever the default is."""

    def other(*operands: jax.Array) -> jax.Array:  # of the same function, JAX would find the program that it has compiled
        return function(*operands)

    with mock.patch.dict(implementations.DEFAULTS, cpu=Implementation.XLA):
        if CONVOLUTION in jax.jit(other).lower(*operands).as_text():
            raise AssertionError("the program calls jquant-native")
        run = jitted(other, *operands)
        run()  # which compiles
    return run


def contestants(problem: Problem) -> dict[str, Callable[[], Call]]:
    """What is measured, by name, and how to prepare it."""

    def integer(*operands: jax.Array) -> jax.Array:
        return jquant.convolution_integer(*operands, **problem.windows)

    def quantized(*operands: jax.Array) -> jax.Array:
        return jquant.quantized_linear_convolution(*operands, **problem.windows)

    def quantized_nhwc(*operands: jax.Array) -> jax.Array:
        return jquant.quantized_linear_convolution(*operands, **problem.windows, dimension_numbers=NHWC)

    sums = reference.convolution_integer(*problem.integers, **problem.windows)
    symmetric_sums = reference.convolution_integer(*problem.integers[:3], **problem.windows)
    x, *scales, w, w_scale, _, y_scale, y_zero_point = problem.quantized
    others = w_scale, None, y_scale, y_zero_point
    nhwc = np.ascontiguousarray(x.transpose(0, 2, 3, 1)), *scales, np.ascontiguousarray(w.transpose(2, 3, 1, 0)), *others
    names = "x", "x_scale", "x_zero_point", "w", "w_scale", "w_zero_point", "y_scale", "y_zero_point"
    operands = dict(zip(names, problem.quantized, strict=True)) | {"w_zero_point": np.int8(0)}  # which ONNX requires
    requantized = reference.quantized_linear_convolution(*operands.values(), dtype=np.uint8, **problem.windows)
    integers = {name: operands[name] for name in ("x", "w", "x_zero_point")} | {"w_zero_point": problem.w_zero_point}
    found = {
        FORMULA: lambda: Call(jitted(formula(problem), *problem.integers), sums),
        "convolution_integer": lambda: Call(jitted(integer, *problem.integers), sums),
        "convolution_integer, symmetric weights": lambda: Call(jitted(integer, *problem.integers[:3]), symmetric_sums),
        "quantized_linear_convolution": lambda: Call(jitted(quantized, *problem.quantized), requantized),
        "quantized_linear_convolution, NHWC": lambda: Call(
            jitted(quantized_nhwc, *nhwc), requantized, fetch=lambda result: np.asarray(result).transpose(0, 3, 1, 2)
        ),
    }
    if implementations.default(jax.default_backend()) is Implementation.NATIVE:
        found["quantized_linear_convolution, XLA's"] = lambda: Call(by_xla(quantized, *problem.quantized), requantized)
    return found | {
        "onnxruntime, ConvInteger": lambda: onnxruntime.run(
            "ConvInteger", [*integers.items()], ("x",), sums, **problem.attributes
        ),
        QLINEAR: lambda: onnxruntime.run("QLinearConv", [*operands.items()], ("x",), requantized, **problem.attributes),
    }


def prepare(problem: Problem, patterns: Sequence[str]) -> dict[str, Callable[[], Any]]:
    """The calls that are timed, whose results are right."""
    runs = {}
    for name, make in select(patterns, contestants(problem)).items():
        try:
            call = make()
        except Unavailable as reason:
            print(f"{name}: {reason}")
            continue
        call.check()
        runs[name] = call.run
    return runs


def table(name: str, layer: Convolution, batch: int, rounds: int, patterns: Sequence[str]) -> list[str]:
    """The lines for one layer."""
    problem = Problem(layer, batch)
    times = {name: quartiles(turns.further) for name, turns in measure(prepare(problem, patterns), rounds).items()}

    def relative(of: str, over: str) -> str:
        return f"{times[of][1] / times[over][1]:.2f}" if of in times and over in times else ""

    strides = f"stride {layer.stride}, groups {layer.groups}"
    lines = [f"\n## {name}\n", f"{problem.x.shape} by {problem.w.shape}, padding {problem.pad}, {strides}.\n", HEADER]
    for contestant, (low, median, high) in times.items():
        ratios = f"{relative(FORMULA, contestant)} | {relative(contestant, QLINEAR)}"
        lines.append(f"| {contestant} | {median:.3f} | {low:.3f} to {high:.3f} | {ratios} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.convolution", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--batch", type=int, default=1, help="how many images")
    parser.add_argument("--layers", nargs="+", default=["*"], metavar="NAME", help="names, tags or patterns; all by default")
    parser.add_argument("--contestants", nargs="+", default=["*"], metavar="NAME", help="names or patterns; all by default")
    parser.add_argument("--output", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    layers = select(arguments.layers, LAYERS)
    description = environment.describe(["onnxruntime"])
    name = f"convolution-{environment.file_name(description)}"
    lines = [
        f"# {name}\n",
        f"{environment.summary(description)} uint8 x int8, values uniform over all of each type; a zero point for the "
        "image, and one for the weights unless they are symmetric, as in quantized_linear_convolution and QLinearConv. "
        f"{arguments.rounds} rounds, in each of which every contestant has a turn of at least two calls, in random order; "
        "the first call of each turn does not count. Every result was checked first, by equality.",
    ]
    for layer_name, layer in layers.items():
        lines += table(layer_name, layer, arguments.batch, arguments.rounds, arguments.contestants)
    text = "\n".join(lines) + "\n"
    print(text)
    everything = layers == LAYERS and arguments.contestants == ["*"] and arguments.batch == 1
    if arguments.output or everything:
        (arguments.output or Path(__file__).parent / "results" / f"{name}.md").write_text(text)


if __name__ == "__main__":
    main()
