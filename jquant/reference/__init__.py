"""The formulas of the documents in NumPy, step by step: what the operators must equal, bit for bit.

Independent of the operators, and as plain as the formulas. NumPy rounds every float32 operation once. The tests and
``python -m jquant`` compare with it.
"""

from jquant.reference.convolutions import convolution_integer as convolution_integer
from jquant.reference.convolutions import quantized_linear_convolution as quantized_linear_convolution
from jquant.reference.linear import clip as clip
from jquant.reference.linear import dequantize_linear as dequantize_linear
from jquant.reference.linear import matmul_integer as matmul_integer
from jquant.reference.linear import matmul_integer_to_float as matmul_integer_to_float
from jquant.reference.linear import quantize_linear as quantize_linear
from jquant.reference.linear import quantized_linear_add as quantized_linear_add
from jquant.reference.linear import quantized_linear_matmul as quantized_linear_matmul
from jquant.reference.rounding import away as away
from jquant.reference.rounding import saturate as saturate
from jquant.reference.tensorflow import fake_quantize as fake_quantize
from jquant.reference.tensorflow import quantize as quantize
from jquant.reference.tensorflow import quantize_and_dequantize as quantize_and_dequantize
