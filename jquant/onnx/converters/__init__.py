"""What each operator computes, a family to a module. Importing them fills the table of `jquant.onnx.registry`."""

from jquant.onnx.converters import activations as activations
from jquant.onnx.converters import attention as attention
from jquant.onnx.converters import casts as casts
from jquant.onnx.converters import comparison as comparison
from jquant.onnx.converters import convolutions as convolutions
from jquant.onnx.converters import creation as creation
from jquant.onnx.converters import elementwise as elementwise
from jquant.onnx.converters import fused as fused
from jquant.onnx.converters import indexing as indexing
from jquant.onnx.converters import joining as joining
from jquant.onnx.converters import linear_algebra as linear_algebra
from jquant.onnx.converters import microsoft as microsoft
from jquant.onnx.converters import microsoft_attention as microsoft_attention
from jquant.onnx.converters import microsoft_blocks as microsoft_blocks
from jquant.onnx.converters import microsoft_pooling as microsoft_pooling
from jquant.onnx.converters import microsoft_products as microsoft_products
from jquant.onnx.converters import microsoft_quantized as microsoft_quantized
from jquant.onnx.converters import normalization as normalization
from jquant.onnx.converters import pooling as pooling
from jquant.onnx.converters import quantized as quantized
from jquant.onnx.converters import reductions as reductions
from jquant.onnx.converters import resize as resize
from jquant.onnx.converters import sampling as sampling
from jquant.onnx.converters import sequences as sequences
from jquant.onnx.converters import shapes as shapes
from jquant.onnx.converters import sorting as sorting
