"""Models of one recurrent layer, with random operands."""

import numpy as np
import onnx
from onnx import helper

TIME, BATCH, INPUTS, HIDDEN = 7, 3, 5, 8
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
MICROSOFT = "com.microsoft"


def model_of(operator: str, operands: dict, attributes: dict, domain: str = ""):
    """A model of one node, and its inputs: `x`, the lengths and the initial states. The other operands are initializers."""
    arrays = {name: array for name, array in operands.items() if array is not None}
    input_names = [name for name in arrays if name in ("x", "lengths", "h", "c")]
    outputs = ["y", "y_h", "y_c"] if "LSTM" in operator else ["y", "y_h"]
    node = helper.make_node(operator, [name if name in arrays else "" for name in operands], outputs, domain=domain)
    node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
    graph = helper.make_graph(
        [node],
        "one",
        [declared(name, arrays[name]) for name in input_names],
        [
            helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None] * (4 if name == "y" else 3))
            for name in outputs
        ],
        [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items() if name not in input_names],
    )
    imports = [helper.make_opsetid("", 14), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8), {name: arrays[name] for name in input_names}


def declared(name: str, array: np.ndarray):
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def random_operands(
    operator: str, directions: int, *, bias=True, lengths=False, initial=False, peepholes=False, batch=BATCH, seed=7
) -> dict:
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(0, 0.6, shape).astype(np.float32)

    gates = GATES[operator] * HIDDEN
    operands = {
        "x": normal(TIME, batch, INPUTS),
        "w": normal(directions, gates, INPUTS),
        "r": normal(directions, gates, HIDDEN),
        "b": normal(directions, 2 * gates) if bias else None,
        "lengths": np.array([TIME, 2, 5], np.int32)[:batch] if lengths else None,
        "h": normal(directions, batch, HIDDEN) if initial else None,
    }
    if operator == "LSTM":
        operands["c"] = normal(directions, batch, HIDDEN) if initial else None
        operands["p"] = normal(directions, 3 * HIDDEN) if peepholes else None
    return operands


def quantized(operands: dict, dtype: type, *, per_column: bool, seed: int = 3) -> dict:
    """The operands of DynamicQuantizeLSTM, of which those that are no weights are LSTM's."""
    rng, limits = np.random.default_rng(seed), np.iinfo(dtype)
    directions, gates, _ = operands["r"].shape
    columns = (directions, gates) if per_column else (directions,)
    weights, parameters = {}, {}
    for name, rows in (("w", INPUTS), ("r", gates // 4)):
        weights[name] = rng.integers(limits.min, limits.max + 1, (directions, rows, gates)).astype(dtype)
        parameters[f"{name}_scale"] = rng.uniform(0.003, 0.01, columns).astype(np.float32)
        parameters[f"{name}_zero_point"] = np.full(columns, 0 if dtype == np.int8 else 128, dtype)
    return operands | weights | parameters
