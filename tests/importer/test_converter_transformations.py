"""Derivatives of activations, and vmap of operators with indices."""

import jax
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

import jquant.onnx  # noqa: E402

from .node_models import floats, int64, integers, model_of  # noqa: E402

pytestmark = pytest.mark.gate  # on the newest JAX alone

ACTIVATIONS = {
    "Celu": {"alpha": 0.5},
    "Elu": {},
    "Gelu": {"approximate": "tanh"},
    "HardSigmoid": {},
    "HardSwish": {},
    "LeakyRelu": {},
    "Mish": {},
    "Relu": {},
    "Selu": {},
    "Sigmoid": {},
    "Softplus": {},
    "Softsign": {},
    "Swish": {"alpha": 0.5},
    "ThresholdedRelu": {},
}


def test_derivatives_of_activations_are_finite():
    """Even far from zero, where the branch of a `jnp.where` that is not selected overflows."""
    make = onnx.helper.make_node
    nodes = [make(operator, ["x"], [operator], **attributes) for operator, attributes in ACTIVATIONS.items()]
    x = np.array([-1e4, -200, -1, 0, 1, 200, 1e4], np.float32)
    model = jquant.onnx.load(model_of(nodes, {"x": x}, list(ACTIVATIONS), 24))
    derivatives = jax.jit(jax.jacobian(lambda x: model(model.params, {"x": x})))(x)
    for operator, derivative in derivatives.items():
        assert np.isfinite(derivative).all(), operator
        assert abs(derivative[4, 4]) > 0 or operator == "ThresholdedRelu", operator


def test_vmap_equals_a_loop():
    make = onnx.helper.make_node
    nodes = [
        make("TopK", ["x", "two"], ["values", "indices"]),
        make("GatherElements", ["x", "indices"], ["gathered"], axis=1),
        make("ScatterElements", ["x", "indices", "values"], ["added"], axis=1, reduction="add"),
        make("ReverseSequence", ["x", "lengths"], ["reversed"], batch_axis=0, time_axis=1),
        make("Trilu", ["x", "diagonal"], ["triangle"]),
    ]
    inputs = {"x": floats(3, 5), "lengths": int64(1, 5, 3), "diagonal": np.array(1)}
    outputs = ["values", "indices", "gathered", "added", "reversed", "triangle"]
    model = jquant.onnx.load(model_of(nodes, inputs, outputs, initializers={"two": int64(2)}))
    batch = {"x": floats(4, 3, 5), "lengths": integers(0, 6, 4, 3, dtype=np.int32), "diagonal": np.arange(4, dtype=np.int32)}
    mapped = jax.jit(jax.vmap(lambda inputs: model(model.params, inputs)))(batch)
    program = jax.jit(model)
    for index in range(4):
        expected = program(model.params, {name: value[index] for name, value in batch.items()})
        for name in outputs:
            np.testing.assert_array_equal(mapped[name][index], expected[name], name)
