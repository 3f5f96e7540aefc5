"""XLA's own convolutions, where they use the integer unit: on TPUs, and on CPUs with many channels and windows."""

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from jquant.formulas.convolution_geometry import Geometry
from jquant.kernels import epilogue as epilogues
from jquant.kernels.convolution import im2col
from jquant.kernels.convolution.layout import Operands
from jquant.kernels.epilogue import Epilogue
from jquant.lowering import cpu_features
from jquant.lowering.partitioned import unless_partitioned
from jquant.lowering.symbolic_sizes import joined

# From this many channels on, XLA:CPU's own convolution takes a half to a quarter of the time of a product with patches, as
# measured on x86-64. Where XLA only has its generic loop, it would take a hundred times as long.
_MANY_CHANNELS = 16

# XLA's own convolution rearranges the filters in each call. Up to this many windows per filter, that takes longer than to
# make patches and to multiply them by the filters as they are.
_FEW_WINDOWS = 4


def is_fast_on_cpu(shape: Sequence[int], filter_shape: Sequence[int], geometry: Geometry) -> bool:
    """Whether XLA:CPU's own convolution of one group, with the channels last, is faster than a product with patches."""
    dimensions, windows = geometry.dimensions, geometry.windows
    batch, _, *space = (shape[dimension] for dimension in dimensions.lhs_spec)
    filters, channels, *_ = (filter_shape[dimension] for dimension in dimensions.rhs_spec)
    many = channels >= _MANY_CHANNELS and max(channels, filters) > _MANY_CHANNELS
    if not cpu_features.HAS_INT8_CONVOLUTION or not many or math.prod(windows.sizes) == 1 or len(windows.sizes) > 2:
        return False
    counts = batch, *windows.counts(space)
    return not all(isinstance(count, int) for count in counts) or math.prod(counts) > _FEW_WINDOWS * filters


def convolution(operands: Operands, image: jax.Array, matrix: jax.Array, epilogue: Epilogue) -> jax.Array:
    """`im2col.product` without patches in memory. XLA's TPU programs for it use the int8 unit, unless there are groups.

    That was read from the programs, not measured. On a CPU this is a slow loop; on GPUs it has not been tried.
    """
    filter = jnp.squeeze(jnp.moveaxis(matrix, 3, -1), (0, 1))
    group = image.ndim - 2 if operands.layout.channels_last else 1
    image, last = jnp.squeeze(image, group), image.ndim - 2
    layout = (0, last, *range(1, last)) if operands.layout.channels_last else tuple(range(last + 1))
    split = {0: jax.typeof(image).sharding.spec[0], layout[1]: jax.typeof(filter).sharding.spec[0]}
    spec = PartitionSpec(*(split.get(dimension) for dimension in range(image.ndim)))
    product = lax.conv_general_dilated(
        image,
        filter,
        window_strides=operands.windows.strides,
        padding="VALID",
        rhs_dilation=operands.windows.dilations,
        dimension_numbers=lax.ConvDimensionNumbers(layout, (0, last, *range(1, last)), layout),
        preferred_element_type=jnp.int32,
        # Over explicit axes, JAX requires it if the filters are split.
        out_sharding=jax.typeof(image).sharding.update(spec=spec) if split[layout[1]] else None,
    )
    return epilogues.apply(epilogue, operands.matrices(jnp.expand_dims(product, group)))


def convolution_on_cpu(operands: Operands, image: jax.Array, matrix: jax.Array, epilogue: Epilogue) -> jax.Array:
    """XLA:CPU's own convolution; or `im2col.product`, if XLA partitions the program, or if `jax.vmap` maps the filters."""

    def convolve(image: jax.Array, matrix: jax.Array) -> tuple[jax.Array]:
        filters_are_mapped = math.prod(matrix.shape[: -len(operands.windows.sizes) - 2]) != 1
        return (_mapped(multiply if filters_are_mapped else convolve_one, operands.image.ndim, image, matrix),)

    def multiply_only(image: jax.Array, matrix: jax.Array) -> tuple[jax.Array]:
        return (_mapped(multiply, operands.image.ndim, image, matrix),)

    convolve_one = functools.partial(_channels_last_convolution, operands)
    multiply = functools.partial(im2col.product, operands, epilogue=())
    (product,) = unless_partitioned(convolve, multiply_only, image, matrix)
    return epilogues.apply(epilogue, product)


def _mapped(function, rank: int, image: jax.Array, matrix: jax.Array) -> jax.Array:
    """`function`, mapped over the leading dimensions that `jax.vmap` has added to both operands, which broadcast."""
    if image.ndim == rank:
        return function(image, matrix)
    axes = 0 if image.shape[0] != 1 or matrix.shape[0] == 1 else None, None if matrix.shape[0] == 1 else 0
    operands = (x[0] if axis is None else x for x, axis in zip((image, matrix), axes, strict=True))
    return jax.vmap(functools.partial(_mapped, function, rank), axes)(*operands)


def _channels_last_convolution(operands: Operands, image: jax.Array, matrix: jax.Array) -> jax.Array:
    """The one convolution that XLA:CPU has fast code for: int8, in the layouts NHWC and HWIO."""
    windows = operands.windows
    image = jnp.squeeze(image, -2)
    # XLA would fold the transposition into the convolution, which then is a loop; between two reshapes, it does not.
    filters, channels, *sizes = matrix.shape[2:]
    filter = matrix.reshape(filters, channels, math.prod(sizes))
    filter = jnp.transpose(filter, (2, 1, 0)).reshape(*sizes, channels, filters)
    strides, dilations = windows.strides, windows.dilations
    if len(windows.sizes) == 1:
        image, filter = jnp.expand_dims(image, 1), jnp.expand_dims(filter, 0)
        strides, dilations = (1, *strides), (1, *dilations)
    product = lax.conv_general_dilated(
        image,
        filter,
        window_strides=strides,
        padding="VALID",
        rhs_dilation=dilations,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        preferred_element_type=jnp.int32,
    )
    return product.reshape(product.shape[0], 1, joined(product.shape[1:3]), product.shape[3])
