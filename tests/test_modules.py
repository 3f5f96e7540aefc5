"""The random networks, in modules of Flax NNX and of Equinox: transformed, they give NumPy's integers as well."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from support.networks import Float
from support.random_networks import FIRST, Network, assert_equal_to_numpy

nnx = pytest.importorskip("flax.nnx", reason="flax is not installed (extra: recipes)")
eqx = pytest.importorskip("equinox", reason="equinox is not installed (extra: recipes)")

NETWORKS, CHUNK = 250, 5  # of each kind of module; a test draws so many


class NnxModule(nnx.Module):
    """Parameters under their names, blocks as modules of their own."""

    def __init__(self, parameters: dict[str, Any]):
        for name, held in parameters.items():
            setattr(self, name, NnxModule(held) if isinstance(held, dict) else nnx.Param(held))

    def __getitem__(self, name: str) -> Any:
        held = getattr(self, name)
        return held[...] if isinstance(held, nnx.Param) else held


def equinox_module(parameters: dict[str, Any]) -> eqx.Module:
    """The same as a module of Equinox, whose fields the parameters' names are; and a field that is no array."""
    held = {name: equinox_module(each) if isinstance(each, dict) else jnp.asarray(each) for name, each in parameters.items()}
    fields = dict.fromkeys([*held, "activation"], Any)
    by_name = {"__getitem__": lambda module, name: getattr(module, name)}
    kind = type("Module", (eqx.Module,), {"__annotations__": fields, **by_name})
    return kind(**held, activation=jax.nn.relu)


def in_nnx(given: Network) -> tuple[Callable, Any]:
    graph, state = nnx.split(NnxModule(given.parameters))
    return lambda state, x: given(Float(exact=given.is_exact), nnx.merge(graph, state), x), state


def in_equinox(given: Network) -> tuple[Callable, Any]:
    parameters, static = eqx.partition(equinox_module(given.parameters), eqx.is_array)
    return lambda parameters, x: given(Float(exact=given.is_exact), eqx.combine(parameters, static), x), parameters


@pytest.mark.parametrize("house", [in_nnx, in_equinox])
@pytest.mark.parametrize(
    "chunk", [pytest.param(chunk, marks=[pytest.mark.full] * (chunk > 0)) for chunk in range(NETWORKS // CHUNK)]
)
def test_random_networks(house, chunk, count):
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        assert_equal_to_numpy(10_000 + FIRST + seed, functools.partial(_named, count, house.__name__), house)


def _named(count: Callable[[str, int], None], name: str, what: str, number: int) -> None:
    count(f"{what}, {name}", number)
