"""Recurrent layers in both directions, against layers that go forward over the sequences as they are and turned round."""

import jax
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

import jquant.onnx  # noqa: E402
from jquant.jaxprs import programs  # noqa: E402

from .recurrent_models import GATES, HIDDEN, MICROSOFT, TIME, model_of, quantized, random_operands  # noqa: E402

OPERATORS = [*GATES, "DynamicQuantizeLSTM"]
OF_DIRECTIONS = {"w", "r", "b", "p", "w_scale", "w_zero_point", "r_scale", "r_zero_point"}
OTHER_ACTIVATIONS = {
    "RNN": ["Tanh", "Relu"],
    "GRU": ["Sigmoid", "Tanh", "HardSigmoid", "Softsign"],
    "LSTM": ["Sigmoid", "Tanh", "Tanh", "HardSigmoid", "Softsign", "Tanh"],
}


def random_layer(operator: str, seed: int) -> tuple[dict, dict]:
    """The operands and the attributes of a layer, with every option that the operator has, or without."""
    rng = np.random.default_rng(seed)
    base = "LSTM" if "LSTM" in operator else operator
    direction = str(rng.choice(["bidirectional", "bidirectional", "reverse"]))
    directions = 2 if direction == "bidirectional" else 1
    bias, lengths, initial, peepholes = map(bool, rng.integers(0, 2, 4))
    batch = int(rng.choice([1, 3]))
    options = {"bias": bias, "lengths": lengths, "initial": initial, "peepholes": peepholes, "batch": batch, "seed": seed}
    operands = random_operands(base, directions, **options)
    if lengths:
        operands["lengths"] = rng.integers(0, TIME + 1, batch).astype(np.int32)
    attributes = {"hidden_size": HIDDEN, "direction": direction}
    attributes |= {"clip": 0.4} if rng.integers(0, 2) else {}
    if directions == 2 and rng.integers(0, 2):
        attributes["activations"] = OTHER_ACTIVATIONS[base]
    if base == "LSTM":
        attributes["input_forget"] = int(rng.integers(0, 2))
    if base == "GRU":
        attributes["linear_before_reset"] = int(rng.integers(0, 2))
    if operator != base:
        return quantized(operands, rng.choice([np.int8, np.uint8]), per_column=bool(rng.integers(0, 2))), attributes
    if rng.integers(0, 2):
        attributes["layout"] = 1
        operands |= {key: np.swapaxes(operands[key], 0, 1) for key in ("x", "h", "c") if operands.get(key) is not None}
    return operands, attributes


def turned(x: np.ndarray, lengths: np.ndarray | None, layout: int) -> np.ndarray:
    """Sequences, each turned round within its length."""
    x = np.swapaxes(x, 0, 1) if layout else x
    lengths = np.full(x.shape[1], len(x)) if lengths is None else lengths
    columns = [np.concatenate([x[:length, i][::-1], x[length:, i]]) for i, length in enumerate(lengths)]
    return np.swapaxes(np.stack(columns, 1), 0, 1) if layout else np.stack(columns, 1)


def forward(operands: dict, attributes: dict, index: int, is_turned: bool) -> tuple[dict, dict]:
    """One direction of a layer as a layer of its own that goes forward."""
    layout = attributes.get("layout", 0)
    axes = dict.fromkeys(OF_DIRECTIONS, 0) | {"h": layout, "c": layout}
    own = {
        key: np.take(value, [index], axes[key]) if key in axes and value is not None else value
        for key, value in operands.items()
    }
    if is_turned:
        own["x"] = turned(operands["x"], operands["lengths"], layout)
    own_attributes = attributes | {"direction": "forward"}
    if "activations" in attributes:
        half = len(attributes["activations"]) // 2
        own_attributes["activations"] = attributes["activations"][index * half : (index + 1) * half]
    return own, own_attributes


def outputs(layers: list[tuple[str, dict, dict]]) -> list[dict]:
    """What several layers, each a model, return, computed by one program."""
    made = [model_of(name, *layer, domain=MICROSOFT if name not in GATES else "") for name, *layer in layers]
    models = [jquant.onnx.load(model) for model, _ in made]

    @jax.jit
    def program(parameters, inputs):
        return [model(*operands) for model, *operands in zip(models, parameters, inputs, strict=True)]

    return jax.device_get(program([model.params for model in models], [inputs for _, inputs in made]))


