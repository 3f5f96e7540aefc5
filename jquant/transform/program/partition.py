"""Weights inside `jax.shard_map`: they are packed outside, and enter it split as the function splits the float weights."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import PartitionSpec

from jquant import jaxprs
from jquant.transform.formats.stored_weights import WEIGHTS, Stored, WeightFormat
from jquant.transform.program.layouts import WeightLayout
from jquant.transform.program.plan import Site


class Split(NamedTuple):
    """The axes of a mesh that split the matrices of a weight, for each of their dimensions; None for a whole one."""

    batch: Any
    rows: Any
    columns: Any


def split_of(layout: WeightLayout, spec: Sequence[Any]) -> Split | None:
    """How weights with a `PartitionSpec` are split as matrices; None if their parts are not parts of the matrices.

    Several dimensions of the weights may be one of the matrices, of which only the first may be split.
    """
    entries = []
    for dimensions in layout:
        first, *others = [spec[dimension] for dimension in dimensions] or [None]
        if any(others):
            return None
        entries.append(first)
    return Split(*entries)


def parts(mesh: Any, axes: Any) -> int:
    """How many parts the axes of a mesh make."""
    names = axes if isinstance(axes, tuple) else () if axes is None else (axes,)
    return math.prod(mesh.shape[name] for name in names)


def why_not(format: WeightFormat, layout: WeightLayout, shape: Sequence[int], spec: Sequence[Any], mesh: Any) -> str | None:
    """Why weights cannot enter a `shard_map` as they are stored; None if they can."""
    split = split_of(layout, spec)
    if split is None:
        return f"its weights enter shard_map with {PartitionSpec(*spec)}, which splits no matrix of them into parts"
    rows = math.prod(shape[dimension] for dimension in layout.contracted)
    count = parts(mesh, split.rows)
    return None if count == 1 else format.why_not_split(rows, count)


def specs(site: Site, stored: Any) -> Any:
    """The `PartitionSpec` of each array that stores the weights of a site, or of these as floats."""
    if WEIGHTS in stored:
        return {WEIGHTS: PartitionSpec(*_loops_inside(site), *site.spec)}
    batch, rows, columns = _entries(site)
    return site.storage.format.specs(stored, batch, rows, columns)


def varying(site: Site, tree: Any) -> Any:
    """Arrays of a site that vary over the axes of the mesh over which the function's own weights do, inside `shard_map`."""
    if site.shard_map is None:
        return tree
    axes = jaxprs.varying_axes(site.equation.invars[site.operand].aval)
    return jax.tree.map(lambda array: jaxprs.vary(array, axes), tree)


def _loops_inside(site: Site) -> list[None]:
    """None for each loop inside the `shard_map` that stacks the arrays of a site: no mesh splits layers."""
    path = site.shard_map or ()
    return [None for level in site.levels if isinstance(level, tuple) and level[: len(path)] == path]


def adapter_specs(site: Site) -> Stored:
    """The partition specs of the low-rank matrices of a site."""
    batch, rows, columns = _entries(site)
    return {"a": PartitionSpec(*batch, rows, None), "b": PartitionSpec(*batch, None, columns)}


def _entries(site: Site) -> tuple[list[Any], Any, Any]:
    """What splits the dimensions of the stored matrices: those before the last two, the rows, and the columns."""
    split = split_of(site.storage.layout, site.spec)
    assert split is not None
    batch = [split.batch] if site.storage.layout.batch else []
    return [*_loops_inside(site), *batch], split.rows, split.columns
