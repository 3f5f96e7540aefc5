"""qdq="fused": operators that integers pass through, between a DequantizeLinear and a QuantizeLinear of one scale."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

import jquant.onnx  # noqa: E402

from .fusion_tables import PASSED_THROUGH  # noqa: E402
from .qdq_models import (  # noqa: E402
    EXTENDED,
    SAME_SCALE,
    check_fused,
    initializers,
    operand,
    qdq,
    qdq_model,
    quantized,
    random_floats,
    random_weights,
    run_model,
)

pytestmark = pytest.mark.gate  # on the newest JAX alone


@pytest.mark.parametrize(
    ("operator", "dtype"),
    [*((each, "uint8") for each in PASSED_THROUGH), *((each, "int8") for each in ("MaxPool", "Min", "Pad"))],
)
def test_integers_pass_through(operator, dtype):
    """Nothing but the operator remains, and it computes on integers."""
    call, arrays, numpy_function = PASSED_THROUGH[operator]
    x, results = random_floats((2, 4, 6, 8)), "r, s" if operator == "Split" else "r"
    tensors = initializers({"x": dtype}) | {name: np.asarray(array) for name, array in arrays.items()}
    nodes = f"{qdq('x')}{results} = {call}{SAME_SCALE}"
    proto = qdq_model(nodes, {"x": x.shape}, tensors, {"y": dtype})
    (outputs, fused), (written, _) = (run_model(proto, {"x": x}, form) for form in ("fused", "as_written"))
    assert fused == {operator: 1}
    np.testing.assert_array_equal(outputs["y"], written["y"])
    if not (operator in ("Pad", "MaxPool") and dtype == "int8"):  # the functions in the table pad as uint8
        np.testing.assert_array_equal(outputs["y"], numpy_function(np.asarray(quantized(x, "x", dtype))))
    table = str(jquant.onnx.load(proto, qdq="fused"))
    assert "DequantizeLinear" not in table
    assert re.search(r"\bQuantizeLinear +1 ", table)


def test_dequantize_linear_moves_behind_operators():
    """So that a product reads integers, and weights are transposed once."""
    x, (w, w_scale, _, arrays, line) = random_floats((2, 6, 3, 2)), random_weights((5, 6), 0, "int8", True, False)
    arrays |= initializers({"x": "uint8"}) | {"shape": np.array([2, 6, 6])}
    nodes = qdq("x") + line + "m = Reshape(xd, shape)\nt = Transpose <perm = [0, 2, 1]> (m)\n"
    nodes += "v = Transpose(wd)\ny = MatMul(t, v)"
    x_integers, x_scale, x_zero = operand(x, "x", "uint8")
    moved = jnp.swapaxes(x_integers.reshape(2, 6, 6), 1, 2)
    expected = jquant.matmul_integer_to_float(moved, x_scale, x_zero, w.T, w_scale, feature_level=EXTENDED)
    fused = {"MatMul to float": 1, "Reshape": 1, "Transpose": 1}
    check_fused(nodes, {"x": x}, arrays, expected, fused)
    model = jquant.onnx.load(qdq_model(nodes, {"x": x.shape}, arrays, {"y": np.float32}), qdq="fused")
    assert isinstance(model.params["w/transposed"], jquant.PackedMatrix)
    assert "w" not in model.params
