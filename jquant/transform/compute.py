"""The computations at a site: compositions of the public operators."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.modes import FeatureLevel
from jquant.operators.convolution_integer_to_float import convolution_integer_to_float
from jquant.operators.dequantize_linear import dequantize_linear
from jquant.operators.dynamic_quantize_linear import dynamic_quantize_linear
from jquant.operators.quantize_linear import quantize_linear
from jquant.quantized_tensor import ScaleZeroPoint
from jquant.transform import jaxprs
from jquant.transform.integer_formats import Blocks, Columns, TwoBits
from jquant.transform.layouts import CONVOLUTION, EMBEDDING, MATMUL, Storage, product_dimensions
from jquant.transform.plan import Site
from jquant.transform.recipe import Activations
from jquant.transform.stored_weights import FilterFormat, Stored

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


@functools.partial(jax.jit, static_argnums=(0, 1))
def packed_weights(storage: Storage, num_levels: int, weights: jax.Array) -> Stored:
    """The weights of a site, quantized and packed: what the quantized parameters hold.

    For a product or a table, they are a matrix of shape (batch, contracted, kept), without the batch if there is none, as
    the format stores it; for a convolution, a filter. The first `num_levels` dimensions are those of the layers.
    """
    pack = functools.partial(pack_layer, storage)
    for _ in range(num_levels):  # one layer at a time: all at once would take the memory of several float models
        pack = functools.partial(lax.map, pack)
    return pack(weights)


def pack_layer(storage: Storage, weights: jax.Array) -> Stored:
    """The weights of one layer, quantized and packed."""
    if storage.filter is not None:
        return filter_format(storage).pack_filter(weights.transpose(storage.filter), _channel(storage))
    matrix = weights.transpose([dimension for dimensions in storage.layout for dimension in dimensions])
    return storage.format.pack(matrix.reshape(matrix_sizes(storage, weights.shape)))


def unpack_layer(storage: Storage, stored: Stored, shape: Sequence[int], dtype: Any) -> jax.Array:
    """The weights of one layer, dequantized: an array of this shape and dtype."""
    if storage.filter is not None:
        filter = filter_format(storage).dequantize_filter(stored, _channel(storage), dtype)
        return filter.transpose(np.argsort(storage.filter))
    matrix = storage.format.dequantize(stored, matrix_sizes(storage, shape)[-2], dtype)
    order = [dimension for dimensions in storage.layout for dimension in dimensions]
    return matrix.reshape([shape[dimension] for dimension in order]).transpose(np.argsort(order))


def filter_format(storage: Storage) -> FilterFormat:
    """The format of a convolution's filter."""
    return cast(FilterFormat, storage.format)


def _channel(storage: Storage) -> int:
    """The dimension of a filter, as it is stored, along which its output channels lie."""
    assert storage.filter is not None
    return storage.filter.index(*storage.layout.kept)


def matrix_sizes(storage: Storage, shape: Sequence[int]) -> list[int]:
    """The sizes of the matrix that stores weights of this shape."""
    sizes = [math.prod(shape[dimension] for dimension in dimensions) for dimensions in storage.layout]
    return sizes if storage.layout.batch else sizes[1:]


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


def output(site: Site, stored: Stored, x: jax.Array, static: ScaleZeroPoint | None) -> jax.Array:
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


def unsaturated(site: Site, x: jax.Array, static: ScaleZeroPoint | None) -> jax.Array:
    """`x`, with the derivative 1, or 0 outside the range of a static input."""
    if static is None:
        return x
    low, high = (bound.astype(x.dtype) for bound in static_range(site, static))
    return jnp.where((low <= x) & (x <= high), x, lax.stop_gradient(x))


def integer_output(site: Site, stored: Stored, input: QuantizedInput) -> jax.Array:
    """The output of a product or a convolution, computed from integers."""
    return (_convolution if site.kind == CONVOLUTION else _product)(site, stored, input)


def _convolution(site: Site, stored: Stored, input: QuantizedInput) -> jax.Array:
    parameters = site.equation.params
    return convolution_integer_to_float(
        input.values,
        input.scale,
        input.zero_point,
        stored["values"],
        stored["scale"].astype(jnp.float32),
        strides=parameters["window_strides"],
        padding=parameters["padding"],
        dilations=parameters["rhs_dilation"],
        groups=parameters["feature_group_count"],
        dimension_numbers=parameters["dimension_numbers"],
        output_dtype=site.output_type.dtype,
        feature_level=_EXTENDED,
    )


def _product(site: Site, stored: Stored, input: QuantizedInput) -> jax.Array:
    format = cast(Columns | Blocks, site.storage.format)

    def multiply(values: jax.Array, scale: jax.Array, stored: Stored) -> jax.Array:
        return format.multiply(values, scale, input.zero_point, stored, site.output_type.dtype)

    return matrix_product(site, multiply, input.values, input.scale, stored)


