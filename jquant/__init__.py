"""A functional set of quantized operators for JAX, exact under compilation."""

from importlib import import_module as _import_module
from importlib.util import find_spec as _find_spec
from types import ModuleType as _ModuleType

from jquant import calibration, exact, kv_cache, transform
from jquant.errors import DescriptorError, DescriptorTypeError, Error
from jquant.formulas.clip import ScaleBias
from jquant.modes import FeatureLevel, Implementation, QuantizeMode, RoundMode, ScaleGranularity, feature_level
from jquant.operators.block_scaled_matmul import block_scaled_matmul
from jquant.operators.clip import clip
from jquant.operators.clip1 import clip1
from jquant.operators.clip_gradient import clip_gradient
from jquant.operators.clip_gradient1 import clip_gradient1
from jquant.operators.convolution_integer import convolution_integer
from jquant.operators.convolution_integer_to_float import convolution_integer_to_float
from jquant.operators.dequantize import dequantize
from jquant.operators.dequantize_linear import dequantize_linear
from jquant.operators.dot_general import dot_general
from jquant.operators.dynamic_quantize_linear import dynamic_quantize_linear
from jquant.operators.fake_quantize import fake_quantize
from jquant.operators.gather_block_quantized import gather_block_quantized
from jquant.operators.hadamard_transform import hadamard_transform
from jquant.operators.matmul_integer import matmul_integer
from jquant.operators.matmul_integer_to_float import matmul_integer_to_float
from jquant.operators.matmul_n_bits import matmul_n_bits
from jquant.operators.mx import mx_dequantize, mx_quantize
from jquant.operators.nvfp4 import nvfp4_dequantize, nvfp4_quantize
from jquant.operators.pack_integers import pack_integers, unpack_integers
from jquant.operators.pack_matrix import pack_matrix
from jquant.operators.quantize import quantize
from jquant.operators.quantize_and_dequantize import quantize_and_dequantize
from jquant.operators.quantize_down_and_shrink_range import quantize_down_and_shrink_range
from jquant.operators.quantize_linear import quantize_linear
from jquant.operators.quantized_gemm import quantized_gemm
from jquant.operators.quantized_linear_add import quantized_linear_add
from jquant.operators.quantized_linear_average_pool import quantized_linear_average_pool
from jquant.operators.quantized_linear_concat import quantized_linear_concat
from jquant.operators.quantized_linear_convolution import quantized_linear_convolution
from jquant.operators.quantized_linear_global_average_pool import quantized_linear_global_average_pool
from jquant.operators.quantized_linear_leaky_relu import quantized_linear_leaky_relu
from jquant.operators.quantized_linear_matmul import quantized_linear_matmul
from jquant.operators.quantized_linear_multiply import quantized_linear_multiply
from jquant.operators.quantized_linear_sigmoid import quantized_linear_sigmoid
from jquant.operators.quantized_linear_softmax import quantized_linear_softmax
from jquant.operators.requantization_range import requantization_range
from jquant.operators.requantization_range_per_channel import requantization_range_per_channel
from jquant.operators.requantize import requantize
from jquant.operators.requantize_per_channel import requantize_per_channel
from jquant.operators.scale_and_zero_point import scale_and_zero_point
from jquant.packed.block_matrix import PackedBlockMatrix
from jquant.packed.matrix import PackedMatrix
from jquant.quantized_tensor import ScaleZeroPoint
from jquant.results import DynamicQuantizeOutput, MxQuantizeOutput, Nvfp4QuantizeOutput, QuantizeOutput, RangeOutput

__all__ = [
    "DescriptorError",
    "DescriptorTypeError",
    "DynamicQuantizeOutput",
    "Error",
    "FeatureLevel",
    "Implementation",
    "MxQuantizeOutput",
    "Nvfp4QuantizeOutput",
    "PackedBlockMatrix",
    "PackedMatrix",
    "QuantizeMode",
    "QuantizeOutput",
    "RangeOutput",
    "RoundMode",
    "ScaleBias",
    "ScaleGranularity",
    "ScaleZeroPoint",
    "block_scaled_matmul",
    "calibration",
    "clip",
    "clip1",
    "clip_gradient",
    "clip_gradient1",
    "convolution_integer",
    "convolution_integer_to_float",
    "dequantize",
    "dequantize_linear",
    "dot_general",
    "dynamic_quantize_linear",
    "exact",
    "fake_quantize",
    "feature_level",
    "gather_block_quantized",
    "hadamard_transform",
    "kv_cache",
    "matmul_integer",
    "matmul_integer_to_float",
    "matmul_n_bits",
    "mx_dequantize",
    "mx_quantize",
    "nvfp4_dequantize",
    "nvfp4_quantize",
    "pack_integers",
    "pack_matrix",
    "quantize",
    "quantize_and_dequantize",
    "quantize_down_and_shrink_range",
    "quantize_linear",
    "quantized_gemm",
    "quantized_linear_add",
    "quantized_linear_average_pool",
    "quantized_linear_concat",
    "quantized_linear_convolution",
    "quantized_linear_global_average_pool",
    "quantized_linear_leaky_relu",
    "quantized_linear_matmul",
    "quantized_linear_multiply",
    "quantized_linear_sigmoid",
    "quantized_linear_softmax",
    "requantization_range",
    "requantization_range_per_channel",
    "requantize",
    "requantize_per_channel",
    "scale_and_zero_point",
    "transform",
    "unpack_integers",
]

__version__ = "0.1.0"  # single source; pyproject.toml reads it


def __getattr__(name: str) -> _ModuleType:
    """Imports `jquant.onnx`, which needs the package onnx, `jquant.checkpoints` and `jquant.host` on first use."""
    if name in ("onnx", "checkpoints", "host"):
        return _import_module(f"jquant.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names. Without the package onnx, `jquant.onnx` is not among them: `help` reads every one of them."""
    return sorted([*__all__, "__version__", "checkpoints", "host", *(["onnx"] if _find_spec("onnx") else [])])
