"""Low-rank adapters, trained with optax on frozen int4 weights: in Flax NNX, Equinox and plain JAX.

pip install ".[recipes]"
python examples/recipes/adapters.py
"""

import tempfile
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
from safetensors.numpy import load_file, save_file

from jquant import transform

WIDTH = 64
x, y = jax.random.normal(jax.random.key(0), (2, 16, WIDTH))  # what is to be learnt: here, pairs at random


def train(adapters, loss, steps: int = 300):
    """Adapters after some steps of optax, and the losses before and after."""
    optimizer = optax.adam(0.01)

    @jax.jit
    def step(adapters, state):
        value, gradient = jax.value_and_grad(loss)(adapters)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(adapters, updates), state, value

    state, before = optimizer.init(adapters), loss(adapters)
    for _ in range(steps):
        adapters, state, _ = step(adapters, state)
    return adapters, before, loss(adapters)


def in_plain_jax():
    def apply(params, x):
        return x + jax.nn.relu(x @ params["up"]) @ params["down"]

    up, down = jax.random.normal(jax.random.key(1), (2, WIDTH, WIDTH)) / 8
    params = {"up": up, "down": down}
    quantized_apply, quantized_params = transform.quantize(apply, params, transform.weight_only_int4, x)
    adapted = transform.adapters.attach(quantized_apply)
    adapters = transform.adapters.init(quantized_apply, jax.random.key(2), rank=4)

    def loss(adapters):
        return jnp.mean((adapted(adapters, quantized_params, x) - y) ** 2)

    return train(adapters, loss)


def in_flax_nnx():
    model = nnx.Sequential(nnx.Linear(WIDTH, WIDTH, rngs=nnx.Rngs(1)), nnx.relu, nnx.Linear(WIDTH, WIDTH, rngs=nnx.Rngs(2)))

    graph, params = nnx.split(model)
    quantized_apply, quantized_params = transform.quantize(
        lambda params, x: nnx.merge(graph, params)(x), params, transform.weight_only_int4, x
    )
    adapted = transform.adapters.attach(quantized_apply)
    adapters = transform.adapters.init(quantized_apply, jax.random.key(2), rank=4)

    def loss(adapters):
        return jnp.mean((adapted(adapters, quantized_params, x) - y) ** 2)

    return train(adapters, loss)


def in_equinox():
    model = eqx.nn.MLP(WIDTH, WIDTH, WIDTH, depth=1, key=jax.random.key(1))

    params, rest = eqx.partition(model, eqx.is_array)
    quantized_apply, quantized_params = transform.quantize(
        lambda params, x: jax.vmap(eqx.combine(params, rest))(x), params, transform.weight_only_int4, x
    )
    adapted = transform.adapters.attach(quantized_apply)
    adapters = transform.adapters.init(quantized_apply, jax.random.key(2), rank=4)

    def loss(adapters):
        return jnp.mean((adapted(adapters, quantized_params, x) - y) ** 2)

    return train(adapters, loss)


def main() -> None:
    for name, train_adapters in {"JAX": in_plain_jax, "Flax NNX": in_flax_nnx, "Equinox": in_equinox}.items():
        adapters, before, after = train_adapters()
        assert after < before / 2
        print(f"{name}: less than half of the loss, with adapters of {', '.join(adapters)}")

    with tempfile.TemporaryDirectory() as folder:
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(Path(folder, "adapters"), adapters)
        flat = {f"{site}/{name}": np.asarray(matrix) for site, pair in adapters.items() for name, matrix in pair.items()}
        save_file(flat, Path(folder, "adapters.safetensors"))
        restored = load_file(Path(folder, "adapters.safetensors"))
        assert all(np.array_equal(restored[name], matrix) for name, matrix in flat.items())


if __name__ == "__main__":
    main()
