"""Prepacked weights of 4 or 8 bits with a scale for each block of a column, in the order in which they are multiplied."""

import dataclasses
import enum
import json

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.sharding import NamedSharding, PartitionSpec

from jquant.arithmetic import four_bit_floats, packed_int4
from jquant.errors import DescriptorError, DescriptorTypeError, shown
from jquant.packed.arrays import entries_of, placed, require_data_type, require_whole_blocks
from jquant.placement import explain_array_errors

_FLOATS = np.dtype(np.float32), np.dtype(np.float16), jnp.dtype(jnp.bfloat16)


class Layout(enum.StrEnum):
    """How `PackedBlockMatrix.data` stores the integers."""

    WORDS = "words"
    """4 bits: uint16, of shape (..., K / 4, N). The lowest 4 bits of word j are row 4 * j, as 0 to 15 (int4 plus 8)."""
    BYTES = "bytes"
    """int8, of shape (..., K, N): the integers, less 128 if they are uint8."""
    K_MAJOR_WORDS = "k_major_words"
    """4 bits: uint16, of shape (..., N, K / 4). The lowest 4 bits of word j are row 4 * j, as -8 to 7 (uint4 less 8)."""
    K_MAJOR_BYTES = "k_major_bytes"
    """`BYTES` of shape (..., N, K)."""
    CODES = "codes"
    """int8, each twice a float of 4 bits: uint16, as `WORDS`, of the codes of these floats (float4_e2m1fn)."""


