"""The computations at a site: compositions of the public operators."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant import jaxprs
from jquant.lowering.symbolic_sizes import joined
from jquant.modes import FeatureLevel
from jquant.operators.convolution_integer_to_float import convolution_integer_to_float
from jquant.operators.dequantize_linear import dequantize_linear
from jquant.operators.dynamic_quantize_linear import dynamic_quantize_linear
from jquant.operators.matmul_integer_to_float import matmul_integer_to_float
from jquant.operators.quantize_linear import quantize_linear
from jquant.quantized_tensor import ScaleZeroPoint
from jquant.transform.formats.floats_as_integers import AsIntegers
from jquant.transform.formats.integer_formats import Blocks, Columns, TwoBits
from jquant.transform.formats.stored_weights import Stored
from jquant.transform.program import selections
from jquant.transform.program.layouts import (
    ACTIVATION_MATMUL,
    CONVOLUTION,
    EMBEDDING,
    MATMUL,
    product_dimensions,
    row_dimensions,
)
from jquant.transform.program.plan import ActivationProduct, Site
from jquant.transform.recipes.recipe import Activations, Scheme
from jquant.transform.rewriting import experts
from jquant.transform.rewriting.transposed_convolutions import Undilated
from jquant.transform.weights import layers, rotation, smoothing

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


def prepared_input(site: Site, x: jax.Array, factors: jax.Array | None) -> jax.Array:
    """The input of a product, smoothed with `factors`, unless they are None, and rotated, if that is its preparation."""
    is_rotated = site.storage.preparation.is_rotated
    if factors is None and not is_rotated:
        return x
    contracted = sorted(product_dimensions(site.equation, site.input_operand)[0])
    order = [*(d for d in range(x.ndim) if d not in contracted), *contracted]
    moved = x.transpose(order)
    others = moved.shape[: x.ndim - len(contracted)]
    channels = moved.reshape(*others, joined(moved.shape[len(others) :]))
    if factors is not None:
        channels = smoothing.smoothed(channels, factors)
    if is_rotated:
        channels = rotation.of_input(channels)
    return channels.reshape(moved.shape).transpose(np.argsort(order))


def input_rows(site: Site, x: jax.Array) -> jax.Array:
    """The input of a product as a matrix (rows, K), or as a batch of these for a batch of products."""
    contracted, batch = product_dimensions(site.equation, site.input_operand)
    rows = _rows(x, None, sorted(contracted), batch).values
    return rows if site.matrix_batch else rows.reshape(joined(rows.shape[:-1]), rows.shape[-1])


def quantize_input(site: Site, x: jax.Array, static: ScaleZeroPoint | None) -> QuantizedInput:
    """The input of a site as integers: with the scale `static` or, if that is None, with one that depends on `x`."""
    rows = row_dimensions(site.kind, site.equation, site.input_operand, site.scheme)
    return _quantized(site.scheme, rows, x, static)


def quantize_operand(product: ActivationProduct, x: jax.Array, *, operand: int) -> QuantizedInput:
    """An operand of a product of two activations as integers."""
    rows = row_dimensions(ACTIVATION_MATMUL, product.equation, operand, product.scheme)
    return _quantized(product.scheme, rows, x, None)


def _quantized(scheme: Scheme, rows: tuple[int, ...] | None, x: jax.Array, static: ScaleZeroPoint | None) -> QuantizedInput:
    """`x` as integers, with a scale for each row, which has the dimensions `rows`, or one."""
    if static is not None:
        scale, zero_point = static
        zero_point = None if scheme.is_symmetric else zero_point
        values = quantize_linear(x, scale, zero_point, output_dtype=scheme.activation_type, feature_level=_EXTENDED)
        return QuantizedInput(values=values, scale=scale, zero_point=zero_point)
    if not scheme.is_symmetric:
        values, scale, zero_point = dynamic_quantize_linear(x, feature_level=_EXTENDED)
        return QuantizedInput(values=values, scale=scale, zero_point=zero_point)
    values, scale, _ = dynamic_quantize_linear(x, axis=rows, symmetric=True, output_dtype="INT8", feature_level=_EXTENDED)
    return QuantizedInput(values=values, scale=scale, zero_point=None)


def which_matrices(site: Site, operands: Sequence[Any]) -> jax.Array | None:
    """What selects the weights of a site from a stack: their numbers, or the sizes of groups of rows; None: nothing."""
    if site.is_ragged:
        return operands[2]
    return operands[site.operand].numbers if site.selected else None


def output(
    site: Site, stored: Stored, operands: Sequence[Any], factors: jax.Array | None, static: ScaleZeroPoint | None
) -> jax.Array:
    """The output of a site for its operands, the stored weights, and the factors and the scale of its input."""
    if site.kind == EMBEDDING:
        return embedding_output(site, stored, row_numbers(site, operands))
    x, which = prepared_input(site, operands[site.input_operand], factors), which_matrices(site, operands)
    if is_weight_only(site):
        return weight_only_output(site, stored, x, which)
    return integer_output(site, stored, quantize_input(site, x, static), which)


def static_range(site: Site, static: ScaleZeroPoint) -> tuple[jax.Array, jax.Array]:
    """The real numbers that the smallest and the largest integer of a static input stand for."""
    limits = jnp.iinfo(site.scheme.activation_type.lower())
    lowest = -limits.max if site.scheme.is_symmetric else limits.min
    low, high = (jnp.asarray(limit, limits.dtype) for limit in (lowest, limits.max))
    zero_point = None if site.scheme.is_symmetric else static.zero_point
    return dequantize_linear(low, static.scale, zero_point), dequantize_linear(high, static.scale, zero_point)


def dequantized_input(input: QuantizedInput, dtype: np.dtype) -> jax.Array:
    """The floats that a quantized input stands for."""
    return dequantize_linear(*input, output_dtype=dtype, feature_level=_EXTENDED)


def unsaturated(site: Site, x: jax.Array, static: ScaleZeroPoint | None) -> jax.Array:
    """`x`, with the derivative 1, or 0 outside the range of a static input."""
    if static is None:
        return x
    low, high = (bound.astype(x.dtype) for bound in static_range(site, static))
    return jnp.where((low <= x) & (x <= high), x, lax.stop_gradient(x))


def integer_output(site: Site, stored: Stored, input: QuantizedInput, which: jax.Array | None = None) -> jax.Array:
    """The output of a product or a convolution, computed from integers."""
    return _convolution(site, stored, input) if site.kind == CONVOLUTION else _product(site, stored, input, which)


def _convolution(site: Site, stored: Stored, input: QuantizedInput) -> jax.Array:
    parameters, values = site.equation.params, stored["values"]
    undilated = Undilated.of(parameters, values.shape)
    output = convolution_integer_to_float(
        undilated.input(input.values, input.zero_point),
        input.scale,
        input.zero_point,
        undilated.filter(values),
        undilated.by_filter(stored["scale"].astype(jnp.float32)),
        strides=parameters["window_strides"],
        padding=undilated.padding,
        dilations=parameters["rhs_dilation"],
        groups=undilated.groups,
        dimension_numbers=undilated.dimensions,
        output_dtype=site.output_type.dtype,
        feature_level=_EXTENDED,
    )
    return undilated.output(output, input.values.shape)


def _product(site: Site, stored: Stored, input: QuantizedInput, which: jax.Array | None) -> jax.Array:
    format = cast(Columns | Blocks | AsIntegers, site.storage.format)

    def multiply(values: jax.Array, scale: jax.Array, stored: Stored) -> jax.Array:
        return format.multiply(values, scale, input.zero_point, stored, site.output_type.dtype)

    return matrix_product(site, multiply, input.values, input.scale, stored, which)


def product_output(product: ActivationProduct, left: QuantizedInput, right: QuantizedInput) -> jax.Array:
    """The output of a product of two activations, computed from integers."""
    contracted, batch = product_dimensions(product.equation, 0)
    left_rows = _rows(left.values, left.scale, sorted(contracted), batch)
    right_rows = _rows(right.values, right.scale, *product_dimensions(product.equation, 1))
    dtype = product.equation.outvars[0].aval.dtype

    def multiply(values: jax.Array, scale: jax.Array, columns: jax.Array, column_scale: jax.Array) -> jax.Array:
        parameters = scale, left.zero_point, columns.T, column_scale, right.zero_point
        return matmul_integer_to_float(values, *parameters, output_dtype=dtype, feature_level=_EXTENDED)

    if batch:
        multiply = jax.vmap(multiply, (0, left_rows.scale_axis, 0, right_rows.scale_axis))
    matrix = multiply(left_rows.values, left_rows.scale, right_rows.values, right_rows.scale)
    return matrix.reshape([*left_rows.batch, *left_rows.free, *right_rows.free])


class _Rows(NamedTuple):
    """An operand of a product as a matrix (rows, contracted), or as a batch of such matrices.

    Attributes:
      values: the matrix.
      scale: one number, or one for each row.
      batch, free: the sizes of the operand's batch dimensions, and of those that rows stand for.
    """

    values: jax.Array
    scale: Any
    batch: list[Any]
    free: list[Any]

    @property
    def scale_axis(self) -> int | None:
        """The axis of the batch in the scale, for `jax.vmap`."""
        return 0 if self.scale is not None and self.scale.ndim else None


def _rows(x: jax.Array, scale: jax.Array | None, contracted: Sequence[int], batch: Sequence[int]) -> _Rows:
    free = [dimension for dimension in range(x.ndim) if dimension not in contracted and dimension not in batch]
    order = [*batch, *free, *contracted]
    batch_sizes, free_sizes = [[x.shape[d] for d in dimensions] for dimensions in (batch, free)]
    sizes = [joined(batch_sizes)] if batch else []
    rows, depth = joined(free_sizes), joined([x.shape[d] for d in contracted])
    if scale is not None and scale.ndim:
        scale = scale.transpose(order).reshape([*sizes, rows])
    return _Rows(x.transpose(order).reshape([*sizes, rows, depth]), scale, batch_sizes, free_sizes)


def matrix_product(
    site: Site,
    multiply: Callable[..., jax.Array],
    x: jax.Array,
    scale: jax.Array | None,
    stored: Stored,
    which: jax.Array | None,
) -> jax.Array:
    """``multiply(rows, scale, stored)`` of the rows of an input, whose scale is one number or one for each row."""
    contracted, batch = product_dimensions(site.equation, site.input_operand)
    rows = _rows(x, scale, sorted(contracted), batch)
    if site.is_ragged:
        assert which is not None
        return experts.product_by_groups(multiply, rows.values, rows.scale, stored, which)
    if which is not None:
        stored = experts.selected(site, stored, which)
    stored_axes = jax.tree.map(lambda array: 0 if array.ndim else None, stored)
    if batch:
        multiply = jax.vmap(multiply, (0, rows.scale_axis, stored_axes))
    if experts.free_dimensions(site):
        multiply = jax.vmap(multiply, (None, None, stored_axes), out_axes=-2)
    matrix = multiply(rows.values, rows.scale, stored)
    return _with_output_dimensions(site, matrix, rows.batch, rows.free, which)


def _with_output_dimensions(
    site: Site, matrix: jax.Array, batch: Sequence[Any], free: Sequence[Any], which: jax.Array | None
) -> jax.Array:
    """A matrix product, with the output dimensions of the function's own product."""
    sizes = site.equation.invars[site.operand].aval.shape
    contracted, weight_batch = product_dimensions(site.equation, site.operand)
    kept = [d for d in range(len(sizes)) if d not in contracted and d not in weight_batch]
    of_index = experts.free_dimensions(site)
    ordered = [*of_index, *(d for d in kept if d not in of_index)]
    output = matrix.reshape([*batch, *free, *(sizes[d] for d in ordered)])
    if which is not None:
        of_batch, of_kept = ([which.shape[d] for d in dimensions] for dimensions in (weight_batch, ordered))
        numbers = which.transpose([*weight_batch, *ordered, *contracted])
        output = experts.nan_beyond(site, output, numbers.reshape([*of_batch, *(1 for _ in free), *of_kept]))
    first, middle = len(batch), len(batch) + len(free)
    free_axes, kept_axes = range(first, middle), [middle + ordered.index(d) for d in kept]
    order = [*free_axes, *kept_axes] if site.operand == 1 else [*kept_axes, *free_axes]
    return output.transpose([*range(first), *order])


