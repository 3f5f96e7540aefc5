"""Published models, read from the wheels that contain them, and some of them quantized by onnxruntime's tools."""

import functools
import os
import pathlib
import tempfile
import zipfile
from typing import NamedTuple

import numpy as np
import pytest

from benchmarks.models.packages import PACKAGED

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")
quantization = pytest.importorskip("onnxruntime.quantization", reason="onnxruntime's tools are not installed")

RAPIDOCR, PIPECAT, TITLES = "rapidocr-3.10.0", "pipecat_ai-1.14.0", "traceforge_title_model-0.2.0"
FILES = {
    "detection": (RAPIDOCR, "rapidocr/models/PP-OCRv6_det_small.onnx"),
    "recognition": (RAPIDOCR, "rapidocr/models/PP-OCRv6_rec_small.onnx"),
    "classification": (RAPIDOCR, "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx"),
    "smart-turn": (PIPECAT, "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx"),
    "silero_vad": (PIPECAT, "pipecat/audio/vad/data/silero_vad.onnx"),
    "title encoder": (TITLES, "traceforge_title_model/data/span/encoder.onnx"),
    "title decoder": (TITLES, "traceforge_title_model/data/span/decoder.onnx"),
}
MORE = {name: model for name, model in PACKAGED.items() if (model.wheel, model.path) not in FILES.values()}
FILES |= {name: (model.wheel, model.path) for name, model in MORE.items()}
IMAGES = {"detection": (1, 3, 64, 96), "recognition": (1, 3, 48, 96), "classification": (1, 3, 48, 192)}
SPEECH = {"sr": np.int64(16000)}  # the sampling rate, which decides the branch that silero_vad takes


class Variant(NamedTuple):
    """The options of `quantize_static`."""

    form: str
    activations: str
    weights: str
    per_channel: bool = False
    version: int = 17  # of the operator set; 16 bits need 21


VARIANTS = {
    "QOperator uint8": Variant("QOperator", "QUInt8", "QUInt8"),
    "QOperator int8": Variant("QOperator", "QInt8", "QInt8"),
    "QOperator per channel": Variant("QOperator", "QUInt8", "QInt8", per_channel=True),
    "QDQ uint8": Variant("QDQ", "QUInt8", "QUInt8"),
    "QDQ int8": Variant("QDQ", "QInt8", "QInt8"),
    "QDQ per channel": Variant("QDQ", "QUInt8", "QInt8", per_channel=True),
    "QDQ uint16": Variant("QDQ", "QUInt16", "QUInt8", version=21),
    "QDQ int16 per channel": Variant("QDQ", "QInt16", "QInt8", per_channel=True, version=21),
}


@functools.cache
def read(name: str):
    """A model, from its wheel in the folder that the variable JQUANT_WHEELS names; skips the test without it."""
    folder = os.environ.get("JQUANT_WHEELS")
    if folder is None:
        pytest.skip("the models are read from wheels in the folder JQUANT_WHEELS, which the gate downloads")
    wheel, path = FILES[name]
    with zipfile.ZipFile(pathlib.Path(folder) / f"{wheel}-py3-none-any.whl") as archive:
        return onnx.load_from_string(archive.read(path))


@functools.cache
def quantized(name: str, variant: str):
    """A model of images, quantized after calibration with two images."""
    options = VARIANTS[variant]
    converted = onnx.version_converter.convert_version(read(name), options.version)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "quantized.onnx"
        quantization.quantize_static(
            converted,
            path,
            _Images(name),
            quant_format=quantization.QuantFormat[options.form],
            activation_type=quantization.QuantType[options.activations],
            weight_type=quantization.QuantType[options.weights],
            per_channel=options.per_channel,
        )
        return onnx.load(path)


class _Images(quantization.CalibrationDataReader):
    def __init__(self, name: str):
        self._images = iter([image(name, seed) for seed in (1, 2)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._images, None)


def image(name: str, seed: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).uniform(-1, 1, IMAGES[name]).astype(np.float32)}


def inputs(name: str) -> dict[str, np.ndarray]:
    """Random inputs with the shapes and types of images, sound or text."""
    rng = np.random.default_rng(0)
    if name in MORE:
        return MORE[name].inputs(rng)
    if name in IMAGES:
        return image(name, 0)
    if name == "smart-turn":
        return {"input_features": rng.standard_normal((1, 80, 800), np.float32)}
    if name == "silero_vad":
        return {"input": rng.uniform(-1, 1, (1, 576)).astype(np.float32), "state": np.zeros((2, 1, 128), np.float32)}
    tokens, mask = rng.integers(2, 30_000, (2, 9)), np.ones((2, 9), np.int64)
    if name == "title encoder":
        return {"input_ids": tokens, "attention_mask": mask}
    hidden = rng.standard_normal((2, 9, 512), np.float32)
    return {"input_ids": tokens[:, :5], "encoder_hidden_states": hidden, "encoder_attention_mask": mask}
