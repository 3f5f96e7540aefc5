"""Two Flax networks, trained on the scikit-learn digits."""

from typing import Any

import flax.linen as nn
import jax
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


def digits() -> list[np.ndarray]:
    """Training and test images, training and test labels."""
    pixels, labels = load_digits(return_X_y=True)
    return train_test_split(
        np.float32(pixels / 16).reshape(-1, 8, 8, 1), labels, test_size=1 / 3, random_state=0, stratify=labels
    )


def train(model: nn.Module, images: np.ndarray, labels: np.ndarray, steps: int = 300) -> Any:
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
        batch = rng.integers(len(images), size=128)
        params, state = step(params, state, images[batch], labels[batch])
    return params
