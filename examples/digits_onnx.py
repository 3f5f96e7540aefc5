"""The int8 network for the scikit-learn digits as ONNX files of two forms, compared with onnxruntime.

Trains and quantizes the network of `digits_int8.py`, writes it in the two forms that ONNX has for a quantized network, and
runs the test set through each:

- integers: integer products, followed by the nodes that scale their sums, which is what `matmul_integer_to_float` computes;
- QDQ, as quantizers write it: float products between DequantizeLinear and QuantizeLinear. onnxruntime computes them as
  written, or fuses them into integer products.

    pip install ".[examples,models]"
    python examples/digits_onnx.py --output digits
"""

import argparse
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import onnx
import onnx.parser
import onnxruntime
from digits_int8 import Activations, Int8Network, digits, initial_layers, int8_network, quantized_network, train

LAYERS = {"stem": "image", "hidden": "stem", "branch": "hidden", "head": "residual"}  # and the input of each
GRAPH = """<ir_version: 10, opset_import: ["" : 21]>
digits (float[N, 64] images) => (float[N, 10] logits, {activations}) {{
  image = QuantizeLinear (images, image_scale, zero)
  {stem}
  stem_limited = Clip (stem_dense, low, six)
  stem = QuantizeLinear (stem_limited, stem_scale, zero)
  {hidden}
  hidden_sixth = Mul (hidden_dense, sixth)
  hidden_moved = Add (hidden_sixth, half)
  hidden_limited = Clip (hidden_moved, low, one)
  hidden = QuantizeLinear (hidden_limited, hidden_scale, zero)
  {branch}
  branch = QuantizeLinear (branch_dense, branch_scale, zero)
  stem_real = DequantizeLinear (stem, stem_scale, zero)
  branch_real = DequantizeLinear (branch, branch_scale, zero)
  residual_real = Add (stem_real, branch_real)
  residual = QuantizeLinear (residual_real, residual_scale, zero)
  {head}
  logits = Identity (head_dense)
}}
"""
DENSE = {
    "integers": """
  {name}_sum = MatMulInteger ({x}, {name}_weight)
  {name}_number = Cast <to = 1> ({name}_sum)
  {name}_product = Mul ({name}_number, {name}_scale_product)
  {name}_dense = Add ({name}_product, {name}_bias)
""",
    "QDQ": """
  {name}_input = DequantizeLinear ({x}, {x}_scale, zero)
  {name}_matrix = DequantizeLinear <axis = 1> ({name}_weight, {name}_weight_scale)
  {name}_product = MatMul ({name}_input, {name}_matrix)
  {name}_dense = Add ({name}_product, {name}_bias)
""",
}


def constants(network: Int8Network) -> dict[str, np.ndarray]:
    """The constants of both graphs, by name."""
    scales = network.scales._asdict()
    named = {"zero": np.int8(0), "low": 0.0, "one": 1.0, "six": 6.0, "sixth": 1 / 6, "half": 1 / 2}
    named |= {f"{name}_scale": scale for name, scale in scales.items()}
    for (name, x), layer in zip(LAYERS.items(), network.layers, strict=True):
        named |= {f"{name}_weight": layer.weight, f"{name}_weight_scale": layer.scale[0], f"{name}_bias": layer.bias}
        named[f"{name}_scale_product"] = np.float32(scales[x]) * np.float32(layer.scale)
    return {name: np.asarray(value, getattr(value, "dtype", np.float32)) for name, value in named.items()}


def model(network: Int8Network, form: str) -> onnx.ModelProto:
    """The network in one of the forms of `DENSE`. The int8 activations are outputs besides the logits, to be compared."""
    dense = {name: DENSE[form].format(name=name, x=x) for name, x in LAYERS.items()}
    activations = ", ".join(f"int8[N, 64] {name}" for name in Activations._fields)
    result = onnx.parser.parse_model(GRAPH.format(activations=activations, **dense))
    inputs = {name for node in result.graph.node for name in node.input}
    tensors = {name: value for name, value in constants(network).items() if name in inputs}
    result.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in tensors.items())
    onnx.checker.check_model(result, full_check=True)
    return result


class Run(NamedTuple):
    """How onnxruntime runs a form of the network."""

    form: str
    optimised: bool


RUNS = {
    "integers, node by node": Run("integers", optimised=False),
    "QDQ, node by node": Run("QDQ", optimised=False),
    "QDQ, fused": Run("QDQ", optimised=True),
}


def session(model: onnx.ModelProto, optimised: bool, saved_to: Path | None = None) -> onnxruntime.InferenceSession:
    """onnxruntime's session, node by node or optimised; saves the graph that it runs, if `saved_to` is given."""
    levels, options = onnxruntime.GraphOptimizationLevel, onnxruntime.SessionOptions()
    options.graph_optimization_level = levels.ORT_ENABLE_EXTENDED if optimised else levels.ORT_DISABLE_ALL
    options.add_session_config_entry("session.qdqisint8allowed", "1")  # by default only uint8 is, on x86
    if saved_to is not None:
        options.optimized_model_filepath = str(saved_to)
    # MatMulAddFusion would turn MatMul and Add into a Gemm of floats, before onnxruntime looks for integer products.
    disabled = ["MatMulAddFusion"] if optimised else []
    providers = ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers, disabled_optimizers=disabled)


def outputs(session: onnxruntime.InferenceSession, images: np.ndarray) -> dict[str, np.ndarray]:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"images": images}), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="digits", help="prefix of the file names")
    parser.add_argument("--seed", type=int, default=0, help="seed of the initial weights and the train-test split")
    arguments = parser.parse_args()

    train_images, images, train_labels, _ = digits(arguments.seed)
    layers = train(initial_layers(jax.random.key(arguments.seed)), train_images, train_labels)
    network = quantized_network(layers, train_images)
    logits, activations = jax.device_get(int8_network(network, images))
    models = {form: model(network, form) for form in DENSE}
    for form, graph in models.items():
        onnx.save(graph, f"{arguments.output}_{form.lower()}.onnx")
    print(f"{'':<24}{'same class':>14}{'int8, equal':>20}{'logits, equal':>18}{'largest difference':>22}")
    for name, (form, optimised) in RUNS.items():
        theirs = outputs(session(models[form], optimised), images)
        same = np.sum(theirs["logits"].argmax(axis=1) == logits.argmax(axis=1))
        equal = np.array([theirs[activation] == value for activation, value in activations._asdict().items()])
        share, largest = np.mean(theirs["logits"] == logits), np.abs(theirs["logits"] - logits).max()
        integers = f"{equal.sum():,} of {equal.size:,}"
        print(f"{name:<24}{f'{same} of {len(images)}':>14}{integers:>20}{share:>18.1%}{largest:>22.1e}")


if __name__ == "__main__":
    main()
