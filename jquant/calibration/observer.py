"""Observers: pure functions that keep a state of a stream of batches, and compute a range from it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import export
from jax.typing import ArrayLike

AxisName = str | tuple[str, ...] | None


class Range(NamedTuple):
    """The real numbers from `min` to `max`, float32. In the state of an observer, ``[inf, -inf]`` is the empty range."""

    min: jax.Array
    max: jax.Array


export.register_namedtuple_serialization(Range, serialized_name="jquant.calibration.Range")


class Observer(NamedTuple):
    """Three pure functions that compute a range from a stream of batches.

    Each works under `jax.jit`, `jax.lax.scan` and the rest; new values never recompile. The state is a pytree of arrays of
    fixed shapes. Observers made with equal arguments are equal, and hashable.

    Attributes:
      init: ``init(batch=None)``, the state before the first batch. An observer of each channel needs a batch, or a
        `jax.ShapeDtypeStruct`, for its shape.
      update: ``update(state, batch)``, the state after another batch: float32, float16 or bfloat16, of any shape.
      compute_range: ``compute_range(state)``, the `Range` of what has been seen; [0, 0] if nothing has been seen.
        Called with a state that is not traced, that of `percentile`, `mean_squared_error` and `entropy` reads it back, and
        warns if the bins of the histogram are too coarse for the range.
    """

    init: Callable[..., Any]
    update: Callable[[Any, ArrayLike], Any]
    compute_range: Callable[[Any], Range]
