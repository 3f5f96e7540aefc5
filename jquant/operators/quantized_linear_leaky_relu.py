"""onnxruntime's QLinearLeakyRelu (domain com.microsoft)"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jquant import affine, exact
from jquant.descriptor import Descriptor, Signature, Tensor
from jquant.operands import float_scalar, onnx, output_quantization, quantized

_OPERATOR = "QLinearLeakyRelu"
_DESCRIPTOR = Descriptor(
    _OPERATOR,
    (
        Tensor("X", "Input", None, "INT8 UINT8"),
        Tensor("X_scale", "Input", None, "FLOAT32"),
        Tensor("X_zero_point", "Optional input", None, "INT8 UINT8"),
        Tensor("Y_scale", "Input", None, "FLOAT32"),
        Tensor("Y_zero_point", "Optional input", None, "INT8 UINT8"),
        Tensor("Y", "Output", None, "INT8 UINT8"),
    ),
    # The document has one type for both; here X and Y have each their own.
    same_data_type=(("X", "X_zero_point"), ("Y", "Y_zero_point")),
    one_element=("X_scale", "X_zero_point", "Y_scale", "Y_zero_point"),
)


@functools.partial(jax.jit, static_argnames="output_dtype")
@jax.named_scope("quantized_linear_leaky_relu")
def _quantized_linear_leaky_relu(
    x: jax.Array,
    x_scale: jax.Array,
    x_zero_point: jax.Array | None,
    output_scale: jax.Array,
    output_zero_point: jax.Array | None,
    alpha: jax.Array,
    output_dtype: np.dtype,
) -> jax.Array:
    value = affine.dequantize(x, x_scale, x_zero_point)
    output_value = jnp.where(value < 0, exact.product(exact.seal(alpha), value), value)
    return affine.quantize(output_value, output_scale, output_zero_point, output_dtype)


def quantized_linear_leaky_relu(
    x: ArrayLike,
    x_scale: ArrayLike,
    x_zero_point: ArrayLike | None,
    output_scale: ArrayLike,
    output_zero_point: ArrayLike | None = None,
    /,
    *,
    alpha: ArrayLike = 0.01,
    output_dtype: DTypeLike | str | None = None,
) -> jax.Array:
    """The leaky rectifier of a quantized tensor, quantized again.

    ``value = (x - x_zero_point) * x_scale``, and
    ``output = saturate(round((alpha * value if value < 0 else value) / output_scale) + output_zero_point)``

    Each operation is rounded once to float32; the quotient is rounded to the nearest integer, ties to even, *before* the
    output zero point is added. So does onnxruntime, bit for bit. NaN, which only scales or an `alpha` of 0, infinity or
    NaN can produce, gives 0.

    The result is of integers, which have no derivative: JAX's zero, of type float0. To train through the rounding, take
    `quantize_and_dequantize` or `fake_quantize`.

    Args:
      x: int8 or uint8, any shape.
      x_scale, output_scale: float32, one element each. A scale of 0 is undefined in the document; here the
        arithmetic is done, and infinities saturate.
      x_zero_point: one element, of the dtype of `x`. None means 0.
      output_zero_point: one element, of the dtype of the output. None means 0.
      alpha: the slope below 0: a float32 scalar, which may be traced.
      output_dtype: int8 or uint8 (in the document, the dtype of `x`). None: the dtype of `output_zero_point` if that is
        an array, else that of `x`.

    Returns:
      An array of the shape of `x`, of `output_dtype`.

    Raises:
      DescriptorError: a scale or zero point of more than one element, an `alpha` that is no scalar, or a scalar that
        its type cannot hold.
      DescriptorTypeError: a data type that is not allowed, or an `output_dtype` that is not that of
        `output_zero_point`.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> x = jnp.array([-100, -5, 0, 100], jnp.int8)
      >>> jquant.quantized_linear_leaky_relu(x, 0.5, 0, 0.25, 3, alpha=0.1)
      Array([-17,   2,   3, 127], dtype=int8)

    References:
      onnxruntime, `com.microsoft.QLinearLeakyRelu`.
    """
    x, x_scale, x_zero_point = quantized(_OPERATOR, onnx("X"), x, x_scale, x_zero_point)
    output_scale, output_zero_point, output_dtype = output_quantization(
        _OPERATOR, onnx("Y"), output_scale, output_zero_point, output_dtype, default=x.dtype
    )
    alpha = float_scalar(_OPERATOR, "alpha", alpha)
    _DESCRIPTOR.check(
        None,
        X=x,
        X_scale=x_scale,
        X_zero_point=x_zero_point,
        Y_scale=output_scale,
        Y_zero_point=output_zero_point,
        Y=Signature(x.shape, output_dtype),
    )
    return _quantized_linear_leaky_relu(x, x_scale, x_zero_point, output_scale, output_zero_point, alpha, output_dtype)
