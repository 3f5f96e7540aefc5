"""The parameters of a quantized function: one site after the other, and one layer after the other, to save memory."""

import collections
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.core
import numpy as np

from jquant.calibration.batches import with_progress
from jquant.errors import TransformError, TransformTypeError, shown
from jquant.transform import layers, weight_graph
from jquant.transform.parameters import Parameters, abstract
from jquant.transform.plan import Plan, Site
from jquant.transform.statistics import InputStatistics
from jquant.transform.stored_weights import Stored

Load = Callable[[str], Any]
"""Returns the parameter of a name."""


def pack(plan: Plan, leaves: Sequence[Any], statistics: Mapping[str, InputStatistics]) -> dict[str, Stored]:
    """The packed weights that sites store, by the name of the site."""
    return {site.name: _packed(site, leaves, statistics)[0] for site in plan.stored()}


def _packed(site: Site, leaves: weight_graph.Leaves, statistics: Mapping[str, InputStatistics]) -> tuple[Stored, jax.Array]:
    (weights,) = weight_graph.values([site.weights], leaves)
    return layers.packed_weights(site.storage, len(site.levels), weights, statistics.get(site.name))


class Source:
    """Where the leaves of parameters come from, and when they are let go.

    Args:
      name: of the function, for messages.
      parameters: arrays, or the types of those that `load` returns.
      load: returns the parameter of a name; None if all are arrays.
      donate: whether an array of JAX is deleted after its last use.
    """

    def __init__(self, name: str, parameters: Parameters, load: Load | None, donate: bool):
        self._name, self._parameters, self._load, self._donate = name, parameters, load, donate

    def pack(
        self, plan: Plan, statistics: Mapping[str, InputStatistics], kept: Collection[int], progress: bool
    ) -> tuple[dict[str, Stored], dict[str, Any]]:
        """The packed weights by the name of the site, and the leaves that stay float, the numbers in `kept`, by name."""
        sites = plan.stored()
        uses = collections.Counter(self._identity(number) for site in sites for number in site.weights.leaves)
        uses.update(map(self._identity, kept))
        packed = {}
        for site in with_progress(self._name, sites, "packing", "site") if progress else sites:
            leaves = {number: self._leaf(number) for number in site.weights.leaves}
            # Until it is packed: calls that return at once would hold the weights of several sites.
            packed[site.name], succeeded = jax.block_until_ready(_packed(site, leaves, statistics))
            if site.storage.preparation.rounding is not None and not np.all(np.asarray(succeeded)):
                self._raise_not_definite(site)
            if self._donate:
                self._let_go(leaves, uses)
            del leaves
        return packed, {self._parameters.names[number]: self._leaf(number) for number in kept}

    def _raise_not_definite(self, site: Site) -> None:
        assert site.storage.preparation.rounding is not None
        damping = site.storage.preparation.rounding.damping
        message = f"X^T X of the inputs of {site.name}, with damping {damping}, is not positive definite in float32"
        raise TransformError(f"{self._name}: {message}: calibrate with more rows, or pass weight_rounding=('GPTQ', damping)")

    def _identity(self, number: int) -> int:
        """The same for two names of one array."""
        return id(self._parameters.leaves[number])

    def _let_go(self, leaves: Mapping[int, Any], uses: collections.Counter[int]) -> None:
        for number, leaf in leaves.items():
            uses[self._identity(number)] -= 1
            is_array = isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer)
            if is_array and not uses[self._identity(number)]:
                leaf.delete()

    def _leaf(self, number: int) -> Any:
        leaf = self._parameters.leaves[number]
        if self._load is None or not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        name, wanted = self._parameters.names[number], abstract(leaf)
        loaded = self._load(name)
        try:
            actual = abstract(loaded)
        except (AttributeError, TypeError) as error:
            raise TransformTypeError(f"{self._name}: load({name!r}) returned {shown(loaded)}, which is no array") from error
        if (actual.shape, actual.dtype) != (wanted.shape, wanted.dtype):
            types = f"{_type(actual)}, and params has {_type(wanted)} there"
            raise TransformError(f"{self._name}: load({name!r}) returned an array of type {types}")
        return loaded


def _type(leaf: jax.ShapeDtypeStruct) -> str:
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"
