"""Measures networks that `jquant.transform` converted to int8 beside float, handwritten int8, Qwix and onnxruntime.

    python -m benchmarks.transform [--rounds 100] [--output FILE.md]

Two Flax networks are trained on the scikit-learn digits; each contestant has its own copy of the weights. Prints the
accuracy on the test set, the bytes of the parameters and the times of all contestants in one run, and writes them: by
default to benchmarks/results/transform-PLATFORM-jax-VERSION.md.
"""

import argparse
import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import tqdm, trange

import jquant
from benchmarks import environment
from benchmarks.measure import measure, quartiles
from jquant import transform

BATCHES = 128, 1
CALIBRATION = 4  # batches of 128
SYMMETRIC = {"activation_type": "INT8"}
RECIPES = {
    "static": transform.static_int8,
    "static, symmetric": transform.Recipe([("*", transform.Scheme(**SYMMETRIC))]),
    "static, percentile": transform.Recipe([("*", transform.Scheme(observer=("percentile", 99.99)))]),
    "dynamic": transform.dynamic_int8,
    "dynamic, symmetric": transform.Recipe([("*", transform.Scheme(activations="DYNAMIC", **SYMMETRIC))]),
    "dynamic by row": transform.Recipe([("*", transform.Scheme(activations="DYNAMIC_ROW"))]),
    "weight only": transform.weight_only_int8,
}


class MLP(nn.Module):
    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        x = images.reshape(images.shape[0], 64)
        for width in (512, 512):
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(10)(x)


class CNN(nn.Module):
    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        x = nn.relu(nn.Conv(32, (3, 3))(images))
        x = nn.relu(nn.Conv(64, (3, 3), strides=2)(x))
        x = nn.relu(nn.Conv(64, (3, 3))(x))
        return nn.Dense(10)(x.mean((1, 2)))


class Contestant(NamedTuple):
    """A function of its parameters and of images, and its parameters."""

    function: Callable[..., Any]
    params: Any


def digits() -> list[np.ndarray]:
    """Images for training and for testing, and the labels of both."""
    pixels, labels = load_digits(return_X_y=True)
    return train_test_split(
        np.float32(pixels / 16).reshape(-1, 8, 8, 1), labels, test_size=1 / 3, random_state=0, stratify=labels
    )


def trained(model: nn.Module, images: np.ndarray, labels: np.ndarray, steps: int = 300) -> Any:
    params = model.init(jax.random.key(0), images[:1])
    optimizer = optax.adam(2e-3)

    @jax.jit
    def step(params: Any, state: Any, images: jax.Array, labels: jax.Array) -> tuple[Any, Any]:
        def loss(params: Any) -> jax.Array:
            return optax.softmax_cross_entropy_with_integer_labels(model.apply(params, images), labels).mean()

        updates, state = optimizer.update(jax.grad(loss)(params), state)
        return optax.apply_updates(params, updates), state

    state, rng = optimizer.init(params), np.random.default_rng(0)
    for _ in trange(steps, desc=f"training {type(model).__name__}", unit="step"):
        chosen = rng.integers(len(images), size=128)
        params, state = step(params, state, images[chosen], labels[chosen])
    return params


def by_hand(model: nn.Module, params: Any, calibration: dict[str, Any]) -> Contestant:
    """The static int8 network, rewritten with the operators: what `transform.quantize` should give, and cost."""
    layers = params["params"]

    def quantized(name: str) -> dict[str, Any]:
        kernel, bias = layers[name]["kernel"], layers[name]["bias"]
        largest = jnp.abs(kernel).max(tuple(range(kernel.ndim - 1)), keepdims=True)
        scale, _ = jquant.scale_and_zero_point(-largest, largest, "INT8", symmetric=True, narrow_range=True)
        values = jquant.quantize_linear(kernel, scale, output_dtype="INT8")
        low, high = calibration[f"params/{name}/kernel"]
        x_scale, x_zero_point = jquant.scale_and_zero_point(low, high, "UINT8")
        if kernel.ndim == 2:
            values = jquant.pack_matrix(values)
        return {"values": values, "scale": scale.reshape(-1), "bias": bias, "x": x_scale, "zero_point": x_zero_point}

    def product(layer: dict[str, Any], x: jax.Array, **geometry: Any) -> jax.Array:
        x = jquant.quantize_linear(x, layer["x"], layer["zero_point"])
        operands = x, layer["x"], layer["zero_point"], layer["values"], layer["scale"]
        if not geometry:
            return jquant.matmul_integer_to_float(*operands) + layer["bias"]
        layout = {"padding": "SAME", "dimension_numbers": ("NHWC", "HWIO", "NHWC")}
        return jquant.convolution_integer_to_float(*operands, **layout, **geometry) + layer["bias"]

    def mlp(params: dict[str, Any], images: jax.Array) -> jax.Array:
        x = images.reshape(images.shape[0], 64)
        for name in ("Dense_0", "Dense_1"):
            x = nn.relu(product(params[name], x))
        return product(params["Dense_2"], x)

    def cnn(params: dict[str, Any], images: jax.Array) -> jax.Array:
        x = images
        for name, stride in (("Conv_0", 1), ("Conv_1", 2), ("Conv_2", 1)):
            x = nn.relu(product(params[name], x, strides=(stride, stride)))
        return product(params["Dense_0"], x.mean((1, 2)))

    return Contestant(mlp if isinstance(model, MLP) else cnn, {name: quantized(name) for name in layers})


