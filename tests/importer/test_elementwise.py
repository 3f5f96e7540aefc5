"""Element-wise operators on integers: all pairs of 8-bit operands, and exact powers."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

import jquant.onnx  # noqa: E402

from .node_models import integers, node_model, run_model  # noqa: E402

pytestmark = pytest.mark.gate  # on the newest JAX alone


@pytest.mark.parametrize("dtype", [np.int8, np.uint8], ids=str)
def test_all_pairs_of_8_bit_operands(dtype):
    limits = np.iinfo(dtype)
    every = np.arange(limits.min, limits.max + 1).astype(dtype)
    a, b = np.repeat(every, 256), np.tile(every, 256)
    defined = (b != 0) & ~((b == -1) & (a == limits.min))  # where the quotient is defined
    divisor = np.where(defined, b, dtype(1))
    quotient = np.trunc(a / divisor.astype(np.float64)).astype(dtype)
    shift, bits = b.astype(np.int64), a.astype(np.int64)
    right = bits >> np.where((b < 0) | (shift > 7), 8, shift)
    left = np.where((b < 0) | (shift > 7), 0, bits << np.clip(shift, 0, 8))
    cases = [
        ("Div", (a, divisor), {}, quotient),
        ("Mod", (a, divisor), {}, np.mod(a, divisor)),
        ("Mod", (a, divisor), {"fmod": 1}, np.fmod(a, divisor)),
        ("BitShift", (a, b), {"direction": "LEFT"}, left.astype(dtype)),
        ("BitShift", (a, b), {"direction": "RIGHT"}, right.astype(dtype)),
    ]
    for operator, operands, attributes, expected in cases:
        proto, inputs = node_model(operator, 28, operands, **attributes)
        np.testing.assert_array_equal(run_model(proto, inputs)["y0"], expected, f"{operator} {attributes}")
        folded = np.asarray(jquant.onnx.load(proto, constants=inputs)({}, {})["y0"])
        np.testing.assert_array_equal(folded, expected, f"{operator} {attributes}, static")


def test_powers_of_integers_are_exact():
    base, exponent = integers(-6, 7, 500, dtype=np.int32), integers(0, 11, 500, dtype=np.int32)
    expected = base.astype(np.int64) ** exponent
    for dtype in (np.int32, np.float32):
        proto, inputs = node_model("Pow", 15, [base, exponent.astype(dtype)])
        np.testing.assert_array_equal(run_model(proto, inputs)["y0"], expected)
    proto, inputs = node_model("Pow", 15, [np.array([1, -1, -1, 2, 0], np.int32), np.array([-3, -3, -2, -1, 2], np.int32)])
    np.testing.assert_array_equal(run_model(proto, inputs)["y0"], [1, -1, 1, 0, 0])
