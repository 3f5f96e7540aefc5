"""A functional set of quantized operators for JAX, exact under compilation."""

from importlib import import_module as _import_module
from types import ModuleType as _ModuleType

from jquant import calibration as calibration
from jquant import exact as exact
from jquant import transform as transform
from jquant.errors import DescriptorError as DescriptorError
from jquant.errors import DescriptorTypeError as DescriptorTypeError
from jquant.modes import FeatureLevel as FeatureLevel
from jquant.modes import Implementation as Implementation
from jquant.modes import QuantizeMode as QuantizeMode
from jquant.modes import RoundMode as RoundMode
from jquant.modes import ScaleGranularity as ScaleGranularity
from jquant.modes import feature_level as feature_level
from jquant.operators.block_scaled_matmul import block_scaled_matmul as block_scaled_matmul
from jquant.operators.clip import clip as clip
from jquant.operators.clip1 import clip1 as clip1
from jquant.operators.clip_gradient import clip_gradient as clip_gradient
from jquant.operators.clip_gradient1 import clip_gradient1 as clip_gradient1
from jquant.operators.convolution_integer import convolution_integer as convolution_integer
from jquant.operators.convolution_integer_to_float import convolution_integer_to_float as convolution_integer_to_float
from jquant.operators.dequantize import dequantize as dequantize
from jquant.operators.dequantize_linear import dequantize_linear as dequantize_linear
from jquant.operators.dot_general import dot_general as dot_general
from jquant.operators.dynamic_quantize_linear import dynamic_quantize_linear as dynamic_quantize_linear
from jquant.operators.fake_quantize import fake_quantize as fake_quantize
from jquant.operators.matmul_integer import matmul_integer as matmul_integer
from jquant.operators.matmul_integer_to_float import matmul_integer_to_float as matmul_integer_to_float
from jquant.operators.mx_quantize import mx_dequantize as mx_dequantize
from jquant.operators.mx_quantize import mx_quantize as mx_quantize
from jquant.operators.nvfp4_quantize import nvfp4_dequantize as nvfp4_dequantize
from jquant.operators.nvfp4_quantize import nvfp4_quantize as nvfp4_quantize
from jquant.operators.pack_integers import pack_integers as pack_integers
from jquant.operators.pack_integers import unpack_integers as unpack_integers
from jquant.operators.pack_matrix import pack_matrix as pack_matrix
from jquant.operators.quantize import quantize as quantize
from jquant.operators.quantize_and_dequantize import quantize_and_dequantize as quantize_and_dequantize
from jquant.operators.quantize_down_and_shrink_range import quantize_down_and_shrink_range as quantize_down_and_shrink_range
from jquant.operators.quantize_linear import quantize_linear as quantize_linear
from jquant.operators.quantized_gemm import quantized_gemm as quantized_gemm
from jquant.operators.quantized_linear_add import quantized_linear_add as quantized_linear_add
from jquant.operators.quantized_linear_average_pool import quantized_linear_average_pool as quantized_linear_average_pool
from jquant.operators.quantized_linear_concat import quantized_linear_concat as quantized_linear_concat
from jquant.operators.quantized_linear_convolution import quantized_linear_convolution as quantized_linear_convolution
from jquant.operators.quantized_linear_global_average_pool import (
    quantized_linear_global_average_pool as quantized_linear_global_average_pool,
)
from jquant.operators.quantized_linear_leaky_relu import quantized_linear_leaky_relu as quantized_linear_leaky_relu
from jquant.operators.quantized_linear_matmul import quantized_linear_matmul as quantized_linear_matmul
from jquant.operators.quantized_linear_multiply import quantized_linear_multiply as quantized_linear_multiply
from jquant.operators.quantized_linear_sigmoid import quantized_linear_sigmoid as quantized_linear_sigmoid
from jquant.operators.quantized_linear_softmax import quantized_linear_softmax as quantized_linear_softmax
from jquant.operators.requantization_range import requantization_range as requantization_range
from jquant.operators.requantization_range_per_channel import (
    requantization_range_per_channel as requantization_range_per_channel,
)
from jquant.operators.requantize import requantize as requantize
from jquant.operators.requantize_per_channel import requantize_per_channel as requantize_per_channel
from jquant.operators.scale_and_zero_point import scale_and_zero_point as scale_and_zero_point
from jquant.packed_block_matrix import PackedBlockMatrix as PackedBlockMatrix
from jquant.packed_matrix import PackedMatrix as PackedMatrix
from jquant.pytrees import DynamicQuantizeOutput as DynamicQuantizeOutput
from jquant.pytrees import MxQuantizeOutput as MxQuantizeOutput
from jquant.pytrees import Nvfp4QuantizeOutput as Nvfp4QuantizeOutput
from jquant.pytrees import QuantizeOutput as QuantizeOutput
from jquant.pytrees import RangeOutput as RangeOutput
from jquant.pytrees import ScaleBias as ScaleBias
from jquant.pytrees import ScaleZeroPoint as ScaleZeroPoint


def __getattr__(name: str) -> _ModuleType:
    """`jquant.onnx`, which needs the package onnx, and `jquant.checkpoints`: imported where they are asked for."""
    if name in ("onnx", "checkpoints"):
        return _import_module(f"jquant.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
