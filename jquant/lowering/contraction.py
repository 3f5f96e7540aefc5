"""How the result of a contraction is split over the explicit axes of a mesh."""

import jax
from jax.sharding import NamedSharding, PartitionSpec


def out_sharding(a: jax.Array, b: jax.Array, k_axis: int, n_axis: int) -> NamedSharding | None:
    """The sharding of ``a @ b``, which JAX asks for if both operands are split along K; None if it does not ask.

    Each is split in its own other dimensions: `a` (..., M, K) in all but the last, `b` along `n_axis`.
    """
    sharding, b_spec = jax.typeof(a).sharding, jax.typeof(b).sharding.spec
    if sharding.spec[-1] is None or b_spec[k_axis] is None:
        return None
    return sharding.update(spec=PartitionSpec(*sharding.spec[:-1], b_spec[n_axis]))
