"""Finds the ranges of a network's activations over a data set."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
from jax.tree_util import keystr, tree_flatten_with_path, tree_leaves_with_path, tree_map_with_path

from jquant.arguments.assertions import require
from jquant.arguments.statics import boolean
from jquant.calibration.batches import each_batch
from jquant.calibration.checks import float_batch
from jquant.calibration.coarse import warnings_about
from jquant.calibration.observer import Observer
from jquant.errors import DescriptorError, DescriptorTypeError, shown
from jquant.placement import explain_array_errors

_NAME = "calibrate"


def identity(batch: Any) -> Any:
    """The batch itself, as its activations."""
    return batch


@explain_array_errors
def calibrate(
    observer: Observer,
    /,
    batches: Iterable[Any],
    activations: Callable[[Any], Any] = identity,
    *,
    progress: bool = False,
) -> Any:
    """Observes every activation of a network over a data set, and returns the range of each.

    There is one state for each array of ``activations(batch)``. The activations and all updates form one program, which is
    compiled once for each batch shape. Batches may be split over a mesh.

    Args:
      observer: the observer of each array, such as ``min_max()``.
      batches: an iterable of batches: arrays, or pytrees of arrays. It is read once, one batch at a time. Batches are
        arguments of a jitted program: without ``jax_enable_x64``, float64 becomes float32.
      activations: a pure function from a batch to a pytree of float arrays. It is traced, and must be hashable. By default,
        the activations are the batch itself.
      progress: whether to show a progress bar, which needs tqdm.

    Returns:
      The pytree of the activations, with each array replaced by its `Range`.

    Raises:
      DescriptorError: no batch; a batch without an array; activations without an array, or with a different structure from
        those of the first batch.
      DescriptorTypeError: an argument of the wrong type, such as a batch of strings, or activations that are not floats.
      ImportError: `progress` is set, but tqdm is not installed.

    Warns:
      UserWarning: the bins of a histogram are too coarse for the range of an activation, because a few of its numbers are
        much larger than the others; `percentile`, `mean_squared_error` and `entropy` say when.

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
    if not isinstance(observer, Observer):
        raise DescriptorTypeError(f"{_NAME}: observer is {shown(observer)}; it must be an Observer, such as min_max()")
    if not callable(activations) or not _is_hashable(activations):
        message = f"{_NAME}: activations is {shown(activations)}; it must be a function of a batch, and hashable"
        raise DescriptorTypeError(message)
    structure, paths, states = None, [], []
    for batch in each_batch(_NAME, batches, boolean(_NAME, "progress", progress)):
        _require_arrays(batch)
        if structure is None:
            shapes, structure = tree_flatten_with_path(jax.eval_shape(functools.partial(_floats, activations), batch))
            require(len(shapes) > 0, f"{_NAME}: activations(batch) is a {shown(structure)}, which holds no arrays")
            paths, states = [path for path, _ in shapes], [observer.init(shape) for _, shape in shapes]
        states = _updated(observer, activations, structure, states, batch)
        if progress:  # of what has been computed, not of what JAX has been asked for
            jax.block_until_ready(states)
    if structure is None:
        raise DescriptorError(f"{_NAME}: batches is empty")
    ranges = []
    for path, state in zip(paths, states, strict=True):
        with warnings_about(f"{_NAME}: activations(batch){keystr(path)}"):
            ranges.append(observer.compute_range(state))
    return structure.unflatten(ranges)


def _is_hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _require_arrays(batch: Any) -> None:
    """Asserts that a batch holds arrays, and nothing that `jax.jit` does not accept."""
    leaves = tree_leaves_with_path(batch)
    if not leaves:
        raise DescriptorError(f"{_NAME}: batches contains {shown(batch)}, which holds no arrays")
    for path, leaf in leaves:
        if not _is_array(leaf):
            message = f"{_NAME}: batches contains a batch whose batch{keystr(path)} is {shown(leaf)}; it must be an array"
            raise DescriptorTypeError(message)


def _is_array(leaf: Any) -> bool:
    """Whether `jax.jit` accepts `leaf`."""
    try:
        jax.typeof(leaf)
    except (TypeError, ValueError, OverflowError):
        return False
    return not isinstance(leaf, jax.ShapeDtypeStruct)  # it has a type, but no values


def _floats(activations: Callable[[Any], Any], batch: Any) -> Any:
    """``activations(batch)``, asserting that they are arrays of floats."""

    def check(path: Any, x: Any) -> Any:
        return float_batch(_NAME, f"activations(batch){keystr(path)}", x)

    return tree_map_with_path(check, activations(batch))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _updated(
    observer: Observer, activations: Callable[[Any], Any], structure: Any, states: list[Any], batch: Any
) -> list[Any]:
    """The states after a batch, asserting that its activations have the structure of those of the first batch."""
    values, actual = jax.tree.flatten(_floats(activations, batch))
    message = f"{_NAME}: activations(batch) has structure {shown(actual)}; for the first batch it was {shown(structure)}"
    require(actual == structure, message)
    return list(map(observer.update, states, values))
