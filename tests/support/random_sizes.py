"""Programs drawn at random that take sizes of their input into constants, masks, branches and the order of sites."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from support.draw import Draw
from support.networks import SCHEMES, recipe

from jquant import transform

WIDTH, LONGEST, SIZES = 16, 12, (12, 7, 3, 1)
SINUSOIDS = np.sin(np.arange(64, dtype=np.float32)[:, None] / np.arange(1, WIDTH + 1, dtype=np.float32))
RECIPES = {
    "dynamic": recipe(SCHEMES["dynamic uint8"]),
    "rows": transform.Recipe([("*", transform.Scheme(activations="DYNAMIC_ROW"))], smallest=1),
    "weights": transform.Recipe([("*", transform.Scheme(activations="FLOAT"))], smallest=1),
    "activations": transform.Recipe(
        [
            ("activation_matmul", transform.Scheme(activations="DYNAMIC_ROW")),
            ("*", transform.Scheme(activations="DYNAMIC_ROW")),
        ],
        smallest=1,
    ),
}
Part = Callable[[Any, Any], Any]  # of parameters and (rows, WIDTH), of which it makes an array of this shape


class SizedProgram(NamedTuple):
    """A function of parameters and rows.

    Attributes:
      apply: the function.
      parameters: its parameters.
      recipe: how it is quantized.
      parts: the names of its parts.
      is_free: whether no size enters a weight, the sites that are reached, or their order.
    """

    apply: Callable[[Any, Any], Any]
    parameters: dict[str, np.ndarray]
    recipe: transform.Recipe
    parts: list[str]
    is_free: bool


def positions(x):
    return jnp.arange(x.shape[0], dtype=jnp.float32)


def _attention(p, x, mask):
    scores = (x @ p["v"]) @ x.T / np.float32(np.sqrt(WIDTH))
    return jax.nn.softmax(jnp.where(mask, scores, np.float32(-1e9))) @ x


def _scan(p, x):
    return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, p["stack"])[0]


def _scan_over_rows(p, x):
    return jax.lax.scan(lambda row, each: (jnp.tanh((row + each)[None] @ p["v"])[0], row + each), x[0], x)[1]


def _cond(p, x):
    return jax.lax.cond(x[0, 0] > 0, lambda x: x @ p["u"], lambda x: x @ p["v"], x)


def _constant_cond(p, x):
    many = np.bool_(x.shape[0] > 4)
    return x @ jax.lax.cond(many, lambda: p["u"] * np.float32(2), lambda: p["u"])


def _made(p, x):
    return x @ (p["w"] * (jnp.arange(WIDTH, dtype=jnp.float32) / WIDTH)[:, None])


# No size enters a weight of these, nor decides which sites there are.
FREE: dict[str, Part] = {
    "product": lambda p, x: x @ p["w"],
    "table of NumPy": lambda p, x: (x + SINUSOIDS[: x.shape[0]]) @ p["u"],
    "made table of NumPy": lambda p, x: x + np.cos(np.arange(x.shape[0], dtype=np.float32))[:, None] * np.float32(0.5),
    "table of JAX": lambda p, x: (x + jnp.sin(positions(x))[:, None]) @ p["w"],
    "positions": lambda p, x: x + p["pos"][: x.shape[0]],
    "looked up positions": lambda p, x: x + p["pos"][jnp.arange(x.shape[0])],
    "mask of NumPy": lambda p, x: _attention(p, x, np.tri(x.shape[0], dtype=bool)),
    "mask of JAX": lambda p, x: _attention(p, x, positions(x)[:, None] >= positions(x)[None]),
    "decay": lambda p, x: (p["w"][0, 0] * jnp.abs(positions(x)[:, None] - positions(x)[None])) @ x / x.shape[0],
    "mean": lambda p, x: x - x.sum(0, keepdims=True) / x.shape[0],
    "scaled bias": lambda p, x: x + p["w"][:1] / x.shape[0],
    "scan": _scan,
    "scan over rows": _scan_over_rows,
    "cond": _cond,
    "twice": lambda p, x: jnp.tanh(x @ p["v"]) @ p["v"],
    "transposed": lambda p, x: jnp.tanh(x @ p["u"]) @ p["u"].T,
    "constant in a weight": lambda p, x: x @ (p["w"] * SINUSOIDS[1:2]),
    "made constant in a weight": _made,
    "triangle": lambda p, x: x @ jnp.tril(p["w"]),
    "branch without sites": lambda p, x: jnp.tanh(x) if x.shape[0] > 4 else jax.nn.relu(x),
    "identity": lambda p, x: jnp.eye(x.shape[0], dtype=jnp.float32) @ x,
    "reshaped": lambda p, x: (x.reshape(1, x.shape[0], WIDTH) @ p["v"]).reshape(x.shape),
    "checkpoint": lambda p, x: jax.checkpoint(lambda x: jnp.tanh(x / x.shape[0]) @ p["u"])(x),
}
# A size enters weights of these, or decides which sites there are, or their order.
BOUND: dict[str, Part] = {
    "scaled weight": lambda p, x: x @ (p["w"] / x.shape[0]),
    "weight and table": lambda p, x: x @ (p["w"] * np.full((WIDTH, 1), 1 / x.shape[0], np.float32)),
    "weight and positions": lambda p, x: x @ (p["u"] * jnp.cos(jnp.full(WIDTH, x.shape[0], jnp.float32))[:, None]),
    "masked weight": lambda p, x: x @ jnp.where(jnp.arange(WIDTH)[:, None] < x.shape[0], p["w"], 0),
    "permuted weight": lambda p, x: x @ p["v"][np.arange(WIDTH) * 3 % max(x.shape[0], 5)],
    "rolled weight": lambda p, x: x @ jnp.roll(p["v"], x.shape[0], axis=0),
    "sliced weight": lambda p, x: x[:, : x.shape[0]] @ p["w"][: x.shape[0]],
    "scanned table": lambda p, x: jax.lax.scan(
        lambda x, layer: (jnp.tanh(x @ (layer[0] * layer[1])), None),
        x,
        (p["stack"], np.full((3, 1, 1), 1 / x.shape[0], np.float32)),
    )[0],
    "constant cond": _constant_cond,
    "in a function": lambda p, x: x @ jax.jit(lambda w: w * np.float32(1 / x.shape[0]))(p["u"]),
    "product of weights": lambda p, x: x @ (p["w"] @ np.diag(np.full(WIDTH, 1 / x.shape[0], np.float32))),
    "branch between weights": lambda p, x: x @ (p["u"] if x.shape[0] > 4 else p["v"]),
    "skipped site": lambda p, x: x @ p["u"] if x.shape[0] > 4 else x,
    "order": lambda p, x: _ordered(p, x, lambda: x @ p["u"], lambda: jnp.tanh(x @ p["w"]) @ p["u"]),
    "order of functions": lambda p, x: _ordered(
        p, x, lambda: jax.jit(jnp.matmul)(x, p["v"]), lambda: jax.jit(lambda x: jnp.maximum(20 * x, 0) @ p["v"])(x)
    ),
    "unrolled rows": lambda p, x: jnp.concatenate([jnp.tanh(x[i : i + 1] @ p["v"]) for i in range(x.shape[0])]),
}


def _ordered(p, x, first, second):
    """The difference of two arrays, the second of which few rows compute first."""
    if x.shape[0] > 4:
        a = first()
        return a - second()
    b = second()
    return first() - b


def draw_program(seed: int) -> SizedProgram:
    random = np.random.default_rng([seed, 7])
    draw = Draw(seed)
    parameters = {name: draw.weights(WIDTH, WIDTH) for name in ("u", "v", "w")}
    parameters |= {"pos": draw.weights(32, WIDTH), "stack": draw.weights(3, WIDTH, WIDTH, layers=1)}
    names = [str(name) for name in random.choice([*FREE], size=random.integers(1, 4))]
    if random.integers(2):
        names.insert(int(random.integers(len(names) + 1)), str(random.choice([*BOUND])))
    parts = [(FREE | BOUND)[name] for name in names]

    def apply(p, x):
        for part in parts:
            x = x + part(p, x) * np.float32(0.5)
        return x @ p["w"]

    is_free = not any(name in BOUND for name in names)
    return SizedProgram(apply, parameters, RECIPES[str(random.choice([*RECIPES]))], names, is_free)


def rows(seed: int, count: int) -> np.ndarray:
    return Draw(seed).input(LONGEST, WIDTH)[:count]
