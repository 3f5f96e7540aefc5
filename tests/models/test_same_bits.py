"""The example that runs one int8 model in every way that a machine has."""

import subprocess
import sys

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: models)")

from support.example_programs import EXAMPLES, load_example  # noqa: E402

same_bits = load_example("same_bits")
FEW = 4  # images


def quantized(x, zero_point):
    return (np.clip(np.rint(x) + zero_point, 0, 255) - zero_point).astype(np.int64)


def expected():
    """The integers of some images by NumPy. Sums are exact in float64; all else is rounded to float32, step by step."""
    tensors = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in same_bits.model().graph.initializer}

    def layer(name, windows, zero_point):
        scales = tensors[f"{name}_bias_scale"] / tensors[f"{name}_scale"]
        weights = tensors[f"{name}_weight"].reshape(len(scales), -1).astype(np.float64)
        sums = windows.reshape(*windows.shape[:-1], -1).astype(np.float64) @ weights.T + tensors[f"{name}_integers"]
        return quantized(sums.astype(np.float32) * scales, zero_point)

    def windows(x, stride):  # of 3 x 3 pixels, as rows of channels, rows and columns; with the channels of x last
        padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        taken = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))[:, ::stride, ::stride]
        return taken.reshape(*taken.shape[:3], -1)

    images = same_bits.images()[:FEW].transpose(0, 2, 3, 1).astype(np.int64) - 128
    stem = layer("stem", windows(images, 1), 0)
    branch = layer("branch", windows(stem, 1), 128)
    total = np.float32(stem) * tensors["stem_scale"] + np.float32(branch) * tensors["branch_scale"]
    features = layer("last", windows(quantized(total / tensors["residual_scale"], 128), 2), 0).transpose(0, 3, 1, 2)
    return features, layer("head", features.reshape(FEW, -1), 128) + 128


@pytest.mark.gate
def test_one_device_and_eight():
    alone, shared = same_bits.by_jquant("compiled"), same_bits.by_jquant("eight devices")
    for output, other, numbers in zip(alone, shared, expected(), strict=True):
        np.testing.assert_array_equal(output, other)
        np.testing.assert_array_equal(output[:FEW], numbers)
        assert len(np.unique(numbers)) > 20  # neither layer is saturated


@pytest.mark.full
def test_every_way():
    """One digest in all lines of jquant, of which there are four at least: three of XLA, and one of jquant-native."""
    command = [sys.executable, EXAMPLES / "same_bits.py"]
    printed = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
    digests = [line.split()[-5] for line in printed.splitlines() if line.startswith("jquant")]
    assert len(digests) >= 4
    assert len({*digests}) == 1
