"""Weights in the order in which they are multiplied."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.sharding import NamedSharding, PartitionSpec

from jquant.kernels import zero_point as zero_points

LARGEST_BLOCK, SMALLEST_BLOCK = 256, 32


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PackedMatrix:
    """A matrix of shape (..., K, N) as `pack_matrix` makes it: signed, K-major, its column sums taken.

    A pytree of arrays, so that JAX's transformations, shardings and checkpoints take it like any array. The sizes are
    those of the arrays, whatever a transformation has made of them; the logical dtype alone is static.

    Attributes:
      data: int8, of shape (..., N, K): the matrix, or the matrix - 128 if it is uint8.
      block_sums: int32, of shape (..., K / block, N): the column sums of `data`, by blocks of K, which a split of K
        splits with it.
      zero_point: of `dtype`, of shape (..., 1, 1) or (..., 1, N), or None for 0.
      dtype: int8 or uint8.
    """

    data: jax.Array
    block_sums: jax.Array
    zero_point: jax.Array | None
    dtype: np.dtype = dataclasses.field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the matrix: (..., K, N)."""
        *batch, n, k = self.data.shape
        return (*batch, k, n)

    @property
    def ndim(self) -> int:
        return self.data.ndim

    def __repr__(self) -> str:
        if hasattr(self.data, "shape"):
            return f"PackedMatrix({self.dtype}[{','.join(map(str, self.shape))}])"
        # In the place of arrays, a transformation may hold anything: shardings, for one.
        return f"PackedMatrix({self.dtype}, {self.data}, {self.block_sums}, {self.zero_point})"

    def unpack(self) -> jax.Array:
        """The matrix, of shape (..., K, N) and `dtype`."""
        return zero_points.from_int8(jnp.swapaxes(self.data, -1, -2), self.dtype)

    def column_sum(self) -> jax.Array:
        """The column sums of `data`, of shape (..., 1, N)."""
        return jnp.sum(self.block_sums, axis=-2, keepdims=True, dtype=jnp.int32)

    def sharding_for(self, sharding: NamedSharding | PartitionSpec) -> "PackedMatrix":
        """The shardings of the arrays in here that belong to a sharding of the matrix, (..., K, N).

        For `jax.device_put`, ``in_shardings``, ``in_specs``: a tree of `NamedSharding`, or of `PartitionSpec`, as given.

        Raises:
          ValueError: more entries than dimensions; or K split otherwise than between blocks.

        Example:
          >>> import jax, jax.numpy as jnp, jquant
          >>> packed = jquant.pack_matrix(jnp.ones((512, 8), jnp.uint8), jnp.arange(8, dtype=jnp.uint8))
          >>> shardings = packed.sharding_for(jax.P("k", "n"))
          >>> shardings.data, shardings.block_sums, shardings.zero_point
          (P('n', 'k'), P('k', 'n'), P(None, 'n'))
        """
        spec = sharding.spec if isinstance(sharding, NamedSharding) else sharding
        if len(spec) > self.ndim:
            raise ValueError(f"{spec} has {len(spec)} entries, for the {self.ndim} dimensions of {self}")
        *batch, k, n = (*spec, *(None,) * (self.ndim - len(spec)))
        if isinstance(sharding, NamedSharding):
            self._require_whole_blocks(sharding, k)

        def place(*entries) -> NamedSharding | PartitionSpec:
            placed = PartitionSpec(*batch, *entries)
            return NamedSharding(sharding.mesh, placed) if isinstance(sharding, NamedSharding) else placed

        zero_point = self.zero_point
        if zero_point is not None:
            zero_point = place(None, n if zero_point.shape[-1] > 1 else None)
        return dataclasses.replace(self, data=place(n, k), block_sums=place(k, n), zero_point=zero_point)

    def _require_whole_blocks(self, sharding: NamedSharding, axes) -> None:
        names = axes if isinstance(axes, tuple) else () if axes is None else (axes,)
        parts = math.prod(sharding.mesh.shape[name] for name in names)
        blocks = self.block_sums.shape[-2]
        if blocks % parts:
            raise ValueError(
                f"K is split into {parts} parts over {', '.join(names)}, but {self} has {blocks} blocks of column sums, "
                f"which no part may cut; pack_matrix takes a smaller block_size"
            )


export.register_pytree_node_serialization(
    PackedMatrix,
    serialized_name="jquant.PackedMatrix",
    serialize_auxdata=lambda static: static[0].name.encode(),
    deserialize_auxdata=lambda name: (np.dtype(name.decode()),),
)


def pack(b: jax.Array, zero_point: jax.Array | None, block_size: int) -> PackedMatrix:
    """`b` of shape (..., K, N), its zero point of shape (..., 1, 1) or (..., 1, N), in blocks that divide K."""
    data = zero_points.to_int8(b)
    *batch, k, n = b.shape
    blocks = data.reshape(*batch, k // block_size, block_size, n)
    if zero_point is not None:
        zero_point = jnp.broadcast_to(zero_point, (*batch, *zero_point.shape[-2:]))
    block_sums = jnp.sum(blocks, axis=-2, dtype=jnp.int32)
    return PackedMatrix(jnp.swapaxes(data, -1, -2), block_sums, zero_point, np.dtype(b.dtype))


def block_size_for(k: int) -> int:
    """The largest divisor of `k` that makes a good block, or `k` itself where there is none."""
    return next((size for size in range(LARGEST_BLOCK, SMALLEST_BLOCK - 1, -1) if k % size == 0), max(k, 1))
