"""The specifications' formulas in NumPy, step by step, which the operators must equal bit for bit.

They share no code with the operators, and are as plain as the specifications. NumPy rounds every float32 operation once.
The tests and ``python -m jquant`` compare with them.
"""

from jquant.reference.blocks import block_scaled_matmul as block_scaled_matmul
from jquant.reference.clipping import clip as clip
from jquant.reference.clipping import clip1 as clip1
from jquant.reference.clipping import clip_gradient as clip_gradient
from jquant.reference.clipping import clip_gradient1 as clip_gradient1
from jquant.reference.convolutions import convolution_integer as convolution_integer
from jquant.reference.convolutions import convolution_integer_to_float as convolution_integer_to_float
from jquant.reference.convolutions import quantized_linear_convolution as quantized_linear_convolution
from jquant.reference.elementwise import quantized_linear_add as quantized_linear_add
from jquant.reference.elementwise import quantized_linear_concat as quantized_linear_concat
from jquant.reference.elementwise import quantized_linear_leaky_relu as quantized_linear_leaky_relu
from jquant.reference.elementwise import quantized_linear_multiply as quantized_linear_multiply
from jquant.reference.linear import dequantize_linear as dequantize_linear
from jquant.reference.linear import dynamic_quantize_linear as dynamic_quantize_linear
from jquant.reference.linear import quantize_linear as quantize_linear
from jquant.reference.linear import scale_and_zero_point as scale_and_zero_point
from jquant.reference.microscaling import mx_dequantize as mx_dequantize
from jquant.reference.microscaling import mx_quantize as mx_quantize
from jquant.reference.microscaling import nvfp4_dequantize as nvfp4_dequantize
from jquant.reference.microscaling import nvfp4_quantize as nvfp4_quantize
from jquant.reference.nonlinear import quantized_linear_average_pool as quantized_linear_average_pool
from jquant.reference.nonlinear import quantized_linear_global_average_pool as quantized_linear_global_average_pool
from jquant.reference.nonlinear import quantized_linear_sigmoid as quantized_linear_sigmoid
from jquant.reference.nonlinear import quantized_linear_softmax as quantized_linear_softmax
from jquant.reference.nonlinear import window_sums as window_sums
from jquant.reference.packing import pack_integers as pack_integers
from jquant.reference.packing import unpack_integers as unpack_integers
from jquant.reference.products import dot_general as dot_general
from jquant.reference.products import matmul_integer as matmul_integer
from jquant.reference.products import matmul_integer_to_float as matmul_integer_to_float
from jquant.reference.products import quantized_gemm as quantized_gemm
from jquant.reference.products import quantized_linear_matmul as quantized_linear_matmul
from jquant.reference.products import requantize_product as requantize_product
from jquant.reference.requantization import dequantize as dequantize
from jquant.reference.requantization import quantize_down_and_shrink_range as quantize_down_and_shrink_range
from jquant.reference.requantization import requantization_range as requantization_range
from jquant.reference.requantization import requantization_range_per_channel as requantization_range_per_channel
from jquant.reference.requantization import requantize as requantize
from jquant.reference.requantization import requantize_per_channel as requantize_per_channel
from jquant.reference.rotations import hadamard_transform as hadamard_transform
from jquant.reference.rounding import away as away
from jquant.reference.rounding import saturate as saturate
from jquant.reference.tensorflow import fake_quantize as fake_quantize
from jquant.reference.tensorflow import quantize as quantize
from jquant.reference.tensorflow import quantize_and_dequantize as quantize_and_dequantize
from jquant.reference.weight_only import block_weights as block_weights
from jquant.reference.weight_only import gather_block_quantized as gather_block_quantized
from jquant.reference.weight_only import matmul_with_weights as matmul_with_weights
from jquant.reference.weight_only import unpack_bytes as unpack_bytes
