"""The scale and the zero point that express a range of real numbers in integers"""

from jax.typing import ArrayLike, DTypeLike

from jquant.arguments.assertions import once_for_each_signature, require
from jquant.arguments.operands import float_operand, is_known
from jquant.arguments.ranges import require_order
from jquant.arguments.statics import boolean, quantized_data_type
from jquant.formulas.scale_and_zero_point import quantization_parameters
from jquant.placement import explain_array_errors
from jquant.quantized_tensor import ScaleZeroPoint

_OPERATOR = "scale_and_zero_point"


@explain_array_errors
def scale_and_zero_point(
    min: ArrayLike,
    /,
    max: ArrayLike,
    dtype: DTypeLike | str,
    *,
    symmetric: bool = False,
    narrow_range: bool = False,
) -> ScaleZeroPoint:
    """Computes the scale and the zero point with which the integers of `dtype` cover a range of real numbers.

    With the range extended to zero, ``[low, high] = [min(0, min), max(0, max)]``, and ``[smallest, largest]`` the integers:
    ``scale = (high - low) / (largest - smallest)``; ``zero_point = round(smallest - low / scale)``.
    With `symmetric`,
    ``scale = max(-low, high) / ((largest - smallest) / 2)``; ``zero_point = round((smallest + largest) / 2)``,
    which is 0 in signed types, and the middle of the integers in unsigned ones.

    Each step is rounded once in float32, ties to even: with the range of a tensor, unless its width is 0, these are the
    scale and the zero point of `dynamic_quantize_linear`. With them, `quantize_linear` saturates numbers within the range by
    half a step at most.

    A range of width 0, or one so narrow that its scale is not a normal number, has scale 1 and zero point 0. If the range is
    infinite, or too wide for float32, the scale is infinite. A NaN makes the scale NaN and the zero point 0.

    Compared with TensorFlow's modes, which `quantize` has: ``SCALED`` has zero point 0, and its scale is
    ``output_max / largest``. ``MIN_FIRST`` rounds the lower end of the range to a step, so that real 0 is an integer. For a
    range that holds 0, and without `symmetric` and `narrow_range`, this function gives the same scale and, except for ties,
    the same zero point. ``MIN_COMBINED`` places the ends of the range on integers; real 0 then generally lies between two of
    them (0 in [-6, 6]), and no zero point gives the same integers.

    The zero point is an integer and has no derivative (JAX's zero, of type float0). The scale has that of the range.

    Args:
      min, max: float32, both of one shape. Each pair of elements is a range, for example that of a channel.
      dtype: int8 or uint8, or one of the types of 2, 4 and 16 bits.
      symmetric: whether to use the same range on both sides of 0, wide enough to hold the given one.
      narrow_range: whether to leave the lowest integer unused. Symmetric int8 is then -127 to 127, as in onnxruntime.

    Returns:
      `ScaleZeroPoint`: `scale`, float32, and `zero_point`, of `dtype`, both of the shape of `min`.

    Raises:
      DescriptorError: shapes that differ, or ``max < min`` in Python or NumPy values. A `jax.Array` is not read back
        for that.
      DescriptorTypeError: a data type other than those above.

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
    _require_same_shape(min.shape, max.shape)
    if is_known(min, max):
        require_order(_OPERATOR, "min", min, "max", max)
    symmetric = boolean(_OPERATOR, "symmetric", symmetric)
    return quantization_parameters(min, max, dtype, symmetric, boolean(_OPERATOR, "narrow_range", narrow_range))


@once_for_each_signature
def _require_same_shape(min: tuple[int, ...], max: tuple[int, ...]) -> None:
    require(min == max, f"{_OPERATOR}: min has shape {min}, max has {max}; they must be the same")
