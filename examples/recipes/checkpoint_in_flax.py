"""A GPTQ checkpoint in a Flax NNX model: its 4-bit weights take the places of the kernels that have their names.

pip install ".[recipes,checkpoints]"
python examples/recipes/checkpoint_in_flax.py
"""

import json
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors.numpy import save_file

import jquant.checkpoints
from jquant import transform

WIDTH, HIDDEN, GROUP = 64, 256, 32


class Network(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.up, self.down = nnx.Linear(WIDTH, HIDDEN, rngs=rngs), nnx.Linear(HIDDEN, WIDTH, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down(jax.nn.gelu(self.up(x)))


def write_checkpoint(folder: Path) -> None:
    """A file as GPTQModel writes it, with random weights: 4 bits, 8 rows in each word, in groups of 32."""
    rng, tensors = np.random.default_rng(0), {}
    for name, (k, n) in {"up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH)}.items():
        tensors[f"{name}.qweight"] = rng.integers(-(2**31), 2**31, (k // 8, n), np.int32)
        tensors[f"{name}.qzeros"] = np.full((k // GROUP, n // 8), 0x77777777, np.int32)  # 8, less 1 in this format
        tensors[f"{name}.scales"] = rng.uniform(0.01, 0.02, (k // GROUP, n)).astype(np.float16)
        tensors[f"{name}.g_idx"] = np.arange(k, dtype=np.int32) // GROUP
        tensors[f"{name}.bias"] = rng.normal(size=n).astype(np.float16)
    save_file(tensors, folder / "model.safetensors")
    config = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "checkpoint_format": "gptq"}
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}))


def main() -> None:
    x = jax.random.normal(jax.random.key(0), (8, WIDTH))
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder))
        checkpoint = dict(jquant.checkpoints.load(folder))  # which reads all tensors

    graph, types = nnx.split(nnx.eval_shape(lambda: Network(nnx.Rngs(0))))  # no float weights are made

    def apply(params, x):
        return nnx.merge(graph, params)(x)

    quantized_apply, params = transform.quantize(apply, types, transform.weight_only_int4, x)
    for site in params["sites"]:
        weight = checkpoint[site.replace("/kernel", ".weight").replace("/", ".")].pack()
        order = {} if weight.permutation is None else {"permutation": weight.permutation}
        params["sites"][site] = {"values": weight.matrix, **order}
    for name, leaf in params["float"].items():
        params["float"][name] = jnp.asarray(checkpoint[name.replace("/", ".")], leaf.dtype)

    y = jax.jit(quantized_apply)(params, x)
    for name, site in params["sites"].items():
        print(name, site["values"])

    up, down = (checkpoint[f"{name}.weight"].dequantize().astype(np.float32) for name in ("up", "down"))
    hidden = jax.nn.gelu(x @ up + checkpoint["up.bias"].astype(np.float32))
    by_hand = hidden @ down + checkpoint["down.bias"].astype(np.float32)
    assert abs(y - by_hand).max() < 1e-3 * abs(by_hand).max()  # the file's float16 rounds each dequantized weight
    print("within a thousandth of a float network with the dequantized weights")


if __name__ == "__main__":
    main()
