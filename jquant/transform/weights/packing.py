"""The parameters of a quantized function: one site after the other, and one layer after the other, to save memory."""

import collections
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.core
import numpy as np

from jquant.calibration.batches import with_progress
from jquant.calibration.coarse import caller_stacklevel
from jquant.errors import TransformError, TransformTypeError, shown
from jquant.transform.formats.stored_weights import Stored
from jquant.transform.observations.statistics import InputStatistics
from jquant.transform.program import weight_graph
from jquant.transform.program.parameters import Parameters, abstract
from jquant.transform.program.plan import Plan, Site
from jquant.transform.weights import layers
from jquant.transform.weights.layers import Outcome

Load = Callable[[str], Any]
"""Returns the parameter of a name."""


def pack(plan: Plan, leaves: Sequence[Any], statistics: Mapping[str, InputStatistics]) -> dict[str, Stored]:
    """The packed weights that sites store, by the name of the site."""
    return {site.name: _packed(site, leaves, statistics)[0] for site in plan.stored()}


def _packed(site: Site, leaves: weight_graph.Leaves, statistics: Mapping[str, InputStatistics]) -> tuple[Stored, Outcome]:
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
            packed[site.name], outcome = jax.block_until_ready(_packed(site, leaves, statistics))
            if not isinstance(outcome.largest, jax.core.Tracer):
                self._examine(site, jax.tree.map(np.asarray, outcome))
            if self._donate:
                self._let_go(leaves, uses)
            del leaves
        return packed, {self._parameters.names[number]: self._leaf(number) for number in kept}

    def _examine(self, site: Site, outcome: Outcome) -> None:
        """Raises an error, or warns, if the packed weights of a site are not what they should be."""
        largest = outcome.largest
        if not np.isfinite(largest).all():
            self._warn(f"{self._weights(site)} hold NaN or infinity, whose outputs are NaN or wrong")
        elif outcome.is_clipped.any():
            message = f"{self._weights(site)} reach {largest.max():.3g}, beyond the largest scale of the type"
            raise TransformError(
                f"{self._name}: {message} {site.scheme.scale_type}: pass scale_type='FLOAT32' or 'BFLOAT16'"
            )
        elif not outcome.succeeded.all():
            self._raise_not_definite(site)
        elif ((largest > 0) & (largest < site.storage.format.smallest_range)).any():
            smallest = largest[largest > 0].min()
            message = (
                f"{self._weights(site)} are at most {smallest:.3g}, too small for the scales of {site.scheme.format.title}"
            )
            self._warn(
                f"{message}, and lose most of their bits: another scale_type, or multiplying them by a power of two helps"
            )

    def _warn(self, message: str) -> None:
        warnings.warn(f"{self._name}: {message}", stacklevel=caller_stacklevel())

    def _weights(self, site: Site) -> str:
        """What messages call the weights of a site, with the parameters that they are computed from."""
        names = [self._parameters.names[number] for number in site.weights.leaves]
        origin = "" if names == [site.name] else f", computed from {', '.join(names)},"
        return f"the weights of {site.name}{origin}"

    def _raise_not_definite(self, site: Site) -> None:
        assert site.storage.preparation.rounding is not None
        damping = site.storage.preparation.rounding.damping
        message = f"X^T X of the inputs of {site.name}, with damping {damping}, is not positive definite in float32"
        raise TransformError(f"{self._name}: {message}: calibrate with more rows, or pass weight_rounding=('GPTQ', damping)")

    def _identity(self, number: int) -> int:
        """A key that two names of one array share."""
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
