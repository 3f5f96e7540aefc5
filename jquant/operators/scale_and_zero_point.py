"""The scale and the zero point that express a range of real numbers in integers"""

import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jquant.arguments.descriptor import require
from jquant.arguments.operands import float_operand, is_known
from jquant.arguments.statics import boolean, quantized_data_type
from jquant.formulas.scale_and_zero_point import express
from jquant.pytrees import ScaleZeroPoint

_OPERATOR = "scale_and_zero_point"


def scale_and_zero_point(
    min: ArrayLike,
    /,
    max: ArrayLike,
    dtype: DTypeLike | str,
    *,
    symmetric: bool = False,
    narrow_range: bool = False,
) -> ScaleZeroPoint:
    """Expresses a range of real numbers in the integers of `dtype`.

    With zero brought inside, ``[low, high] = [min(0, min), max(0, max)]``, and ``[smallest, largest]`` the integers:
    ``scale = (high - low) / (largest - smallest)``; ``zero_point = round(smallest - low / scale)``.
    `symmetric`: ``scale = max(-low, high) / ((largest - smallest) / 2)``; ``zero_point = round((smallest + largest) / 2)``,
    which is 0 in signed types, and the half of the integers in unsigned ones.

    Each step is rounded once in float32, ties to even: with the range of a tensor, these are the scale and the zero point
    of `dynamic_quantize_linear`. What `quantize_linear` makes of them saturates by half a step at most within the range.

    A range of width 0, or so narrow that its scale is no normal number, has scale 1 and zero point 0. Where the range is
    infinite, or wider than float32 goes, so is the scale. A NaN makes the scale NaN and the zero point 0.

    Of TensorFlow's modes, which `quantize` has: ``SCALED`` has zero point 0, and its scale is ``output_max / largest``.
    ``MIN_FIRST`` rounds the lower end of the range to a step, so that real 0 is an integer, and without `symmetric` and
    `narrow_range` this function gives its scale and, but for ties, its zero point, for a range that holds 0.
    ``MIN_COMBINED`` lays the ends of the range on integers; real 0 then lies between two of them in general (0 in [-6, 6]),
    and no zero point gives the same integers.

    The zero point is an integer, which has no derivative: JAX's zero, of type float0. The scale has that of the range.

    Args:
      min, max: float32, of one shape: a range for each element, as for a channel.
      dtype: int8 or uint8, or one of the types of 2, 4 and 16 bits.
      symmetric: the same range on both sides of 0, wide enough for the given one.
      narrow_range: leave the lowest integer unused. Symmetric int8 is then -127 to 127, as onnxruntime has it.

    Returns:
      `ScaleZeroPoint`: `scale`, float32, and `zero_point`, of `dtype`, both of the shape of `min`.

    Raises:
      DescriptorError: shapes that differ, or ``max < min`` in Python or NumPy values. A `jax.Array` is not read back
        for that.
      DescriptorTypeError: a data type outside of those above.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> print(*jquant.scale_and_zero_point(-1.0, 1.55, "UINT8"))
      0.01 100
      >>> scale, zero_point = jquant.scale_and_zero_point(jnp.array([-1.0, 0.0]), jnp.array([1.55, 5.1]), "UINT8")
      >>> jquant.quantize_linear(jnp.array([[1.0, 1.0]]), scale, zero_point, axis=1)
      Array([[200,  50]], dtype=uint8)
      >>> print(*jquant.scale_and_zero_point(-1.0, 2.54, "INT8", symmetric=True, narrow_range=True))
      0.02 0

    References:
      ONNX, `DynamicQuantizeLinear`, and onnxruntime's `quantization.quant_utils.compute_scale_zp`, which divides in
      float64 and rounds the scale at the end.
    """
    dtype = quantized_data_type(_OPERATOR, dtype)
    min, max = float_operand(_OPERATOR, "min", min), float_operand(_OPERATOR, "max", max)
    require(min.shape == max.shape, f"{_OPERATOR}: min has sizes {min.shape}, max {max.shape}; they must be the same")
    if is_known(min, max):
        require(not np.any(max < min), f"{_OPERATOR}: max, {max}, is less than min, {min}")
    symmetric = boolean(_OPERATOR, "symmetric", symmetric)
    return express(min, max, dtype, symmetric, boolean(_OPERATOR, "narrow_range", narrow_range))
