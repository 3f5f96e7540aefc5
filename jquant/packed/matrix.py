"""Prepacked 8-bit weights, in the order in which they are multiplied."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.sharding import NamedSharding, PartitionSpec

from jquant.arithmetic import signs
from jquant.errors import DescriptorError, DescriptorTypeError, shown
from jquant.packed.arrays import entries_of, placed, require_data_type, require_whole_blocks
from jquant.placement import explain_array_errors

_INT8, _UINT8, _INT32 = map(np.dtype, (np.int8, np.uint8, np.int32))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PackedMatrix:
    """A matrix of shape (..., K, N) as `pack_matrix` makes it: signed, K-major, with its column sums.

    A pytree of arrays, so that JAX's transformations, shardings and checkpoints take it like any array. Its shape follows
    from those of the arrays, whatever a transformation has made of them; only the logical dtype is static.

    Attributes:
      data: int8, of shape (..., N, K): the matrix, or the matrix - 128 if it is uint8.
      block_sums: int32, of shape (..., K / block, N): the column sums of `data`, for each block of K, so that splitting
        K splits the sums with it.
      zero_point: of `dtype`, of shape (..., 1, 1) or (..., 1, N), or None for 0.
      dtype: int8 or uint8.
    """

    data: jax.Array
    block_sums: jax.Array
    zero_point: jax.Array | None
    dtype: np.dtype = dataclasses.field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the matrix: (..., K, N)."""
        *batch, n, k = self.data.shape
        return (*batch, k, n)

    @property
    def ndim(self) -> int:
        return self.data.ndim

    def __repr__(self) -> str:
        if hasattr(self.data, "shape"):
            cast = "" if self.data.dtype == jnp.int8 else f", data of {self.data.dtype}"
            return f"PackedMatrix({self.dtype}[{','.join(map(str, self.shape))}]{cast})"
        # A transformation may put anything in place of the arrays: shardings, for example.
        return f"PackedMatrix({self.dtype}, {self.data}, {self.block_sums}, {self.zero_point})"

    @explain_array_errors
    def unpack(self) -> jax.Array:
        """The matrix, of shape (..., K, N) and `dtype`."""
        self.validate("PackedMatrix.unpack")
        return signs.from_int8(jnp.swapaxes(self.data, -1, -2), self.dtype)

    def validate(self, name: str) -> None:
        """Asserts that the arrays have the dtypes and the shapes that `pack_matrix` gave them.

        A cast of all arrays of a model (``jax.tree.map(lambda x: x.astype(jnp.bfloat16), model)``) casts these, too.
        """
        if not isinstance(self.dtype, np.dtype) or self.dtype not in (_INT8, _UINT8):
            raise DescriptorTypeError(f"{name}: dtype of the packed matrix is {shown(self.dtype)}; it must be int8 or uint8")
        require_data_type(name, "data", self.data, _INT8)
        require_data_type(name, "block_sums", self.block_sums, _INT32)
        if self.zero_point is not None:
            require_data_type(name, "zero_point", self.zero_point, self.dtype)
        data, sums = self.data.shape, self.block_sums.shape
        fits = len(data) == len(sums) >= 2 and data[:-2] == sums[:-2] and data[-2] == sums[-1]
        fits = fits and (data[-1] == 0 if sums[-2] == 0 else data[-1] % sums[-2] == 0)
        if self.zero_point is not None:
            zero_point = self.zero_point.shape
            fits = fits and len(zero_point) == len(data) and zero_point[-2] == 1 and zero_point[-1] in (1, data[-2])
        if not fits:
            shapes = jax.tree.map(jnp.shape, (self.data, self.block_sums, self.zero_point))
            raise DescriptorError(
                f"{name}: data, block_sums and zero_point of the packed matrix do not fit together: {shapes}"
            )

    def sharding_for(self, sharding: NamedSharding | PartitionSpec) -> "PackedMatrix":
        """The shardings of the arrays held here that correspond to a sharding of the matrix, (..., K, N).

        For `jax.device_put`, ``in_shardings``, ``in_specs``: a tree of `NamedSharding`, or of `PartitionSpec`, as given.

        Raises:
          DescriptorError: more entries than dimensions; or K split within a block.
          DescriptorTypeError: a sharding of another type.

        Example:
          >>> import jax, jax.numpy as jnp, jquant
          >>> packed = jquant.pack_matrix(jnp.ones((512, 8), jnp.uint8), jnp.arange(8, dtype=jnp.uint8))
          >>> shardings = packed.sharding_for(jax.P("k", "n"))
          >>> shardings.data, shardings.block_sums, shardings.zero_point
          (P('n', 'k'), P('k', 'n'), P(None, 'n'))
        """
        *batch, k, n = entries_of(sharding, self)
        blocks = self.block_sums.shape[-2]
        reason = f"{self} has {blocks} blocks of column sums, which must not be split; pack it with a smaller block_size, "
        reason += "or in a transform.Scheme pass k_parts"
        require_whole_blocks(sharding, k, blocks, reason)
        zero_point = self.zero_point
        if zero_point is not None:
            zero_point = placed(sharding, *batch, None, n if zero_point.shape[-1] > 1 else None)
        data, block_sums = placed(sharding, *batch, n, k), placed(sharding, *batch, k, n)
        return dataclasses.replace(self, data=data, block_sums=block_sums, zero_point=zero_point)


export.register_pytree_node_serialization(
    PackedMatrix,
    serialized_name="jquant.PackedMatrix",
    serialize_auxdata=lambda static: static[0].name.encode(),
    deserialize_auxdata=lambda name: (np.dtype(name.decode()),),
)
