"""onnxruntime's QLinearSoftmax (domain com.microsoft)"""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jquant.arguments import unary
from jquant.arguments.assertions import once_for_each_signature, require
from jquant.arguments.naming import Operator, message
from jquant.arguments.statics import dimension
from jquant.arithmetic import double_float, exact, fixed_point, float_bits
from jquant.arithmetic.double_float import DoubleFloat
from jquant.arithmetic.exponential import Exponential, exponential, scaled
from jquant.arithmetic.lookup import look_up, look_up_along
from jquant.formulas import affine
from jquant.formulas.extremes import below_largest
from jquant.lowering import by_platform, materialize
from jquant.lowering.formula import formula
from jquant.placement import explain_array_errors
from jquant.quantized_tensor import Quantized, ScaleZeroPoint

_OPERATOR = Operator("quantized_linear_softmax", "QLinearSoftmax", output="Y")
_DESCRIPTOR = unary.descriptor(_OPERATOR)


# A slice of this many elements, or more, has no more distinct quotients than this.
_TABLE_SIZE = 256


@formula("quantized_linear_softmax", static=("axis",))
def _quantized_linear_softmax(x: Quantized, output: ScaleZeroPoint, axis: int) -> jax.Array:  # the zero point cancels
    scale = exact.widen(x.scale)
    # A scale that is not finite makes the whole slice NaN, as its largest value is.
    scale = float_bits.nan_where(~(lax.abs(scale) < jnp.inf), scale)
    if x.values.shape[axis] == 1:
        one = lax.full_like(x.values, 1, jnp.float32)
        return affine.quantize(float_bits.nan_where(jnp.isnan(scale), one), output, x.values.dtype)
    parameters, tree = jax.tree.flatten((scale, output))

    def applied(form: Callable[..., jax.Array], values: jax.Array, *parameters: jax.Array) -> jax.Array:
        scale, output = tree.unflatten(parameters)
        below = below_largest(values, scale < 0, axis)
        return form(below, scale, output, values.dtype, axis)

    by_tables, elementwise = (functools.partial(applied, form) for form in (_by_tables, _elementwise))
    return by_platform.like_first(by_tables, x.values, *parameters, tpu=elementwise)


def _by_tables(below: jax.Array, scale: jax.Array, output: ScaleZeroPoint, dtype: np.dtype, axis: int) -> jax.Array:
    """The quantized softmax of the differences from the largest element, with a table of the exponentials."""
    # Once for the table: XLA would compute the powers again for the quotients of each slice.
    exponentials = jax.tree.map(materialize.once, _exponentials(lax.iota(jnp.float32, _TABLE_SIZE), scale))
    bits = fixed_point.digit_bits(below.shape[axis])
    digits = [look_up(digit, below) for digit in _digits(exponentials, bits)]
    reciprocal = _reciprocal_of_sum(digits, bits, axis)

    def quantized(exponentials: Exponential) -> jax.Array:
        # LLVM takes minutes to compile all this as one loop, if there are too few elements for vectors.
        return affine.quantize(materialize.once(_quotient(exponentials, reciprocal)), output, dtype)

    if below.shape[axis] < _TABLE_SIZE:
        return quantized(jax.tree.map(lambda values: look_up(values, below), exponentials))
    along_axis = [_TABLE_SIZE if dimension == axis else 1 for dimension in range(below.ndim)]
    exponentials = jax.tree.map(lambda values: values.reshape(along_axis), exponentials)
    return look_up_along(axis, quantized(exponentials), below)


def _elementwise(below: jax.Array, scale: jax.Array, output: ScaleZeroPoint, dtype: np.dtype, axis: int) -> jax.Array:
    """The formula with an exponential computed for each element: for TPUs, which look up numbers slowly."""
    exponentials = _exponentials(below.astype(jnp.float32), scale)
    bits = fixed_point.digit_bits(below.shape[axis])
    reciprocal = _reciprocal_of_sum(_digits(exponentials, bits), bits, axis)
    return affine.quantize(_quotient(exponentials, reciprocal), output, dtype)


