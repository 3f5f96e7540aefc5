"""The convolution composed of XLA's operations and of the integer product: arranges its operands, and chooses a form."""

import jax
import jax.numpy as jnp

from jquant.formulas.convolution_geometry import Geometry
from jquant.kernels.convolution import depthwise, matmul, xla
from jquant.kernels.convolution.layout import DimensionOrder, Operands
from jquant.kernels.epilogue import Epilogue

# For depthwise convolutions with up to this many filters per channel, shifted multiplications are faster than a matrix
# product. On a CPU, they are three times as fast for one filter, and as fast for four.
_FEW_FILTERS = 4


def convolution(
    input: jax.Array,
    filter: jax.Array,
    input_zero_point: jax.Array | None,
    filter_zero_point: jax.Array | None,
    geometry: Geometry,
    epilogue: Epilogue = (),
) -> jax.Array:
    """The convolution, as `dispatch.convolution` defines it."""
    groups, windows = geometry.groups, geometry.windows
    filters, depth = (filter.shape[dimension] for dimension in geometry.dimensions.rhs_spec[:2])
    is_depthwise = depth == 1 and filters // groups <= _FEW_FILTERS
    # A product of several groups needs the channels of each group together.
    result_last = geometry.channels_last and (groups == 1 or is_depthwise)
    fast_on_cpu = groups == 1 and xla.is_fast_on_cpu(input.shape, filter.shape, geometry)
    channels_last = result_last or fast_on_cpu
    input = geometry.arranged(input, channels_last=channels_last)
    filter = jnp.transpose(filter, geometry.dimensions.rhs_spec)
    # Dimensions are split or joined one reshape at a time, so that JAX can follow them over explicit axes of a mesh.
    matrix = filter.reshape(1, groups, filters // groups, depth, *windows.sizes)
    if channels_last:
        batch, *space, _ = input.shape
        image = input.reshape(batch, *space, groups, depth)
    else:
        batch, _, *space = input.shape
        image = input.reshape(batch, groups, depth, *space)
    operands = Operands(
        image=image,
        matrix=matrix,
        input_zero_point=input_zero_point,
        filter_zero_point=filter_zero_point,
        windows=windows,
        layout=DimensionOrder(channels_last, result_last, geometry.dimensions.rhs_spec),
    )
    if is_depthwise:
        product = depthwise.convolution(operands, epilogue)
    else:
        product = matmul.convolution(operands, epilogue, fast_on_cpu=fast_on_cpu)
    if result_last:
        output = product.reshape(batch, *product.shape[1:-2], filters).reshape(batch, *windows.counts(space), filters)
    else:
        output = product.reshape(batch, filters, *product.shape[3:]).reshape(batch, filters, *windows.counts(space))
    return geometry.restored(output, channels_last=result_last)
