"""The computations at a site: compositions of the public operators."""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jquant.arithmetic import exact
from jquant.formulas.extremes import largest_magnitude
from jquant.modes import FeatureLevel, ScaleGranularity
from jquant.operators.convolution_integer_to_float import convolution_integer_to_float
from jquant.operators.dequantize_linear import dequantize_linear
from jquant.operators.dynamic_quantize_linear import dynamic_quantize_linear
from jquant.operators.matmul_integer_to_float import matmul_integer_to_float
from jquant.operators.pack_matrix import pack_matrix
from jquant.operators.quantize_linear import quantize_linear
from jquant.operators.scale_and_zero_point import scale_and_zero_point
from jquant.quantized_tensor import ScaleZeroPoint
from jquant.transform import jaxprs
from jquant.transform.layouts import CONVOLUTION, EMBEDDING, MATMUL, Storage, product_dimensions
from jquant.transform.plan import Site
from jquant.transform.recipe import Activations

_EXTENDED = FeatureLevel.EXTENDED


class QuantizedInput(NamedTuple):
    """The input of a site, quantized to integers.

    Attributes:
      values: int8 or uint8, of the shape of the input.
      scale: float32, of shape () or, for a scale per row, of the shape of the input with 1 for each dimension of a row.
      zero_point: of the dtype of `values`, or None for 0.
    """

    values: jax.Array
    scale: jax.Array
    zero_point: jax.Array | None


def symmetric_scale(x: jax.Array, over: Sequence[int], dtype: str = "INT8") -> jax.Array:
    """The scale of symmetric integers, ``max|x| / 127`` for int8, shared along the dimensions `over`, which become 1."""
    largest = largest_magnitude(exact.numerator(x), tuple(over))
    return scale_and_zero_point(-largest, largest, dtype, symmetric=True, narrow_range=True).scale


@functools.partial(jax.jit, static_argnums=(0, 1))
def packed_weights(storage: Storage, num_levels: int, weights: jax.Array) -> dict[str, Any]:
    """The weights of a site, quantized and packed, with their scales: what the quantized parameters hold.

    For a product or a table: a `PackedMatrix` of shape (batch, contracted, kept), without the batch if there is none, and a
    scale of shape (batch, kept) or (). For a convolution: the filter as an int8 array, and a scale of shape (filters,) or
    (). The first `num_levels` dimensions are those of the layers.
    """
    pack = functools.partial(_packed_layer, storage)
    for _ in range(num_levels):
        pack = jax.vmap(pack)
    return pack(weights)


def _packed_layer(storage: Storage, weights: jax.Array) -> dict[str, Any]:
    layout = storage.layout
    if storage.filter is not None:
        filter = weights.transpose(storage.filter)
        (channel,) = (storage.filter.index(dimension) for dimension in layout.kept)
        values, scale = quantized_weights(storage, filter, [d for d in range(filter.ndim) if d != channel])
        return {"values": values, "scale": scale}
    matrix = weights.transpose([dimension for dimensions in layout for dimension in dimensions])
    sizes = [math.prod(weights.shape[dimension] for dimension in dimensions) for dimensions in layout]
    matrix = matrix.reshape(sizes if layout.batch else sizes[1:])
    values, scale = quantized_weights(storage, matrix, [matrix.ndim - 2])
    return {"values": pack_matrix(values), "scale": scale}


def quantized_weights(storage: Storage, weights: jax.Array, shared: Sequence[int]) -> tuple[jax.Array, jax.Array]:
    """The weights as integers, and their scales, which weights along the dimensions `shared` share, or the whole tensor."""
    by_channel = storage.scales == ScaleGranularity.PER_CHANNEL
    scale = symmetric_scale(weights, shared if by_channel else range(weights.ndim), storage.weight_type)
    values = quantize_linear(weights, scale, output_dtype=storage.weight_type, feature_level=_EXTENDED)
    return values.astype(jnp.int8), scale.squeeze(tuple(shared)) if by_channel else scale.reshape(())


