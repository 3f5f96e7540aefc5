"""Functions of JAX as ONNX models, and these as onnxruntime's own tools quantize them."""

import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import onnx
from onnxruntime import quantization

import jquant.onnx

WEIGHTS = {"weight_type": quantization.QuantType.QInt8, "per_channel": True}


class Batches(quantization.CalibrationDataReader):
    """Calibration data, as onnxruntime reads it."""

    def __init__(self, name: str, batches: Sequence[np.ndarray]):
        self._feeds = iter({name: batch} for batch in batches)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


def statically(model: onnx.ModelProto, batches: Sequence[np.ndarray]) -> onnx.ModelProto:
    """The float model in QDQ form, with uint8 activations and int8 weights per channel, which its documentation advises."""
    reader = Batches(model.graph.input[0].name, batches)
    activations = quantization.QuantType.QUInt8

    def quantize(source: str, target: str) -> None:
        quantization.quantize_static(source, target, reader, activation_type=activations, **WEIGHTS)

    return _by_files(model, quantize)


def dynamically(model: onnx.ModelProto) -> onnx.ModelProto:
    """The float model with int8 weights per channel in its products, whose activations get a range in each call."""

    def quantize(source: str, target: str) -> None:
        quantization.quantize_dynamic(source, target, op_types_to_quantize=["MatMul", "Gemm"], **WEIGHTS)

    return _by_files(model, quantize)


def _by_files(model: onnx.ModelProto, quantize: Callable[[str, str], None]) -> onnx.ModelProto:
    with tempfile.TemporaryDirectory() as folder:
        source, target = f"{folder}/float.onnx", f"{folder}/int8.onnx"
        onnx.save(model, source)
        quantize(source, target)
        return onnx.load(target)


def exported(function: Any, params: Any, shape: tuple[int, ...], dtype: Any, form: Any = "exact") -> onnx.ModelProto:
    """A function with an open batch."""
    (batch,) = jax.export.symbolic_shape("batch")
    return jquant.onnx.export(function, params, jax.ShapeDtypeStruct((batch, *shape), dtype), form=form)
