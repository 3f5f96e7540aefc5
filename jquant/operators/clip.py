"""DML_ELEMENT_WISE_CLIP"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.typing import ArrayLike

from jquant import exact
from jquant.descriptor import Descriptor, Signature, Tensor, require
from jquant.errors import DescriptorTypeError
from jquant.modes import FeatureLevel, data_type_name
from jquant.operands import Operand, operand

_OPERATOR = "DML_ELEMENT_WISE_CLIP"
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


class ScaleBias(NamedTuple):
    """DML_SCALE_BIAS: what `clip` does to its input first, ``input * scale + bias``. Both are FLOAT."""

    scale: ArrayLike
    bias: ArrayLike


export.register_namedtuple_serialization(ScaleBias, serialized_name="jquant.ScaleBias")


@jax.jit
@jax.named_scope("clip")
def _clip(input: jax.Array, min: jax.Array, max: jax.Array, scale_bias: ScaleBias | None) -> jax.Array:
    if not jnp.issubdtype(input.dtype, jnp.floating):
        return _max_min(input, exact.saturating_cast(min, input.dtype), exact.saturating_cast(max, input.dtype))
    value = exact.seal(input)
    if scale_bias is not None:
        scale, bias = map(exact.seal, scale_bias)
        value = exact.narrow(exact.sum(exact.product(value.astype(jnp.float32), scale), bias), input.dtype)
    return _differentiable(value, exact.seal(min.astype(input.dtype)), exact.seal(max.astype(input.dtype)))


def _max_min(x: jax.Array, min: jax.Array, max: jax.Array) -> jax.Array:
    """``max(Min, min(x, Max))``, which is Min where Min > Max; `lax.clamp` and `jnp.clip` are Max there."""
    return jnp.maximum(min, jnp.minimum(x, max))


_differentiable = jax.custom_jvp(_max_min)


@_differentiable.defjvp
def _max_min_jvp(primals, tangents):
    """DML_ELEMENT_WISE_CLIP_GRAD: 0 where ``x <= Min`` or ``x >= Max``, where the result is that bound."""
    (x, min, max), (x_dot, min_dot, max_dot) = primals, tangents
    inside_dot = jnp.where(x >= max, max_dot, x_dot)
    return _differentiable(*primals), jnp.where(jnp.minimum(x, max) <= min, min_dot, inside_dot)


def clip(
    input: ArrayLike,
    /,
    min: ArrayLike = -np.inf,
    max: ArrayLike = np.inf,
    *,
    scale_bias: ScaleBias | None = None,
    feature_level: FeatureLevel | str = FeatureLevel.LATEST,
) -> jax.Array:
    """Limits every element to [min, max].

    ``f(x) = max(min, min(x, max))``, or ``f(x * scale + bias)`` with a `scale_bias`

    Where min > max, the result is min everywhere, as the formula says (ONNX, `jnp.clip` and `lax.clamp` give
    max). A NaN, in the input or as a bound, gives NaN for float types. The bounds are float32 and are first
    cast to the type of `input`: for integers toward zero and saturating, with NaN giving 0 (so that 2147483645
    arrives as 2147483648 and means "no upper bound" for int32, and -1.5 means 0 for uint8); for float16 to
    the nearest, so that 70000 means infinity. ``x * scale + bias`` is rounded after the product and after the
    sum, both in float32, then once more for float16.

    The derivative is the one that DirectML's CLIP_GRAD defines: that of `input` strictly between the bounds, 0 at and
    beyond them (`jnp.clip` has 1/2 at a bound); there the result is a bound, and so is the derivative in it.

    To work in place, as the document allows, donate the buffer: ``jax.jit(jquant.clip, donate_argnums=0)``.

    Args:
      input: float32, float16 (bfloat16 at ``FeatureLevel.EXTENDED``) or any integer type of 8 to 64 bits, of
        rank 1 to 8. 64-bit types need ``jax_enable_x64``; NumPy arrays of them raise without it, but what
        a `jax.jit` around the caller has narrowed already cannot be seen here.
      min: a float32 scalar.
      max: a float32 scalar.
      scale_bias: None, or two float32 scalars; for float types only.
      feature_level: the DirectML feature level whose table applies.

    Returns:
      An array of the shape and dtype of `input`.

    Raises:
      DescriptorError: a rank or level outside of the table, or a bound that is no scalar or no finite float32.
      DescriptorTypeError: a data type outside of the table, or a `scale_bias` beside an integer type.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> x = jnp.array([-1.0, 0.5, 9.0])
      >>> jquant.clip(x, 0, 6)
      Array([0. , 0.5, 6. ], dtype=float32)
      >>> jquant.clip(x, 0, 6, scale_bias=jquant.ScaleBias(2, 1))
      Array([0., 2., 6.], dtype=float32)

    References:
      DirectML, `DML_ELEMENT_WISE_CLIP_OPERATOR_DESC`, `DML_ELEMENT_WISE_CLIP_GRAD_OPERATOR_DESC`.
    """
    input = operand(_OPERATOR, "InputTensor", input)
    min, max = _float("Min", min), _float("Max", max)
    signature = Signature(input.shape, input.dtype)
    _DESCRIPTOR.check(FeatureLevel(feature_level), InputTensor=signature, OutputTensor=signature)
    if scale_bias is not None:
        type_name = data_type_name(input.dtype)
        is_float = jnp.issubdtype(input.dtype, jnp.floating)
        message = f"{_OPERATOR}: ScaleBias is defined for float types; InputTensor has data type {type_name}"
        require(is_float, message, DescriptorTypeError)
        scale, bias = scale_bias
        scale_bias = ScaleBias(_float("ScaleBias.Scale", scale), _float("ScaleBias.Bias", bias))
    return _clip(input, min, max, scale_bias)


def _float(name: str, value: ArrayLike) -> Operand:
    """A FLOAT of the descriptor."""
    float32 = jnp.dtype(jnp.float32)
    scalar = operand(_OPERATOR, name, value, float32)
    given = data_type_name(scalar.dtype)
    require(given == "FLOAT32", f"{_OPERATOR}: {name} has data type {given}, but is a FLOAT", DescriptorTypeError)
    require(scalar.shape == (), f"{_OPERATOR}: {name} has sizes {scalar.shape}, but is a scalar")
    return scalar
