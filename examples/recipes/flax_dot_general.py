"""Training with Flax layers that multiply in int8: NNX and Linen, with `dot_general=jquant.dot_general`.

pip install ".[recipes]"
python examples/recipes/flax_dot_general.py
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx

import jquant


class Network(nnx.Module):
    """Two layers with integer products and float parameters."""

    def __init__(self, rngs: nnx.Rngs):
        self.hidden = nnx.Linear(16, 64, dot_general=jquant.dot_general, rngs=rngs)
        self.output = nnx.Linear(64, 1, dot_general=jquant.dot_general, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.output(nnx.relu(self.hidden(x)))


class LinenNetwork(linen.Module):
    """The same in Linen."""

    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = linen.relu(linen.Dense(64, dot_general=jquant.dot_general)(x))
        return linen.Dense(1, dot_general=jquant.dot_general)(x)


def step(parameters, gradients):
    return jax.tree.map(lambda parameter, gradient: parameter - 0.05 * gradient, parameters, gradients)


@nnx.jit
def train(network: Network, x: jax.Array, y: jax.Array) -> jax.Array:
    loss, gradients = nnx.value_and_grad(lambda network: jnp.mean((network(x) - y) ** 2))(network)
    nnx.update(network, step(nnx.state(network, nnx.Param), gradients))
    return loss


@jax.jit
def train_linen(parameters, x: jax.Array, y: jax.Array):
    def loss(parameters):
        return jnp.mean((LinenNetwork().apply(parameters, x) - y) ** 2)

    value, gradients = jax.value_and_grad(loss)(parameters)
    return step(parameters, gradients), value


def main() -> None:
    x = jax.random.normal(jax.random.key(0), (256, 16))
    y = jnp.sin(x[:, :1]) + x[:, 1:2] * x[:, 2:3]
    network = Network(nnx.Rngs(0))
    losses = [train(network, x, y) for _ in range(100)]
    print(f"NNX:   loss {losses[0]:.1f} -> {losses[-1]:.1f}")

    parameters = LinenNetwork().init(jax.random.key(1), x)
    linen_losses = []
    for _ in range(100):
        parameters, loss = train_linen(parameters, x, y)
        linen_losses.append(loss)
    print(f"Linen: loss {linen_losses[0]:.1f} -> {linen_losses[-1]:.1f}")

    hidden = network.hidden
    product = jquant.dot_general(x, hidden.kernel[...], (((1,), (0,)), ((), ())))
    np.testing.assert_array_equal(hidden(x), product + hidden.bias[...])
    assert max(losses[-1] / losses[0], linen_losses[-1] / linen_losses[0]) < 0.5


if __name__ == "__main__":
    main()
