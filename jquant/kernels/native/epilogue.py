"""Epilogues as the library takes them: arrays, and a word for the role of each."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jquant.arithmetic import exact
from jquant.kernels.epilogue import AddBias, Dequantize, Epilogue, Requantize, Rescale, Scale, Step
from jquant.kernels.native.shared_library import Function


class Fused(NamedTuple):
    """The first steps of an epilogue, which the library applies.

    Attributes:
      roles: a word for each array, as native/src/operands.h defines them.
      arrays: of the rank of the product.
      dtype: of the result.
      rest: the steps that follow.
    """

    roles: tuple[str, ...]
    arrays: tuple[jax.Array, ...]
    dtype: np.dtype
    rest: Epilogue


# From so many multiplications on, XLA computes what a step needs first: with operations beside the call, a program runs in a
# thread of XLA, and the caller need not wait for it.
_FEWEST_TO_WAIT_FOR = 2**27


def takes_scales(function: Function, multiplications: int) -> bool:
    """Whether a call takes zero points of bytes, and the arrays of `Rescale`, as an operator was given them."""
    return function.version > 1 and multiplications < _FEWEST_TO_WAIT_FOR


def nothing(dtype: type, epilogue: Epilogue) -> Fused:
    """The library writes sums of `dtype`, and all steps follow."""
    return Fused((), (), np.dtype(dtype), epilogue)


def fused(epilogue: Epilogue) -> Fused:
    """As many steps on an int32 product as the library knows, in their order."""
    steps: list[Any] = list(epilogue)
    named: list[tuple[str, jax.Array]] = []
    if steps and isinstance(steps[0], AddBias):
        named.append(("integer_bias", steps.pop(0).bias))
    dtype = np.dtype(np.int32)
    if steps and isinstance(steps[0], Rescale):
        if steps[0].output_scale is not None and _is_matrix(steps[0]):
            steps[0] = steps[0].prepared()
        else:
            step = steps.pop(0)
            scales = ("row_scale", step.a_scale), ("column_scale", step.b_scale), ("output_scale", step.output_scale)
            named += [(role, _widened(x)) for role, x in (*scales, ("float_bias", step.bias)) if x is not None]
            named += [] if step.zero_point is None else [("zero_point", step.zero_point)]
            dtype = jnp.dtype(step.dtype)
    if steps and isinstance(steps[0], Dequantize):
        step = steps.pop(0)
        named += [("row_scale", step.a_scale), ("column_scale", step.b_scale)]
        named += [] if step.bias is None else [("float_bias", step.bias)]
        dtype = jnp.dtype(step.dtype)
    elif steps and isinstance(steps[0], Requantize):
        step = steps.pop(0)
        named.append(("multiplier", step.multiplier))
        named += [] if step.zero_point is None else [("zero_point", step.zero_point)]
        dtype = np.dtype(step.dtype)
    return _fused(named, dtype, steps)


def fused_scale(epilogue: Epilogue) -> Fused:
    """As many steps on a float32 product as the library knows: `Scale`, if that is the first."""
    if not epilogue or not isinstance(epilogue[0], Scale):
        return nothing(np.float32, epilogue)
    steps: list[Any] = list(epilogue)
    step, rest = steps[0], steps[1:]
    scales = ("row_scale", step.scale), ("float_bias", step.bias)
    named = [(role, _widened(x)) for role, x in scales if x is not None]
    return _fused(named, jnp.dtype(step.dtype), rest)


def _is_matrix(step: Rescale) -> bool:
    """Whether there is a multiplier for each row and column."""
    shapes = (x.shape for x in (step.a_scale, step.b_scale, step.output_scale) if x is not None)
    return 1 not in jnp.broadcast_shapes(*shapes)[-2:]


def _widened(x: jax.Array) -> jax.Array:
    """`x` in float32: a call reads what is stored, so that no seal is needed."""
    return x if x.dtype == jnp.float32 else exact.widen(x)


def _fused(named: list[tuple[str, jax.Array]], dtype: np.dtype, rest: list[Step]) -> Fused:
    roles, arrays = zip(*named, strict=True) if named else ((), ())
    return Fused(roles, arrays, dtype, tuple(rest))
