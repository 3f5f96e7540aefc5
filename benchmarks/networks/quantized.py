"""A network beside its int8: one recipe, in one call."""

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from benchmarks.networks.networks import Network
from jquant import transform

RECIPE = transform.dynamic_int8


class Quantized(NamedTuple):
    """The quantized function and parameters, how many sites they have, and how many products stayed float, by reason."""

    function: Callable[..., jax.Array]
    params: Any
    sites: int
    floats: Counter


def quantized(network: Network) -> Quantized:
    rows = transform.sites(network.function, network.params, *network.inputs, recipe=RECIPE)
    floats = Counter(_reason(row.kind, row.reason) for row in rows if row.reason)
    function, params = transform.quantize(network.function, network.params, RECIPE, *network.inputs)
    return Quantized(function, params, len(rows) - floats.total(), floats)


def _reason(kind: str, reason: str) -> str:
    if kind == "activation_matmul":
        return "of two activations"
    if "fewer than" in reason:
        return "small"
    if "a constant of the function" in reason:
        return "by a constant"
    return reason