def matrix_product(
    site: Site, multiply: Callable[..., jax.Array], x: jax.Array, scale: jax.Array | None, stored: Stored
) -> jax.Array:
    """``multiply(rows, scale, stored)`` of the rows of an input, whose scale is one number or one for each row."""
    contracted, batch = product_dimensions(site.equation, site.input_operand)
    contracted = sorted(contracted)
    free = [dimension for dimension in range(x.ndim) if dimension not in contracted and dimension not in batch]
    order = [*batch, *free, *contracted]
    batch_sizes, free_sizes = [[x.shape[d] for d in dimensions] for dimensions in (batch, free)]
    sizes = [math.prod(batch_sizes)] if batch else []
    rows, depth = math.prod(free_sizes), math.prod(x.shape[d] for d in contracted)
    if scale is not None and scale.ndim:
        scale = scale.transpose(order).reshape([*sizes, rows])
    if batch:
        scale_axes, stored_axes = jax.tree.map(lambda array: 0 if array.ndim else None, (scale, stored))
        multiply = jax.vmap(multiply, (0, scale_axes, stored_axes))
    matrix = multiply(x.transpose(order).reshape([*sizes, rows, depth]), scale, stored)
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


def embedding_output(site: Site, stored: Stored, indices: jax.Array) -> jax.Array:
    """Rows of a table, looked up as they are stored, and dequantized."""
    parameters = site.equation.params
    numbers = parameters["dimension_numbers"]
    (offset,) = numbers.offset_dims

    def take(array: jax.Array, axis: int) -> jax.Array:
        sizes = tuple(1 if dimension == axis else size for dimension, size in enumerate(array.shape))
        changed = {
            "dimension_numbers": numbers._replace(collapsed_slice_dims=(axis,), start_index_map=(axis,)),
            "slice_sizes": sizes,
            "mode": lax.GatherScatterMode.CLIP,
            "fill_value": None,
        }
        taken = jaxprs.bind(site.equation.replace(params={**parameters, **changed}), array, indices)[0]
        return jnp.expand_dims(jnp.moveaxis(taken, offset, -1), axis - 2)

    (row_size,) = (site.weights.shape[dimension] for dimension in site.storage.layout.contracted)
    rows = site.storage.format.dequantize(site.storage.format.columns(stored, take), row_size, site.output_type.dtype)
    rows = jnp.moveaxis(rows.squeeze(-1), -1, offset)
    if parameters["mode"] != lax.GatherScatterMode.FILL_OR_DROP:
        return rows
    count = site.weights.shape[site.storage.layout.kept[0]]
    is_inside = (indices >= 0) & (indices < np.asarray(count, indices.dtype))
    fill_value = jnp.nan if parameters["fill_value"] is None else parameters["fill_value"]
    return jnp.where(jnp.moveaxis(is_inside, -1, offset), rows, jnp.asarray(fill_value, rows.dtype))


def dequantized(site: Site, stored: Stored) -> jax.Array:
    """The weights, dequantized, as the operand of the function's own product."""
    dtype = site.equation.invars[site.operand].aval.dtype
    return unpack_layer(site.storage, stored, site.weights.shape, dtype).transpose(site.dimensions)


def weight_only_output(site: Site, stored: Stored, x: jax.Array) -> jax.Array:
    """The output of a product or a convolution of floats.

    `matmul_n_bits` computes a product of integers of its formats. Otherwise, the weights are dequantized.
    """
    format = site.storage.format
    if site.kind == MATMUL and isinstance(format, Blocks | TwoBits):
        # In the wider of the two types, if the product's is not that of the operands.
        dtype = wider(x.dtype, site.output_type.dtype)

        def multiply(x: jax.Array, scale: None, stored: Stored) -> jax.Array:
            return format.multiply_floats(x, stored)

        return matrix_product(site, multiply, x.astype(dtype), None, stored).astype(site.output_type.dtype)
    return product_by_dequantized(site, stored, x)


def product_by_dequantized(site: Site, stored: Stored, x: jax.Array) -> jax.Array:
    """The function's own product or convolution of floats and the dequantized weights."""
    operands = [x, dequantized(site, stored)]
    return jaxprs.bind(site.equation, *(operands if site.operand == 1 else operands[::-1]))[0]


def wider(*dtypes: np.dtype) -> np.dtype:
    """The type of floats that holds those of all these types. (`jnp.promote_types` obeys JAX's strict mode, and raises.)"""
    return dtypes[0] if len(set(dtypes)) == 1 else np.dtype("float32")


def is_weight_only(site: Site) -> bool:
    """Whether only the weights of a product or a convolution are quantized, and its input stays float."""
    return site.kind != EMBEDDING and site.scheme.activations == Activations.FLOAT
