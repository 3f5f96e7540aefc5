"""The ranges of a network's activations over a data set"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax

from jquant.calibration.observer import Observer
from jquant.errors import DescriptorError

_NAME = "calibrate"


def identity(batch: Any) -> Any:
    return batch


def calibrate(
    observer: Observer,
    batches: Iterable[Any],
    activations: Callable[[Any], Any] = identity,
    /,
    *,
    progress: bool = False,
) -> Any:
    """Observes every activation of a network over a data set, and returns the range of each.

    One state for each array of ``activations(batch)``; the activations and all updates are one program, which is compiled
    for each shape of a batch. Batches may be split over a mesh.

    Args:
      observer: what is observed of each array.
      batches: an iterable of batches: arrays, or pytrees of them. It is read once, a batch at a time. They are arguments of
        a jitted program: without ``jax_enable_x64``, float64 becomes float32.
      activations: a pure function of a batch, to a pytree of float arrays; to be traced. By default, the batch.
      progress: show a progress bar, which needs tqdm.

    Returns:
      The pytree of the activations, with a `Range` in the place of each array.

    Raises:
      DescriptorError: without a batch.
      ImportError: `progress` without tqdm.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> def activations(x):
      ...     hidden = jnp.maximum(x @ jnp.array([[1.0], [2.0]]), 0)
      ...     return {"image": x, "hidden": hidden}
      >>> batches = [jnp.array([[1.0, -4.0]]), jnp.array([[0.5, 3.0]])]
      >>> ranges = jquant.calibration.calibrate(jquant.calibration.min_max(), batches, activations)
      >>> for name, (low, high) in ranges.items():
      ...     print(name, low, high, *jquant.scale_and_zero_point(low, high, "INT8", symmetric=True, narrow_range=True))
      hidden 0.0 6.5 0.051181104 0
      image -4.0 3.0 0.031496063 0
    """
    structure, states = None, None
    for batch in _shown(batches) if progress else batches:
        if structure is None:
            shapes = jax.eval_shape(activations, batch)
            structure, states = jax.tree.structure(shapes), jax.tree.map(observer.init, shapes)
        states = _updated(observer, activations, states, batch)
    if structure is None:
        raise DescriptorError(f"{_NAME}: there is no batch")
    return structure.unflatten(map(observer.compute_range, structure.flatten_up_to(states)))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _updated(observer: Observer, activations: Callable[[Any], Any], states: Any, batch: Any) -> Any:
    return jax.tree.map(lambda x, state: observer.update(state, x), activations(batch), states)


def _shown(batches: Iterable[Any]) -> Iterable[Any]:
    try:
        from tqdm import tqdm
    except ImportError as error:
        message = f"{_NAME}: progress=True needs tqdm: pip install tqdm"
        raise ImportError(message) from error
    return tqdm(batches, desc="calibrating", unit="batch")
