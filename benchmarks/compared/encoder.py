"""A sentence through MiniLM, with the weights that a package has."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.accuracy import sentence_encoder
from benchmarks.accuracy.sentence_encoder import HEADS, LAYERS
from benchmarks.compared.flax_networks import FloatNetwork
from benchmarks.compared.workload import Workload

LENGTH = 24  # tokens, which no sentence pads
WORDS, POSITIONS, WIDTH, HIDDEN = 30_522, 512, 384, 1_536


class Encoder(nn.Module):
    """`sentence_encoder.run` as a module, for quantizers that take no functions."""

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        count, length = tokens.shape
        words = self.param("words", nn.initializers.zeros, (WORDS, WIDTH))
        positions = self.param("positions", nn.initializers.zeros, (POSITIONS, WIDTH))
        of_type = self.param("type", nn.initializers.zeros, (1, WIDTH))
        x = nn.LayerNorm(1e-12, name="norm")(words[tokens] + (positions[:length] + of_type))
        for layer in range(LAYERS):
            heads = [nn.Dense(WIDTH, name=f"{layer}_{name}")(x) for name in ("query", "key", "value")]
            query, key, value = (each.reshape(count, length, HEADS, -1) for each in heads)
            scores = jnp.einsum("bthd,bshd->bhts", query, key) / np.sqrt(np.float32(WIDTH / HEADS))
            attended = jnp.einsum("bhts,bshd->bthd", nn.softmax(scores), value).reshape(x.shape)
            x = nn.LayerNorm(1e-12, name=f"{layer}_attention_norm")(x + nn.Dense(WIDTH, name=f"{layer}_output")(attended))
            hidden = nn.gelu(nn.Dense(HIDDEN, name=f"{layer}_up")(x), approximate=False)
            x = nn.LayerNorm(1e-12, name=f"{layer}_norm")(x + nn.Dense(WIDTH, name=f"{layer}_down")(hidden))
        embedding = x.mean(1)
        return embedding / jnp.linalg.norm(embedding, axis=-1, keepdims=True)


def variables(params: dict) -> dict[str, Any]:
    """The parameters of `sentence_encoder.load`, as the module names them."""

    def renamed(part: dict) -> dict:
        return {"scale" if name == "weight" else name: value for name, value in part.items()}

    embeddings = {name: value for name, value in params["embeddings"].items() if name != "norm"}
    norm = {"norm": renamed(params["embeddings"]["norm"])}
    layers = {f"{i}_{name}": renamed(part) for i, each in enumerate(params["layers"]) for name, part in each.items()}
    return {"params": embeddings | norm | layers}


def judge(expected: np.ndarray, actual: np.ndarray) -> str:
    """The cosine to the float embedding, and for how many sentences the nearest other one is the same."""
    cosines = np.sum(expected * actual, -1, dtype=np.float64) / np.linalg.norm(actual, axis=-1)

    def nearest(embeddings: np.ndarray) -> np.ndarray:
        similarities = embeddings @ embeddings.T
        np.fill_diagonal(similarities, -np.inf)
        return similarities.argmax(-1)

    return f"{cosines.mean():.4f}, {np.mean(nearest(expected) == nearest(actual)):.0%}"


def workload() -> Workload:
    network = sentence_encoder.load()
    (sentences,) = (np.asarray(batch) for batch in network.evaluation if batch.shape[1] == LENGTH)
    float_network = FloatNetwork(Encoder(), variables(network.params), [row[None] for row in sentences], judge=judge)
    title = f"a sentence of {LENGTH} tokens through MiniLM"
    return Workload(title, f"cosine, same nearest of {len(sentences)} sentences", float_network.makers())