def check(operator: str, operands: dict, attributes: dict) -> int:
    """Compares a layer with its directions alone, going forward; returns how many elements are equal."""
    reversals = {"reverse": [True], "bidirectional": [False, True]}[attributes["direction"]]
    alone = [(operator, *forward(operands, attributes, index, each)) for index, each in enumerate(reversals)]
    actual, *expected = outputs([(operator, operands, attributes), *alone])
    layout, compared = attributes.get("layout", 0), 0
    for index, (is_turned, each) in enumerate(zip(reversals, expected, strict=True)):
        for name, value in each.items():
            if name == "y" and is_turned:
                of_steps = np.take(value, 0, 2 if layout else 1)
                value = np.expand_dims(turned(of_steps, operands["lengths"], layout), 2 if layout else 1)
            axis = (2 if layout else 1) if name == "y" else layout
            np.testing.assert_array_equal(np.take(actual[name], [index], axis), value, f"{name} of direction {index}")
            compared += value.size
    return compared


@pytest.mark.parametrize("operator", OPERATORS)
def test_each_direction_is_that_of_a_layer_alone(operator, full, count):
    """Every option of a layer, at random: its products, ranges and activations are those of each direction, bit for bit."""
    for seed in range(25 if full else 2):
        count("elements of layers in both directions", check(operator, *random_layer(operator, seed)))


def bidirectional(operator: str):
    """A loaded layer with the same activations in both directions, and its inputs."""
    base = "LSTM" if "LSTM" in operator else operator
    operands = random_operands(base, 2)
    operands = operands if operator == base else quantized(operands, np.uint8, per_column=False)
    domain = MICROSOFT if operator != base else ""
    model, inputs = model_of(operator, operands, {"hidden_size": HIDDEN, "direction": "bidirectional"}, domain)
    return jquant.onnx.load(model), inputs


def equations(jaxpr, name: str) -> list:
    """The equations of a primitive, also in what the equations call."""
    found = [each for each in jaxpr.eqns if each.primitive.name == name]
    inner = (program for equation in jaxpr.eqns for program in programs(equation))
    return found + [each for program in inner for each in equations(program, name)]


PRODUCTS = {"RNN": ("dot_general", 1), "GRU": ("dot_general", 2), "LSTM": ("dot_general", 1)}


@pytest.mark.parametrize("operator", OPERATORS)
def test_both_directions_are_one_loop_with_the_products_of_one(operator):
    model, inputs = bidirectional(operator)
    (loop,) = equations(jax.make_jaxpr(model)(model.params, inputs).jaxpr, "scan")
    product, number = PRODUCTS.get(operator, ("integer_dot", 1))
    assert len(equations(loop.params["jaxpr"].jaxpr, product)) == number


def test_packed_weights_are_those_of_each_direction():
    """With their zero points; arrays as the file has them give the same results."""
    model, inputs = bidirectional("DynamicQuantizeLSTM")
    packed = {name: value for name, value in model.params.items() if isinstance(value, jquant.PackedMatrix)}
    assert packed.keys() == {"w", "r"}
    arrays = model.params | {name: np.asarray(value.unpack()) for name, value in packed.items()}
    actual, expected = jax.jit(model)(model.params, inputs), jax.jit(model)(arrays, inputs)
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value, name)


@pytest.mark.gate
@pytest.mark.parametrize("operator", OPERATORS)
def test_transformations(operator):
    """Derivatives are those by finite differences; a mapped layer is each alone; an exported one has open sizes."""
    model, inputs = bidirectional(operator)
    program = jax.jit(model)
    expected = program(model.params, inputs)
    two = {name: np.stack([value, value[::-1]]) for name, value in inputs.items()}
    mapped = jax.jit(jax.vmap(model, (None, 0)))(model.params, two)
    np.testing.assert_allclose(mapped["y"][0], expected["y"], rtol=0, atol=2e-6)
    batch, time = jax.export.symbolic_shape("batch, time")
    open_inputs = {"x": jax.ShapeDtypeStruct((time, batch, inputs["x"].shape[2]), np.float32)}
    exported = jax.export.export(program)(model.params, open_inputs)
    np.testing.assert_allclose(exported.call(model.params, inputs)["y"], expected["y"], rtol=0, atol=2e-6)

    def loss(bias: jax.Array) -> jax.Array:
        return model(model.params | {"b": bias}, inputs)["y"].sum()

    bias = np.asarray(model.params["b"])
    derivative = np.asarray(jax.jit(jax.grad(loss))(bias))
    assert np.abs(derivative).min(1).max() > 0
    if operator in GATES:
        moved = np.sign(derivative) * np.float32(1e-3)
        change = (jax.jit(loss)(bias + moved) - jax.jit(loss)(bias - moved)) / 2
        np.testing.assert_allclose(change, (derivative * moved).sum(), rtol=2e-2)
