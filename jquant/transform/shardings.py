"""Shardings of quantized parameters, from rules about the parameters of the float function."""

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from jquant.arguments.statics import is_sequence
from jquant.errors import TransformError, TransformTypeError, shown
from jquant.placement import explain_array_errors_as
from jquant.transform.formats import weight_formats
from jquant.transform.formats.floats_as_integers import AsIntegers
from jquant.transform.formats.integer_formats import Blocks
from jquant.transform.formats.stored_weights import SMOOTHING, Stored
from jquant.transform.program import partition
from jquant.transform.program.layouts import MATMUL
from jquant.transform.program.parameters import described, require_arrays
from jquant.transform.program.partition import Split
from jquant.transform.program.plan import Plan, Site
from jquant.transform.quantize import QuantizedFunction
from jquant.transform.recipes.recipe import Activations
from jquant.transform.weights import layers, quantized_parameters
from jquant.transform.weights.prepared_weights import without_factors

_NAME = "transform.shardings"
_WHOLE = PartitionSpec()
Rules = Sequence[tuple[str, PartitionSpec | None]]


@explain_array_errors_as(_NAME, TransformError)
def shardings(
    quantized_apply: QuantizedFunction,
    quantized_params: Mapping[str, Mapping[str, Any]],
    mesh: Mesh | AbstractMesh,
    rules: Rules,
) -> dict[str, dict[str, Any]]:
    """The shardings of quantized parameters on a mesh, from those that the float parameters would have.

    A product of integers gives the bits of one device, however its weights are split, if its inputs are equal: sums of
    integers are exact, and `Scheme.k_parts` says in how many runs the sums of blocks are added. A split that would change
    its bits is refused, as is one that cuts a block, before anything is moved. Products of floats (``"FLOAT"`` activations)
    add in another order on a mesh, as everywhere.

    Args:
      quantized_apply: the function that `quantize` or `load` returned.
      quantized_params: its parameters, or their types.
      mesh: the mesh.
      rules: pairs of a pattern and a `jax.sharding.PartitionSpec`, or None for a whole copy on each device. The first whose
        pattern matches the name of a parameter, in which ``*`` matches anything, applies to the site of these weights, or to
        the parameter that stays float. The entries are those of the dimensions of the float parameter, with the layers that
        `jax.lax.scan` stacks; of weights that are computed from parameters, those of the computed ones. Of several
        dimensions that are one of the matrix, such as heads and their width, only the first can be split. What no pattern
        matches is whole, and so are the scales and zero points of static inputs.

    Returns:
      A tree of the structure of `quantized_params`, with a `NamedSharding` for each array: for `jax.device_put`,
      ``in_shardings``, or a checkpoint to be restored.

    Raises:
      TransformError: what cannot be split, all of it, by site, with the reason and the field of its `Scheme` that helps; a
        pattern that matches nothing; an axis that the mesh lacks or that splits two dimensions; parameters of another
        function.
      TransformTypeError: an argument of the wrong type.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jax.sharding import PartitionSpec as P
      >>> from jquant import transform
      >>> def apply(params, x):
      ...     return jax.nn.relu(x @ params["up"]) @ params["down"]
      >>> params, x = {"up": jnp.ones((32, 64)), "down": jnp.ones((64, 32))}, jnp.ones((4, 32))
      >>> quantized_apply, quantized_params = transform.quantize(apply, params, transform.dynamic_int8_rows, x)
      >>> mesh = jax.make_mesh((1,), ("model",))
      >>> rules = [("up", P(None, "model")), ("down", P("model", None))]
      >>> shardings = transform.shardings(quantized_apply, quantized_params, mesh, rules)
      >>> shardings["sites"]["up"]["values"].data.spec, shardings["sites"]["up"]["scale"].spec
      (P('model', None), P('model',))
      >>> placed = jax.device_put(quantized_params, shardings)
    """
    if not isinstance(quantized_apply, QuantizedFunction):
        wanted = "it must be the function that transform.quantize returned"
        raise TransformTypeError(f"{_NAME}: quantized_apply is {described(quantized_apply)}; {wanted}")
    if not isinstance(mesh, Mesh | AbstractMesh):
        raise TransformTypeError(f"{_NAME}: mesh is {shown(mesh)}; it must be a mesh, such as jax.make_mesh returns")
    require_arrays(f"{_NAME}: quantized_params", quantized_params, allow_types=True)
    quantized_apply._require_parameters(_NAME, quantized_params)
    return of_plan(_NAME, quantized_apply._plan, quantized_params, mesh, rules)


