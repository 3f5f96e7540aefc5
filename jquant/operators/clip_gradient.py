"""DML_ELEMENT_WISE_CLIP_GRAD"""

import jax
from jax.typing import ArrayLike

from jquant.arguments.call import Call
from jquant.arguments.descriptor import Descriptor, Tensor
from jquant.arguments.naming import Operator
from jquant.arguments.operands import float_scalar
from jquant.formulas import clip as formulas
from jquant.lowering.formula import formula
from jquant.modes import FeatureLevel
from jquant.placement import explain_array_errors

_OPERATOR = Operator("clip_gradient", "DML_ELEMENT_WISE_CLIP_GRAD", output="OutputGradientTensor")
_DESCRIPTOR = Descriptor(
    _OPERATOR,
    {
        "3_1": (
            Tensor("InputTensor", "Input", (1, 8), "FLOAT32 FLOAT16 INT32 INT16 INT8 UINT32 UINT16 UINT8"),
            Tensor("InputGradientTensor", "Input", (1, 8), "FLOAT32 FLOAT16 INT32 INT16 INT8 UINT32 UINT16 UINT8"),
            Tensor("OutputGradientTensor", "Output", (1, 8), "FLOAT32 FLOAT16 INT32 INT16 INT8 UINT32 UINT16 UINT8"),
        ),
    },
    same_data_type=(("InputTensor", "InputGradientTensor"), ("InputTensor", "OutputGradientTensor")),
    broadcast=("InputGradientTensor",),
)


@formula("clip_gradient")
def _clip_gradient(input: jax.Array, input_gradient: jax.Array, min: jax.Array, max: jax.Array) -> jax.Array:
    return formulas.gradient(input, input_gradient, min, max)


@explain_array_errors
def clip_gradient(
    input: ArrayLike,
    /,
    input_gradient: ArrayLike,
    min: ArrayLike,
    max: ArrayLike,
    *,
    feature_level: FeatureLevel | str | None = None,
) -> jax.Array:
    """Computes the gradient of `clip` with respect to its input, from the gradient of its result.

    ``f(x, gradient) = 0 if x <= min or x >= max else gradient``

    This is what `jax.vjp` of `clip` gives, but also for integers, which `jax.vjp` does not differentiate. A NaN is neither
    below nor above a bound, so its gradient passes through, and so does every gradient where both bounds are NaN. Where
    min > max, the result of `clip` is min everywhere, and only the gradient of a NaN passes through. An infinite or NaN
    gradient outside of the bounds becomes 0. The bounds are cast as in `clip`: for integers toward zero and saturating.

    The result is linear in `input_gradient`, and is differentiable in it; the derivative in `input` is 0.

    Args:
      input: what `clip` was given: float32, float16 (bfloat16 at ``FeatureLevel.EXTENDED``) or any integer type of 8
        to 32 bits, of rank 1 to 8.
      input_gradient: the gradient of the result of `clip`, of the dtype and the rank of `input`; dimensions of size 1
        broadcast. At ``FeatureLevel.EXTENDED`` the rank may be lower, as in NumPy. A scalar applies to all of `input`.
      min: a float32 scalar.
      max: a float32 scalar.
      feature_level: the DirectML feature level whose table applies; the operator exists from 3_1 on.

    Returns:
      An array of the shape and dtype of `input`.

    Raises:
      DescriptorError: a rank, size or level outside of the table, or a bound of several elements or outside the range of
        float32.
      DescriptorTypeError: a data type outside of the table, or two data types that differ.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> x, gradient = jnp.array([-1.0, 0.0, 0.5, 6.0]), jnp.array([1.0, 2.0, 3.0, 4.0])
      >>> jquant.clip_gradient(x, gradient, 0, 6)
      Array([0., 0., 3., 0.], dtype=float32)

    References:
      DirectML, `DML_ELEMENT_WISE_CLIP_GRAD_OPERATOR_DESC`.
    """
    call = Call(_DESCRIPTOR, feature_level)
    input, input_gradient = call.tensor("InputTensor", input), call.tensor("InputGradientTensor", input_gradient)
    min, max = float_scalar(_OPERATOR, "Min", min), float_scalar(_OPERATOR, "Max", max)
    call.check(input.shape, input.dtype)
    return _clip_gradient(input, input_gradient, min, max)
