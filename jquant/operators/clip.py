"""DML_ELEMENT_WISE_CLIP"""

import jax
from jax.typing import ArrayLike

from jquant.arguments.call import Call
from jquant.arguments.clip import optional_scale_bias
from jquant.arguments.descriptor import Descriptor, Tensor
from jquant.arguments.naming import Operator
from jquant.arguments.operands import optional_scalar
from jquant.formulas import clip as formulas
from jquant.formulas.clip import ScaleBias
from jquant.lowering.formula import formula
from jquant.modes import FeatureLevel
from jquant.placement import explain_array_errors

_OPERATOR = Operator("clip", "DML_ELEMENT_WISE_CLIP")
_DESCRIPTOR = Descriptor(
    _OPERATOR,
    {
        "5_0": (
            Tensor("InputTensor", "Input", (1, 8), "FLOAT32 FLOAT16 INT64 INT32 INT16 INT8 UINT64 UINT32 UINT16 UINT8"),
            Tensor("OutputTensor", "Output", (1, 8), "FLOAT32 FLOAT16 INT64 INT32 INT16 INT8 UINT64 UINT32 UINT16 UINT8"),
        ),
        "3_0": (
            Tensor("InputTensor", "Input", (1, 8), "FLOAT32 FLOAT16 INT32 INT16 INT8 UINT32 UINT16 UINT8"),
            Tensor("OutputTensor", "Output", (1, 8), "FLOAT32 FLOAT16 INT32 INT16 INT8 UINT32 UINT16 UINT8"),
        ),
        "2_1": (
            Tensor("InputTensor", "Input", (4, 4), "FLOAT32 FLOAT16 INT32 INT16 INT8 UINT32 UINT16 UINT8"),
            Tensor("OutputTensor", "Output", (4, 4), "FLOAT32 FLOAT16 INT32 INT16 INT8 UINT32 UINT16 UINT8"),
        ),
        "1_0": (
            Tensor("InputTensor", "Input", (4, 4), "FLOAT32 FLOAT16"),
            Tensor("OutputTensor", "Output", (4, 4), "FLOAT32 FLOAT16"),
        ),
    },
    same_data_type=(("InputTensor", "OutputTensor"),),
)


@formula("clip")
def _clip(input: jax.Array, min: jax.Array | None, max: jax.Array | None, scale_bias: ScaleBias | None) -> jax.Array:
    return formulas.clip(input, min, max, scale_bias)


@explain_array_errors
def clip(
    input: ArrayLike,
    /,
    min: ArrayLike | None = None,
    max: ArrayLike | None = None,
    *,
    scale_bias: ScaleBias | None = None,
    feature_level: FeatureLevel | str | None = None,
) -> jax.Array:
    """Limits every element to [min, max].

    ``f(x) = max(min, min(x, max))``, or ``f(x * scale + bias)`` with a `scale_bias`

    Where min > max, the result is min everywhere, as the formula says (ONNX, `jnp.clip` and `lax.clamp` give
    max). A NaN, in the input or as a bound, gives NaN for float types. The bounds are float32 and are first
    cast to the type of `input`: for integers toward zero and saturating, with NaN giving 0 (so that 2147483645
    arrives as 2147483648 and means "no upper bound" for int32, and -1.5 means 0 for uint8); for float16 to
    the nearest, so that 70000 means infinity. ``x * scale + bias`` is rounded after the product and after the
    sum, both in float32, then once more for float16.

    The derivative is the one that DirectML's CLIP_GRAD defines and `clip_gradient` computes: strictly between the
    bounds, that of `input`; at and beyond them, 0 in `input` (`jnp.clip` has 1/2 at a bound). There the result is a
    bound, and the derivative is that of the bound.

    To work in place, as the specification allows, donate the buffer: ``jax.jit(jquant.clip, donate_argnums=0)``.

    Args:
      input: float32, float16 (bfloat16 at ``FeatureLevel.EXTENDED``) or any integer type of 8 to 64 bits, of
        rank 1 to 8. 64-bit types need ``jax_enable_x64``: NumPy arrays of them raise without it, but an array that a
        `jax.jit` around the caller has already narrowed cannot be detected here.
      min: float32, one element. None: no lower bound.
      max: float32, one element. None: no upper bound.
      scale_bias: None, or two float32 scalars; for float types only.
      feature_level: the DirectML feature level whose table applies.

    Returns:
      An array of the shape and dtype of `input`.

    Raises:
      DescriptorError: a rank or level outside of the table, or a bound of several elements or outside the range of float32.
      DescriptorTypeError: a data type outside of the table, or a `scale_bias` with an integer type.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> x = jnp.array([-1.0, 0.5, 9.0])
      >>> jquant.clip(x, 0, 6)
      Array([0. , 0.5, 6. ], dtype=float32)
      >>> jquant.clip(x, 0, 6, scale_bias=jquant.ScaleBias(2, 1))
      Array([0., 2., 6.], dtype=float32)

    References:
      DirectML, `DML_ELEMENT_WISE_CLIP_OPERATOR_DESC`; its derivative is `DML_ELEMENT_WISE_CLIP_GRAD_OPERATOR_DESC`.
      ONNX, `Clip`, which is max where min > max.
    """
    call = Call(_DESCRIPTOR, feature_level)
    input = call.tensor("InputTensor", input)
    min, max = optional_scalar(_OPERATOR, "Min", min), optional_scalar(_OPERATOR, "Max", max)
    call.check(input.shape, input.dtype)
    return _clip(input, min, max, optional_scale_bias(_OPERATOR, input, scale_bias))
