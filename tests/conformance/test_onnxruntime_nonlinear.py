"""Quantized sigmoid, softmax and pooling compared with onnxruntime's kernels.

Where the kernels deviate from the formulas in their documentation, the differences are bounded.
"""

import functools

import jax
import numpy as np
import pytest

import jquant
from jquant.cases import samples
from jquant.reference import linear as linear_reference
from jquant.reference import nonlinear as nonlinear_reference

from .graph import Graph

FLOAT32 = np.float32
every_type = pytest.mark.parametrize("dtype", [np.int8, np.uint8])


class Kernel:
    """A node of com.microsoft, whose operands must always have the same shapes."""

    def __init__(self, operator: str, **attributes):
        self.graph, self.operator, self.attributes = None, operator, attributes | {"domain": "com.microsoft"}

    def __call__(self, *operands: np.ndarray) -> np.ndarray:
        inputs = {f"input{i}": np.asarray(x) for i, x in enumerate(operands)}
        self.graph = self.graph or Graph((self.operator, list(inputs), ["output"], self.attributes), **inputs)
        return self.graph(**inputs)


def draw_operands(rng, x):
    """`x`, and random scales and zero points of it and of the output, whose scale may be 1/256."""
    y_scale = FLOAT32([10 ** rng.uniform(-4, -1), 1 / 256])[rng.integers(0, 2)]
    x_scale = np.minimum(samples.scales(rng, 1)[0], FLOAT32(1))
    return x, x_scale, samples.integers(rng, x.dtype), y_scale, samples.integers(rng, x.dtype)


def draw_pooling_operands(rng, dtype, sizes):
    """Operands; for a third, the ratio of the scales of input and output results in ties."""
    x, x_scale, x_zero_point, _, y_zero_point = draw_operands(rng, samples.integers(rng, dtype, *sizes))
    ratio = FLOAT32([rng.uniform(0.2, 2), rng.uniform(0.2, 2), 0.5])[rng.integers(0, 3)]
    return x, x_scale, x_zero_point, x_scale * ratio, y_zero_point


def differences(ours, theirs) -> np.ndarray:
    assert ours.dtype == theirs.dtype
    return np.asarray(ours).astype(int) - theirs.astype(int)


@every_type
def test_quantized_linear_sigmoid(dtype):
    """All values with 1,000 sets of parameters. onnxruntime's float32 sigmoid is off by ulps, which changes near ties."""
    rng, errors, distances = np.random.default_rng(0), [], []
    ours, theirs = jax.jit(jquant.quantized_linear_sigmoid), Kernel("QLinearSigmoid")
    for _ in range(1000):
        operands = x, x_scale, x_zero_point, y_scale, _ = draw_operands(rng, np.arange(256, dtype=np.uint8).view(dtype))
        errors.append(differences(ours(*operands), theirs(*operands)))
        value = 1 / (1 + np.exp(-linear_reference.dequantize_linear(x, x_scale, x_zero_point).astype(np.float64))) / y_scale
        distances.append(abs(value - np.floor(value) - 0.5) / value)
    errors, distances = np.concatenate(errors), np.concatenate(distances)
    assert distances[errors != 0].max(initial=0) < 2.0**-21
    assert np.mean(errors != 0) < 1e-4  # 1 of 256,000


@every_type
def test_quantized_linear_softmax(dtype):
    """onnxruntime sums a table of exponentials truncated to integers, and divides integers, rounding half away from zero.

    Its results are rarely less than jquant's, and by at most 1.
    """
    rng = np.random.default_rng(1)
    softmax, errors = jax.jit(functools.partial(jquant.quantized_linear_softmax, axis=1)), []
    for _ in range(100):
        theirs = Kernel("QLinearSoftmax", axis=1, opset=13)
        operands = draw_operands(rng, samples.integers(rng, dtype, 50, 64))
        errors.append(differences(softmax(*operands), theirs(*operands)))
    assert set(np.unique(errors)) == {0, 1}
    assert np.mean(errors) < 0.003  # 560 of 320,000


POOLINGS = [
    ((3, 4, 9, 10), {"kernel_shape": (3, 2), "strides": (2, 1), "pads": (1, 0, 1, 1)}),
    ((3, 4, 9, 10), {"kernel_shape": (3, 2), "strides": (2, 1), "pads": (1, 0, 1, 1), "count_include_pad": 1}),
    ((2, 3, 5, 6, 7), {"kernel_shape": (2, 3, 3), "pads": (1, 1, 1, 0, 1, 1)}),
]


@every_type
def test_quantized_linear_average_pool(dtype):
    """onnxruntime sums dequantized float32 numbers, whose rounding errors change only ties."""
    rng, errors, distances = np.random.default_rng(2), [], []
    for sizes, attributes in POOLINGS:
        rank = len(sizes) - 2
        before, after = attributes["pads"][:rank], attributes["pads"][rank:]
        windows = {
            "window_sizes": attributes["kernel_shape"],
            "strides": attributes.get("strides", (1,) * rank),
            "dilations": (1,) * rank,
            "padding": tuple(zip(before, after, strict=True)),
            "include_padding": bool(attributes.get("count_include_pad", 0)),
        }
        ours = jax.jit(functools.partial(jquant.quantized_linear_average_pool, **windows))
        theirs = Kernel("QLinearAveragePool", **attributes)
        for _ in range(100):
            operands = x, x_scale, x_zero_point, y_scale, _ = draw_pooling_operands(rng, dtype, sizes)
            errors.append(differences(ours(*operands), theirs(*operands)).ravel())
            total, count = nonlinear_reference.window_sums(x, x_zero_point, **windows)
            value = total * np.float64(x_scale) / count / y_scale
            distances.append(abs(value - np.floor(value) - 0.5).ravel())
    errors, distances = np.concatenate(errors), np.concatenate(distances)
    assert np.all(distances[errors != 0] == 0)
    assert set(np.unique(errors)) == {-1, 0, 1}
    assert np.mean(errors != 0) < 0.01  # 1,746 of 246,000


@every_type
def test_quantized_linear_global_average_pool(dtype):
    rng = np.random.default_rng(3)
    ours, theirs = jax.jit(jquant.quantized_linear_global_average_pool), Kernel("QLinearGlobalAveragePool")
    for _ in range(300):
        operands = draw_pooling_operands(rng, dtype, (8, 30, 3, 4))
        np.testing.assert_array_equal(ours(*operands), theirs(*operands))
