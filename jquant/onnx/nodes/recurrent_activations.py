"""The activations of RNN, GRU and LSTM, with the attributes that parametrise them."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jquant.errors import ModelError
from jquant.onnx.running.registry import AttributeGroup

Activation = Callable[[jax.Array], jax.Array]

# For each activation: the defaults of its alpha and its beta, if it has these (None: no default), and its function.
_ACTIVATIONS: dict[str, tuple[dict[str, float | None], Callable[..., jax.Array]]] = {
    "relu": ({}, jax.nn.relu),
    "tanh": ({}, jnp.tanh),
    "sigmoid": ({}, jax.nn.sigmoid),
    "softsign": ({}, jax.nn.soft_sign),
    "softplus": ({}, jax.nn.softplus),
    "affine": ({"alpha": None, "beta": None}, lambda x, alpha, beta: alpha * x + beta),
    "leakyrelu": ({"alpha": 0.01}, lambda x, alpha: jnp.where(x < 0, alpha * x, x)),
    "thresholdedrelu": ({"alpha": 1.0}, lambda x, alpha: jnp.where(x > alpha, x, jnp.zeros_like(x))),
    "scaledtanh": ({"alpha": None, "beta": None}, lambda x, alpha, beta: alpha * jnp.tanh(beta * x)),
    "hardsigmoid": ({"alpha": 0.2, "beta": 0.5}, lambda x, alpha, beta: jnp.clip(alpha * x + beta, 0, 1)),
    "elu": ({"alpha": 1.0}, jax.nn.elu),
}


@dataclasses.dataclass(frozen=True)
class LayerAttributes(AttributeGroup):
    """The attributes of RNN, GRU and LSTM, but for the names of activations, whose default differs.

    Attributes:
      activation_alpha, activation_beta: for the activations that have an alpha or a beta, in order.
      clip: bounds the operand of each activation; None if it is unbounded.
    """

    activation_alpha: Sequence[float] = ()
    activation_beta: Sequence[float] = ()
    clip: float | None = None
    direction: str = "forward"
    hidden_size: int | None = None

    def unclipped(self) -> "LayerAttributes":
        return dataclasses.replace(self, clip=None)


def activations_from_attributes(names: Sequence[str], attributes: LayerAttributes) -> list[Activation]:
    """The functions in order. Each takes the next alpha and the next beta, if it has these."""
    remaining = {"alpha": list(attributes.activation_alpha), "beta": list(attributes.activation_beta)}
    activations = []
    for name in names:
        if name.lower() not in _ACTIVATIONS:
            raise ModelError(f"activation {name!r} is not supported")
        defaults, function = _ACTIVATIONS[name.lower()]
        options = {key: remaining[key].pop(0) if remaining[key] else default for key, default in defaults.items()}
        if None in options.values():
            raise ModelError(f"the activation {name} needs its alpha and beta")
        activations.append(_activation(function, options, attributes.clip))
    return activations


def _activation(function: Callable[..., jax.Array], options: dict[str, Any], clip: float | None) -> Activation:
    def apply(x: jax.Array) -> jax.Array:
        x = x if clip is None else jnp.clip(x, -clip, clip)
        return function(x, **{key: np.asarray(value, x.dtype) for key, value in options.items()})

    return apply


def select_direction(activations: list[Activation], index: int, count: int) -> list[Activation]:
    """The `count` activations of the direction with this index.

    Raises:
      ModelError: there are too few.
    """
    selected = activations[index * count : (index + 1) * count]
    if len(selected) != count:
        raise ModelError(f"it has {len(activations)} activations, but each direction needs {count}")
    return selected