def row_numbers(site: Site, operands: Sequence[Any]) -> jax.Array:
    """The numbers of the rows that a look-up takes from a table, as `selections.numbers_after` returns them."""
    return selections.numbers_after(site.equation, operands)


def embedding_output(site: Site, stored: Stored, numbers: jax.Array) -> jax.Array:
    """Rows of a table, looked up as they are stored, and dequantized."""
    taken = selections.parts(site.equation)
    assert taken is not None
    (axis,) = (axis for axis, dimension in enumerate(taken.dimensions) if dimension is not None)
    columns = numbers.squeeze(axis)

    def take(array: jax.Array, dimension: int) -> jax.Array:
        some = jnp.take(array, columns, axis=dimension, mode="clip")
        return jnp.expand_dims(jnp.moveaxis(some, 0 if dimension else -1, -1), dimension - 2)

    (row_size,) = (site.weights.shape[dimension] for dimension in site.storage.layout.contracted)
    rows = site.storage.format.dequantize(site.storage.format.columns(stored, take), row_size, site.output_type.dtype)
    rows = jnp.moveaxis(rows.squeeze(-1), -1, axis)
    if not selections.fills(site.equation):
        return rows
    fill_value = site.equation.params["fill_value"]
    return jnp.where(numbers < 0, jnp.asarray(jnp.nan if fill_value is None else fill_value, rows.dtype), rows)


