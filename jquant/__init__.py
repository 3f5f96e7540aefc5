"""A functional set of quantized operators for JAX, exact under compilation."""

from jquant.errors import DescriptorError as DescriptorError
from jquant.errors import DescriptorTypeError as DescriptorTypeError
from jquant.kernels.packed import PackedMatrix as PackedMatrix
from jquant.modes import FeatureLevel as FeatureLevel
from jquant.modes import Implementation as Implementation
from jquant.modes import QuantizeMode as QuantizeMode
from jquant.modes import RoundMode as RoundMode
from jquant.operators.clip import ScaleBias as ScaleBias
from jquant.operators.clip import clip as clip
from jquant.operators.convolution_integer import convolution_integer as convolution_integer
from jquant.operators.dequantize_linear import dequantize_linear as dequantize_linear
from jquant.operators.fake_quantize import fake_quantize as fake_quantize
from jquant.operators.matmul_integer import matmul_integer as matmul_integer
from jquant.operators.matmul_integer_to_float import matmul_integer_to_float as matmul_integer_to_float
from jquant.operators.pack_matrix import pack_matrix as pack_matrix
from jquant.operators.quantize import QuantizeOutput as QuantizeOutput
from jquant.operators.quantize import quantize as quantize
from jquant.operators.quantize_and_dequantize import quantize_and_dequantize as quantize_and_dequantize
from jquant.operators.quantize_linear import quantize_linear as quantize_linear
from jquant.operators.quantized_linear_add import quantized_linear_add as quantized_linear_add
from jquant.operators.quantized_linear_convolution import quantized_linear_convolution as quantized_linear_convolution
from jquant.operators.quantized_linear_matmul import quantized_linear_matmul as quantized_linear_matmul
