"""What the kernels for Hopper GPUs share: the checks of GPU and sizes, the order of tiles, and layouts in shared memory."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.extend import backend

from jquant.kernels.pallas.gpu_tiles import ROW_ALIGNMENT

BLOCK, WARPGROUP = "block", "warpgroup"
"""The axes of the grid."""


def compute_capability() -> str | None:
    """The compute capability of the GPU that Mosaic compiles for, the default device: "9.0"; None if there is no GPU."""
    return getattr(backend.get_default_device(), "compute_capability", None)


def require_hopper() -> None:
    """Raises NotImplementedError if there is a GPU that is not a Hopper."""
    capability = compute_capability()
    if capability not in (None, "9.0"):
        raise NotImplementedError(
            f"the Hopper kernel needs a GPU of compute capability 9.0 (H100, H200), but this one has {capability}"
        )


def require_sizes(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    """Raises NotImplementedError for symbolic sizes and empty matrices."""
    if not all(isinstance(size, int) for size in (*a, *b)):
        raise NotImplementedError(f"the Hopper kernel needs sizes that are known when it compiles, not {a} by {b}")
    if 0 in (*a, *b):
        raise NotImplementedError(f"the Hopper kernel does not multiply empty matrices: {a} by {b}")


def snake(tile: jax.Array, grid: tuple[int, int], group_m: int) -> tuple[jax.Array, jax.Array]:
    """The position of a tile in an order that goes through `group_m` rows of tiles at a time, to the right and back."""
    m, n = grid
    group, within = lax.div(tile, jnp.int32(group_m * n)), lax.rem(tile, jnp.int32(group_m * n))
    height = lax.min(m - group * group_m, jnp.int32(group_m))  # never 0, by which division is not defined
    j = lax.div(within, height)
    return group * group_m + lax.rem(within, height), lax.select(lax.rem(group, jnp.int32(2)) == 0, j, n - 1 - j)


def swizzled(columns: int, bits: int) -> tuple:
    """The layout in shared memory that TMA, `wgmma` and registers exchange without bank conflicts."""
    return plgpu.TilingTransform((ROW_ALIGNMENT, columns)), plgpu.SwizzleTransform(columns * bits // 8)


def nothing(*_: Any) -> None:
    """Stands in for the parts of a pipeline that do not influence what it allocates."""
