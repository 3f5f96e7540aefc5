"""LSTM, GRU, RNN and DynamicQuantizeLSTM against onnxruntime."""

import jax
import numpy as np
import pytest
from support.saturation import need_exact_products

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

import jquant.onnx  # noqa: E402
from jquant.onnx import ModelError  # noqa: E402

from .recurrent_models import GATES, HIDDEN, MICROSOFT, model_of, quantized, random_operands  # noqa: E402

pytestmark = pytest.mark.gate  # on the newest JAX alone


def theirs(model, inputs: dict) -> dict:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def ours(model, inputs: dict) -> dict:
    loaded = jquant.onnx.load(model)
    return jax.jit(loaded)(loaded.params, inputs)


def compare(model, inputs: dict, atol: float) -> None:
    expected = theirs(model, inputs)
    for name, actual in ours(model, inputs).items():
        np.testing.assert_allclose(actual, expected[name], rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize("operator", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_directions_lengths_and_initial_states(operator, direction):
    ragged = direction != "forward"  # in the other two directions, the sequences have different lengths
    operands = random_operands(operator, 2 if direction == "bidirectional" else 1, lengths=ragged, initial=ragged)
    compare(*model_of(operator, operands, {"hidden_size": HIDDEN, "direction": direction}), atol=2e-6)


@pytest.mark.parametrize("operator", GATES)
def test_without_a_bias(operator):
    compare(*model_of(operator, random_operands(operator, 1, bias=False), {"hidden_size": HIDDEN}), atol=2e-6)


def test_peepholes_clip_and_input_forget():
    for direction, clip, forget in [("forward", None, 0), ("bidirectional", 0.5, 0), ("reverse", 0.3, 1)]:
        operands = random_operands(
            "LSTM", 2 if direction == "bidirectional" else 1, lengths=True, initial=True, peepholes=True
        )
        options = {} if clip is None else {"clip": clip}
        attributes = {"hidden_size": HIDDEN, "direction": direction, "input_forget": forget, **options}
        compare(*model_of("LSTM", operands, attributes), atol=2e-6)


@pytest.mark.parametrize("after", [0, 1])
def test_gru_resets_before_and_after_the_product(after):
    operands = random_operands("GRU", 2, initial=True)
    attributes = {"hidden_size": HIDDEN, "direction": "bidirectional", "linear_before_reset": after, "clip": 0.7}
    compare(*model_of("GRU", operands, attributes), atol=2e-6)


ACTIVATIONS = [
    (["Relu", "Tanh"], [], []),
    (["Sigmoid", "Softsign"], [], []),
    (["Softplus", "LeakyRelu"], [], []),
    (["ThresholdedRelu", "HardSigmoid"], [0.4], []),
    (["LeakyRelu", "Elu"], [0.2], []),
    (["Affine", "ScaledTanh"], [0.3, 0.8], [0.1, 0.6]),
]


@pytest.mark.parametrize(("names", "alphas", "betas"), ACTIVATIONS)
def test_activations(names, alphas, betas):
    parameters = {"activation_alpha": alphas, "activation_beta": betas}
    attributes = {"activations": names} | {key: value for key, value in parameters.items() if value}
    operands = random_operands("RNN", 2)
    compare(*model_of("RNN", operands, {"hidden_size": HIDDEN, "direction": "bidirectional", **attributes}), atol=5e-6)


def test_alpha_and_beta_go_to_the_functions_that_have_them():
    attributes = {
        "hidden_size": HIDDEN,
        "direction": "bidirectional",
        "activations": ["HardSigmoid", "LeakyRelu", "Tanh", "Sigmoid", "ScaledTanh", "HardSigmoid"],
        "activation_alpha": [0.3, 0.05, 0.9, 0.25],
        "activation_beta": [0.4, 0.7, 0.45],
    }
    compare(*model_of("LSTM", random_operands("LSTM", 2, initial=True), attributes), atol=5e-6)


def test_unknown_activations_and_directions_name_the_node():
    with pytest.raises(ModelError, match=r"node 'y' \(RNN, version 14\): activation 'Cosine' is not supported"):
        ours(*model_of("RNN", random_operands("RNN", 1), {"hidden_size": HIDDEN, "activations": ["Cosine"]}))
    with pytest.raises(ModelError, match="Affine needs its alpha and beta"):
        ours(*model_of("RNN", random_operands("RNN", 1), {"hidden_size": HIDDEN, "activations": ["Affine"]}))
    with pytest.raises(ModelError, match=r"its operand w, 'w', has shape \(1, 8, 5\); it must have shape \(2, 8, 5\)"):
        ours(*model_of("RNN", random_operands("RNN", 1), {"hidden_size": HIDDEN, "direction": "bidirectional"}))


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("dtype", "per_column"), [(np.int8, True), (np.uint8, False)])
def test_quantized_products(dtype, per_column, direction):
    """Floats are within 2e-6; a difference of 1 in a quantized input or state would change them by more than 1e-4."""
    need_exact_products(np.uint8, dtype)
    directions = 2 if direction == "bidirectional" else 1
    ragged = direction != "forward"
    operands = random_operands("LSTM", directions, lengths=ragged, initial=True, peepholes=ragged)
    operands = quantized(operands, dtype, per_column=per_column)
    attributes = {"hidden_size": HIDDEN, "direction": direction}
    compare(*model_of("DynamicQuantizeLSTM", operands, attributes, domain=MICROSOFT), atol=2e-6)