def quantize_input(site: Site, x: jax.Array, static: ScaleZeroPoint | None) -> QuantizedInput:
    """The input of a site as integers: with the scale `static` or, if that is None, with one that depends on `x`."""
    scheme = site.scheme
    if static is not None:
        scale, zero_point = static
        zero_point = None if scheme.is_symmetric else zero_point
        values = quantize_linear(x, scale, zero_point, output_dtype=scheme.activation_type, feature_level=_EXTENDED)
        return QuantizedInput(values=values, scale=scale, zero_point=zero_point)
    if not scheme.is_symmetric:
        values, scale, zero_point = dynamic_quantize_linear(x, feature_level=_EXTENDED)
        return QuantizedInput(values=values, scale=scale, zero_point=zero_point)
    by_row = scheme.activations == Activations.DYNAMIC_ROW and site.kind == MATMUL
    axis = product_dimensions(site.equation, site.input_operand)[0] if by_row else None
    values, scale, _ = dynamic_quantize_linear(x, axis=axis, symmetric=True, output_dtype="INT8", feature_level=_EXTENDED)
    return QuantizedInput(values=values, scale=scale, zero_point=None)


def output(site: Site, stored: dict[str, Any], x: jax.Array, static: ScaleZeroPoint | None) -> jax.Array:
    """The output of a site for the operand `x` and the stored weights."""
    if site.kind == EMBEDDING:
        return embedding_output(site, stored, x)
    if is_weight_only(site):
        return weight_only_output(site, stored, x)
    return integer_output(site, stored, quantize_input(site, x, static))


def static_range(site: Site, static: ScaleZeroPoint) -> tuple[jax.Array, jax.Array]:
    """The real numbers that the smallest and the largest integer of a static input stand for."""
    limits = jnp.iinfo(site.scheme.activation_type.lower())
    lowest = -limits.max if site.scheme.is_symmetric else limits.min
    low, high = (jnp.asarray(limit, limits.dtype) for limit in (lowest, limits.max))
    zero_point = None if site.scheme.is_symmetric else static.zero_point
    return dequantize_linear(low, static.scale, zero_point), dequantize_linear(high, static.scale, zero_point)


def integer_output(site: Site, stored: dict[str, Any], input: QuantizedInput) -> jax.Array:
    """The output of a product or a convolution, computed from integers."""
    return (_convolution if site.kind == CONVOLUTION else _product)(site, stored, input)


def _convolution(site: Site, stored: dict[str, Any], input: QuantizedInput) -> jax.Array:
    parameters = site.equation.params
    return convolution_integer_to_float(
        input.values,
        input.scale,
        input.zero_point,
        stored["values"],
        stored["scale"],
        strides=parameters["window_strides"],
        padding=parameters["padding"],
        dilations=parameters["rhs_dilation"],
        groups=parameters["feature_group_count"],
        dimension_numbers=parameters["dimension_numbers"],
        output_dtype=site.output_type.dtype,
        feature_level=_EXTENDED,
    )


def _product(site: Site, stored: dict[str, Any], input: QuantizedInput) -> jax.Array:
    contracted, batch = product_dimensions(site.equation, site.input_operand)
    contracted = sorted(contracted)
    x, scale = input.values, input.scale
    free = [dimension for dimension in range(x.ndim) if dimension not in contracted and dimension not in batch]
    order = [*batch, *free, *contracted]
    batch_sizes, free_sizes = [[x.shape[d] for d in dimensions] for dimensions in (batch, free)]
    sizes = [math.prod(batch_sizes)] if batch else []
    rows, depth = math.prod(free_sizes), math.prod(x.shape[d] for d in contracted)
    multiply = functools.partial(matmul_integer_to_float, output_dtype=site.output_type.dtype, feature_level=_EXTENDED)

    def product(values: jax.Array, scale: jax.Array, weights: Any, weight_scale: jax.Array) -> jax.Array:
        return multiply(values, scale, input.zero_point, weights, weight_scale)

    if scale.ndim:
        scale = scale.transpose(order).reshape([*sizes, rows])
    if batch:
        product = jax.vmap(product, (0, 0 if scale.ndim else None, 0, 0 if stored["scale"].ndim else None))
    matrix = product(x.transpose(order).reshape([*sizes, rows, depth]), scale, stored["values"], stored["scale"])
    return _with_output_dimensions(site, matrix, batch_sizes, free_sizes)