def _exponentials(below: jax.Array, scale: jax.Array) -> Exponential:
    return exponential(exact.product(below, -lax.abs(scale)))


def _digits(exponentials: Exponential, bits: int) -> list[jax.Array]:
    return fixed_point.digits(DoubleFloat(*(scaled(part, exponentials.power) for part in exponentials.significand)), bits)


def _reciprocal_of_sum(digits: Sequence[jax.Array], bits: int, axis: int) -> DoubleFloat:
    total = fixed_point.value(fixed_point.summed(digits, axis), bits)
    return jax.tree.map(materialize.once, double_float.reciprocal(total))


def _quotient(exponentials: Exponential, reciprocal: DoubleFloat) -> jax.Array:
    return scaled(double_float.multiply(exponentials.significand, reciprocal).high, exponentials.power)


@explain_array_errors
def quantized_linear_softmax(
    x: ArrayLike,
    /,
    x_scale: ArrayLike,
    x_zero_point: ArrayLike | None,
    output_scale: ArrayLike,
    output_zero_point: ArrayLike | None = None,
    *,
    axis: int,
) -> jax.Array:
    """Applies softmax along an axis of a quantized tensor.

    ``output = saturate(round(e / sum(e) / output_scale) + output_zero_point)``, where
    ``e = exp((x - largest) * x_scale)``; the sum and the largest of ``x`` are along `axis`

    The product, the first quotient as a whole and the second are each rounded once to float32, the second quotient then to
    the nearest integer, ties to even, *before* the zero point is added. The exponential is jquant's own: its error is below
    2**-45, and its bits are the same on every platform. So are those of the sum, which is taken in fixed point: neither the
    order of its terms nor a split of the axis over a mesh changes it. A first quotient below 2**-126 is 0.

    Where `x_scale` is negative, the smallest of ``x`` takes the place of the largest, for it stands for the largest value. A
    scale of 0 makes all elements equal. A scale that is not finite makes all quotients NaN, which gives 0.

    The result is an integer array and has no derivative (JAX's zero, of type float0).

    Args:
      x: int8 or uint8, of at least one dimension.
      x_scale, output_scale: float32, one element each.
      x_zero_point: one element, of the dtype of `x`, or None. The result does not depend on it.
      output_zero_point: one element, of the dtype of `x`. None means 0 (the specification requires it).
      axis: the dimension of `x` along which the results add up to 1, of at most 524,287 elements; a negative one counts from
        the end. (In the specification the default is -1, and before version 13 of ONNX's operator set the axis stands for
        all dimensions from there on.)

    Returns:
      An array of the shape and dtype of `x`.

    Raises:
      DescriptorError: an axis that `x` does not have, or that is too long, a scale or zero point of several elements, or a
        scalar that its type cannot hold.
      DescriptorTypeError: a data type that the specification does not allow.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> x = jnp.array([[10, 20, 30], [5, 5, 5]], jnp.uint8)
      >>> jquant.quantized_linear_softmax(x, 0.1, None, 1 / 256, 0, axis=1)
      Array([[ 23,  63, 170],
             [ 85,  85,  85]], dtype=uint8)

    References:
      onnxruntime, `com.microsoft.QLinearSoftmax`.
    """
    tensor, output = unary.operands(_DESCRIPTOR, x, x_scale, x_zero_point, output_scale, output_zero_point)
    axis = dimension(_OPERATOR, axis, tensor.values.ndim)
    _require_exact_sum(axis, tensor.values.shape[axis])
    return _quantized_linear_softmax(tensor, output, axis)


@once_for_each_signature
def _require_exact_sum(axis: int, size: int) -> None:
    limit = fixed_point.LARGEST_COUNT
    text = f"is {axis}, along which there are {size} elements; the sum is exact for at most {limit}"
    require(size <= limit, message(_OPERATOR, "axis", text))
