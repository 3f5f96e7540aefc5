"""Measures single quantized nodes beside onnxruntime, and chains of quantized layers beside float32, with their compiling.

    python -m benchmarks.sites [--rounds 60] [--synchronous] [--only nodes chains compiling] [--nodes PATTERN ...]

A node is an ONNX file of one QLinearMatMul or QLinearConv with a uint8 result, run by `jquant.onnx` with its weights as
parameters. Each row has two ratios to onnxruntime's time (two threads that do not spin), both of medians: of calls in a
tight loop, and of calls that alternate with the other engine's; and how many results differ by more than 1, which they do
where onnxruntime's products saturate, on x86 without VNNI. Integers are uniform. With --synchronous, JAX runs programs in
the thread of their caller (`jax_cpu_enable_async_dispatch` is false); by default it hands all but the smallest to another.
"""

import argparse
import functools
import time
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import jquant
from benchmarks import environment
from benchmarks.measure import measure, quartiles
from benchmarks.models.profile import finish
from jquant import transform
from jquant.onnx import onnxruntime_session

Calls = dict[Any, Callable[[], Any]]
PARTS = "nodes", "chains", "compiling"


class Node(NamedTuple):
    """A file of one node.

    Attributes:
      x: the shape of the input, uint8.
      w: the shape of the weights, int8; another input if they are new in each call.
      convolution: the attributes of QLinearConv, or None for QLinearMatMul.
      cold: how many copies of the weights take turns, so that no cache holds them.
    """

    x: tuple[int, ...]
    w: tuple[int, ...]
    convolution: dict[str, Any] | None = None
    is_new: bool = False
    cold: int = 1

    @property
    def y(self) -> tuple[int | None, ...]:
        return (*self.x[:-1], self.w[-1]) if self.convolution is None else (self.x[0], self.w[0], None, None)

    def model(self) -> onnx.ModelProto:
        rng = np.random.default_rng(0)
        filters = self.w[-1] if self.convolution is None else self.w[0]
        depth = self.x[-1] if self.convolution is None else int(np.prod(self.w[1:]))
        constants = {
            "x_scale": np.float32(0.02),
            "x_zero_point": np.uint8(121),
            "w_scale": np.float32(0.01) if self.is_new else rng.uniform(0.005, 0.02, filters).astype(np.float32),
            "w_zero_point": np.int8(0) if self.is_new else np.zeros(filters, np.int8),
            "y_scale": np.float32(0.02 * depth**0.5),
            "y_zero_point": np.uint8(128),
        }
        inputs = [helper.make_tensor_value_info("x", TensorProto.UINT8, self.x)]
        if self.is_new:
            inputs.append(helper.make_tensor_value_info("w", TensorProto.INT8, self.w))
        else:
            constants["w"] = rng.integers(-128, 128, self.w, np.int8)
        names = [f"{tensor}{suffix}" for tensor in "xw" for suffix in ("", "_scale", "_zero_point")]
        operator = "QLinearMatMul" if self.convolution is None else "QLinearConv"
        node = helper.make_node(operator, [*names, "y_scale", "y_zero_point"], ["y"], **(self.convolution or {}))
        output = helper.make_tensor_value_info("y", TensorProto.UINT8, self.y)
        initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
        graph = helper.make_graph([node], "node", inputs, [output], initializers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)

    def calls(self) -> tuple[Calls, int]:
        """Calls of both, and how many of their results differ by more than 1: ties do by 1, in another order of scales."""
        proto, rng = self.model(), np.random.default_rng(1)
        x = {"x": rng.integers(0, 256, self.x, np.uint8)}
        if self.is_new:
            x["w"] = rng.integers(-128, 128, self.w, np.int8)
        model = jquant.onnx.load(proto)
        program, on_device = jax.jit(model), jax.device_put(x)
        params = [jax.tree.map(jnp.array, model.params) for _ in range(self.cold)]
        sessions = [onnxruntime_session.session(proto.SerializeToString(), optimized=True) for _ in range(self.cold)]
        (mine,), (theirs,) = program(params[0], on_device).values(), sessions[0].run(None, x)
        differing = int(np.count_nonzero(np.abs(np.int32(mine) - np.int32(theirs)) > 1))
        runs = [functools.partial(finish, program, (each, on_device)) for each in params]
        others = [functools.partial(each.run, None, x) for each in sessions]
        return {"jquant": in_turn(runs), "onnxruntime": in_turn(others)}, differing


def in_turn(calls: list[Callable[[], Any]]) -> Callable[[], Any]:
    if len(calls) == 1:
        return calls[0]
    place = 0

    def call() -> Any:
        nonlocal place
        place = (place + 1) % len(calls)
        return calls[place]()

    return call


