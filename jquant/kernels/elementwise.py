"""Sums and products of quantized tensors: in one call of compiled code on CPUs, elsewhere as XLA compiles them."""

from collections.abc import Callable

import jax
import numpy as np
from jax import lax

from jquant.arithmetic.broadcasting import to_rank
from jquant.formulas import elementwise
from jquant.kernels import implementations
from jquant.kernels.native import elementwise as native
from jquant.lowering import recording
from jquant.lowering.partitioned import unless_partitioned
from jquant.quantized_tensor import Quantized, ScaleZeroPoint


def add(a: Quantized, b: Quantized, output: ScaleZeroPoint, dtype: np.dtype) -> jax.Array:
    """`formulas.elementwise.add`, for tensors of any ranks."""
    return _combine(elementwise.add, a, b, output, dtype)


def multiply(a: Quantized, b: Quantized, output: ScaleZeroPoint, dtype: np.dtype) -> jax.Array:
    """`formulas.elementwise.multiply`, for tensors of any ranks."""
    return _combine(elementwise.multiply, a, b, output, dtype)


def _combine(
    formula: Callable[..., jax.Array], a: Quantized, b: Quantized, output: ScaleZeroPoint, dtype: np.dtype
) -> jax.Array:
    rank = max(a.values.ndim, b.values.ndim)
    if recording.is_active():
        return formula(a.to_rank(rank), b.to_rank(rank), output, dtype)
    # Arrays of one rank broadcast where `jax.vmap` adds dimensions in front of some. The result, an integer, has no
    # derivative.
    operands = jax.tree.map(lambda x: to_rank(lax.stop_gradient(x), rank), (a, b, output))
    leaves, structure = jax.tree.flatten(operands)

    def by_xla(*leaves: jax.Array) -> list[jax.Array]:
        return [formula(*jax.tree.unflatten(structure, leaves), dtype)]

    def by_library(*leaves: jax.Array) -> list[jax.Array]:
        if not implementations.is_native_default():
            return by_xla(*leaves)
        a, b, output = jax.tree.unflatten(structure, leaves)
        return [native.combine(a, b, output, is_product=formula is elementwise.multiply, dtype=dtype)]

    on_this_cpu = implementations.unless_declined(by_library, by_xla)
    (result,) = unless_partitioned(by_xla, by_xla, *leaves, on_this_cpu=on_this_cpu)
    return result
