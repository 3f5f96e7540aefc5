"""The arguments of DirectML's clip operators: bounds, scale and bias."""

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jquant.arguments.assertions import once_for_each_signature, require, require_same_data_type
from jquant.arguments.naming import message
from jquant.arguments.operands import Operand, float_scalar, operand, require_scalar
from jquant.errors import DescriptorTypeError, shown
from jquant.formulas.clip import ScaleBias
from jquant.modes import data_type_name


def typed_bound(operator: str, name: str, value: ArrayLike, dtype: np.dtype) -> Operand:
    """A scalar bound. Its data type, MinMaxDataType, must be that of the tensors; a Python scalar must be in its range."""
    bound = operand(operator, name, value, dtype)
    require_same_data_type(operator, name, bound.dtype, "InputTensor", dtype)
    return require_scalar(operator, name, bound)


def optional_scale_bias(operator: str, input: Operand, scale_bias: ScaleBias | None) -> ScaleBias | None:
    """The scale and the bias as FLOATs, which are defined for float types only."""
    if scale_bias is None:
        return None
    _require_float(operator, input.dtype)
    if not isinstance(scale_bias, tuple | list) or len(scale_bias) != 2:
        text = f"is {shown(scale_bias)}; it must be a ScaleBias: a scale and a bias"
        raise DescriptorTypeError(message(operator, "ScaleBias", text))
    scale, bias = scale_bias
    return ScaleBias(
        float_scalar(operator, "ScaleBias.Scale", scale),
        float_scalar(operator, "ScaleBias.Bias", bias),
    )


@once_for_each_signature
def _require_float(operator: str, dtype: np.dtype) -> None:
    text = f"is defined only for float types; input has data type {data_type_name(dtype)}"
    require(jnp.issubdtype(dtype, jnp.floating), message(operator, "ScaleBias", text), DescriptorTypeError)