def of_plan(
    name: str, plan: Plan, params: Mapping[str, Mapping[str, Any]], mesh: Mesh | AbstractMesh, rules: Rules
) -> dict[str, dict[str, Any]]:
    """The shardings of the parameters of a plan. Errors begin with `name`."""
    packed, static, floats = quantized_parameters.parts(name, plan, params)
    chosen = _Rules(name, mesh, rules)
    sites = {site.name: site for site in plan.stored()}
    specs = {
        "sites": {each: _of_site(plan, sites[each], packed[each], chosen) for each in packed},
        "inputs": jax.tree.map(lambda _: _WHOLE, static),
        "float": {each: _of_float(each, floats[each], chosen) for each in floats},
    }
    chosen.raise_obstacles()
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=_is_spec)


def _is_spec(node: Any) -> bool:
    return isinstance(node, PartitionSpec)


class _Rules:
    """The rules, which have matched something or not, and what cannot be split as they say."""

    def __init__(self, name: str, mesh: Mesh | AbstractMesh, rules: Rules):
        self._name, self.mesh = name, mesh
        if not is_sequence(rules) or not all(map(_is_rule, rules)):
            wanted = "it must be a list of pairs of a pattern and a PartitionSpec, or None"
            raise TransformTypeError(f"{name}: rules is {shown(rules)}; {wanted}")
        self._rules = [(pattern, _WHOLE if spec is None else spec) for pattern, spec in rules]
        for pattern, spec in self._rules:
            self._require_axes(pattern, spec)
        self._unmatched = [pattern for pattern, _ in self._rules]
        self._obstacles: list[str] = []

    def _require_axes(self, pattern: str, spec: PartitionSpec) -> None:
        axes = [axis for entry in spec for axis in (entry if isinstance(entry, tuple) else (entry,)) if axis is not None]
        where = f"{self._name}: the rule of {pattern!r} is {spec}"
        unknown = [axis for axis in axes if axis not in self.mesh.axis_names]
        if unknown:
            names = ", ".join(map(str, self.mesh.axis_names))
            raise TransformError(f"{where}, and the mesh has no axis {unknown[0]!r}, but {names}")
        if len(set(axes)) < len(axes):
            raise TransformError(f"{where}, in which an axis splits two dimensions")

    def spec(self, rank: int, *names: str) -> tuple[Any, ...] | None:
        """What splits each dimension of a parameter, by the first rule that matches one of its names; None: it cannot."""
        for pattern, spec in self._rules:
            if any(fnmatch.fnmatchcase(name, pattern) for name in names):
                self._unmatched = [each for each in self._unmatched if each != pattern]
                if len(spec) > rank:
                    self.refuse(names[0], f"the rule of {pattern!r} is {spec}, but it has {rank} dimensions")
                    return None
                return *spec, *(None,) * (rank - len(spec))
        return (None,) * rank

    def parts(self, axes: Any) -> int:
        return partition.parts(self.mesh, axes)

    def refuse(self, name: str, reason: str) -> None:
        self._obstacles.append(f"{name}: {reason}")

    def require_equal_parts(self, name: str, what: str, size: int, axes: Any) -> None:
        if size % self.parts(axes):
            self.refuse(name, f"its {size} {what} have no {self.parts(axes)} equal parts: leave them whole")

    def raise_obstacles(self) -> None:
        if self._obstacles:
            sizes = ", ".join(f"{axis}={size}" for axis, size in self.mesh.shape.items())
            raise TransformError("\n- ".join([f"{self._name}: the mesh ({sizes}) cannot split:", *self._obstacles]))
        if self._unmatched:
            raise TransformError(f"{self._name}: no parameter matches the patterns {', '.join(map(repr, self._unmatched))}")


def _is_rule(rule: object) -> bool:
    return is_sequence(rule) and len(rule) == 2 and isinstance(rule[0], str) and isinstance(rule[1], PartitionSpec | None)


