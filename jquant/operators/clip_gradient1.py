"""DML_ELEMENT_WISE_CLIP_GRAD1"""

import jax
from jax.typing import ArrayLike

from jquant.arguments.call import Call
from jquant.arguments.clip import typed_bound
from jquant.arguments.descriptor import Descriptor, Tensor
from jquant.arguments.naming import Operator
from jquant.formulas import clip as formulas
from jquant.lowering.formula import formula
from jquant.modes import FeatureLevel
from jquant.placement import explain_array_errors

_OPERATOR = Operator("clip_gradient1", "DML_ELEMENT_WISE_CLIP_GRAD1", output="OutputGradientTensor")
_DATA_TYPES = "FLOAT32 FLOAT16 INT64 INT32 INT16 INT8 UINT64 UINT32 UINT16 UINT8"
_DESCRIPTOR = Descriptor(
    _OPERATOR,
    {
        "5_0": (
            Tensor("InputTensor", "Input", (1, 8), _DATA_TYPES),
            Tensor("InputGradientTensor", "Input", (1, 8), _DATA_TYPES),
            Tensor("OutputGradientTensor", "Output", (1, 8), _DATA_TYPES),
        ),
    },
    same_data_type=(("InputTensor", "InputGradientTensor"), ("InputTensor", "OutputGradientTensor")),
    broadcast=("InputGradientTensor",),
)


@formula("clip_gradient1")
def _clip_gradient1(input: jax.Array, input_gradient: jax.Array, min: jax.Array, max: jax.Array) -> jax.Array:
    return formulas.gradient(input, input_gradient, min, max)


@explain_array_errors
def clip_gradient1(
    input: ArrayLike,
    /,
    input_gradient: ArrayLike,
    min: ArrayLike,
    max: ArrayLike,
    *,
    feature_level: FeatureLevel | str | None = None,
) -> jax.Array:
    """Computes the gradient of `clip1` with respect to its input, from the gradient of its result.

    ``f(x, gradient) = 0 if x <= min or x >= max else gradient``

    The same as `clip_gradient`, except that the bounds have the data type of `input` instead of float32, and that integers
    of 64 bits are allowed.

    Args:
      input: what `clip1` was given: float32, float16 (bfloat16 at ``FeatureLevel.EXTENDED``) or any integer type of 8
        to 64 bits, of rank 1 to 8. 64-bit types need ``jax_enable_x64``.
      input_gradient: the gradient of the result of `clip1`, of the dtype and the rank of `input`; dimensions of size 1
        broadcast. At ``FeatureLevel.EXTENDED`` the rank may be lower, as in NumPy. A scalar applies to all of `input`.
      min: a scalar of the dtype of `input`, or a Python scalar in its range. For an integer `input`, an integer.
      max: likewise.
      feature_level: the DirectML feature level whose table applies; the operator exists from 5_0 on.

    Returns:
      An array of the shape and dtype of `input`.

    Raises:
      DescriptorError: a rank, size or level outside of the table, or a bound of several elements or outside the range of
        the type.
      DescriptorTypeError: a data type outside of the table, or two data types that differ.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> x, gradient = jnp.array([-3, 0, 16_777_216, 16_777_217]), jnp.array([1, 2, 3, 4])
      >>> jquant.clip_gradient1(x, gradient, 0, 16_777_217)
      Array([0, 0, 3, 0], dtype=int32)

    References:
      DirectML, `DML_ELEMENT_WISE_CLIP_GRAD1_OPERATOR_DESC`.
    """
    call = Call(_DESCRIPTOR, feature_level)
    input, input_gradient = call.tensor("InputTensor", input), call.tensor("InputGradientTensor", input_gradient)
    call.check(input.shape, input.dtype)
    min, max = typed_bound(_OPERATOR, "Min", min, input.dtype), typed_bound(_OPERATOR, "Max", max, input.dtype)
    return _clip_gradient1(input, input_gradient, min, max)
