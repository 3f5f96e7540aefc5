"""A dense layer, on random numbers."""

import flax.linen as nn
import jax
import numpy as np

from benchmarks.compared.flax_networks import FloatNetwork
from benchmarks.compared.workload import Workload

WIDTH = 2048


def workload(rows: int) -> Workload:
    """Normally distributed inputs and weights, a range for the inputs of each call."""
    rng = np.random.default_rng(0)
    model = nn.Dense(WIDTH, kernel_init=nn.initializers.lecun_normal())
    inputs = [rng.standard_normal((rows, WIDTH), np.float32) for _ in range(max(1, 64 // rows))]
    network = FloatNetwork(model, model.init(jax.random.key(0), inputs[0]), inputs)
    title = f"a dense layer of {WIDTH:,} x {WIDTH:,}, {rows} {'row' if rows == 1 else 'rows'}"
    return Workload(title, "decibels, same top output", network.makers())
