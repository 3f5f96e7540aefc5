"""The cache itself: the arrays that hold the keys and values of all layers, and their scales."""

import dataclasses
import json
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.typing import DTypeLike

from jquant.arguments.assertions import require_named_type
from jquant.arguments.statics import integer, require_countable
from jquant.arithmetic.fixed_point import LARGEST_COUNT
from jquant.errors import DescriptorError, DescriptorTypeError
from jquant.modes import data_type

INT4 = jnp.dtype(jnp.int4)
INTEGERS = np.dtype(np.int8), INT4
_DATA_TYPES = "INT8", "INT4", "FLOAT32", "BFLOAT16"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class KeyValueCache:
    """The keys and values of all tokens so far: a row for each layer, sequence, head and token, as `init` makes them.

    A row stands for ``integers * scale``; one of zeros has the scale 0. A pytree of arrays, so that JAX's transformations,
    shardings and checkpoints take it like any array. `jax.lax.scan` over it gives each step the cache of one layer, whose
    arrays lack the first dimension.

    The heads are the third dimension of every array: ``NamedSharding(mesh, jax.P(None, None, "heads"))`` for the whole tree
    splits them over devices, and ``jax.P(None, "batch")`` the sequences; neither makes `append` or `attend` communicate.

    Attributes:
      keys: of shape (layers, batch, heads, length, width), in `dtype`. Only int4 is stored as `jquant.pack_integers` does,
        two integers in a byte: uint8, of shape (layers, batch, heads, length, ceil(width / 2)).
      key_scale: float32, of shape (layers, batch, heads, length). None in a cache of floats.
      values: like `keys`.
      value_scale: like `key_scale`.
      dtype: int8, int4, float32 or bfloat16.
      width: the number of elements of a row.
    """

    keys: jax.Array
    key_scale: jax.Array | None
    values: jax.Array
    value_scale: jax.Array | None
    dtype: np.dtype = dataclasses.field(metadata={"static": True})
    width: int = dataclasses.field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the keys, and of the values: (layers, batch, heads, length, width)."""
        return (*self.keys.shape[:-1], self.width)

    @property
    def ndim(self) -> int:
        return self.keys.ndim

    @property
    def nbytes(self) -> int:
        """The size of all arrays in bytes."""
        return sum(array.nbytes for array in jax.tree.leaves(self))

    def __repr__(self) -> str:
        if hasattr(self.keys, "shape"):
            return f"KeyValueCache({self.dtype}[{','.join(map(str, self.shape))}])"
        # A transformation may put anything in place of the arrays: shardings, for example.
        return f"KeyValueCache({self.dtype}, {self.keys}, {self.key_scale}, {self.values}, {self.value_scale})"

    def validate(self, name: str) -> None:
        """Asserts that the arrays have the dtypes and the shapes that `init` gave them.

        A cast of all arrays of a model (``jax.tree.map(lambda x: x.astype(jnp.bfloat16), model)``) casts these, too.
        """
        has_scales = self.dtype in INTEGERS
        scale = np.dtype(np.float32) if has_scales else None
        wanted = {"keys": stored_data_type(self.dtype), "key_scale": scale}
        wanted |= {"values": wanted["keys"], "value_scale": scale}
        for field, dtype in wanted.items():
            found = getattr(getattr(self, field), "dtype", None)
            if found != dtype:
                raise DescriptorTypeError(
                    f"{name}: {field} of the cache has dtype {found}; init made it {dtype}. "
                    "(Was it changed by a cast of the model's arrays?)"
                )
        shapes = {field: jnp.shape(getattr(self, field)) for field, dtype in wanted.items() if dtype is not None}
        rows = shapes["keys"][:-1]
        stored = (*rows, stored_width(self.dtype, self.width))
        if len(rows) not in (3, 4) or shapes != {field: rows if "scale" in field else stored for field in shapes}:
            raise DescriptorError(f"{name}: the arrays of the cache do not fit rows of {self.width} elements: {shapes}")


def init(layers: int, batch: int, heads: int, length: int, width: int, dtype: DTypeLike | str = "INT8") -> KeyValueCache:
    """Makes an empty cache for the keys and values of all layers.

    Each element is 0, and so is each scale.

    Args:
      layers: the number of layers, each with keys and values of its own, stacked in the first dimension.
      batch: the number of sequences.
      heads: the number of heads of the keys and values; the queries may have a multiple of it.
      length: the most tokens that a sequence can have, up to 524,287.
      width: the number of elements of a key, and of a value.
      dtype: INT8 or INT4, with a scale for each row; or FLOAT32 or BFLOAT16, to compare with.

    Returns:
      A `KeyValueCache`. In bytes per key or value, int8 takes ``width + 4``, int4 ``ceil(width / 2) + 4``, float32 ``4 *
      width``.

    Raises:
      DescriptorError: a size below 1 or too large, or an array of 2**63 bytes or more.
      DescriptorTypeError: a size that is not an integer, or a data type other than those above.

    Example:
      >>> from jquant import kv_cache
      >>> cache = kv_cache.init(layers=2, batch=1, heads=3, length=128, width=64, dtype="INT4")
      >>> cache
      KeyValueCache(int4[2,1,3,128,64])
      >>> cache.keys.dtype, cache.keys.shape, cache.key_scale.shape
      (dtype('uint8'), (2, 1, 3, 128, 32), (2, 1, 3, 128))
      >>> [kv_cache.init(2, 1, 3, 128, 64, dtype).nbytes for dtype in ("INT4", "INT8", "FLOAT32")]
      [55296, 104448, 393216]
    """
    sizes = {"layers": layers, "batch": batch, "heads": heads, "length": length, "width": width}
    limits = {name: LARGEST_COUNT if name == "length" else 2**31 - 1 for name in sizes}
    *rows, width = (
        integer("init", name, size, range(1, limits[name] + 1), f"an integer from 1 to {limits[name]}")
        for name, size in sizes.items()
    )
    named = data_type("dtype", dtype)
    require_named_type("init", "dtype", named, _DATA_TYPES)
    shape = *rows, stored_width(named, width)
    of_a_row = max(shape[-1] * stored_data_type(named).itemsize, 4)  # its scale has 4 bytes
    require_countable("init", "a cache", f"of shape {(*rows, width)}", math.prod(rows) * of_a_row)

    def elements() -> jax.Array:
        return jnp.zeros(shape, stored_data_type(named))

    def scales() -> jax.Array | None:
        return jnp.zeros(rows, jnp.float32) if named in INTEGERS else None

    return KeyValueCache(elements(), scales(), elements(), scales(), named, width)


def stored_data_type(dtype: np.dtype) -> np.dtype:
    return np.dtype(np.uint8) if dtype == INT4 else dtype


def stored_width(dtype: np.dtype, width: int) -> int:
    return -(-width // 2) if dtype == INT4 else width


def cache_operand(operator: str, cache: Any) -> KeyValueCache:
    """`cache`, asserting that it is a cache."""
    if not isinstance(cache, KeyValueCache):
        wanted = "it must be a KeyValueCache, which init makes"
        raise DescriptorTypeError(f"{operator}: cache is of type {type(cache).__name__}; {wanted}")
    cache.validate(operator)
    return cache


def _serialize(static: tuple) -> bytes:
    dtype, width = static
    return json.dumps([dtype.name, width]).encode()


def _deserialize(serialized: bytes | bytearray) -> tuple:
    dtype, width = json.loads(serialized.decode())
    return jnp.dtype(dtype), width


export.register_pytree_node_serialization(
    KeyValueCache,
    serialized_name="jquant.kv_cache.KeyValueCache",
    serialize_auxdata=_serialize,
    deserialize_auxdata=_deserialize,
)
