"""What the formats of weights have in common: how a float matrix is quantized, stored and multiplied.

A matrix has the shape (..., K, N), where K is the dimension that a product sums over. Whatever the format, it is stored as a
dict of arrays, every element in its own number of bits.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jquant.arithmetic import exact
from jquant.formulas import blocks, extremes
from jquant.operators.dequantize_linear import dequantize_linear

SMOOTHING = "smoothing"  # the key of the factors of smoothing among the arrays that a site stores
WEIGHTS = "weights"  # the key of weights that are floats, in the place of such arrays
Stored = dict[str, Any]
BlockParameters = dict[str, Any]
"""What the elements of a block share, by name: arrays of shape (..., G, N), for G blocks along K, or of shape ()."""
Take = Callable[[jax.Array, int], jax.Array]
"""Selects indices along a dimension of an array of rank 2: their shape comes first, and the dimension keeps a size of 1."""


class WeightFormat(Protocol):
    """How weights are stored. Equal weights in equal formats are stored once.

    Attributes:
      shares: the shares of a block's range that may be better than all of it, the preferred ones first. A negative one
        stands for a negative scale.
    """

    shares: ClassVar[Sequence[float]]

    @property
    def title(self) -> str:
        """What tables call it."""
        ...

    @property
    def smallest_range(self) -> float:
        """Weights whose largest magnitude is below this, and not 0, are too small for the scales."""
        ...

    def rows_of_a_block(self, rows: int) -> int:
        """How many rows of a column of so many rows share their parameters."""
        ...

    def parameters(self, matrix: jax.Array, share: jax.Array | None = None) -> BlockParameters:
        """The parameters of a float matrix: from the range of each block, or from a share of it, of shape (..., G, N)."""
        ...

    def rounded(self, matrix: jax.Array, parameters: BlockParameters) -> jax.Array:
        """The nearest numbers that can be stored with these parameters, float32. Rounding them again changes nothing."""
        ...

    def store(self, matrix: jax.Array, parameters: BlockParameters) -> Stored:
        """The arrays that store a float matrix, rounded to nearest, with these parameters."""
        ...

    def dequantize(self, stored: Stored, rows: int, dtype: np.dtype) -> jax.Array:
        """The float matrix of so many rows, (..., K, N)."""
        ...

    def columns(self, stored: Stored, take: Take) -> Stored:
        """What stores some columns, each as a matrix of its own, (..., K, 1)."""
        ...

    def specs(self, stored: Stored, batch: Sequence[Any], rows: Any, columns: Any) -> Stored:
        """A `PartitionSpec` for each array, from the axes of a mesh that split the dimensions of the matrix (..., K, N)."""
        ...

    def why_not_split(self, rows: int, parts: int) -> str | None:
        """Why equal parts of so many rows are not stored as parts of the arrays; None if they are."""
        ...


class FilterFormat(WeightFormat, Protocol):
    """A format that filters of convolutions can have as well.

    Stored as ``values``, of the shape of the filter, and ``scale``, of shape (filters,) or ().
    """

    def pack_filter(self, filter: jax.Array, channel: int) -> Stored:
        """The arrays that store a filter, whose output channels lie along the dimension `channel`."""
        ...

    def dequantize_filter(self, stored: Stored, channel: int, dtype: np.dtype) -> jax.Array:
        """The float filter."""
        ...


_SMALLEST = np.finfo(np.float32).smallest_normal


def scale_of(width: jax.Array, largest: float, scale_type: str, steps: float | None = None) -> tuple[jax.Array, jax.Array]:
    """``width / largest`` as a scale of a type, and whether it is not the nearest one; 1 for a width of 0.

    `steps` is how many of its last steps the largest element is, if that is not its number.

    The type may be too narrow for a scale. One below its numbers becomes the smallest that clips no element by over half
    a step, and one above them the largest. Scales of weights that are not finite are not finite.
    """
    dtype = jnp.dtype(scale_type.lower())
    ideal = exact.quotient(width, np.float32(largest))
    steps = largest if steps is None else steps
    scale = jnp.where(width == 0, np.float32(1), jnp.maximum(ideal, _SMALLEST))
    if dtype == np.float32:
        return scale, scale != ideal
    limits = jnp.finfo(dtype)
    bounded = jnp.where(jnp.isinf(scale), scale, jnp.minimum(scale, np.float32(limits.max)))
    nearest = exact.widen(bounded.astype(dtype))
    clips = nearest * np.float32(steps + 0.5) < scale * np.float32(steps)
    next_one = nearest + np.float32(limits.smallest_subnormal)  # of subnormal numbers, the others lie closer together
    is_too_small = clips & (bounded == scale) & (scale < np.float32(limits.smallest_normal))
    return jnp.where(is_too_small, next_one, bounded).astype(dtype), is_too_small | (bounded != scale) | (scale != ideal)


def smallest_scale(scale_type: str) -> float:
    """The smallest scale of a type."""
    return max(float(jnp.finfo(scale_type.lower()).smallest_subnormal), float(_SMALLEST))


SHARES = tuple(step / 50 for step in range(50, 14, -1))
"""From all of a range down to 0.3 of it, in steps of 0.02."""


def why_no_whole_blocks(rows: int, parts: int, block_size: int, advice: str = "pass another block_size") -> str | None:
    """Why equal parts of so many rows are not whole blocks, and what helps; None if they are."""
    if rows % (parts * block_size) == 0:
        return None
    return f"{parts} devices would split blocks of {block_size} of its {rows} rows: {advice}"


def title_of(weight_type: str, by_column: bool, block_size: int | None, scale_type: str) -> str:
    scales = f"in blocks of {block_size}" if block_size else f"by {'channel' if by_column else 'tensor'}"
    return f"{weight_type.lower()} {scales}" + ("" if scale_type == "FLOAT32" else f", {scale_type.lower()} scales")


def largest(x: jax.Array, over: Sequence[int]) -> jax.Array:
    """``max|x|`` along `over`, which keep a size of 1."""
    return extremes.largest_magnitude(exact.numerator(x), tuple(over))


def share_of(bound: jax.Array, share: jax.Array | None) -> jax.Array:
    """The bound of a range, or of a share of it."""
    return bound if share is None else exact.product(bound, share)


def of_blocks(
    function: Callable[[jax.Array, Sequence[int]], Any], matrix: jax.Array, block_size: int, by_column: bool
) -> Any:
    """What `function` computes along dimensions for each block, or for the whole matrix, in shape (..., G, N)."""
    in_blocks = blocks.in_blocks(matrix, matrix.ndim - 2, block_size)
    over = (in_blocks.ndim - 2,) if by_column else tuple(range(in_blocks.ndim))
    sizes = *in_blocks.shape[:-2], 1, in_blocks.shape[-1]
    return jax.tree.map(lambda each: jnp.broadcast_to(each, sizes).squeeze(-2), function(in_blocks, over))


def without(channel: int, filter: jax.Array) -> tuple[int, ...]:
    return tuple(dimension for dimension in range(filter.ndim) if dimension != channel)


def dequantized_filter(values: jax.Array, scale: jax.Array, channel: int, dtype: np.dtype) -> jax.Array:
    axis = channel if scale.ndim else None
    return dequantize_linear(values, scale, axis=axis, output_dtype=dtype, feature_level="EXTENDED")
