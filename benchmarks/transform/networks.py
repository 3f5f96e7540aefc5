"""Flax networks, trained on the scikit-learn digits or, character by character, on the text of the documentation."""

from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import trange


class MLP(nn.Module):
    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        x = images.reshape(images.shape[0], 64)
        for width in (512, 512):
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(10)(x)


class CNN(nn.Module):
    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        x = nn.relu(nn.Conv(32, (3, 3))(images))
        x = nn.relu(nn.Conv(64, (3, 3), strides=2)(x))
        x = nn.relu(nn.Conv(64, (3, 3))(x))
        return nn.Dense(10)(x.mean((1, 2)))


class ResidualMLP(nn.Module):
    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        x = nn.Dense(128)(images.reshape(images.shape[0], 64))
        for _ in range(6):
            x += nn.Dense(128)(nn.relu(nn.Dense(256)(nn.LayerNorm()(x))))
        return nn.Dense(10)(nn.LayerNorm()(x))


class CharacterModel(nn.Module):
    """A transformer that predicts the next of 128 characters."""

    @nn.compact
    def __call__(self, characters: jax.Array) -> jax.Array:
        length = characters.shape[1]
        x = nn.Embed(128, 128)(characters) + nn.Embed(CONTEXT, 128, name="positions")(jnp.arange(length))
        for _ in range(4):
            q, k, v = (part.reshape(-1, length, 4, 32) for part in jnp.split(nn.Dense(384)(nn.LayerNorm()(x)), 3, axis=-1))
            x += nn.Dense(128)(jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape))
            x += nn.Dense(128)(nn.gelu(nn.Dense(512)(nn.LayerNorm()(x))))
        return nn.Dense(128)(nn.LayerNorm()(x))


CONTEXT = 64


def documentation() -> list[np.ndarray]:
    """Pieces of the documentation, of `CONTEXT` characters, for training and for tests; and the characters after each."""
    root = Path(__file__).parents[2]
    text = "".join(path.read_text() for path in [root / "README.md", *sorted((root / "docs").glob("*.md"))])
    codes = np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int32)
    pieces = codes[: (len(codes) - 1) // CONTEXT * CONTEXT].reshape(-1, CONTEXT)
    following = codes[1 : pieces.size + 1].reshape(-1, CONTEXT)
    return train_test_split(pieces, following, test_size=1 / 8, random_state=0)


def digits() -> list[np.ndarray]:
    """Training and test images, training and test labels."""
    pixels, labels = load_digits(return_X_y=True)
    return train_test_split(
        np.float32(pixels / 16).reshape(-1, 8, 8, 1), labels, test_size=1 / 3, random_state=0, stratify=labels
    )


def train(model: nn.Module, images: np.ndarray, labels: np.ndarray, steps: int = 300, batch_size: int = 128) -> Any:
    """Trained parameters."""
    params = model.init(jax.random.key(0), images[:1])
    optimizer = optax.adam(2e-3)

    @jax.jit
    def step(params: Any, state: Any, images: jax.Array, labels: jax.Array) -> tuple[Any, Any]:
        def loss(params: Any) -> jax.Array:
            return optax.softmax_cross_entropy_with_integer_labels(model.apply(params, images), labels).mean()

        updates, state = optimizer.update(jax.grad(loss)(params), state)
        return optax.apply_updates(params, updates), state

    state, rng = optimizer.init(params), np.random.default_rng(0)
    for _ in trange(steps, desc=f"training {type(model).__name__}", unit="step"):
        batch = rng.integers(len(images), size=batch_size)
        params, state = step(params, state, images[batch], labels[batch])
    return params
