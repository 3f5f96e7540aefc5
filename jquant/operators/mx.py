"""The formats of the OCP Microscaling specification"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jquant.arguments.assertions import once_for_each_signature, require, require_named_type
from jquant.arguments.block_scales import positive_block_size, require_scales
from jquant.arguments.operands import any_float_operand, operand
from jquant.arguments.statics import dimension, float_data_type
from jquant.arithmetic import e8m0, exact
from jquant.arithmetic.narrow_floats import FLOATS_OF_6_BITS
from jquant.errors import DescriptorTypeError
from jquant.formulas import blocks, mx
from jquant.lowering.formula import formula
from jquant.modes import data_type, data_type_name
from jquant.placement import explain_array_errors
from jquant.results import MxQuantizeOutput

_INT8 = jnp.dtype(jnp.int8)
_UINT8 = jnp.dtype(jnp.uint8)
_ARRAYS = tuple(map(jnp.dtype, ("float8_e4m3fn", "float8_e5m2", "float4_e2m1fn")))
_AS_CODES = *FLOATS_OF_6_BITS, jnp.dtype("float4_e2m1fn")  # the elements whose codes may be held by uint8
_ELEMENT_NAMES = tuple(map(data_type_name, (*_ARRAYS, *FLOATS_OF_6_BITS, _INT8)))


@formula("mx_quantize", static=("element", "axis", "block_size"))
def _mx_quantize(x: jax.Array, element: np.dtype, axis: int, block_size: int) -> MxQuantizeOutput:
    value = exact.numerator(x)
    largest = blocks.largest_magnitude_bits(value, axis, block_size)
    code = mx.scale_code(largest, element)
    exponents = blocks.repeat(code, axis, block_size, x.shape[axis]).astype(jnp.int32)
    values = mx.elements(value, exponents, element)
    return MxQuantizeOutput(values, e8m0.from_code(code))


@formula("mx_dequantize", static=("element", "axis", "block_size", "output_dtype"))
def _mx_dequantize(
    values: jax.Array, scale: jax.Array, element: np.dtype, axis: int, block_size: int, output_dtype: np.dtype
) -> jax.Array:
    exponents = blocks.repeat(e8m0.code_of(scale), axis, block_size, values.shape[axis])
    return exact.narrow(mx.numbers(values, exponents, element), output_dtype)


@explain_array_errors
def mx_quantize(x: ArrayLike, /, element_type: DTypeLike | str, *, axis: int = -1, block_size: int = 32) -> MxQuantizeOutput:
    """Quantizes to a Microscaling format: elements of 8, 6 or 4 bits, and a power-of-two scale for each block.

    ``scale = 2**clip(floor(log2(max(abs(x)))) - e, -127, 127)``, with the maximum over the block, and `e` the exponent of
    the largest power of two among the elements: 8 for float8_e4m3fn, 15 for float8_e5m2, 2 for float6_e2m3fn, 4 for
    float6_e3m2fn, 2 for float4_e2m1fn, 0 for int8; ``values = saturate(round(x / scale))``

    All of it is integer arithmetic on the bits: the scale comes from the exponent of the largest magnitude, and an element
    is rounded once, to the nearest number, ties to the even code. Subnormal inputs and elements are included. Zeros keep the
    sign of `x`: what rounds to 0 from below is -0, except in int8. What rounds to more than the largest number saturates: in
    float8_e4m3fn, where scaled magnitudes go up to 512, everything from 448 on becomes 448. int8 counts 64ths, from -127 to
    127, and so goes from -(1 + 63/64) to 1 + 63/64: its -2 is not used, as in microxcaling.

    A block of zeros has the smallest scale, 2**-127. A block that contains a NaN or an infinity has the scale NaN, which
    makes all of its elements NaN; the specification leaves infinities to the implementation. The stored elements are NaN,
    too, if their type has it; otherwise they are the largest number, or 0 in int8.

    The last block of a dimension may be partial. Float results have the derivative 0; int8 results have JAX's zero, of type
    float0.

    Args:
      x: float32, float16 or bfloat16, with at least one dimension.
      element_type: float8_e4m3fn, float8_e5m2, float6_e2m3fn, float6_e3m2fn, float4_e2m1fn or int8, or their ONNX
        names.
      axis: the dimension along which blocks lie; a negative one counts from the end.
      block_size: the number of elements in a block, 32 in the specification.

    Returns:
      `MxQuantizeOutput`: `values` has the shape of `x` and, except for float6, `element_type`. JAX has no float6 arrays on a
      CPU, so uint8 holds their codes, in the lower 6 bits. `scale` is float8_e8m0fnu, with
      ``ceil(x.shape[axis] / block_size)`` elements along `axis`. `jax.nn.scaled_matmul` takes both if `axis` is the last.

    Raises:
      DescriptorError: a scalar; an axis that `x` does not have; a `block_size` below 1.
      DescriptorTypeError: a data type other than those above.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> x = jnp.array([0.5, -1.25, 5.0, 7.0, 0.0, 0.25])
      >>> values, scale = jquant.mx_quantize(x, "float4_e2m1fn", block_size=4)
      >>> print(values, scale)
      [0.5 -1 4 6 0 4] [1 0.0625]
      >>> print(jquant.mx_dequantize(values, scale, block_size=4))
      [ 0.5  -1.    4.    6.    0.    0.25]

    References:
      Open Compute Project, Microscaling Formats (MX) Specification 1.0, 5.3 and 6.3.
    """
    x = any_float_operand("mx_quantize", "x", x)
    element = data_type("element_type", element_type)
    require_named_type("mx_quantize", "element_type", element, _ELEMENT_NAMES)
    axis, block_size = dimension("mx_quantize", axis, x.ndim), positive_block_size("mx_quantize", block_size)
    return _mx_quantize(x, element, axis, block_size)


@explain_array_errors
def mx_dequantize(
    values: ArrayLike,
    /,
    scale: ArrayLike,
    *,
    element_type: DTypeLike | str | None = None,
    axis: int = -1,
    block_size: int = 32,
    output_dtype: DTypeLike | str = jnp.float32,
) -> jax.Array:
    """Maps the elements of a Microscaling format back to real numbers: the inverse of `mx_quantize`.

    ``output = values * scale``, where int8 counts 64ths.

    The product with a power of two is exact in float32, subnormal numbers included; a product that is too large becomes
    infinite. A 16-bit output is rounded from there. A scale of NaN makes its whole block NaN.

    The derivative in `values` and in `scale` is 0.

    Args:
      values: float8_e4m3fn, float8_e5m2, float4_e2m1fn or int8; or uint8, the codes of an `element_type` of 6 or 4 bits, of
        which only as many of the lowest bits count.
      scale: float8_e8m0fnu, of the shape of `values` except for ``ceil(values.shape[axis] / block_size)`` along `axis`.
      element_type: float6_e2m3fn, float6_e3m2fn or float4_e2m1fn where `values` is uint8. None: the dtype of `values`.
      axis: the dimension along which blocks lie; a negative one counts from the end.
      block_size: the number of elements in a block; the last block may be partial.
      output_dtype: float32, float16 or bfloat16.

    Returns:
      An array of the shape of `values` and of `output_dtype`.

    Raises:
      DescriptorError: a scalar; an axis that `values` does not have; a `block_size` below 1; a `scale` of another shape.
      DescriptorTypeError: a data type other than those above.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> codes, scale = jquant.mx_quantize(jnp.array([1.0, -0.3, 0.125]), "float6_e2m3fn")
      >>> print(codes, scale)
      [24 42  4] [0.25]
      >>> print(jquant.mx_dequantize(codes, scale, element_type="float6_e2m3fn"))
      [ 1.     -0.3125  0.125 ]

    References:
      Open Compute Project, Microscaling Formats (MX) Specification 1.0, 5.3 and 6.2.
    """
    values, scale = operand("mx_dequantize", "values", values), operand("mx_dequantize", "scale", scale)
    element = values.dtype if element_type is None else data_type("element_type", element_type)
    _require_element(values.dtype, element, element_type is None)
    output_dtype = float_data_type("mx_dequantize", "output_dtype", output_dtype)
    axis, block_size = dimension("mx_dequantize", axis, values.ndim), positive_block_size("mx_dequantize", block_size)
    require_scales("mx_dequantize", scale, e8m0.DTYPE, values, axis, block_size)
    return _mx_dequantize(values, scale, element, axis, block_size, output_dtype)


@once_for_each_signature
def _require_element(stored: np.dtype, element: np.dtype, is_default: bool) -> None:
    """Asserts that the values are elements of a type of the specification; bytes hold those of 6 bits, or of 4."""
    if is_default:
        allowed = *_ARRAYS, _INT8
        wanted = f"it must be one of {', '.join(map(data_type_name, allowed))}, or UINT8 with an element_type of 6 or 4 bits"
        message = f"mx_dequantize: values has data type {data_type_name(stored)}; {wanted}"
        require(stored in allowed, message, DescriptorTypeError)
        return
    require_named_type("mx_dequantize", "element_type", element, _ELEMENT_NAMES)
    held = ([] if element in FLOATS_OF_6_BITS else [element]) + ([_UINT8] if element in _AS_CODES else [])
    subject = f"mx_dequantize: values has data type {data_type_name(stored)}"
    message = f"{subject}; with element_type {data_type_name(element)} it must be {' or '.join(map(data_type_name, held))}"
    require(stored in held, message, DescriptorTypeError)
