"""onnxruntime, on the CPU."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from benchmarks.contestant import Call, Contestant, Unavailable, cores, in_turn, require
from benchmarks.problem import Problem

_CONTRIBUTED = "com.microsoft"


def session(model: bytes) -> Any:
    """A session of a serialized model on the CPU, with as many threads as XLA has."""
    onnxruntime = require("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = cores()
    options.inter_op_num_threads = 1
    # Threads that spin while they wait for the next call take the processor from the other contestants.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run(
    operator: str,
    operands: Sequence[tuple[str, np.ndarray]],
    inputs: Sequence[str],
    expected: np.ndarray,
    domain: str = "",
    layers: int = 1,
    *,
    tolerance: np.ndarray | None = None,
    other_outputs: Sequence[str] = (),
    **attributes: Any,
) -> Call:
    """Sessions of a model with one operator, one session for each layer.

    Args:
      operator: the operator's name.
      operands: its named operands, which are constants of the model except for `inputs`.
      inputs: the names of the operands that are inputs of the model.
      expected: the right first output.
      domain: of the operator.
      layers: how many sessions take turns.
      tolerance: as in `Call`.
      other_outputs: the names of the operator's further outputs, which are not fetched.
      **attributes: of the operator.
    """
    if jax.default_backend() != "cpu":
        raise Unavailable("its integer products run on a CPU")
    onnx = require("onnx")
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    values = {name: np.asarray(value) for name, value in operands}

    def declared(name: str, value: np.ndarray) -> object:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)

    graph = helper.make_graph(
        [helper.make_node(operator, list(values), ["output", *other_outputs], domain=domain, **attributes)],
        operator,
        [declared(name, values[name]) for name in inputs],
        [declared("output", expected)],
        [numpy_helper.from_array(value, name) for name, value in values.items() if name not in inputs],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(_CONTRIBUTED, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    serialized = model.SerializeToString()

    def call() -> Callable[[], np.ndarray]:
        new = session(serialized)
        feed = {name: values[name].copy() for name in inputs}
        return lambda: new.run(None, feed)[0]

    return Call(in_turn([call() for _ in range(layers)]), expected, tolerance)


def _inputs(problem: Problem) -> Sequence[str]:
    return ("a",) if problem.shape.weights else ("a", "b")


def _matmul_integer(problem: Problem, inputs: Sequence[str]) -> Call:
    zero_points = ("a_zero_point", problem.a_zero_point), ("b_zero_point", problem.b_zero_point)
    return run(
        "MatMulInteger",
        [("a", problem.a), ("b", problem.b), *zero_points],
        inputs,
        problem.product,
        layers=problem.shape.layers,
    )


def _constant_b(problem: Problem) -> Call:
    if not problem.shape.weights:
        raise Unavailable("B is not a weight here: nothing to pack ahead")
    return _matmul_integer(problem, ("a",))


def _input_b(problem: Problem) -> Call:
    return _matmul_integer(problem, ("a", "b"))


def _to_uint8(problem: Problem) -> Call:
    operands = (
        ("a", problem.a),
        ("a_scale", problem.a_scale),
        ("a_zero_point", problem.a_zero_point),
        ("b", problem.b),
        ("b_scale", problem.b_scale),
        ("b_zero_point", problem.b_zero_point),
        ("output_scale", problem.output_scale),
        ("output_zero_point", problem.output_zero_point),
    )
    return run("QLinearMatMul", operands, _inputs(problem), problem.requantized, layers=problem.shape.layers)


def _to_float32(problem: Problem) -> Call:
    operands = (
        ("a", problem.a),
        ("b", problem.b),
        ("a_scale", problem.a_scale),
        ("b_scale", problem.b_scale),
        ("a_zero_point", problem.a_zero_point),
        ("b_zero_point", problem.b_zero_point),
    )
    inputs, layers = _inputs(problem), problem.shape.layers
    return run("MatMulIntegerToFloat", operands, inputs, problem.dequantized, _CONTRIBUTED, layers=layers)


_CONSTANT = "B and all parameters constants of the model (prepacked), B an input where it is no weight"
CONTESTANTS = (
    Contestant(
        "onnxruntime",
        "MatMulInteger, uint8 x int8 to int32, both zero points, B a constant of the model (prepacked)",
        _constant_b,
        "onnxruntime",
    ),
    Contestant(
        "onnxruntime-input-b",
        "MatMulInteger, uint8 x int8 to int32, both zero points, B an input",
        _input_b,
        "onnxruntime",
    ),
    Contestant(
        "onnxruntime-to-uint8",
        f"QLinearMatMul, uint8 x int8 to uint8, three scales and zero points, {_CONSTANT}",
        _to_uint8,
        "onnxruntime",
    ),
    Contestant(
        "onnxruntime-to-float32",
        f"MatMulIntegerToFloat, uint8 x int8 to float32, both scales and zero points, {_CONSTANT}",
        _to_float32,
        "onnxruntime",
    ),
)