def qwix(model: nn.Module, params: Any, batches: list[np.ndarray], *, static: bool) -> Contestant:
    import qwix

    rules = [qwix.QuantizationRule(weight_qtype=jnp.int8, act_qtype=jnp.int8, act_static_scale=static)]
    statistics: Any = {}
    if static:
        aware = qwix.quantize_model(model, qwix.QtProvider(rules))
        statistics = aware.init(jax.random.key(0), batches[0])["quant_stats"]
        for batch in batches:
            _, changed = aware.apply({**params, "quant_stats": statistics}, batch, mutable="quant_stats")
            statistics = changed["quant_stats"]
    int8 = qwix.quantize_model(model, qwix.PtqProvider(rules))
    like = jax.eval_shape(int8.init, jax.random.key(0), batches[0])["params"]
    quantized_params = qwix.quantize_params(params["params"], like, statistics)
    return Contestant(lambda params, images: int8.apply({"params": params}, images), quantized_params)


def contestants(model: nn.Module, params: Any, batches: list[np.ndarray]) -> dict[str, Contestant]:
    found = {"float32": Contestant(model.apply, params)}
    static_calibrations = {}
    for name, recipe in RECIPES.items():
        calibration = transform.calibrate(model.apply, params, batches, recipe) if name.startswith("static") else None
        static_calibrations[name] = calibration
        function, quantized_params = transform.quantize(model.apply, params, recipe, batches[0], calibration=calibration)
        found[f"transform, {name}"] = Contestant(function, quantized_params)
    found["by hand, static"] = by_hand(model, params, static_calibrations["static"])
    try:
        for static in (True, False):
            found[f"qwix, {'static' if static else 'dynamic'}, symmetric"] = qwix(model, params, batches, static=static)
    except ImportError:
        print("qwix is not installed, so it is left out")
    return {name: each._replace(params=jax.tree.map(jnp.array, each.params)) for name, each in found.items()}


def onnx_model(params: Any) -> Any:
    """The float MLP as an ONNX model."""
    from onnx import TensorProto, helper, numpy_helper

    layers = params["params"]
    arrays, nodes, x = {"shape": np.array([-1, 64])}, [helper.make_node("Reshape", ["images", "shape"], ["x"])], "x"
    for index, name in enumerate(sorted(layers)):
        arrays |= {f"w{index}": np.asarray(layers[name]["kernel"]), f"b{index}": np.asarray(layers[name]["bias"])}
        nodes.append(helper.make_node("Gemm", [x, f"w{index}", f"b{index}"], [f"y{index}"]))
        x = f"y{index}"
        if index + 1 < len(layers):
            nodes.append(helper.make_node("Relu", [x], [f"x{index}"]))
            x = f"x{index}"
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 8, 8, 1])
    logits = helper.make_tensor_value_info(x, TensorProto.FLOAT, ["batch", 10])
    initializers = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "mlp", [images], [logits], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def onnxruntime_logits(params: Any, batches: list[np.ndarray], images: np.ndarray) -> dict[str, np.ndarray]:
    """What onnxruntime's own quantization makes of the MLP, with the same calibration data."""
    import onnx
    import onnxruntime
    from onnxruntime.quantization import (
        CalibrationDataReader,
        CalibrationMethod,
        QuantType,
        quantize_dynamic,
        quantize_static,
    )

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.batches = iter(batches)

        def get_next(self) -> dict[str, np.ndarray] | None:
            batch = next(self.batches, None)
            return None if batch is None else {"images": batch}

    found = {}
    weights = {"per_channel": True, "weight_type": QuantType.QInt8}
    with tempfile.TemporaryDirectory() as folder:
        of_float, of_integers = f"{folder}/float.onnx", f"{folder}/int8.onnx"
        onnx.save(onnx_model(params), of_float)
        methods = {"min/max": CalibrationMethod.MinMax, "percentile": CalibrationMethod.Percentile}
        for name in ("dynamic", *methods):
            if name == "dynamic":
                quantize_dynamic(of_float, of_integers, **weights)
            else:
                static = {"calibrate_method": methods[name], "activation_type": QuantType.QUInt8, **weights}
                quantize_static(of_float, of_integers, Reader(), **static)
            session = onnxruntime.InferenceSession(of_integers, providers=["CPUExecutionProvider"])
            label = "dynamic" if name == "dynamic" else f"static, {name}"
            found[f"onnxruntime, {label}"] = session.run(None, {"images": images})[0]
    return found