def dequantized(site: Site, stored: Stored, which: jax.Array | None = None) -> jax.Array:
    """The weights, dequantized, as the operand of the function's own product."""
    dtype = site.equation.invars[site.operand].aval.dtype
    if which is None or site.is_ragged:
        return as_operand(site, layers.unpack_layer(site.storage, stored, _own_shape(site), dtype))
    sizes = site.equation.invars[site.operand].aval.shape
    contracted, batch = product_dimensions(site.equation, site.operand)
    order = [*experts.free_dimensions(site), *batch, *contracted]
    order += [d for d in range(len(sizes)) if d not in order]
    rows = math.prod(sizes[d] for d in contracted)
    matrices = site.storage.format.dequantize(experts.selected(site, stored, which), rows, dtype)
    operand = matrices.reshape([sizes[d] for d in order]).transpose(np.argsort(order))
    return experts.nan_beyond(site, operand, which)


def _own_shape(site: Site) -> list[int]:
    """The shape of the weights, or inside `shard_map`, that of the part on a device."""
    shape = list(site.weights.shape)
    for size, dimension in zip(site.equation.invars[site.operand].aval.shape, site.dimensions, strict=True):
        shape[site.selected[0] if dimension is None else dimension] = size
    return shape


def as_operand(site: Site, weights: jax.Array, which: jax.Array | None = None) -> jax.Array:
    """Float weights as the operand of the function's own product."""
    if which is not None and not site.is_ragged:
        return experts.nan_beyond(site, experts.selected_floats(site, weights, which), which)
    return weights.transpose([site.selected[0] if dimension is None else dimension for dimension in site.dimensions])


