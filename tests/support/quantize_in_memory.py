"""Quantizes a model of 256 MiB, and prints the peak of the memory over the bytes of the float model.

python quantize_in_memory.py WAY RECIPE
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jquant import transform

WIDTH, LAYERS = 2048, 4
FLOAT_BYTES = 4 * 4 * LAYERS * WIDTH * WIDTH


def memory(field: str) -> int:
    """The resident memory of this process, "VmRSS", or its peak since it was last forgotten, "VmHWM", in bytes."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def weights(number: int) -> np.ndarray:
    return np.random.default_rng(number).standard_normal((WIDTH, WIDTH), np.float32)


def apply(params, x):
    if "00" in params:
        for name in sorted(params):
            x = jnp.tanh(x @ params[name])
        return x

    def step(x, layer):
        for name in sorted(layer):
            x = jnp.tanh(x @ layer[name])
        return x, None

    return jax.lax.scan(step, x, params)[0]


def make(way: str, layers: int):
    """The parameters of so many layers of four weights each, and the options of `quantize`."""
    numbers = [f"{number:02}" for number in range(4 * layers)]
    if way == "loaded":
        types = dict.fromkeys(numbers, jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32))
        return types, {"load": lambda name: weights(int(name))}
    options = {"donate": way.endswith("donated")}
    if way.startswith("unstacked"):
        return {number: jnp.array(weights(int(number))) for number in numbers}, options
    put = jax.jit(lambda stacked, w, number: stacked.at[number].set(w), donate_argnums=0)
    params = {}
    for place, name in enumerate(("a", "b", "c", "d")):
        params[name] = jnp.zeros((layers, WIDTH, WIDTH))
        for number in range(layers):
            params[name] = put(params[name], weights(4 * number + place), number)
    return params, options


def main() -> None:
    way, recipe = sys.argv[1], getattr(transform, sys.argv[2])
    params, options = make(way, 1)  # what is loaded and compiled for the first time is not the model's
    transform.quantize(apply, params, recipe, jnp.ones((1, WIDTH)), **options)
    del params
    before = memory("VmRSS")
    params, options = make(way, LAYERS)
    if way != "loaded":
        jax.block_until_ready(params)
    forget_peak()
    _, quantized_params = transform.quantize(apply, params, recipe, jnp.ones((1, WIDTH)), **options)
    jax.block_until_ready(quantized_params)
    print((memory("VmHWM") - before) / FLOAT_BYTES)


if __name__ == "__main__":
    main()