def _with_output_dimensions(site: Site, matrix: jax.Array, batch: Sequence[Any], free: Sequence[Any]) -> jax.Array:
    """A matrix product, with the output dimensions of the function's own product."""
    weights = site.equation.invars[site.operand].aval
    contracted, weight_batch = product_dimensions(site.equation, site.operand)
    kept = [size for d, size in enumerate(weights.shape) if d not in contracted and d not in weight_batch]
    output = matrix.reshape([*batch, *free, *kept])
    if site.operand == 1:
        return output
    first, middle = len(batch), len(batch) + len(free)  # the weights' dimensions come before those of the input
    return output.transpose([*range(first), *range(middle, output.ndim), *range(first, middle)])


def embedding_output(site: Site, stored: dict[str, Any], indices: jax.Array) -> jax.Array:
    """Rows of a table, looked up as integers and multiplied by their scales, which are looked up as well."""
    parameters = site.equation.params
    (index,) = parameters["dimension_numbers"].start_index_map
    table = stored["values"].data  # of shape (rows, elements of a row)
    scale = jnp.broadcast_to(stored["scale"], table.shape[:1])[:, None]
    if index == 1:
        table, scale = table.T, scale.T
    # For indices beyond the table, the scale is the function's own fill value, NaN by default, and the integer is 1.
    value_parameters = {**parameters, "fill_value": None if parameters["fill_value"] is None else 1}
    scale_parameters = {**parameters, "slice_sizes": (1, 1)}
    values = jaxprs.bind(site.equation.replace(params=value_parameters), table, indices)[0]
    scales = jaxprs.bind(site.equation.replace(params=scale_parameters), scale, indices)[0]
    return dequantize_linear(values, scales, output_dtype=site.output_type.dtype, feature_level=_EXTENDED)


def dequantized(site: Site, stored: dict[str, Any]) -> jax.Array:
    """The weights, dequantized, as the operand of the function's own product."""
    dtype = site.equation.invars[site.operand].aval.dtype
    values, scale = stored["values"], stored["scale"]
    if site.kind == CONVOLUTION:
        axis = site.equation.params["dimension_numbers"].rhs_spec[0] if scale.ndim else None
        return dequantize_linear(values, scale, axis=axis, output_dtype=dtype, feature_level=_EXTENDED)
    scale = scale[..., None, :] if scale.ndim else scale
    matrix = dequantize_linear(values.unpack(), scale, output_dtype=dtype, feature_level=_EXTENDED)
    order = [dimension for dimensions in site.storage.layout for dimension in dimensions]
    weights = matrix.reshape([site.weights.shape[dimension] for dimension in order])
    return weights.transpose([order.index(dimension) for dimension in site.dimensions])


def weight_only_output(site: Site, stored: dict[str, Any], x: jax.Array) -> jax.Array:
    """The output of a product or a convolution in float, with dequantized weights."""
    operands = [x, dequantized(site, stored)]
    return jaxprs.bind(site.equation, *(operands if site.operand == 1 else operands[::-1]))[0]


def is_weight_only(site: Site) -> bool:
    """Whether only the weights of a product or a convolution are quantized, and its input stays float."""
    return site.kind != EMBEDDING and site.scheme.activations == Activations.FLOAT