_K_MAJOR = {Layout.WORDS: Layout.K_MAJOR_WORDS, Layout.BYTES: Layout.K_MAJOR_BYTES}
_N_MINOR = {k_major: layout for layout, k_major in _K_MAJOR.items()}
_WORDS = Layout.WORDS, Layout.K_MAJOR_WORDS
_OF_WORDS = *_WORDS, Layout.CODES
ROWS_PER_ELEMENT = {layout: packed_int4.PER_WORD if layout in _OF_WORDS else 1 for layout in Layout}
"""How many rows of the matrix an element of the data holds."""
_DATA_TYPES = {layout: np.dtype(np.uint16 if layout in _OF_WORDS else np.int8) for layout in Layout}
_INT4_TYPES = tuple(map(jnp.dtype, (jnp.int4, jnp.uint4)))
_INT8_TYPES = tuple(map(np.dtype, (np.int8, np.uint8)))
# How much more the stored integers are than those that they stand for, where the two differ.
_OFFSETS = {
    (Layout.WORDS, jnp.dtype(jnp.int4)): 8,
    (Layout.K_MAJOR_WORDS, jnp.dtype(jnp.uint4)): -8,
    (Layout.BYTES, np.dtype(np.uint8)): -128,
    (Layout.K_MAJOR_BYTES, np.dtype(np.uint8)): -128,
}
_DTYPES = {layout: _INT4_TYPES if layout in _WORDS else (*_INT4_TYPES, *_INT8_TYPES) for layout in Layout}
_DTYPES[Layout.CODES] = _INT8_TYPES[:1]
_FLOAT4 = jnp.dtype(jnp.float4_e2m1fn)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PackedBlockMatrix:
    """A matrix of shape (..., K, N) with a scale for each block of rows, as `pack_matrix` makes it.

    A pytree of arrays, so that JAX's transformations, shardings and checkpoints take it like any array. Its shape follows
    from those of the arrays, whatever a transformation has made of them.

    Attributes:
      data: the integers, in whole blocks: the last row is followed by `padding` rows, whose integers do not matter.
      scale: float32, float16 or bfloat16, of shape (..., G, N), where G is the number of blocks.
      zero_point: of the shape of `scale`, int8 for a signed `dtype` and uint8 for an unsigned one, or None for 0.
      minimum: float32, float16 or bfloat16, of the shape of `scale`: what is added to each scaled integer of a block. None
        for 0. A matrix has zero points or minima, not both.
      dtype: int4, uint4, int8 or uint8.
      block_size: the number of rows that share a scale; the last block may have fewer.
      padding: the number of rows of the last block that the matrix does not have.
      layout: how `data` stores the integers, a `Layout`.
    """

    data: jax.Array
    scale: jax.Array
    zero_point: jax.Array | None
    minimum: jax.Array | None
    dtype: np.dtype = dataclasses.field(metadata={"static": True})
    block_size: int = dataclasses.field(metadata={"static": True})
    padding: int = dataclasses.field(default=0, metadata={"static": True})
    layout: Layout = dataclasses.field(default=Layout.WORDS, metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the matrix: (..., K, N)."""
        *batch, rows, n = self._data_shape
        return (*batch, rows * ROWS_PER_ELEMENT[self.layout] - self.padding, n)

    @property
    def _data_shape(self) -> tuple[int, ...]:
        """(..., rows, N)"""
        *batch, first, last = self.data.shape
        return (*batch, last, first) if self.layout in _N_MINOR else (*batch, first, last)

    @property
    def ndim(self) -> int:
        return self.data.ndim

    @property
    def stored_type(self) -> np.dtype:
        """The type of the numbers in the data, `dtype` or the floats of `Layout.CODES`: what `layout_for` takes."""
        return _FLOAT4 if self.layout == Layout.CODES else self.dtype

    @property
    def offset(self) -> int:
        """How much more the stored integers are than those that they stand for."""
        return _OFFSETS.get((self.layout, self.dtype), 0)

    def __repr__(self) -> str:
        if hasattr(self.data, "shape") and self.layout in ROWS_PER_ELEMENT:
            cast = "" if self.data.dtype == _DATA_TYPES[self.layout] else f", data of {self.data.dtype}"
            sizes = ",".join(map(str, self.shape))
            minimum = "" if self.minimum is None else " with a minimum"
            return f"PackedBlockMatrix({self.dtype}[{sizes}], blocks of {self.block_size}{minimum}{cast})"
        # A transformation may put anything in place of the arrays: shardings, for example.
        return f"PackedBlockMatrix({self.dtype}, {self.data}, {self.scale}, {self.zero_point}, {self.minimum})"

    @explain_array_errors
    def unpack(self) -> jax.Array:
        """The integers, of shape (..., K, N) and `dtype`.

        They stand for ``(integers - zero_point) * scale``, or for ``integers * scale + minimum``.
        """
        self.validate("PackedBlockMatrix.unpack")
        return self.integers()[..., : self.shape[-2], :].astype(self.dtype)

    def integers(self) -> jax.Array:
        """The integers in whole blocks, int16, of shape (..., K + padding, N)."""
        matrix = self.n_minor()
        data = jnp.asarray(matrix.data)
        stored = packed_int4.unpacked(data) if matrix.layout == Layout.WORDS else data
        return stored.astype(jnp.int16) - np.int16(matrix.offset)

    def n_minor(self, *, may_be_codes: bool = False) -> "PackedBlockMatrix":
        """This matrix in `Layout.WORDS` or `Layout.BYTES`; or as it is, in `Layout.CODES`, if it may be in that."""
        if self.layout == Layout.CODES and not may_be_codes:
            codes = packed_int4.unpacked(jnp.asarray(self.data)).astype(jnp.int8)
            return dataclasses.replace(self, data=four_bit_floats.doubled(codes), layout=Layout.BYTES)
        if self.layout not in _N_MINOR:
            return self
        data = jnp.swapaxes(self.data, -1, -2)
        data = data ^ packed_int4.SIGN_BITS if self.layout in _WORDS else data
        return dataclasses.replace(self, data=data, layout=_N_MINOR[self.layout])

    def k_major(self) -> "PackedBlockMatrix":
        """This matrix in `Layout.K_MAJOR_WORDS` or `Layout.K_MAJOR_BYTES`."""
        if self.layout in _N_MINOR:
            return self
        matrix = self.n_minor()
        data = matrix.data ^ packed_int4.SIGN_BITS if matrix.layout in _WORDS else matrix.data
        return dataclasses.replace(matrix, data=jnp.swapaxes(data, -1, -2), layout=_K_MAJOR[matrix.layout])

    def validate(self, name: str) -> None:
        """Asserts that the arrays have the dtypes and the shapes that `pack_matrix` gave them.

        A cast of all arrays of a model (``jax.tree.map(lambda x: x.astype(jnp.bfloat16), model)``) casts the integers here,
        too. The scales and minima may be cast, to another float type.
        """
        if self.layout not in ROWS_PER_ELEMENT:
            allowed = ", ".join(Layout)
            raise DescriptorError(
                f"{name}: layout of the packed matrix is {shown(self.layout)}; it must be one of {allowed}"
            )
        if not isinstance(self.dtype, np.dtype) or self.dtype not in _DTYPES[self.layout]:
            allowed = ", ".join(dtype.name for dtype in _DTYPES[self.layout])
            raise DescriptorTypeError(
                f"{name}: dtype of the packed matrix is {shown(self.dtype)}; in {self.layout} it must be one of {allowed}"
            )
        require_data_type(name, "data", self.data, _DATA_TYPES[self.layout])
        require_data_type(name, "scale", self.scale, *_FLOATS)
        if self.zero_point is not None:
            require_data_type(name, "zero_point", self.zero_point, zero_point_data_type(self.dtype))
        if self.minimum is not None:
            require_data_type(name, "minimum", self.minimum, *_FLOATS)
        if self.zero_point is not None and self.minimum is not None:
            raise DescriptorError(f"{name}: the packed matrix has both zero_point and minimum; it must have at most one")
        scale = self.scale.shape
        is_matrix = self.data.ndim == len(scale) >= 2
        data = self._data_shape if is_matrix else scale
        fits = is_matrix and data[:-2] == scale[:-2] and data[-1] == scale[-1]
        fits = fits and self.block_size > 0 and data[-2] * ROWS_PER_ELEMENT[self.layout] == scale[-2] * self.block_size
        fits = fits and self.padding in range(self.block_size if scale[-2] else 1)
        fits = fits and all(array is None or array.shape == scale for array in (self.zero_point, self.minimum))
        if not fits:
            shapes = jax.tree.map(jnp.shape, (self.data, self.scale, self.zero_point, self.minimum))
            blocks = f"blocks of {shown(self.block_size)} less {shown(self.padding)}"
            raise DescriptorError(
                f"{name}: data, scale, zero_point and minimum of the packed matrix do not fit {blocks} rows: {shapes}"
            )

    def sharding_for(self, sharding: NamedSharding | PartitionSpec) -> "PackedBlockMatrix":
        """The shardings of the arrays held here that correspond to a sharding of the matrix, (..., K, N).

        For `jax.device_put`, ``in_shardings``, ``in_specs``: a tree of `NamedSharding`, or of `PartitionSpec`, as given.

        Raises:
          DescriptorError: more entries than dimensions; or K split within a block.
          DescriptorTypeError: a sharding of another type.

        Example:
          >>> import jax, jax.numpy as jnp, jquant
          >>> packed = jquant.pack_matrix(jnp.ones((64, 8), jnp.int4), scale=jnp.ones((2, 8)))
          >>> shardings = packed.sharding_for(jax.P("k", "n"))
          >>> shardings.data, shardings.scale, shardings.zero_point
          (P('k', 'n'), P('k', 'n'), None)
        """
        *batch, k, n = entries_of(sharding, self)
        blocks = self.scale.shape[-2]
        require_whole_blocks(sharding, k, blocks, f"{self} has {blocks} blocks, which must not be split")
        # All arrays are (..., K in some unit, N), except for K-major data.
        scale = placed(sharding, *batch, k, n)
        data = placed(sharding, *batch, n, k) if self.layout in _N_MINOR else scale
        zero_point, minimum = (None if array is None else scale for array in (self.zero_point, self.minimum))
        return dataclasses.replace(self, data=data, scale=scale, zero_point=zero_point, minimum=minimum)


def zero_point_data_type(dtype: np.dtype) -> np.dtype:
    """The type that holds the zero points of integers of `dtype`, in one byte each."""
    return np.dtype(np.int8 if jnp.issubdtype(dtype, jnp.signedinteger) else np.uint8)


def layout_for(dtype: np.dtype, block_size: int) -> Layout:
    """The default layout: words for 4 bits, unless a block ends inside a word, as none of floats does."""
    if dtype == _FLOAT4:
        return Layout.CODES
    has_whole_words = dtype in _DTYPES[Layout.WORDS] and block_size % packed_int4.PER_WORD == 0
    return Layout.WORDS if has_whole_words else Layout.BYTES


def _serialize(static: tuple) -> bytes:
    dtype, block_size, padding, layout = static
    return json.dumps([dtype.name, block_size, padding, layout]).encode()


def _deserialize(serialized: bytes | bytearray) -> tuple:
    dtype, block_size, padding, layout = json.loads(serialized.decode())
    return jnp.dtype(dtype), block_size, padding, Layout(layout)


export.register_pytree_node_serialization(
    PackedBlockMatrix,
    serialized_name="jquant.PackedBlockMatrix",
    serialize_auxdata=_serialize,
    deserialize_auxdata=_deserialize,
)