def weight_only_output(site: Site, stored: Stored, x: jax.Array, which: jax.Array | None = None) -> jax.Array:
    """The output of a product or a convolution of floats.

    `matmul_n_bits` computes a product of integers of its formats. Otherwise, the weights are dequantized.
    """
    format = site.storage.format
    if site.kind == MATMUL and isinstance(format, Blocks | TwoBits):
        # In the wider of the two types, if the product's is not that of the operands.
        dtype = wider(x.dtype, site.output_type.dtype)

        def multiply(x: jax.Array, scale: None, stored: Stored) -> jax.Array:
            return format.multiply_floats(x, stored)

        return matrix_product(site, multiply, x.astype(dtype), None, stored, which).astype(site.output_type.dtype)
    return product_by_dequantized(site, stored, x, which)


def product_by_dequantized(site: Site, stored: Stored, x: jax.Array, which: jax.Array | None = None) -> jax.Array:
    """The function's own product or convolution of floats and the dequantized weights."""
    operands = [x, dequantized(site, stored, which)]
    groups = [which] if site.is_ragged else []
    return jaxprs.bind(site.equation, *(operands if site.operand == 1 else operands[::-1]), *groups)[0]


def wider(*dtypes: np.dtype) -> np.dtype:
    """The type of floats that holds those of all these types. (`jnp.promote_types` obeys JAX's strict mode, and raises.)"""
    return dtypes[0] if len(set(dtypes)) == 1 else np.dtype("float32")


def is_weight_only(site: Site) -> bool:
    """Whether only the weights of a product or a convolution are quantized, and its input stays float."""
    return site.kind != EMBEDDING and site.scheme.activations == Activations.FLOAT
