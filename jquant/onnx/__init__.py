"""ONNX models as JAX functions, above all quantized ones.

import jquant

model = jquant.onnx.load("model.onnx")
outputs = jax.jit(model)(model.params, {"input": x})
"""

try:
    import onnx as _onnx  # noqa: F401
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError('jquant.onnx needs the package onnx: pip install "jquant-jax[onnx]"', name="onnx") from _error

from jquant.onnx.errors import ModelError as ModelError
from jquant.onnx.model import Model as Model
from jquant.onnx.model import load as load
