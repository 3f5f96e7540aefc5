"""Loads a model of 32 to 64 MiB from a file, and prints how many bytes the memory grew by, and what it loaded.

``python load_in_memory.py FOLDER FORM PARTS`` reads ``1.safetensors``, so that what is loaded for the first time is not the
model's, and then ``16.safetensors``, split over so many devices. `write` writes both.
"""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from jquant import transform

WIDTH, LAYERS = 2048, 16
FORMS = {  # whether weights are stacked, and their scheme
    "int8": (False, {"activations": "DYNAMIC_ROW"}),
    "int8, stacked": (True, {"activations": "DYNAMIC_ROW"}),
    "uint8": (False, {"weight_type": "UINT8", "activations": "DYNAMIC"}),
    "int4": (False, {"weight_type": "INT4", "block_size": 32, "scale_type": "FLOAT16", "activations": "DYNAMIC_ROW"}),
    "int4, stacked": (True, {"weight_type": "INT4", "block_size": 32, "scale_type": "FLOAT16", "activations": "FLOAT"}),
    "nvfp4, stacked": (True, {"weight_type": "NVFP4", "activations": "FLOAT"}),
}
X = jax.ShapeDtypeStruct((1, WIDTH), jnp.float32)


def apply(params: Any, x: jax.Array) -> jax.Array:
    if isinstance(params, dict):
        for name in sorted(params):
            x = jnp.tanh(x @ params[name])
        return x
    return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, params)[0]


def types(form: str, layers: int) -> Any:
    if FORMS[form][0]:
        return jax.ShapeDtypeStruct((layers, WIDTH, WIDTH), jnp.float32)
    return {f"{number:02}": jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32) for number in range(layers)}


def write(folder: Path, form: str) -> None:
    """Zeros, which take as much memory as other numbers when they are read."""
    recipe = transform.Recipe([("*", transform.Scheme(**FORMS[form][1]))])
    for layers in (1, LAYERS):
        quantized_apply, target = transform.quantize(apply, types(form, layers), recipe, X)
        params = jax.tree.map(lambda type: np.zeros(type.shape, type.dtype), target)
        transform.save(folder / f"{layers}.safetensors", quantized_apply, params)


def main(folder: Path, form: str, parts: int) -> None:
    from support.quantize_in_memory import forget_peak, memory

    options = {}
    if parts > 1:
        options = {"mesh": jax.make_mesh((parts,), ("d",)), "rules": [("*", P(*(None,) * FORMS[form][0], None, "d"))]}

    def load(layers: int) -> Any:
        return transform.load(folder / f"{layers}.safetensors", apply, types(form, layers), X, **options)[1]

    jax.block_until_ready(load(1))
    before = memory("VmRSS")
    forget_peak()
    loaded = jax.block_until_ready(load(LAYERS))
    grown = memory("VmHWM") - before
    print(grown, sum(leaf.nbytes for leaf in jax.tree.leaves(loaded)))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
