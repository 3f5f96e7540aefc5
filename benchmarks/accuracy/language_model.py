"""SmolLM2-135M, dequantized from its 4-bit file: the model of examples/smollm.py, without a cache."""

import functools
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.accuracy import texts
from benchmarks.accuracy.network import Network
from jquant import transform

sys.path.append(str(Path(__file__).parents[2] / "examples"))

WINDOW = 256  # tokens, each window on its own
BATCH = 4  # windows
BATCHES = {"calibration": 8, "evaluation": 2}
# As the file has it: the table's numbers stay what they are.
TABLE = transform.Scheme(weight_type="INT8", block_size=32, scale_type="FLOAT16", activations="FLOAT")


def run(
    config: Any, params: dict, tokens: jax.Array, observe: Callable[[jax.Array], Any]
) -> tuple[jax.Array, dict[str, Any]]:
    """The logits after each token of each window; queries, keys and values, and gate and up, are one matrix each."""
    import smollm

    windows, length = tokens.shape
    positions = jnp.tile(jnp.arange(length), windows)
    groups = config.heads // config.key_heads
    is_visible = jnp.tril(jnp.ones((length, length), bool))

    def step(x: jax.Array, weights: dict) -> tuple[jax.Array, dict[str, Any]]:
        observed = {}

        def product(x: jax.Array, name: str) -> jax.Array:
            observed[name] = observe(x)
            return x @ weights[name]

        mixed = product(smollm.normalized(x, weights["attention_norm"], config.epsilon), "attention")
        parts = mixed.reshape(windows * length, -1, config.width)
        turned = smollm.rotated(parts[:, : -config.key_heads], positions, config.rope_base)
        queries = turned[:, : config.heads].reshape(windows, length, config.key_heads, groups, config.width)
        keys = turned[:, config.heads :].reshape(windows, length, config.key_heads, config.width)
        values = parts[:, -config.key_heads :].reshape(windows, length, config.key_heads, config.width)
        scores = jnp.einsum("btkgd,bskd->bkgts", queries, keys) / np.sqrt(np.float32(config.width))
        weighted = jax.nn.softmax(jnp.where(is_visible, scores, -jnp.inf))
        attended = jnp.einsum("bkgts,bskd->btkgd", weighted, values).reshape(windows * length, -1)
        x = x + product(attended, "attention_output")
        gate, up = jnp.split(product(smollm.normalized(x, weights["forward_norm"], config.epsilon), "forward"), 2, -1)
        return x + product(jax.nn.silu(gate) * up, "forward_output"), observed

    x, observed = lax.scan(step, params["tokens"][tokens.reshape(-1)], params["layers"])
    logits = smollm.normalized(x, params["output_norm"], config.epsilon) @ params["tokens"].T
    return logits.reshape(windows, length, -1), observed


@jax.jit
def _compared(expected: jax.Array, logits: jax.Array, tokens: jax.Array) -> jax.Array:
    """For each token after the first of a window: its loss in either network, and the KL divergence before it."""
    expected, actual = jax.nn.log_softmax(expected[:, :-1]), jax.nn.log_softmax(logits[:, :-1])
    losses = [-jnp.take_along_axis(x, tokens[:, 1:, None], axis=-1)[..., 0] for x in (expected, actual)]
    return jnp.stack([*losses, jnp.sum(jnp.exp(expected) * (expected - actual), axis=-1)]).reshape(3, -1)


def figures(batches: list[jax.Array], expected: Iterable[jax.Array], logits: Iterable[jax.Array]) -> dict[str, str]:
    compared = [np.asarray(_compared(*arguments)) for arguments in zip(expected, logits, batches, strict=True)]
    own, other, divergence = np.concatenate(compared, axis=-1).astype(np.float64)
    difference = other - own
    error = difference.std(ddof=1) / np.sqrt(difference.size)
    return {
        "perplexity": f"{np.exp(other.mean()):.3f}",
        "nats above float (standard error)": f"{difference.mean():.4f} ({error:.4f})",
        "KL divergence": f"{divergence.mean():.5f}",
    }


def load() -> Network:
    import smollm

    loaded = smollm.load()

    def batches(topics: tuple[str, ...], count: int) -> list[jax.Array]:
        """Windows that are spread evenly over a text."""
        tokens = np.array(loaded.tokenizer.encode(texts.read(topics)).ids, np.int32)
        windows = tokens[: len(tokens) // WINDOW * WINDOW].reshape(-1, WINDOW)
        chosen = np.linspace(0, len(windows) - 1, count * BATCH).astype(int)
        assert len(set(chosen)) == len(chosen)
        return list(jnp.asarray(windows[chosen].reshape(count, BATCH, WINDOW)))

    calibration = batches(texts.CALIBRATION, BATCHES["calibration"])
    evaluation = batches(texts.EVALUATION, BATCHES["evaluation"])
    return Network(
        name="SmolLM2-135M (its Q4_1 file, dequantized, is the float model)",
        notes=(
            f"{len(evaluation) * BATCH} windows of {WINDOW} tokens are measured, from {texts.described(texts.EVALUATION)}.",
            f"Calibration: {len(calibration) * BATCH} windows, from {', '.join(texts.CALIBRATION)}.",
            "The 120 matrices of the layers are quantized, 4 in each of the 30: queries, keys and values are joined, as are "
            "gate and up. The table of tokens, which is also the head, has the int8 of the file everywhere, without loss.",
        ),
        run=functools.partial(run, loaded.config),
        params=loaded.params,
        matrices={name: ("layers", name) for name in smollm.MATRICES},
        others=(("tokens*", TABLE),),
        calibration=calibration,
        evaluation=evaluation,
        figures=functools.partial(figures, evaluation),
    )
