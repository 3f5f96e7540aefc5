"""Convolutions in all layouts."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jquant.errors import ModelError
from jquant.onnx.writing import windows
from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.primitives.products import as_bytes, is_byte
from jquant.onnx.writing.primitives.shapes import spread
from jquant.onnx.writing.steps import cast, computed, is_float, like, padded, reshape, reversed_along, transpose
from jquant.onnx.writing.table import primitive
from jquant.onnx.writing.tensor import Tensor


@primitive("conv_general_dilated")
def _convolution(builder: Builder, equation: Any, operands: list[Tensor]) -> Tensor:
    """Conv, or ConvInteger, of batch, features and space; ConvTranspose where there is space between the inputs."""
    parameters, type = equation.params, equation.outvars[0].aval
    if parameters["batch_group_count"] != 1:
        raise ModelError("groups of the batch are not written")
    dimensions = parameters["dimension_numbers"]
    x, kernel = transpose(builder, operands[0], dimensions.lhs_spec), transpose(builder, operands[1], dimensions.rhs_spec)
    if x.ndim == 2:
        raise ModelError("a convolution without dimensions of space is not written")
    shape = tuple(type.shape[d] for d in dimensions.out_spec)
    result = _of_channels_first(builder, parameters, x, kernel, jax.ShapeDtypeStruct(shape, type.dtype))
    return transpose(builder, result, np.argsort(dimensions.out_spec).tolist())


def _of_channels_first(builder: Builder, parameters: Any, x: Tensor, kernel: Tensor, type: Any) -> Tensor:
    strides, distances, dilations = (
        [int(number) for number in parameters[name]] for name in ("window_strides", "lhs_dilation", "rhs_dilation")
    )
    padding = [(int(low), int(high)) for low, high in parameters["padding"]]
    groups = parameters["feature_group_count"]
    if 0 in kernel.shape[1:]:  # for which ConvInteger leaves in its result what was in memory
        return like(Tensor(type.dtype, type.shape), 0)
    is_integer = not is_float(type.dtype) and is_byte(x) and is_byte(kernel)
    if not is_integer and not is_float(type.dtype):
        raise ModelError(f"a convolution of {x.dtype} and {kernel.dtype} in {type.dtype} is not written")
    if is_integer:
        x, kernel = (as_bytes(builder, operand) for operand in (x, kernel))
    else:
        x, kernel = (cast(builder, operand, np.float32) for operand in (x, kernel))
    computed_type = jax.ShapeDtypeStruct(type.shape, np.int32 if is_integer else np.float32)
    spans = [(size - 1) * dilation for size, dilation in zip(kernel.shape[2:], dilations, strict=True)]
    if not is_integer and set(strides) == {1} and set(distances) != {1} and _fits(spans, padding, distances):
        result = _transposed(builder, x, kernel, computed_type, padding, spans, distances, dilations, groups)
        return cast(builder, result, type.dtype)
    number = _zero(x)
    x = spread(builder, x, number, [1, 1, *distances])
    less = [(min(low, 0), min(high, 0)) for low, high in padding]
    x = padded(builder, x, number, [(0, 0), (0, 0), *less])
    more = [(max(low, 0), max(high, 0)) for low, high in padding]
    result = builder.node(
        "ConvInteger" if is_integer else "Conv",
        [x, kernel],
        computed_type,
        since=11,
        label="convolution",
        **windows.attributes(strides, dilations, more, groups),
    )
    return cast(builder, result, type.dtype)


def _zero(x: Tensor) -> Tensor:
    return like(Tensor(x.dtype, ()), 0)


def _fits(spans: Sequence[int], padding: Sequence[tuple[int, int]], distances: Sequence[int]) -> bool:
    """Whether ConvTranspose takes off what the padding lacks, or adds less than a stride."""
    return all(
        low <= span and high - span < max(distance, 1)
        for span, (low, high), distance in zip(spans, padding, distances, strict=True)
    )


def _transposed(
    builder: Builder,
    x: Tensor,
    kernel: Tensor,
    type: Any,
    padding: Sequence[tuple[int, int]],
    spans: Sequence[int],
    distances: Sequence[int],
    dilations: Sequence[int],
    groups: int,
) -> Tensor:
    """ConvTranspose, whose kernel is from back to front, with its inputs before its outputs."""
    outputs, inputs, *space = kernel.shape
    kernel = reversed_along(builder, kernel, range(2, kernel.ndim))
    kernel = reshape(builder, kernel, (groups, outputs // groups, inputs, *space))
    kernel = transpose(builder, kernel, (0, 2, 1, *range(3, kernel.ndim)))
    kernel = reshape(builder, kernel, (groups * inputs, outputs // groups, *space))
    removed = [(span - low, max(span - high, 0)) for span, (low, high) in zip(spans, padding, strict=True)]
    added = [max(high - span, 0) for span, (_, high) in zip(spans, padding, strict=True)]
    return computed(
        builder,
        "ConvTranspose",
        [x, kernel],
        type,
        since=11,
        label="convolution",
        output_padding=added if any(added) else None,
        **windows.attributes(distances, dilations, removed, groups),
    )
