"""The int8 digits network as ONNX files: the integers and the classes of onnxruntime equal those of jquant."""

import jax
import numpy as np
import pytest
from support.example_programs import load_example

for package in ("onnx", "onnxruntime"):
    pytest.importorskip(package, reason=f"{package} is not installed (extra: models)")
for package in ("sklearn", "matplotlib", "tqdm"):
    pytest.importorskip(package, reason=f"{package} is not installed (extra: examples)")
example = load_example("digits_onnx")


@pytest.fixture(scope="module")
def trained():
    """The network, the test images, and the results of `int8_network`: the logits, and the int8 activations by name."""
    train_images, images, labels, _ = example.digits(0)
    with jax.numpy_rank_promotion("allow"):  # the float network's biases
        layers = example.train(example.initial_layers(jax.random.key(0)), train_images, labels)
        network = example.quantized_network(layers, train_images)
    logits, activations = jax.device_get(example.int8_network(network, images))
    assert set(logits.argmax(axis=1)) == set(range(10))
    return network, images, logits, activations._asdict()


def run(trained, name: str, **options) -> dict[str, np.ndarray]:
    """The outputs of onnxruntime for the test images."""
    network, images, *_ = trained
    form, optimised = example.RUNS[name]
    return example.outputs(example.session(example.model(network, form), optimised, **options), images)


def test_integer_operators(trained):
    """Equal bit for bit, since each operation of the formula is a node of its own."""
    *_, logits, activations = trained
    outputs = run(trained, "integers, node by node")
    for name, value in {**activations, "logits": logits}.items():
        np.testing.assert_array_equal(outputs[name], value, err_msg=name)


def test_fused(trained, tmp_path):
    """Every product is fused to MatMulIntegerToFloat, which equals `matmul_integer_to_float` bit for bit.

    The sum of two activations becomes a QLinearAdd, which rounds differently, and is within 1.
    """
    *_, logits, activations = trained
    outputs = run(trained, "QDQ, fused", saved_to=tmp_path / "fused.onnx")
    operators = [node.op_type for node in example.onnx.load(tmp_path / "fused.onnx").graph.node]
    assert operators.count("MatMulIntegerToFloat") == len(example.LAYERS)
    for name in ("image", "stem", "hidden", "branch"):
        np.testing.assert_array_equal(outputs[name], activations[name], err_msg=name)
    differences = np.abs(outputs["residual"].astype(int) - activations["residual"])
    assert differences.max() <= 1
    same = differences.max(axis=1) == 0
    np.testing.assert_array_equal(outputs["logits"][same], logits[same])
    np.testing.assert_array_equal(outputs["logits"].argmax(axis=1), logits.argmax(axis=1))


def test_float_operators(trained):
    """From equal integers, the next integers differ by at most 1, and the class is the same.

    Here each of the 64 terms of a sum is rounded three times, and the sum 63 times, in any order; in
    `matmul_integer_to_float`, the scale and the product are rounded once; in both, the logit is rounded once. Each rounding
    changes a number by at most 2**-24 of it, far less than a step of int8.
    """
    network, _, logits, activations = trained
    outputs = run(trained, "QDQ, node by node")
    same = np.ones(len(logits), bool)
    for name, value in activations.items():
        differences = np.abs(outputs[name].astype(int) - value).max(axis=1)
        assert differences[same].max() <= 1, name
        same &= differences == 0
        assert same.any(), name
    constants = {name: value.astype(np.float64) for name, value in example.constants(network).items()}
    x, weight = activations["residual"] * constants["residual_scale"], constants["head_weight"]
    magnitude = np.abs(x) @ np.abs(weight * constants["head_weight_scale"])
    bound = 2.0**-24 * (69 * magnitude + 3 * np.abs(logits))  # one more of each for products of errors
    assert (np.abs(outputs["logits"] - logits) <= bound)[same].all()
    np.testing.assert_array_equal(outputs["logits"].argmax(axis=1)[same], logits.argmax(axis=1)[same])
