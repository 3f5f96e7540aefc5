"""The primitives of JAX as nodes, one module for each family."""

from jquant.onnx.writing.primitives import bit_counts as bit_counts
from jquant.onnx.writing.primitives import control as control
from jquant.onnx.writing.primitives import convolutions as convolutions
from jquant.onnx.writing.primitives import cumulative as cumulative
from jquant.onnx.writing.primitives import dynamic_slices as dynamic_slices
from jquant.onnx.writing.primitives import elementwise as elementwise
from jquant.onnx.writing.primitives import formulas as formulas
from jquant.onnx.writing.primitives import gather as gather
from jquant.onnx.writing.primitives import integers as integers
from jquant.onnx.writing.primitives import jquant_kernels as jquant_kernels
from jquant.onnx.writing.primitives import products as products
from jquant.onnx.writing.primitives import reductions as reductions
from jquant.onnx.writing.primitives import scatter as scatter
from jquant.onnx.writing.primitives import shapes as shapes
from jquant.onnx.writing.primitives import sorting as sorting
from jquant.onnx.writing.primitives import windows as windows
