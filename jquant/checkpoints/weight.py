"""A quantized weight of a checkpoint, as logical arrays or packed for products."""

import dataclasses
import json
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import export

from jquant.errors import CheckpointError
from jquant.operators.pack_matrix import pack_matrix

_INTEGERS = {np.dtype(dtype) for dtype in (np.int8, np.uint8, ml_dtypes.int4, ml_dtypes.uint4)}


class PackedWeight(NamedTuple):
    """A weight in the form that products take; a pytree.

    Attributes:
      matrix: for 8-bit integers with one scale for each column, a `PackedMatrix`, which `matmul_integer_to_float` takes;
        otherwise a `PackedBlockMatrix`, which holds its scales, and which `block_scaled_matmul` and `matmul_n_bits` take.
      scale: for a `PackedMatrix`, float32 of shape (1, N) or (1, 1); for a `PackedBlockMatrix`, None.
      permutation: None, or the row of the weight that each row of the matrix holds: multiply ``x[..., permutation]``.
    """

    matrix: Any
    scale: jax.Array | None
    permutation: jax.Array | None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class QuantizedWeight:
    """A quantized matrix. K is the dimension that a product sums over, N that of its outputs; files store the transpose.

    With g the block of row k, ``k // block_size``, row ``permutation[k]`` of the weight is

        (values[k] - zero_point[g]) * scale[g]      or      values[k] * scale[g] + minimum[g]

    A pytree of arrays.

    Attributes:
      values: int4, uint4, int8 or uint8 (2- and 3-bit integers are held in 4 bits, 5- and 6-bit ones in 8; floats of 4 bits
        are twice as large in int8, and their scales half as large), or 8-bit floats, of shape (..., K, N).
      scale: of shape (..., G, N) or (..., G, 1), for G blocks of rows, and of the dtype in the file.
      zero_point: None for 0, or of the shape of the scale and the dtype of the values.
      minimum: None, or of the shape and dtype of the scale: some types of GGUF have it instead of a zero point.
      permutation: None, or int32 of shape (K,): the row of the weight that each row of `values` holds. It makes the blocks
        of an activation order contiguous.
      block_size: the number of rows in a block. The last block may be shorter.
      dequantized_dtype: the dtype that `dequantize` computes; None: that of the scale.
    """

    values: Any
    scale: Any
    zero_point: Any
    minimum: Any
    permutation: Any
    block_size: int = dataclasses.field(metadata={"static": True})
    dequantized_dtype: str | None = dataclasses.field(default=None, metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape (..., K, N)."""
        return self.values.shape

    def __repr__(self) -> str:
        if not hasattr(self.values, "shape"):  # a transformation may hold anything in place of the arrays
            return f"QuantizedWeight({self.values}, {self.scale}, {self.zero_point}, {self.minimum}, {self.permutation})"
        optional = [name for name in ("zero_point", "minimum", "permutation") if getattr(self, name) is not None]
        sizes = ",".join(map(str, self.shape))
        parts = f"{self.values.dtype}[{sizes}]", f"scale {self.scale.dtype}", f"block_size {self.block_size}", *optional
        return f"QuantizedWeight({', '.join(parts)})"

    def dequantize(self) -> np.ndarray:
        """The weight as floats, of shape (..., K, N), with the rows in the order of the file.

        NumPy computes it in the dtype of the scale, or in float32 for GGUF, and rounds each operation once, as the libraries
        do that write these files.
        """
        scale = self._per_row(self.scale).astype(self.dequantized_dtype or self.scale.dtype)
        values = np.asarray(self.values)
        with np.errstate(all="ignore"):  # the scales in a file may be anything
            if self.zero_point is not None:
                values = values.astype(np.int16) - self._per_row(self.zero_point).astype(np.int16)
            floats = values.astype(scale.dtype) * scale
            if self.minimum is not None:
                floats += self._per_row(self.minimum)
        if self.permutation is None:
            return floats
        ordered = np.empty_like(floats)
        ordered[..., np.asarray(self.permutation), :] = floats
        return ordered

    def pack(self) -> PackedWeight:
        """The packed form.

        Raises:
          CheckpointError: 8-bit floats, zero points of another dtype than the values, or zero points together with a
            minimum, which no packed matrix can hold. Use `dequantize`, and multiply in float.
        """
        obstacle = self._packing_obstacle()
        if obstacle is not None:
            raise CheckpointError(f"{self}: {obstacle}; dequantize() returns floats")
        arrays = self.values, self.scale, self.zero_point, self.minimum, self.permutation
        values, scale, zero_point, minimum, permutation = jax.tree.map(jnp.asarray, arrays)
        has_one_block = scale.ndim == 2 and scale.shape[0] == 1
        if has_one_block and values.dtype in (jnp.int8, jnp.uint8) and minimum is None:
            matrix = pack_matrix(values, zero_point)
            return PackedWeight(matrix=matrix, scale=scale.astype(jnp.float32), permutation=permutation)
        sizes = *scale.shape[:-1], values.shape[-1]
        scale, zero_point, minimum = jax.tree.map(lambda array: jnp.broadcast_to(array, sizes), (scale, zero_point, minimum))
        matrix = pack_matrix(values, zero_point, scale=scale, minimum=minimum, block_size=self.block_size)
        return PackedWeight(matrix=matrix, scale=None, permutation=permutation)

    @property
    def packable(self) -> bool:
        """Whether it has a packed form."""
        return self._packing_obstacle() is None

    def _packing_obstacle(self) -> str | None:
        """Why the weight has no packed form; None if it has one."""
        dtype = np.dtype(self.values.dtype)
        if dtype not in _INTEGERS:
            return f"packed matrices cannot be {dtype}"
        if self.zero_point is not None and self.minimum is not None:
            return "a packed matrix has zero points or a minimum, not both"
        if self.zero_point is not None and self.zero_point.dtype != dtype:
            return f"its zero points are {self.zero_point.dtype}, and those of a packed matrix of {dtype} must be {dtype}"
        return None

    def _per_row(self, array: Any) -> np.ndarray:
        """An array with a row for each block, repeated to have a row for each row of the weight."""
        array = np.asarray(array)
        if array.shape[-2] == 1:
            return array
        return np.repeat(array, self.block_size, axis=-2)[..., : self.values.shape[-2], :]


def columns(rows: np.ndarray) -> np.ndarray:
    """Of rows of a file in any number of dimensions, (N, ...), the transpose of the matrix (N, K)."""
    return np.ascontiguousarray(rows.reshape(len(rows), -1).T)


export.register_namedtuple_serialization(PackedWeight, serialized_name="jquant.PackedWeight")
export.register_pytree_node_serialization(
    QuantizedWeight,
    serialized_name="jquant.QuantizedWeight",
    serialize_auxdata=lambda static: json.dumps(static).encode(),
    deserialize_auxdata=lambda serialized: tuple(json.loads(serialized.decode())),
)
