"""A Flax NNX network in int4 by GPTQ, compared with its floats, written to an ONNX file, and run by onnxruntime.

pip install ".[onnx,recipes]" onnxruntime
python examples/recipes/flax_to_onnxruntime.py
"""

import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime
from flax import nnx

import jquant
from jquant import transform


class Network(nnx.Module):
    """Patches of an image, with attention between them."""

    def __init__(self, rngs: nnx.Rngs):
        self.patches = nnx.Conv(1, 64, (4, 4), strides=(4, 4), rngs=rngs)
        self.norm = nnx.LayerNorm(64, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(num_heads=4, in_features=64, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(64, 256, rngs=rngs), nnx.Linear(256, 64, rngs=rngs)
        self.head = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = self.patches(images).reshape(images.shape[0], -1, 64)
        x = x + self.attention(self.norm(x))
        x = x + self.down(nnx.gelu(self.up(x)))
        return self.head(x.mean(axis=1))


def main() -> None:
    batches = [jax.random.normal(key, (64, 16, 16, 1)) for key in jax.random.split(jax.random.key(1), 4)]
    images = batches[0]
    graph, params = nnx.split(Network(nnx.Rngs(0)))

    def apply(params, images):
        return nnx.merge(graph, params)(images)

    recipe = transform.gptq_int4
    calibration = transform.calibrate(apply, params, batches, recipe)
    int4_apply, int4_params = transform.quantize(apply, params, recipe, images, calibration=calibration)

    logits, int4_logits = jax.jit(apply)(params, images), jax.jit(int4_apply)(int4_params, images)
    ratio = 10 * jnp.log10(jnp.sum(logits**2) / jnp.sum((int4_logits - logits) ** 2))
    before, after = (sum(leaf.nbytes for leaf in jax.tree.leaves(tree)) for tree in (params, int4_params))
    print(f"{before:,} bytes of parameters -> {after:,}; {ratio:.0f} dB")

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        (batch,) = jax.export.symbolic_shape("batch")
        any_batch = jax.ShapeDtypeStruct((batch, *images.shape[1:]), images.dtype)
        onnx.save(jquant.onnx.export(int4_apply, int4_params, any_batch), path)
        session = onnxruntime.InferenceSession(path)
        (output,) = session.run(None, {"images": np.asarray(images)})
    assert np.abs(output - int4_logits).max() < 1e-5 * np.abs(output).max()
    assert (output.argmax(axis=1) == int4_logits.argmax(axis=1)).all()


if __name__ == "__main__":
    main()