def accuracy_table(logits: dict[str, np.ndarray], labels: np.ndarray, sizes: dict[str, int]) -> list[str]:
    """How close each is to the labels, and to the float network."""
    exact = logits["float32"]
    lines = ["| | test accuracy | predicts as float | cosine to float | bytes |", "|---|--:|--:|--:|--:|"]
    for name, found in logits.items():
        digits = found.argmax(-1)
        cosine = np.sum(exact * found, dtype=np.float64) / (np.linalg.norm(exact) * np.linalg.norm(found))
        size = f"{sizes[name]:,}" if name in sizes else "-"
        agreement = np.mean(digits == exact.argmax(-1))
        lines.append(f"| {name} | {np.mean(digits == labels):.2%} | {agreement:.2%} | {cosine:.6f} | {size} |")
    return lines


def times_table(times: dict[int, Any]) -> list[str]:
    """Medians, quartiles, and the medians of the ratios of each round."""
    header = " | ".join(f"batch {size}, ms (quartiles) | over float | over by hand" for size in times)
    lines = [f"| | {header} |", f"|---|{'--:|' * 3 * len(times)}"]
    for name in next(iter(times.values())):
        cells = [name]
        for of_batch in times.values():
            own = of_batch[name].further
            low, median, high = quartiles(own)
            ratios = (np.median(own / of_batch[other].further) for other in ("float32", "by hand, static"))
            cells += [f"{median:.3f} ({low:.3f} to {high:.3f})", *(f"{ratio:.2f}" for ratio in ratios)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def tables(model: nn.Module, images: np.ndarray, test: tuple[np.ndarray, np.ndarray], params: Any, rounds: int) -> list[str]:
    batches = [images[index * 128 : (index + 1) * 128] for index in range(CALIBRATION)]
    found = contestants(model, params, batches)
    jitted = {name: jax.jit(each.function) for name, each in found.items()}
    logits = {name: np.asarray(jitted[name](each.params, test[0])) for name, each in found.items()}
    differ = np.sum(logits["transform, static"] != logits["by hand, static"])
    if isinstance(model, MLP):
        try:
            logits |= onnxruntime_logits(params, batches, test[0])
        except ImportError:
            print("onnxruntime is not installed, so it is left out")
    sizes = {name: sum(leaf.nbytes for leaf in jax.tree.leaves(each.params)) for name, each in found.items()}
    times = {}
    for size in BATCHES:
        batch = jnp.asarray(test[0][:size])
        calls = {name: functools.partial(finished, jitted[name], each.params, batch) for name, each in found.items()}
        with tqdm(total=rounds, desc=f"{type(model).__name__}, batch {size}", unit="round") as bar:
            times[size] = measure(calls, rounds, after_round=bar.update)
    equal = f"`transform, static` and `by hand, static`: {differ} of {logits['float32'].size:,} outputs differ."
    return [*accuracy_table(logits, test[1], sizes), "", *times_table(times), "", equal]


def finished(function: Callable[..., jax.Array], *arguments: Any) -> jax.Array:
    return jax.block_until_ready(function(*arguments))


def main() -> None:
    parser = argparse.ArgumentParser(description="Networks in int8 by transformation, by hand and by Qwix.")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--output", type=Path, help="the file to write, in Markdown")
    arguments = parser.parse_args()
    described = environment.describe(["jquant-jax", "flax", "qwix", "onnxruntime"])
    default = f"transform-{described['platform']}-jax-{described['versions']['jax']}.md"
    output = arguments.output or Path(__file__).parent / "results" / default
    train_images, test_images, train_labels, test_labels = digits()
    lines = ["# Networks in int8: by transformation, by hand, and by others", ""]
    lines += [f"- {name}: {value}" for name, value in described.items()]
    lines += ["- weights: trained on the scikit-learn digits; a copy for each contestant, in an order drawn anew each round"]
    for model in (MLP(), CNN()):
        params = trained(model, train_images, train_labels)
        lines += ["", f"## {type(model).__name__}", ""]
        lines += tables(model, train_images, (test_images, test_labels), params, arguments.rounds)
    text = "\n".join(lines) + "\n"
    print(text)
    output.write_text(text)


if __name__ == "__main__":
    main()
