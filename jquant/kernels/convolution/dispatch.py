"""The primitive behind every convolution: the single entry to all implementations.

As for the integer product, the implementation is chosen when the program is lowered, once for each platform that it is
lowered for. Until then, a program has one operation for each convolution, whose type is known without tracing any of them.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.interpreters.xla import apply_primitive

from jquant.formulas.convolution_geometry import Geometry
from jquant.kernels import epilogue as epilogues
from jquant.kernels import implementations
from jquant.kernels.convolution import composed
from jquant.kernels.epilogue import Epilogue
from jquant.kernels.native import convolution as native
from jquant.lowering import recording
from jquant.lowering.partitioned import is_explicit, is_partitioned
from jquant.lowering.symbolic_sizes import joined
from jquant.modes import Implementation

_integer_convolution_p = Primitive("integer_convolution")


def convolution(
    input: jax.Array,
    filter: jax.Array,
    input_zero_point: jax.Array | None,
    filter_zero_point: jax.Array | None,
    geometry: Geometry,
    epilogue: Epilogue = (),
) -> jax.Array:
    """``epilogue(convolution of (input - input_zero_point) and (filter - filter_zero_point))``, the convolution in int32.

    Padding counts as the zero point of the input.

    Args:
      input: int8 or uint8.
      filter: int8 or uint8.
      input_zero_point: of the dtype of `input`, one element, or None.
      filter_zero_point: of the dtype of `filter`, one element or one for each filter, or None.
      geometry: the layouts of input, filter and result; groups and windows.
      epilogue: the steps that follow, whose arrays have one element or one for each filter.
    """
    if recording.is_active():
        epilogue = epilogues.prepared(epilogue)
    arrays, steps = jax.tree.flatten((input_zero_point, filter_zero_point, epilogue))
    return _integer_convolution_p.bind(input, filter, *arrays, steps=steps, geometry=geometry)


# The input of the primitive may have dimensions before those of the geometry, over which `jax.vmap` maps it and nothing
# else; the result has them, too.


def _mapped_dimensions(input: jax.Array, geometry: Geometry) -> int:
    """How many dimensions the input has before those of the geometry."""
    return input.ndim - len(geometry.dimensions.lhs_spec)


def _compose(input: jax.Array, *operands, geometry: Geometry, **parameters) -> jax.Array:
    """The convolution by `composed`."""
    number = _mapped_dimensions(input, geometry)
    if number and not all(isinstance(size, int) for size in input.shape):  # JAX joins them, too, but to `math.prod`
        return _with_joint_batch(_compose, input, *operands, geometry=geometry, **parameters)
    if number:
        return jax.vmap(lambda input: _compose(input, *operands, geometry=geometry, **parameters))(input)
    return _call(_composed, input, *operands, geometry=geometry, **parameters)


def _composed(input, filter, input_zero_point, filter_zero_point, geometry: Geometry, epilogue: Epilogue) -> jax.Array:
    steps = epilogues.prepared(epilogue)
    return composed.convolution(input, filter, input_zero_point, filter_zero_point, geometry, steps)


def _call_library(input: jax.Array, *operands, geometry: Geometry, **parameters) -> jax.Array:
    """The convolution by jquant-native."""
    call = functools.partial(_call, native.convolution)
    if not _mapped_dimensions(input, geometry):
        return call(input, *operands, geometry=geometry, **parameters)
    return _with_joint_batch(call, input, *operands, geometry=geometry, **parameters)


def _with_joint_batch(
    convolve: Callable[..., jax.Array], input: jax.Array, *operands, geometry: Geometry, **parameters
) -> jax.Array:
    """``convolve(input, ...)``, where mapped images are more images of the batch."""
    number = _mapped_dimensions(input, geometry)
    batch, output_batch = geometry.dimensions.lhs_spec[0], geometry.dimensions.out_spec[0]
    images = jnp.moveaxis(input, number + batch, number)
    sizes, rest = images.shape[: number + 1], images.shape[number + 1 :]
    images = jnp.moveaxis(images.reshape(joined(sizes), *rest), 0, batch)
    output = jnp.moveaxis(convolve(images, *operands, geometry=geometry, **parameters), output_batch, 0)
    return jnp.moveaxis(output.reshape(*sizes, *output.shape[1:]), number, number + output_batch)


def _call(function: Callable[..., jax.Array], input, filter, *arrays, steps, geometry) -> jax.Array:
    input_zero_point, filter_zero_point, epilogue = jax.tree.unflatten(steps, arrays)
    return function(input, filter, input_zero_point, filter_zero_point, geometry, epilogue)


_integer_convolution_p.def_impl(functools.partial(apply_primitive, _integer_convolution_p))


@_integer_convolution_p.def_abstract_eval
def _abstract_value(input, filter, *arrays, steps, geometry):
    operands = input, filter, *arrays
    meshes = [x.sharding.mesh for x in operands]
    if not all(mesh.empty or mesh.are_all_axes_auto for mesh in meshes):  # types say how arrays are split, or vary
        return jax.make_jaxpr(functools.partial(_compose, steps=steps, geometry=geometry))(*operands).out_avals[0]
    *_, epilogue = jax.tree.unflatten(steps, arrays)
    number = _mapped_dimensions(input, geometry)
    shape = *input.shape[:number], *geometry.output_shape(input.shape[number:], filter.shape)
    return input.update(shape=shape, dtype=epilogues.output_dtype(epilogue), weak_type=False)


def _lower(platform, context, *operands, **parameters):
    chosen = implementations.exportable(implementations.default(platform), context)
    if chosen is Implementation.NATIVE and not is_partitioned(context) and not is_explicit(context):
        convolve = implementations.unless_declined(_call_library, _compose)
    else:
        convolve = _compose
    return mlir.lower_fun(functools.partial(convolve, **parameters), multiple_results=False)(context, *operands)


implementations.register_lowering(_integer_convolution_p, _lower)


def _batch(operands, dimensions, **parameters):
    """Makes the mapped dimension of the input its first; if other operands are mapped, each operation is."""
    input, *others = operands
    first, *of_others = dimensions
    if all(dimension is None for dimension in of_others):
        return _integer_convolution_p.bind(jnp.moveaxis(input, first, 0), *others, **parameters), 0
    return jax.vmap(functools.partial(_compose, **parameters), tuple(dimensions))(*operands), 0


batching.primitive_batchers[_integer_convolution_p] = _batch


def _differentiate(primals, tangents, *, steps, geometry):
    """The derivative by the epilogue's arrays: the factors are integers, which have no tangents."""
    input, filter, *arrays = primals
    *zero_points, epilogue = jax.tree.unflatten(steps, arrays)
    *_, epilogue_tangent = jax.tree.unflatten(steps, map(ad.instantiate_zeros, tangents[2:]))
    points, steps = jax.tree.flatten((*zero_points, ()))
    sums = _integer_convolution_p.bind(input, filter, *points, steps=steps, geometry=geometry)
    channels = _mapped_dimensions(input, geometry) + geometry.dimensions.out_spec[1]

    def by_filter(x: jax.Array) -> jax.Array:
        return x.reshape(*(-1 if dimension == channels else 1 for dimension in range(sums.ndim)))

    def apply(epilogue: Epilogue) -> jax.Array:
        return epilogues.apply(jax.tree.map(by_filter, epilogue), sums)

    return jax.jvp(apply, (epilogue,), (epilogue_tangent,))


ad.primitive_jvps[_integer_convolution_p] = _differentiate