def _square(window: int, image: tuple[int, int, int], filters: int, stride: int = 1, groups: int = 1) -> Node:
    channels, height, width = image
    attributes = {"strides": [stride] * 2, "pads": [window // 2] * 4, "group": groups}
    return Node((1, channels, height, width), (filters, channels // groups, window, window), attributes)


NODES = {
    "1 x 512 x 512": Node((1, 512), (512, 512)),
    "8 x 512 x 512": Node((8, 512), (512, 512)),
    "64 x 512 x 512": Node((64, 512), (512, 512)),
    "16 x 4096 x 4096, cold": Node((16, 4096), (4096, 4096), cold=6),
    "1024 x 1024 x 1024": Node((1024, 1024), (1024, 1024)),
    "128 x 768 x 3072": Node((128, 768), (768, 3072)),
    "384 x 768 x 3072": Node((384, 768), (768, 3072)),
    "scores, 12 of 384 x 64 x 384": Node((12, 384, 64), (12, 64, 384), is_new=True),
    "depthwise 5 x 5, 120 of 28 x 28, stride 2": _square(5, (120, 28, 28), 120, 2, 120),
    "depthwise 3 x 3, 64 of 112 x 112, stride 2": _square(3, (64, 112, 112), 64, 2, 64),
    "3 x 3, 64 to 128 of 56 x 56, stride 2": _square(3, (64, 56, 56), 128, 2),
    "3 x 3, 64 of 56 x 56": _square(3, (64, 56, 56), 64),
    "3 x 3, 256 of 14 x 14": _square(3, (256, 14, 14), 256),
    "1 x 1, 256 to 64 of 56 x 56": _square(1, (256, 56, 56), 64),
    "depthwise 3 x 3, 144 of 56 x 56": _square(3, (144, 56, 56), 144, 1, 144),
}


def nodes(patterns: list[str], rounds: int) -> Iterator[str]:
    yield "\n| | jquant, us | onnxruntime, us | ratio | alternating | differ |\n|---|--:|--:|--:|--:|--:|"
    for name, node in NODES.items():
        if not any(fnmatch(name, pattern) for pattern in patterns):
            continue
        calls, differing = node.calls()
        times = measure(calls, rounds)
        mine, theirs = (1e3 * quartiles(times[each].further)[1] for each in ("jquant", "onnxruntime"))
        first = np.median(times["jquant"].first) / np.median(times["onnxruntime"].first)
        yield f"| {name} | {mine:.1f} | {theirs:.1f} | {mine / theirs:.2f} | {first:.2f} | {differing:,} |"


def perceptron(params: list[jax.Array], x: jax.Array) -> jax.Array:
    for weights in params:
        x = jax.nn.relu(x @ weights)
    return x


def _chain(layers: int, rows: int, width: int = 512) -> tuple[Calls, dict[str, tuple]]:
    """Calls of a chain of layers in float32 and with `dynamic_int8`, and the functions with their operands."""
    rng = np.random.default_rng(0)
    params = [jnp.asarray(rng.normal(size=(width, width)) * (2 / width) ** 0.5, jnp.float32) for _ in range(layers)]
    x = jnp.asarray(rng.normal(size=(rows, width)), jnp.float32)
    quantized, of_quantized = transform.quantize(perceptron, params, transform.dynamic_int8, x)
    functions: dict[str, tuple] = {"float32": (perceptron, (params, x)), "dynamic_int8": (quantized, (of_quantized, x))}
    return {name: functools.partial(finish, jax.jit(f), operands) for name, (f, operands) in functions.items()}, functions


def chains(rounds: int) -> Iterator[str]:
    yield "\n| 6 layers of 512 x 512 | dynamic_int8, us | float32, us | ratio | alternating |\n|---|--:|--:|--:|--:|"
    for rows in (1, 8, 64):
        calls, _ = _chain(6, rows)
        times = measure(calls, rounds)
        mine, theirs = (1e3 * quartiles(times[each].further)[1] for each in ("dynamic_int8", "float32"))
        first = np.median(times["dynamic_int8"].first) / np.median(times["float32"].first)
        yield f"| {rows} rows | {mine:.1f} | {theirs:.1f} | {mine / theirs:.2f} | {first:.2f} |"


def compiling(rounds: int) -> Iterator[str]:
    """Of XLA alone: the program is lowered before."""
    yield "\n| | compiling, ms | fusions | calls |\n|---|--:|--:|--:|"
    _, functions = _chain(48, 8, 64)
    for name, (function, operands) in functions.items():
        times = []
        for number in range(max(3, rounds // 20)):

            def fresh(*operands, function=function, number=number):  # not in JAX's caches
                return function(*operands), number

            lowered = jax.jit(fresh).lower(*operands)
            start = time.perf_counter()
            compiled = lowered.compile()
            times.append(time.perf_counter() - start)
        text = compiled.as_text()
        counts = text.count(" fusion("), text.count("custom_call_target=")
        yield f"| 48 layers, {name} | {1e3 * np.median(times):.0f} | {counts[0]} | {counts[1]} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sites", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--synchronous", action="store_true", help="run programs in the thread of their caller")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--nodes", nargs="+", default=["*"], metavar="PATTERN")
    arguments = parser.parse_args()
    jax.config.update("jax_cpu_enable_async_dispatch", not arguments.synchronous)
    print(environment.describe(["onnx", "onnxruntime", "jquant-native"]))
    print("dispatch:", "synchronous" if arguments.synchronous else "JAX's default")
    parts = {"nodes": functools.partial(nodes, arguments.nodes), "chains": chains, "compiling": compiling}
    for part in arguments.only:
        for line in parts[part](arguments.rounds):
            print(line, flush=True)


if __name__ == "__main__":
    main()
