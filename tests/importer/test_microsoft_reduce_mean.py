"""com.microsoft.QLinearReduceMean against the float operators that it replaces: onnxruntime has no kernel for it."""

import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

import jax
from onnx import parser

import jquant.onnx
from jquant.cases import samples

from .quantized_nodes import onnxruntime

FLOAT32 = np.float32
every_type = pytest.mark.parametrize("dtype", [np.uint8, np.int8])


def scalar(x) -> np.ndarray:
    return np.asarray(FLOAT32(x))


def integers(rng: np.random.Generator, dtype, *sizes: int) -> np.ndarray:
    return np.asarray(samples.integers(rng, dtype, *sizes))


class Mean:
    """The operator in jquant and the float operators in onnxruntime, for operands of these shapes.

    Args:
      zero_points: the names of the operands, or empty names to leave them out.
    """

    def __init__(self, dtype, sizes: tuple[int, ...], axes: list[int], keepdims: int, zero_points: tuple[str, str]):
        element_type = np.dtype(dtype).name
        result = np.mean(np.zeros(sizes), tuple(axes) or None, keepdims=bool(keepdims)).shape
        attributes = f"<axes = {axes or [*range(len(sizes))]}, keepdims = {keepdims}>"
        inputs = f"{element_type}{[*sizes]} x, float x_scale, {element_type} x_zero, float y_scale, {element_type} y_zero"
        model = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> mean '
        model += f"({inputs}) => ({element_type}{[*result] if result else ''} y)"
        text = f"""{model} {{
            real = DequantizeLinear (x, x_scale, x_zero)
            average = ReduceMean {attributes} (real)
            y = QuantizeLinear (average, y_scale, y_zero)
        }}"""
        self.session = onnxruntime.InferenceSession(
            parser.parse_model(text).SerializeToString(), providers=["CPUExecutionProvider"]
        )
        operands = f"x, x_scale, {zero_points[0]}, y_scale, {zero_points[1]}"
        attributes = attributes if axes else f"<keepdims = {keepdims}>"
        self.model = jquant.onnx.load(
            parser.parse_model(f"{model} {{ y = com.microsoft.QLinearReduceMean {attributes} ({operands}) }}")
        )
        self.program = jax.jit(self.model)

    def both(self, *operands: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        inputs = dict(zip(("x", "x_scale", "x_zero", "y_scale", "y_zero"), map(np.asarray, operands), strict=True))
        return np.asarray(self.program(self.model.params, inputs)["y"]), self.session.run(None, inputs)[0]


MEANS = [
    ((40, 41), [1], 1),  # a multiple of 41 times the float32 of 1 / 41 is often no integer
    ((3, 7, 9, 5), [-1, 1], 0),
    ((3, 7, 9, 5), [2, 3], 1),
    ((20, 25), [], 0),
]


@every_type
def test_mean(dtype):
    """With scales that are powers of two, sums are exact; with others, only averages next to a tie may differ."""
    rng = np.random.default_rng(5)
    for number, (sizes, axes, keepdims) in enumerate(MEANS[:2] if dtype == np.int8 else MEANS):
        omitted = number % 2 == 1
        mean = Mean(dtype, sizes, axes, keepdims, ('""', '""') if omitted else ("x_zero", "y_zero"))
        for step in range(200):
            zero_points = (dtype(0), dtype(0)) if omitted else (integers(rng, dtype), integers(rng, dtype))
            x_scale = scalar(2.0 ** rng.integers(-6, 2) if step % 2 else 10 ** rng.uniform(-2, 0))
            y_scale = scalar(x_scale * 2.0 ** rng.integers(1, 3) if step % 4 < 2 else 10 ** rng.uniform(-3, 0))
            x = integers(rng, dtype, *sizes)
            ours, theirs = mean.both(x, x_scale, zero_points[0], y_scale, zero_points[1])
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
            real = np.float64(x.astype(np.int32) - zero_points[0].astype(np.int32)) * x_scale
            value = real.mean(tuple(axes) or None, keepdims=bool(keepdims)) / y_scale
            distance = abs(value - np.floor(value) - 0.5)
            is_near_tie = distance <= 2.0**-20 * abs(real).max() / y_scale
            assert not np.any((ours != theirs) & ~(is_near_tie & (step % 2 == 0)))
