"""ONNX models as JAX functions, above all quantized ones.

import jquant

model = jquant.onnx.load("model.onnx")
outputs = jax.jit(model)(model.params, {"input": x})
onnx.save(jquant.onnx.export(quantized_apply, quantized_params, x), "quantized.onnx")
"""

try:
    import onnx as _onnx  # noqa: F401
except ModuleNotFoundError as _error:
    _message = "jquant.onnx needs the package onnx: install the extra `onnx` of jquant-jax"
    raise ModuleNotFoundError(_message, name="onnx") from _error

from jquant.errors import ModelError
from jquant.onnx import compare
from jquant.onnx.exporter import export
from jquant.onnx.loader import load
from jquant.onnx.model import Model

__all__ = ["Model", "ModelError", "compare", "export", "load"]


def __dir__() -> list[str]:
    return sorted(__all__)
