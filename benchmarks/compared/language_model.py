"""A token of SmolLM2-135M, whose file has 4 bits a weight."""

import functools
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.accuracy import texts
from benchmarks.compared.workload import (
    FLOAT32,
    LLAMA_CPP,
    NATIVE,
    ONNXRUNTIME,
    QWIX,
    WITHOUT,
    Entry,
    Workload,
    jax_entry,
)
from benchmarks.contestant import Unavailable
from jquant import transform

sys.path.append(str(Path(__file__).parents[2] / "examples"))

WINDOW, WINDOWS = 256, 4  # tokens that are judged
STEPS = 32  # tokens of a call, read one by one


def workload() -> Workload:
    import smollm

    config, params, matrices, tokenizer = smollm.load()
    text = np.array(tokenizer.encode(texts.read(texts.EVALUATION)).ids, np.int32)
    windows = text[: len(text) // WINDOW * WINDOW].reshape(-1, WINDOW)
    windows = windows[np.linspace(0, len(windows) - 1, WINDOWS).astype(int)]
    read = windows[0, : STEPS + 1]
    in_float32 = functools.partial(smollm.forward, config)

    def logits_by(apply: Callable, params: dict, dtype: str) -> np.ndarray:
        run, cache = jax.jit(apply), smollm.empty_cache(config, WINDOW, dtype)
        return np.stack([np.asarray(run(params, jnp.asarray(window), cache, jnp.int32(0))[0]) for window in windows])

    expected = logits_by(in_float32, params, "FLOAT32")

    def quality(logits: np.ndarray) -> str:
        logits = np.float64(logits)
        largest = logits.max(-1, keepdims=True)
        normalizer = (largest + np.log(np.exp(logits - largest).sum(-1, keepdims=True)))[:, :-1, 0]
        losses = normalizer - np.take_along_axis(logits[:, :-1], windows[:, 1:, None], -1)[..., 0]
        return f"{np.exp(losses.mean()):.2f}, {np.mean(logits.argmax(-1) == expected.argmax(-1)):.0%}"

    def entry(contestant: str, apply: Callable, params: dict, dtype: str) -> Entry:
        """Reads tokens in one compiled loop."""
        cache = smollm.empty_cache(config, len(read), dtype)
        function = functools.partial(smollm.write.__wrapped__, apply)
        operands = params, jnp.asarray(read), jnp.int32(len(read)), cache
        return jax_entry(contestant, function, operands, lambda program: quality(logits_by(apply, params, dtype)))

    @functools.cache
    def quantized() -> tuple[Callable, dict]:
        scheme = transform.Scheme(weight_type="UINT4", block_size=32, scale_type="FLOAT16", activations="DYNAMIC_ROW")
        return smollm.quantize(config, params, scheme, matrices)

    def ours(contestant: str) -> Entry:
        return entry(contestant, *quantized(), "INT8")

    def llama() -> Entry:
        try:
            from benchmarks.models.llama import Engine
        except ModuleNotFoundError as error:
            raise Unavailable("llama-cpp-python is not installed") from error
        start = time.perf_counter()
        engine = Engine(smollm.FILE, WINDOW)
        seconds = time.perf_counter() - start
        judged = quality(np.stack([engine.logits(window) for window in windows]))
        return Entry(functools.partial(engine.follow, read[:STEPS].tolist()), seconds, judged)

    makers = {
        FLOAT32: functools.partial(entry, FLOAT32, in_float32, params, "FLOAT32"),
        WITHOUT: functools.partial(ours, WITHOUT),
        NATIVE: functools.partial(ours, NATIVE),
        ONNXRUNTIME: "its files of language models are written by a tool that needs PyTorch and a checkpoint",
        LLAMA_CPP: llama,
        QWIX: "it quantizes modules of Flax, and this network is a function with a cache",
    }
    return Workload("a token of SmolLM2-135M, 4 bits", "perplexity, same next token", makers, steps=STEPS, share=0.25)
