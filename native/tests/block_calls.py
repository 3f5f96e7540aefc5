"""Calls of the product with block scales, and the same products in NumPy, by the formulas of native/src/block_product.h."""

from typing import NamedTuple

import calls
import draw
import jax.numpy as jnp
import numpy as np
from calls import BYTES, FLOATS, flushed

# The roles of the arrays of a call.
OF_BLOCKS = ("b_zero_point", "minimum")  # at most one of them
OF_ROWS = ("a_zero_point", "row_scale", "float_bias")
ROLES = (*OF_BLOCKS, *OF_ROWS)


class BlockCall(NamedTuple):
    """A product. Each array has three dimensions, and goes with the role of the same position."""

    a: np.ndarray
    b: np.ndarray  # of uint16, which hold four rows each, or int8
    scale: np.ndarray
    block_size: int
    offset: int = 0
    arrays: tuple[np.ndarray, ...] = ()
    roles: tuple[str, ...] = ()
    dtype: np.dtype = np.dtype(np.float32)
    are_codes: bool = False  # whether the words hold codes of floats of 4 bits, which stand for twice these floats

    @property
    def target(self) -> str:
        return calls.CODED_BLOCK_PRODUCT if self.are_codes else calls.BLOCK_PRODUCT

    @property
    def operands(self) -> tuple[np.ndarray, ...]:
        return self.a, self.b, self.scale, *self.arrays

    @property
    def attributes(self) -> dict[str, object]:
        return {"block_size": np.int64(self.block_size), "offset": np.int64(self.offset)}

    @property
    def shape(self) -> tuple[int, int, int]:
        (batch,) = np.broadcast_shapes(*(array.shape[:1] for array in self.operands))
        return batch, self.a.shape[1], self.b.shape[2]

    def describe(self) -> str:
        of_arrays = ", ".join(
            f"{role} {array.dtype}{array.shape}" for role, array in zip(self.roles, self.arrays, strict=True)
        )
        scale = f"scale {self.scale.dtype}{self.scale.shape}, {self.block_size=}, {self.offset=}"
        return f"{self.a.dtype}{self.a.shape} @ {self.b.dtype}{self.b.shape} to {self.dtype}, {scale}, {of_arrays}"


def expected(call: BlockCall) -> np.ndarray:
    """The result in NumPy."""
    named = dict(zip(call.roles, call.arrays, strict=True))
    b = call.b.astype(np.int64)
    if call.b.dtype == np.uint16:
        b = np.stack([b >> shift & 15 for shift in (0, 4, 8, 12)], 2).reshape(b.shape[0], 4 * b.shape[1], b.shape[2])
    if call.are_codes:
        b = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])[b]
    a = call.a.astype(np.int64) - named.get("a_zero_point", 0)
    b_zero_point = named.get("b_zero_point", np.zeros((1, *call.scale.shape[1:]), np.int8))
    total = np.full(call.shape, -0.0 if call.scale.shape[1] else 0.0, np.float32)
    with np.errstate(all="ignore"):
        for block in range(call.scale.shape[1]):
            rows = slice(block * call.block_size, (block + 1) * call.block_size)
            integers = b[:, rows] - call.offset - b_zero_point[:, block, None].astype(np.int64)
            total = flushed(total + _contribution(a[:, :, rows], integers, call.scale[:, block], named, block))
        if "row_scale" in named:
            total = flushed(total * flushed(named["row_scale"]))
        if "float_bias" in named:
            total = flushed(total + flushed(named["float_bias"]))
        return total.astype(call.dtype)


def _contribution(a, b, scale, named, block):
    term = flushed((a @ b).astype(np.int32).astype(np.float32) * _widened(scale))
    if "minimum" not in named:
        return term
    row_sums = a.sum(2, keepdims=True).astype(np.int32).astype(np.float32)
    return flushed(term + flushed(row_sums * _widened(named["minimum"][:, block])))


def _widened(x):
    """A value for each column, as float32, of shape (batch, 1, columns)."""
    return flushed(x.astype(np.float32))[:, None]


def check(*calls_: BlockCall) -> None:
    """Compares the results of calls, which are made in one program, with NumPy's."""
    calls.check(*calls_, expected=expected)


def floats(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Of both signs and several magnitudes, and zeros."""
    values = rng.normal(size=shape) * 2.0 ** rng.integers(-9, 3, shape)
    return np.where(rng.random(shape) < 0.05, rng.choice([0.0, -0.0], shape), values).astype(dtype)


def call(
    rng: np.random.Generator,
    shape: tuple[int, int, int],
    blocks: int,
    block_size: int,
    roles: tuple[str, ...] = (),
    *,
    words: bool = False,
    dtype: np.dtype = np.float32,
    batches: tuple[int, ...] = (),
    only: tuple[int, ...] | None = None,
) -> BlockCall:
    """A product of random operands.

    Args:
      rng: where they come from.
      shape: (batch, rows, columns) of the result.
      blocks: how many there are.
      block_size: their size.
      roles: of the arrays.
      words: whether B holds words of four 4-bit integers.
      dtype: of the result.
      batches: the batch sizes of all operands, if they are not all that of the result.
      only: bytes of which A and B consist.
    """
    batch, rows, columns = shape
    depth = blocks * block_size
    sizes = iter(batches or (batch,) * (3 + len(roles)))
    a = draw.matrix(rng, (next(sizes), rows, depth), rng.choice(BYTES), only)
    b_batch = next(sizes)
    if words:
        b = rng.integers(0, 2**16, (b_batch, depth // 4, columns), np.uint16)
    else:
        b = draw.matrix(rng, (b_batch, depth, columns), np.int8, only)
    scale = floats(rng, (next(sizes), blocks, columns), rng.choice(FLOATS))

    def array(role: str) -> np.ndarray:
        of_blocks = (next(sizes), blocks, columns)
        if role == "b_zero_point":
            return draw.matrix(rng, of_blocks, rng.choice(BYTES))
        if role == "minimum":
            return floats(rng, of_blocks, rng.choice(FLOATS))
        if role == "a_zero_point":
            return draw.matrix(rng, (of_blocks[0], rng.choice([1, rows]), 1), a.dtype)
        return floats(rng, (of_blocks[0], rng.choice([1, rows]), rng.choice([1, columns])), np.float32)

    offset = int(rng.choice([0, 8] if words else [0, -128]))
    return BlockCall(a, b, scale, block_size, offset, tuple(map(array, roles)), roles, jnp.dtype(dtype))
