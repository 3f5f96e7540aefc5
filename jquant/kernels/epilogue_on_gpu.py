"""The steps of an epilogue in a form that XLA:GPU fuses into the product, whose int32 sums then never reach memory.

XLA:GPU takes an operation into the kernel of a product if that reads the result so far once, and otherwise only vectors,
scalars and constants, of which there may be few. So what depends on a row or a column alone is computed in advance, behind a
barrier: the sum of all integers that are added, and a multiplier without NaN and infinities, which would take comparisons
for each element. The bits are those of the steps themselves.
"""

import functools
import operator
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.arithmetic import exact, rounding
from jquant.arithmetic.broadcasting import broadcast, elementwise
from jquant.kernels import epilogue as epilogues
from jquant.kernels.epilogue import AddBias, Dequantize, Epilogue, Requantize, Scale, Step, ZeroPointCorrection

_LARGE = np.float32(2.0**100)  # times an int32, it is beyond every limit; times 0, it is 0, which infinity is not
_BEYOND_EVERY_LIMIT = np.float32(2.0**20)  # of integers of 8 bits, from which any zero point has been subtracted


def apply(epilogue: Epilogue, product: jax.Array) -> jax.Array:
    """`jquant.kernels.epilogue.apply` in a program for an NVIDIA GPU."""
    return epilogues.apply_in_kernel(tuple(_fusible(epilogue)), product)


def _fusible(epilogue: Epilogue) -> Iterator[Step]:
    """The steps in that form, apart from those with a value for each row and column that comes from two vectors."""
    addends = []
    for step in epilogue:
        match step:
            case ZeroPointCorrection(terms) if all(len(factors) == 1 for factors in terms):
                addends += [-term for (term,) in terms]
                continue
            case AddBias(bias):
                addends.append(bias)
                continue
        yield from _added(addends)
        addends = []
        match step:
            case Dequantize(a_scale, b_scale, bias, dtype) if not _is_matrix(a_scale, b_scale):
                yield _scaled(exact.product(a_scale, b_scale), bias, dtype)
            case Scale(scale, bias, dtype):
                yield _scaled(exact.widen(scale), None if bias is None else exact.widen(bias), dtype)
            case Requantize(multiplier, zero_point, dtype) if not _is_matrix(multiplier, zero_point):
                yield _requantized(multiplier, zero_point, dtype)
            case _:
                yield step
    yield from _added(addends)


def _is_matrix(*arrays: jax.Array | None) -> bool:
    """Whether the arrays broadcast to one that depends on both the row and the column."""
    return 1 not in jnp.broadcast_shapes(*(x.shape for x in arrays if x is not None))[-2:]


def _added(addends: list[jax.Array]) -> Iterator[Step]:
    """Adds integers: one sum of those that depend on the row, the column, both or neither."""
    shapes = {x.shape: None for x in addends}
    sums = [functools.reduce(operator.add, (x for x in addends if x.shape == shape)) for shape in shapes]
    if sums:
        yield from map(AddBias, lax.optimization_barrier(sums))


def _scaled(scale: jax.Array, bias: jax.Array | None, dtype: np.dtype) -> Step:
    """`Scale`, whose results are sealed by a maximum with minus infinity, which reads them once."""
    # XLA cannot know that it is minus infinity. Where the scale is NaN, the result is as well.
    least = lax.select(scale == scale, lax.full_like(scale, -jnp.inf), scale)
    scale, bias, least, least_rounded = lax.optimization_barrier((scale, bias, least, least.astype(dtype)))

    def step(value: jax.Array) -> jax.Array:
        value = elementwise(lax.max, elementwise(lax.mul, value.astype(jnp.float32), scale), least)
        if bias is not None:
            value = elementwise(lax.max, elementwise(lax.add, value, bias), least)
        if dtype == jnp.bfloat16:  # rounded here: XLA may leave out a conversion to bfloat16 and back
            value = lax.reduce_precision(value, exponent_bits=8, mantissa_bits=7)
        value = value.astype(dtype)
        return elementwise(lax.max, value, least_rounded) if dtype == jnp.float16 else value

    return step


def _requantized(multiplier: jax.Array, zero_point: jax.Array | None, dtype: np.dtype) -> Step:
    """`Requantize`, in which no product is NaN.

    A product would be NaN, and the result 0, for a multiplier that is NaN, and where an infinite one is multiplied by 0. In
    place of these the multiplier is 0 or large, and the zero point, which only such a result would show, is 0.
    """
    limits = jnp.iinfo(dtype)
    is_finite, is_number = lax.is_finite(multiplier), multiplier == multiplier
    large = lax.select(is_number, lax.sign(multiplier) * _LARGE, lax.full_like(multiplier, 0))
    finite = lax.select(is_finite, multiplier, large)
    if zero_point is not None:
        zero_point = lax.select(*broadcast(is_finite, zero_point, jnp.zeros_like(zero_point)))
    finite, zero_point = lax.optimization_barrier((finite, zero_point))

    def step(product: jax.Array) -> jax.Array:
        value = elementwise(lax.mul, product.astype(jnp.float32), finite)
        value = jnp.clip(value, -_BEYOND_EVERY_LIMIT, _BEYOND_EVERY_LIMIT)
        integer = rounding.round_half_even(value).astype(jnp.int32)
        if zero_point is not None:
            integer = elementwise(lax.add, integer, zero_point)
        return jnp.clip(integer, limits.min, limits.max).astype(dtype)

    return step
