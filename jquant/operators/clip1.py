"""DML_ELEMENT_WISE_CLIP1"""

import jax
from jax.typing import ArrayLike

from jquant.arguments.call import Call
from jquant.arguments.clip import optional_scale_bias, typed_bound
from jquant.arguments.descriptor import Descriptor, Tensor
from jquant.arguments.naming import Operator
from jquant.formulas import clip as formulas
from jquant.formulas.clip import ScaleBias
from jquant.lowering.formula import formula
from jquant.modes import FeatureLevel
from jquant.placement import explain_array_errors

_OPERATOR = Operator("clip1", "DML_ELEMENT_WISE_CLIP1")
_DESCRIPTOR = Descriptor(
    _OPERATOR,
    {
        "5_0": (
            Tensor("InputTensor", "Input", (1, 8), "FLOAT32 FLOAT16 INT64 INT32 INT16 INT8 UINT64 UINT32 UINT16 UINT8"),
            Tensor("OutputTensor", "Output", (1, 8), "FLOAT32 FLOAT16 INT64 INT32 INT16 INT8 UINT64 UINT32 UINT16 UINT8"),
        ),
    },
    same_data_type=(("InputTensor", "OutputTensor"),),
)


@formula("clip1")
def _clip1(input: jax.Array, min: jax.Array, max: jax.Array, scale_bias: ScaleBias | None) -> jax.Array:
    return formulas.clip(input, min, max, scale_bias)


@explain_array_errors
def clip1(
    input: ArrayLike,
    /,
    min: ArrayLike,
    max: ArrayLike,
    *,
    scale_bias: ScaleBias | None = None,
    feature_level: FeatureLevel | str | None = None,
) -> jax.Array:
    """Limits every element to [min, max], with bounds of the type of the tensor.

    ``f(x) = max(min, min(x, max))``, or ``f(x * scale + bias)`` with a `scale_bias`

    The same as `clip`, except that the bounds have the data type of `input` instead of float32, and are never rounded or
    saturated. So every 32-bit or 64-bit integer can be a bound, and a bound that the type cannot hold is an error.
    Otherwise the two agree: min where min > max, NaN where the input or a bound is NaN, the roundings of
    ``x * scale + bias``, and the derivative, which `clip_gradient1` computes as well.

    Args:
      input: float32, float16 (bfloat16 at ``FeatureLevel.EXTENDED``) or any integer type of 8 to 64 bits, of rank
        1 to 8. 64-bit types need ``jax_enable_x64``.
      min: a scalar of the dtype of `input`, or a Python scalar in its range. For an integer `input`, an integer.
      max: likewise.
      scale_bias: None, or two float32 scalars; for float types only.
      feature_level: the DirectML feature level whose table applies; the operator exists from 5_0 on.

    Returns:
      An array of the shape and dtype of `input`.

    Raises:
      DescriptorError: a rank or level outside of the table, or a bound of several elements or outside the range of
        the type.
      DescriptorTypeError: a data type outside of the table, a bound of another type, or a `scale_bias` with an
        integer type.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> x = jnp.array([-5, 16_777_217, 2_000_000_000], jnp.int32)
      >>> jquant.clip1(x, 0, 16_777_217)  # no float32
      Array([       0, 16777217, 16777217], dtype=int32)

    References:
      DirectML, `DML_ELEMENT_WISE_CLIP1_OPERATOR_DESC`. ONNX, `Clip`, which is max where min > max.
    """
    call = Call(_DESCRIPTOR, feature_level)
    input = call.tensor("InputTensor", input)
    call.check(input.shape, input.dtype)
    min, max = typed_bound(_OPERATOR, "Min", min, input.dtype), typed_bound(_OPERATOR, "Max", max, input.dtype)
    return _clip1(input, min, max, optional_scale_bias(_OPERATOR, input, scale_bias))