def _of_float(name: str, leaf: Any, rules: _Rules) -> PartitionSpec:
    """How a parameter that stays float is split."""
    shape = leaf.shape
    spec = rules.spec(len(shape), name)
    if spec is None:
        return _WHOLE
    for number, (size, axes) in enumerate(zip(shape, spec, strict=True)):
        rules.require_equal_parts(name, f"elements along dimension {number}", size, axes)
    return PartitionSpec(*spec)


def _of_site(plan: Plan, site: Site, stored: Stored, rules: _Rules) -> Any:
    """How what a site stores is split."""
    whole = jax.tree.map(lambda _: _WHOLE, stored)
    levels = plan.sizes(site)
    spec = rules.spec(len(levels) + len(site.weights.shape), site.name, site.parameter)
    if spec is None:
        return whole
    of_layers, of_weights = spec[: len(levels)], spec[len(levels) :]
    for size, axes in zip(levels, of_layers, strict=True):
        rules.require_equal_parts(site.name, "layers", size, axes)
    if site.storage.filter is not None:
        return _of_filter(site, stored, of_layers, of_weights, rules)
    split = partition.split_of(site.storage.layout, of_weights)
    if split is None:
        several = "splits another than the first of several dimensions that are one of its matrix: split the first, or none"
        rules.refuse(site.name, f"{PartitionSpec(*spec)} {several}")
        return whole
    obstacles = list(_obstacles(plan, site, stored, split, rules))
    for obstacle in obstacles:
        rules.refuse(site.name, obstacle)
    return whole if obstacles else _of_matrix(site, stored, of_layers, split)


def _of_matrix(site: Site, stored: Stored, of_layers: Sequence[Any], split: Split) -> Stored:
    batch = [*of_layers, *([split.batch] if site.storage.layout.batch else [])]
    specs = site.storage.format.specs(without_factors(stored), batch, split.rows, split.columns)
    of_rows = {SMOOTHING: PartitionSpec(*of_layers, split.rows), "permutation": _WHOLE}
    return {**{name: spec for name, spec in of_rows.items() if name in stored}, **specs}


def _of_filter(
    site: Site, stored: Stored, of_layers: Sequence[Any], of_weights: Sequence[Any], rules: _Rules
) -> dict[str, PartitionSpec]:
    """How the filter of a convolution is split: along any of its dimensions."""
    assert site.storage.filter is not None
    for number, (size, axes) in enumerate(zip(site.weights.shape, of_weights, strict=True)):
        rules.require_equal_parts(site.name, f"elements along dimension {number}", size, axes)
    (channel,) = site.storage.layout.kept
    by_channel = stored["scale"].ndim > len(of_layers)
    scale = PartitionSpec(*of_layers, *([of_weights[channel]] if by_channel else []))
    values = PartitionSpec(*of_layers, *(of_weights[dimension] for dimension in site.storage.filter))
    return {"values": values, "scale": scale}


def _obstacles(plan: Plan, site: Site, stored: Stored, split: Split, rules: _Rules) -> Iterator[str]:
    """Why the mesh cannot split the matrices of a site like this."""
    *batch, rows, columns = layers.matrix_sizes(site.storage, site.weights.shape)
    for what, size, axes in (("matrices", batch[0] if batch else 1, split.batch), ("columns", columns, split.columns)):
        if size % rules.parts(axes):
            yield f"its {size} {what} have no {rules.parts(axes)} equal parts: leave them whole"
    parts = rules.parts(split.rows)
    format = weight_formats.as_stored(site.storage.format, stored)
    why_not = None if parts == 1 else format.why_not_split(rows, parts)
    if why_not is not None:
        yield why_not
    elif isinstance(format, Blocks | AsIntegers) and format.k_parts % parts and _multiplies_integers(plan, site):
        yield f"{parts} devices would add the sums of its blocks in another order than one: pass k_parts={parts}"


def _multiplies_integers(plan: Plan, site: Site) -> bool:
    """Whether a product of integers reads the weights that a site stores."""
    readers = (each for each in plan.sites.values() if each.stored == site.name and each.kind == MATMUL)
    return any(each.scheme.activations != Activations.FLOAT for each in readers)
