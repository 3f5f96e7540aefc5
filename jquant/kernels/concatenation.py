"""Quantized tensors, joined: in one call of compiled code on CPUs, elsewhere as XLA compiles it."""

from collections.abc import Sequence

import jax
import numpy as np
from jax import lax

from jquant.arithmetic.broadcasting import to_rank
from jquant.formulas import concatenation
from jquant.kernels import implementations
from jquant.kernels.native import concatenation as native
from jquant.lowering import recording
from jquant.lowering.partitioned import unless_partitioned
from jquant.quantized_tensor import Quantized, ScaleZeroPoint


def concatenate(tensors: Sequence[Quantized], output: ScaleZeroPoint, axis: int, dtype: np.dtype) -> jax.Array:
    """`formulas.concatenation.concatenate`."""
    if recording.is_active():
        return concatenation.concatenate(tensors, output, axis, dtype)
    # Arrays of one rank broadcast where `jax.vmap` adds dimensions in front of some. The result, an integer, has no
    # derivative.
    rank = tensors[0].values.ndim
    operands = jax.tree.map(lambda x: to_rank(lax.stop_gradient(x), rank), (list(tensors), output))
    leaves, structure = jax.tree.flatten(operands)

    def by_xla(*leaves: jax.Array) -> list[jax.Array]:
        return [concatenation.concatenate(*jax.tree.unflatten(structure, leaves), axis, dtype)]

    def by_library(*leaves: jax.Array) -> list[jax.Array]:
        if not implementations.is_native_default():
            return by_xla(*leaves)
        return [native.concatenate(*jax.tree.unflatten(structure, leaves), axis, dtype)]

    on_this_cpu = implementations.unless_declined(by_library, by_xla)
    (result,) = unless_partitioned(by_xla, by_xla, *leaves, on_this_cpu=on_this_cpu)
    return result
