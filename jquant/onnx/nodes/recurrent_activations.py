"""The activations of RNN, GRU and LSTM, with the attributes that parametrise them."""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jquant.errors import ModelError
from jquant.onnx.running.registry import AttributeGroup

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
class Activation:
    """A function of an array. Two of them are equal if they compute the same.

    Attributes:
      function: takes the array, and its alpha and its beta if it has these.
      options: the names and the values of alpha and beta.
      clip: bounds the operand; None if it is unbounded.
    """

    function: Callable[..., jax.Array]
    options: tuple[tuple[str, float | None], ...]
    clip: float | None

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x if self.clip is None else jnp.clip(x, -self.clip, self.clip)
        return self.function(x, **{key: np.asarray(value, x.dtype) for key, value in self.options})


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
        activations.append(Activation(function, tuple(options.items()), attributes.clip))
    return activations


def by_direction(activations: list[Activation], count: int, directions: int) -> list[tuple[Activation, ...]]:
    """The activations of each direction, of which there are `count`.

    Raises:
      ModelError: there are too few.
    """
    if len(activations) < count * directions:
        raise ModelError(f"it has {len(activations)} activations, but each direction needs {count}")
    return [tuple(activations[index * count : (index + 1) * count]) for index in range(directions)]
