"""NVFP4"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from jquant.arguments.assertions import require_data_type
from jquant.arguments.block_scales import require_scales
from jquant.arguments.operands import any_float_operand, float_scalar, operand
from jquant.arguments.statics import dimension, float_data_type
from jquant.arithmetic import exact
from jquant.formulas import blocks, nvfp4
from jquant.lowering.formula import formula
from jquant.modes import data_type_name
from jquant.placement import explain_array_errors
from jquant.results import Nvfp4QuantizeOutput

_ELEMENT = jnp.dtype("float4_e2m1fn")
_SCALE = jnp.dtype("float8_e4m3fn")


@formula("nvfp4_quantize", static=("axis",))
def _nvfp4_quantize(x: jax.Array, tensor_scale: jax.Array | None, axis: int) -> Nvfp4QuantizeOutput:
    value = lax.stop_gradient(exact.numerator(x))
    tensor_scale = nvfp4.tensor_scale_of(value) if tensor_scale is None else exact.widen(tensor_scale)
    largest = blocks.largest_magnitude_bits(value, axis, nvfp4.BLOCK_SIZE)
    scale = nvfp4.scale_of(largest, tensor_scale)
    return Nvfp4QuantizeOutput(nvfp4.elements(value, scale, tensor_scale, axis), scale, tensor_scale)


@formula("nvfp4_dequantize", static=("axis", "output_dtype"))
def _nvfp4_dequantize(
    values: jax.Array, scale: jax.Array, tensor_scale: jax.Array, axis: int, output_dtype: np.dtype
) -> jax.Array:
    return exact.narrow(nvfp4.numbers(values, scale, tensor_scale, axis), output_dtype)


@explain_array_errors
def nvfp4_quantize(x: ArrayLike, /, tensor_scale: ArrayLike | None = None, *, axis: int = -1) -> Nvfp4QuantizeOutput:
    """Quantizes to NVFP4: 4-bit floats, an 8-bit scale for each block of 16, and one scale for the tensor.

    ``tensor_scale = max(abs(x)) / (448 * 6)``, or 1 if that is below 2**-100;
    ``scale = float8_e4m3fn(max(abs(block)) / 6 / tensor_scale)``;
    ``values = float4_e2m1fn(x / (scale * tensor_scale))``, and 0 or -0 where `scale` is 0

    Each quotient and product is rounded once to float32; the two conversions saturate and take ties to the even code. 448
    and 6 are the largest numbers of the two types, so that the largest element of the tensor becomes 6. For a `tensor_scale`
    computed from the values, a block whose largest magnitude is at most 2**-10 / 448 of the tensor's (about 2.2e-6) has the
    scale 0 and becomes zeros, as does a block of zeros. Zeros keep the sign of `x`: what rounds to 0 from below is -0, as
    NVIDIA's own conversion stores it.

    A block that contains a NaN or an infinity has the scale NaN. Its elements are then NaN, which this type, having none,
    stores as 6. Unless `tensor_scale` is given, it is then NaN or infinite, and the whole tensor is NaN when it is
    dequantized.

    The last block of a dimension may be partial. The derivative is 0.

    Args:
      x: float32, float16 or bfloat16, with at least one dimension.
      tensor_scale: float32, one element, positive: from calibration, or shared by several tensors. None: computed from the
        values. If it is too small, blocks and elements saturate.
      axis: the dimension along which blocks lie; a negative one counts from the end.

    Returns:
      `Nvfp4QuantizeOutput`: `values`, float4_e2m1fn, of the shape of `x`; `scale`, float8_e4m3fn, with
      ``ceil(x.shape[axis] / 16)`` elements along `axis`; `tensor_scale`, float32, of shape ().

    Raises:
      DescriptorError: a scalar; an axis that `x` does not have; a `tensor_scale` of several elements.
      DescriptorTypeError: a data type other than those above.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> x = jnp.array([0.5, -1.25, 5.0, 6.0, *[0.0] * 12, 0.25])
      >>> values, scale, tensor_scale = jquant.nvfp4_quantize(x)
      >>> print(values[:4], values[16], scale, tensor_scale)
      [0.5 -1 4 6] 6 [448 18] 0.002232143
      >>> print(jquant.nvfp4_dequantize(values, scale, tensor_scale)[jnp.array([0, 1, 2, 16])])
      [ 0.5        -1.          4.          0.24107143]

    References:
      NVIDIA, "Pretraining Large Language Models with NVFP4", the appendix on its quantization. Where it takes reciprocals,
      this function divides, which rounds once.
    """
    x = any_float_operand("nvfp4_quantize", "x", x)
    axis = dimension("nvfp4_quantize", axis, x.ndim)
    if tensor_scale is not None:
        tensor_scale = float_scalar("nvfp4_quantize", "tensor_scale", tensor_scale)
    return _nvfp4_quantize(x, tensor_scale, axis)


@explain_array_errors
def nvfp4_dequantize(
    values: ArrayLike,
    /,
    scale: ArrayLike,
    tensor_scale: ArrayLike,
    *,
    axis: int = -1,
    output_dtype: DTypeLike | str = jnp.float32,
) -> jax.Array:
    """Maps NVFP4 back to real numbers: the inverse of `nvfp4_quantize`.

    ``output = values * scale * tensor_scale``

    The first product is exact, so the result is rounded only once, to float32; a 16-bit output is rounded from there.

    It is differentiable in `tensor_scale`; the derivative in the others is 0.

    Args:
      values: float4_e2m1fn; or uint8, their codes, of which only the lowest 4 bits count.
      scale: float8_e4m3fn, of the shape of `values` except for ``ceil(values.shape[axis] / 16)`` along `axis`.
      tensor_scale: float32, one element. (Some checkpoints hold its reciprocal.)
      axis: the dimension along which blocks of 16 lie; a negative one counts from the end.
      output_dtype: float32, float16 or bfloat16.

    Returns:
      An array of the shape of `values` and of `output_dtype`.

    Raises:
      DescriptorError: a scalar; an axis that `values` does not have; a `scale` of another shape; a `tensor_scale` of several
        elements.
      DescriptorTypeError: a data type other than those above.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> values, scale = jnp.array([0.5, -6.0], jnp.float4_e2m1fn), jnp.array([448.0], jnp.float8_e4m3fn)
      >>> print(jquant.nvfp4_dequantize(values, scale, 0.125))
      [  28. -336.]

    References:
      NVIDIA, "Pretraining Large Language Models with NVFP4".
    """
    values, scale = operand("nvfp4_dequantize", "values", values), operand("nvfp4_dequantize", "scale", scale)
    require_data_type("nvfp4_dequantize", "values", values.dtype, (data_type_name(_ELEMENT), "UINT8"))
    tensor_scale = float_scalar("nvfp4_dequantize", "tensor_scale", tensor_scale)
    output_dtype = float_data_type("nvfp4_dequantize", "output_dtype", output_dtype)
    axis = dimension("nvfp4_dequantize", axis, values.ndim)
    require_scales("nvfp4_dequantize", scale, _SCALE, values, axis, nvfp4.BLOCK_SIZE)
    return _nvfp4_dequantize(values, scale, tensor_scale, axis, output_dtype)
