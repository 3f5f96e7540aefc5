"""Epilogues as the library takes them: arrays, and a word for the role of each."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jquant.kernels.epilogue import AddBias, Dequantize, Epilogue, Requantize


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


NOTHING = Fused((), (), np.dtype(np.int32), ())


def fused(epilogue: Epilogue) -> Fused:
    """As many steps as the library knows, in their order."""
    steps, named = list(epilogue), []
    if steps and isinstance(steps[0], AddBias):
        named.append(("integer_bias", steps.pop(0).bias))
    dtype = np.dtype(np.int32)
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
    roles, arrays = zip(*named, strict=True) if named else ((), ())
    return Fused(roles, arrays, dtype, tuple(steps))
