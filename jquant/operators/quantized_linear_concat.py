"""onnxruntime's QLinearConcat (domain com.microsoft)"""

import functools
from collections.abc import Sequence

import jax
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jquant.arguments.assertions import once_for_each_signature, require
from jquant.arguments.call import Call
from jquant.arguments.descriptor import Descriptor, Tensor
from jquant.arguments.naming import Operator, message
from jquant.arguments.statics import dimension
from jquant.errors import DescriptorTypeError
from jquant.kernels import concatenation
from jquant.lowering.formula import formula
from jquant.placement import explain_array_errors
from jquant.quantized_tensor import Quantized, ScaleZeroPoint

_OPERATOR = Operator("quantized_linear_concat", "QLinearConcat", output="Y")


@functools.cache
def _descriptor(index: int) -> Descriptor:
    """The specification's table, for one of the inputs."""
    tensor, scale, zero_point = (f"inputs[{index}]{suffix}" for suffix in ("", "_scale", "_zero_point"))
    return Descriptor(
        _OPERATOR,
        (
            Tensor(tensor, "Input", None, "INT8 UINT8"),
            Tensor(scale, "Input", None, "FLOAT32"),
            Tensor(zero_point, "Optional input", None, "INT8 UINT8"),
            Tensor("Y_scale", "Input", None, "FLOAT32"),
            Tensor("Y_zero_point", "Optional input", None, "INT8 UINT8"),
            Tensor("Y", "Output", None, "INT8 UINT8"),
        ),
        same_data_type=((tensor, zero_point), ("Y", "Y_zero_point")),
        one_element=(scale, zero_point, "Y_scale", "Y_zero_point"),
    )


@formula("quantized_linear_concat", static=("axis", "output_dtype"))
def _quantized_linear_concat(
    inputs: list[Quantized], output: ScaleZeroPoint, axis: int, output_dtype: np.dtype
) -> jax.Array:
    return concatenation.concatenate(inputs, output, axis - inputs[0].values.ndim, output_dtype)


@explain_array_errors
def quantized_linear_concat(
    inputs: Sequence[tuple[ArrayLike, ArrayLike, ArrayLike | None]],
    /,
    output_scale: ArrayLike,
    output_zero_point: ArrayLike | None = None,
    *,
    axis: int,
    output_dtype: DTypeLike | str | None = None,
) -> jax.Array:
    """Joins quantized tensors along a dimension, and gives them one scale and one zero point.

    ``output = concatenate([quantize_linear(dequantize_linear(tensor, scale, zero_point), output_scale,
    output_zero_point) for tensor, scale, zero_point in inputs], axis)``

    Each operation is rounded once to float32; the quotient is rounded to the nearest integer, ties to even, *before* the
    output zero point is added. onnxruntime does the same, bit for bit. A tensor that has the scale and the zero point of the
    output comes out unchanged, for every scale from 2**-126 to the largest float32 over 255: together, the product and the
    quotient are off by less than 2**-15. NaN, which only scales of 0, infinity or NaN can produce, gives 0.

    The result is an integer array and has no derivative (JAX's zero, of type float0). To train through the rounding, use
    `quantize_and_dequantize` or `fake_quantize`.

    Args:
      inputs: one or more tuples of a tensor, its scale and its zero point. The tensors are int8 or uint8, which may
        differ, of the same rank, at least 1, and of the same shape except along `axis`. A scale is float32 and has one
        element. A zero point has one element, of the dtype of its tensor; None means 0.
      output_scale: float32, one element. A scale of 0 is undefined in the specification; here the arithmetic follows
        IEEE 754, and infinities saturate.
      output_zero_point: one element, of the dtype of the output. None means 0.
      axis: the dimension along which the tensors are joined; a negative one counts from the end.
      output_dtype: int8 or uint8. None: the dtype of `output_zero_point` if that is an array, else that of the first
        tensor.

    Returns:
      An array of `output_dtype`, of the shape of the tensors, except along `axis`, where their sizes add up.

    Raises:
      DescriptorError: an empty `inputs`; a rank, size or axis that is not allowed; or a scalar that its type cannot hold.
      DescriptorTypeError: a data type that is not allowed, or an `output_dtype` that is not that of
        `output_zero_point`.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> a, b = jnp.array([-10, 0, 100], jnp.int8), jnp.array([0, 130, 255], jnp.uint8)
      >>> jquant.quantized_linear_concat([(a, 0.5, 0), (b, 0.25, 128)], 0.5, 3, axis=0)
      Array([ -7,   3, 103, -61,   4,  67], dtype=int8)

    References:
      onnxruntime, `com.microsoft.QLinearConcat`.
    """
    _require_list(type(inputs))
    calls = [Call(_descriptor(index)) for index in range(len(inputs))]
    tensors = [_quantized(call, index, parts) for index, (call, parts) in enumerate(zip(calls, inputs, strict=True))]
    _require_any(len(tensors))
    first = tensors[0].values
    output, output_dtype = calls[0].output("Y", output_scale, output_zero_point, output_dtype, default=first.dtype)
    axis = dimension(_OPERATOR, axis, first.ndim)
    for index, (call, tensor) in enumerate(zip(calls, tensors, strict=True)):
        shape = tensor.values.shape
        call.check(shape, output_dtype, Y_scale=output.scale, Y_zero_point=output.zero_point)
        _require_same_beside(axis, index, shape, first.shape)
    return _quantized_linear_concat(tensors, output, axis, output_dtype)


@once_for_each_signature
def _require_list(type_: type) -> None:
    text = f"must be a list of tuples (tensor, scale, zero point), not {type_.__name__}"
    require(issubclass(type_, list | tuple), message(_OPERATOR, "inputs", text), DescriptorTypeError)


@once_for_each_signature
def _require_any(count: int) -> None:
    require(count > 0, message(_OPERATOR, "inputs", "is empty; it must have at least one tuple"))


@once_for_each_signature
def _require_same_beside(axis: int, index: int, shape: tuple[int, ...], first: tuple[int, ...]) -> None:
    """Asserts that a tensor has the shape of the first one, but for the dimension along which both are joined."""
    text = f"has shape {shape}, inputs[0] has {first}: they must be the same except in dimension {axis}"
    fits = (*shape[:axis], *first[axis : axis + 1], *shape[axis + 1 :]) == first
    require(fits, message(_OPERATOR, f"inputs[{index}]", text))


def _quantized(call: Call, index: int, parts: tuple[ArrayLike, ArrayLike, ArrayLike | None]) -> Quantized:
    _require_triple(index, isinstance(parts, tuple | list) and len(parts) == 3)
    tensor, scale, zero_point = parts
    return call.quantized(f"inputs[{index}]", tensor, scale, zero_point)


@once_for_each_signature
def _require_triple(index: int, is_triple: bool) -> None:
    require(is_triple, message(_OPERATOR, f"inputs[{index}]", "must be a tuple (tensor, scale, zero point)"))
