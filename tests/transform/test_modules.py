"""The random networks as modules of Flax NNX and Equinox: their transformed functions give NumPy's integers, too."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from support.networks import Float
from support.random_networks import FIRST, Network, assert_equal_to_numpy

from jquant import transform

nnx = pytest.importorskip("flax.nnx", reason="flax is not installed (extra: recipes)")
eqx = pytest.importorskip("equinox", reason="equinox is not installed (extra: recipes)")

NETWORKS, CHUNK = 250, 5  # for each library; a test draws a chunk of them


class NnxModule(nnx.Module):
    """Parameters as attributes, and nested blocks as modules of their own."""

    def __init__(self, parameters: dict[str, Any]):
        for name, value in parameters.items():
            setattr(self, name, NnxModule(value) if isinstance(value, dict) else nnx.Param(value))

    def __getitem__(self, name: str) -> Any:
        value = getattr(self, name)
        return value[...] if isinstance(value, nnx.Param) else value


def equinox_module(parameters: dict[str, Any]) -> eqx.Module:
    """An Equinox module with a field for each parameter, and one field that is no array."""
    values = {
        name: equinox_module(value) if isinstance(value, dict) else jnp.asarray(value) for name, value in parameters.items()
    }
    fields = dict.fromkeys([*values, "activation"], Any)
    by_name = {"__getitem__": lambda module, name: getattr(module, name)}
    module_type = type("Module", (eqx.Module,), {"__annotations__": fields, **by_name})
    return module_type(**values, activation=jax.nn.relu)


def in_nnx(network: Network) -> tuple[Callable, Any]:
    graph, state = nnx.split(NnxModule(network.parameters))
    return lambda state, x: network(Float(exact=network.is_exact), nnx.merge(graph, state), x), state


def in_equinox(network: Network) -> tuple[Callable, Any]:
    parameters, static = eqx.partition(equinox_module(network.parameters), eqx.is_array)
    return lambda parameters, x: network(Float(exact=network.is_exact), eqx.combine(parameters, static), x), parameters


def test_a_module_in_place_of_a_function():
    """The error says how to split it."""
    parameters, x = {"w": jnp.ones((16, 16))}, jnp.ones((2, 16))
    for module, advice in (
        (NnxModule(parameters), "graph, params = flax.nnx.split(model)"),
        (equinox_module(parameters), "params, rest = equinox.partition(model, equinox.is_array)"),
    ):
        type(module).__call__ = lambda self, x: x @ self["w"]
        for call in (transform.quantize, transform.report):
            with pytest.raises(transform.TransformError, match="a module holds its parameters") as caught:
                call(module, transform.dynamic_int8, x)
            assert advice in str(caught.value)


@pytest.mark.parametrize("as_module", [in_nnx, in_equinox])
@pytest.mark.parametrize(
    "chunk", [pytest.param(chunk, marks=[pytest.mark.full] * (chunk > 0)) for chunk in range(NETWORKS // CHUNK)]
)
def test_random_networks(as_module, chunk, count):
    def count_by_library(what: str, number: int) -> None:
        count(f"{what}, {as_module.__name__}", number)

    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        assert_equal_to_numpy(10_000 + FIRST + seed, count_by_library, as_module)
