"""The int8 encoder of a language model, as plain JAX code around jquant's operators.

Reads the weights of the ONNX file in the package `traceforge-title-model` (FLAN-T5 small, trained further to write titles,
with dynamically quantized products), and runs 20 sentences about software through the encoder below and through
onnxruntime. Prints how the two agree, sentence by sentence, and how long they take; draws both, and how similar the
sentences are.

    pip install ".[models]"
    python examples/title_encoder.py --output title_encoder.png
"""

import argparse
import importlib.resources
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure  # without pyplot, it draws with Agg and needs no display
from tokenizers import Tokenizer
from tqdm import tqdm, trange

import jquant

HEADS, BUCKETS, NEAREST, FARTHEST = 6, 16, 8, 128  # the graph's constants, as are EPSILON and those of `jax.nn.gelu`
EPSILON = 1e-6
SENTENCES = {
    "crashes": (
        "The program crashes with a segmentation fault when the configuration file is empty.",
        "Opening a very large file makes the editor freeze and then exit without a message.",
        "The server dies with an out of memory error after two days under load.",
        "Saving a project whose name contains an accent raises an exception.",
    ),
    "speed": (
        "Start-up takes eight seconds because every plugin is loaded at once.",
        "Cache the compiled regular expressions, so that parsing the log is three times faster.",
        "The query became slow after we removed the index on the customer table.",
        "Render only the rows that are visible, which makes scrolling smooth again.",
    ),
    "documentation": (
        "Explain in the manual how to install the package without network access.",
        "The example in the tutorial does not run with the current release.",
        "Fix two broken links and a spelling mistake in the readme.",
        "Describe every option of the command line with its default value.",
    ),
    "tests": (
        "The integration tests fail at random because they depend on the time of day.",
        "Run the test suite on Windows and on macOS as well.",
        "Add a regression test for the parser of dates in leap years.",
        "Replace the mocked database by a real one in a temporary folder.",
    ),
    "security": (
        "Passwords must never be written to the log file.",
        "Escape the user name before it is inserted into the page, which prevents cross-site scripting.",
        "Update the encryption library to the version without the published vulnerability.",
        "Sessions have to expire after thirty minutes without activity.",
    ),
}


class Linear(NamedTuple):
    """One or more products of the same input, side by side: each column keeps the scale of its own matrix."""

    weight: jquant.PackedMatrix  # int8 (1, inputs, outputs)
    scale: jax.Array  # float32 (outputs,)


class Table(NamedTuple):
    rows: jax.Array  # uint8
    scale: jax.Array
    zero_point: jax.Array


class Block(NamedTuple):
    attention_norm: jax.Array  # float32 (1, 1, width), as the other norms
    query_key_value: Linear
    attention_output: Linear
    feed_forward_norm: jax.Array
    feed_forward_input: Linear  # the gate and what it is multiplied with
    feed_forward_output: Linear


class Encoder(NamedTuple):
    embedding: Table
    position_bias: Table
    blocks: tuple[Block, ...]
    norm: jax.Array


def model_folder() -> Path:
    return Path(str(importlib.resources.files("traceforge_title_model") / "data" / "span"))


def load_encoder(graph: onnx.GraphProto) -> Encoder:
    """The graph's weights in the order of the code below."""
    values = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    products = [node for node in graph.node if node.op_type == "MatMulInteger"]
    matrices = {node.name: node.input[1].removesuffix("_quantized") for node in products}

    def linear(layer: str, *names: str) -> Linear:
        chosen = [matrices[f"/enc/block.{layer}/{name}/MatMul_quant"] for name in names]
        weights = [values[f"{matrix}_quantized"] for matrix in chosen]  # whose zero points are 0
        scales = [values[f"{matrix}_scale"] for matrix in chosen]
        scale = np.repeat(scales, [weight.shape[1] for weight in weights])
        return Linear(jquant.pack_matrix(np.concatenate(weights, axis=1)[None]), jnp.asarray(scale))

    def table(name: str) -> Table:
        return Table(*(jnp.asarray(values[f"enc.{name}.weight_{part}"]) for part in ("quantized", "scale", "zero_point")))

    def norm(name: str) -> jax.Array:
        return jnp.asarray(values[f"enc.{name}layer_norm.weight"])[None, None]

    blocks = []
    for index in tqdm(range(len(products) // 7), desc="packing weights", unit="block"):
        attention, feed_forward = f"{index}/layer.0/SelfAttention", f"{index}/layer.1/DenseReluDense"
        blocks.append(
            Block(
                norm(f"block.{index}.layer.0."),
                linear(attention, "q", "k", "v"),
                linear(attention, "o"),
                norm(f"block.{index}.layer.1."),
                linear(feed_forward, "wi_0", "wi_1"),
                linear(feed_forward, "wo"),
            )
        )
    position_bias = table("block.0.layer.0.SelfAttention.relative_attention_bias")
    return Encoder(table("embed_tokens"), position_bias, tuple(blocks), norm("final_"))


def look_up(table: Table, indices: jax.Array | np.ndarray) -> jax.Array:
    return jquant.dequantize_linear(table.rows[indices], table.scale, table.zero_point)


def root_mean_square_norm(x: jax.Array, weight: jax.Array) -> jax.Array:
    return weight * (x * (1 / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + EPSILON)))


def linear(layer: Linear, x: jax.Array, integers: list[jax.Array]) -> jax.Array:
    """Quantizes `x` by the range that it has, multiplies, and returns to float32; notes the integers."""
    quantized = jquant.dynamic_quantize_linear(x)
    integers.append(quantized.output)
    return jquant.matmul_integer_to_float(*quantized, layer.weight, layer.scale, None)


def position_buckets(length: int) -> np.ndarray:
    """Of each query and key, the row of the table of biases: near distances have their own, farther ones share."""
    distance = np.arange(length)[None, :] - np.arange(length)[:, None]
    near = np.abs(distance)
    logarithm = np.log(np.maximum(near, 1).astype(np.float32) / np.float32(NEAREST)) / np.float32(np.log(FARTHEST / NEAREST))
    far = np.minimum(NEAREST + (logarithm * np.float32(BUCKETS - NEAREST)).astype(np.int64), BUCKETS - 1)
    return np.where(distance > 0, BUCKETS, 0) + np.where(near < NEAREST, near, far)


def attention_bias(table: Table, mask: jax.Array) -> jax.Array:
    """Of every head, query and key: what the distance adds to the score, and that padding is not attended to."""
    by_distance = jnp.transpose(look_up(table, position_buckets(mask.shape[1])), (2, 0, 1))[None]
    return by_distance + ((1 - mask.astype(jnp.float32)) * jnp.finfo(jnp.float32).min)[:, None, None]


@jax.named_scope("attend")
def attend(query: jax.Array, key: jax.Array, value: jax.Array, bias: jax.Array) -> jax.Array:
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) + bias  # T5 does not divide by the root of the width
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value)


def attention(block: Block, x: jax.Array, bias: jax.Array, integers: list[jax.Array]) -> jax.Array:
    batch, length, _ = x.shape
    projected = linear(block.query_key_value, x, integers)
    query, key, value = jnp.moveaxis(projected.reshape(batch, length, 3, HEADS, -1), 2, 0)
    return linear(block.attention_output, attend(query, key, value, bias).reshape(batch, length, -1), integers)


def feed_forward(block: Block, x: jax.Array, integers: list[jax.Array]) -> jax.Array:
    gate, value = jnp.split(linear(block.feed_forward_input, x, integers), 2, axis=-1)
    return linear(block.feed_forward_output, jax.nn.gelu(gate) * value, integers)


@jax.jit
def encode_with_integers(encoder: Encoder, tokens: jax.Array, mask: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
    """The last hidden state, of shape (sentences, length, width), and the uint8 input of each of the 32 products."""
    integers: list[jax.Array] = []
    x = look_up(encoder.embedding, tokens)
    bias = attention_bias(encoder.position_bias, mask)
    for block in encoder.blocks:
        x = x + attention(block, root_mean_square_norm(x, block.attention_norm), bias, integers)
        x = x + feed_forward(block, root_mean_square_norm(x, block.feed_forward_norm), integers)
    return root_mean_square_norm(x, encoder.norm), integers


@jax.jit
def encode(encoder: Encoder, tokens: jax.Array, mask: jax.Array) -> jax.Array:
    """The last hidden state alone."""
    return encode_with_integers(encoder, tokens, mask)[0]


@jax.jit
def encode_each(encoder: Encoder, tokens: jax.Array, mask: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
    """`encode_with_integers`, of each sentence by itself: its ranges are its own, whatever stands beside it."""
    each = jax.vmap(encode_with_integers, in_axes=(None, 0, 0))
    return jax.tree.map(lambda x: x[:, 0], each(encoder, tokens[:, None], mask[:, None]))


def tokenize(sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """int64 token indices and mask, as the graph takes them, padded to the longest sentence."""
    encodings = Tokenizer.from_file(str(model_folder() / "tokenizer.json")).encode_batch(list(sentences))
    return np.array([encoding.ids for encoding in encodings]), np.array([encoding.attention_mask for encoding in encodings])


def onnxruntime_session(path: Path, exposed: Sequence[str] = (), optimised: bool = True) -> onnxruntime.InferenceSession:
    """With as many threads as XLA takes, which do not spin between calls; `exposed` are outputs beside the graph's own."""
    model = onnx.load(path)
    model.graph.output.extend(map(onnx.helper.make_empty_tensor_value_info, exposed))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(session: onnxruntime.InferenceSession, tokens: np.ndarray, mask: np.ndarray) -> list[np.ndarray]:
    return session.run(None, {"input_ids": tokens, "attention_mask": mask})


def run_each(session: onnxruntime.InferenceSession, tokens: np.ndarray, mask: np.ndarray) -> list[np.ndarray]:
    """Of each sentence by itself."""
    results = [run(session, tokens[[index]], mask[[index]]) for index in range(len(tokens))]
    return [np.concatenate(outputs) for outputs in zip(*results, strict=True)]


def cosines(actual: np.ndarray, expected: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Of each sentence, over its tokens without the padding."""
    actual, expected = (np.where(mask[..., None], x, 0).reshape(len(x), -1).astype(np.float64) for x in (actual, expected))
    return np.sum(actual * expected, 1) / (np.linalg.norm(actual, axis=1) * np.linalg.norm(expected, axis=1))


def similarities(hidden: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Cosines of the mean tokens of the sentences, seen from the mean of all sentences."""
    mean = np.sum(hidden * mask[..., None], 1) / mask.sum(1, keepdims=True)
    mean -= mean.mean(0)
    mean /= np.linalg.norm(mean, axis=1, keepdims=True)
    return mean @ mean.T


def median_milliseconds(calls: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Of calls that take turns, so that what else the machine does falls on all of them."""
    times = np.empty((rounds, len(calls)))
    for call in calls:
        call()
    for index in trange(rounds, desc="timing", unit="round"):
        for place, call in enumerate(calls):
            start = time.perf_counter()
            call()
            times[index, place] = 1e3 * (time.perf_counter() - start)
    return np.median(times, axis=0).tolist()


def draw_similarities(axes: Axes, similarity: np.ndarray) -> None:
    image = axes.imshow(similarity, cmap="RdBu_r", vmin=-0.5, vmax=0.5)
    lines = np.cumsum([len(sentences) for sentences in SENTENCES.values()])
    for line in lines[:-1] - 0.5:
        axes.axhline(line, color="white", linewidth=2)
        axes.axvline(line, color="white", linewidth=2)
    labels = [sentence if len(sentence) < 48 else sentence[:46] + " …" for group in SENTENCES.values() for sentence in group]
    axes.set_yticks(range(len(labels)), labels, fontsize=7)
    axes.set_xticks(lines - 2.5, SENTENCES, fontsize=9)
    axes.set_title("How similar the sentences are to the encoder", fontsize=11)
    axes.figure.colorbar(image, ax=axes, shrink=0.7, label="cosine of the mean tokens, less the mean of all", extend="both")


def draw_agreement(axes: Axes, differing: np.ndarray) -> None:
    image = axes.imshow(100 * np.ma.masked_equal(differing, 0), cmap="viridis", norm=LogNorm(1e-3, 100), aspect="auto")
    for block in range(1, differing.shape[1] // 4):
        axes.axvline(4 * block - 0.5, color="#dddddd", linewidth=0.7)
    axes.set_xticks(np.arange(1.5, differing.shape[1], 4), [f"{block + 1}" for block in range(differing.shape[1] // 4)])
    axes.set(xlabel="product, by blocks of four", yticks=[])
    axes.set_title("The uint8 inputs of the 32 products that\ndiffer from onnxruntime's (white: none)", fontsize=11)
    axes.figure.colorbar(image, ax=axes, shrink=0.7, label="%")


def draw_latencies(axes: Axes, latencies: dict[str, list[float]]) -> None:
    for offset, (label, colour, place) in zip(
        (-0.2, 0.2), (("jquant", "#D55E00", 0), ("onnxruntime", "#0072B2", 1)), strict=True
    ):
        bars = axes.barh(np.arange(len(latencies)) + offset, [pair[place] for pair in latencies.values()], 0.4, color=colour)
        axes.bar_label(bars, fmt=f" %.1f  {label}", fontsize=8)
    axes.set_yticks(range(len(latencies)), latencies)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set(xlabel="milliseconds, median")
    axes.set_title("How long it takes", fontsize=11)


def draw(path: Path, similarity: np.ndarray, differing: np.ndarray, latencies: dict[str, list[float]]) -> None:
    figure = Figure(figsize=(15, 8), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(3.6, 1))
    left, right = top.subplots(1, 2, width_ratios=(1.5, 1))
    draw_similarities(left, similarity)
    draw_agreement(right, differing)
    draw_latencies(bottom.subplots(), latencies)
    figure.savefig(path, dpi=150, bbox_inches="tight", pad_inches=0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description="The int8 encoder of a language model, beside onnxruntime.")
    parser.add_argument("--output", type=Path, default=Path("title_encoder.png"), help="the PNG to write")
    parser.add_argument("--rounds", type=int, default=30, help="of the timing")
    arguments = parser.parse_args()

    path = model_folder() / "encoder.onnx"
    graph = onnx.load(path).graph
    encoder = load_encoder(graph)
    sentences = [sentence for group in SENTENCES.values() for sentence in group]
    tokens, mask = tokenize(sentences)
    optimised = onnxruntime_session(path)

    hidden, integers = jax.device_get(encode_each(encoder, tokens, mask))
    quantized = [node.output[0] for node in graph.node if node.op_type == "DynamicQuantizeLinear"]
    expected, *their_integers = run_each(onnxruntime_session(path, quantized, optimised=False), tokens, mask)
    differing = np.stack([np.mean(a != b, axis=(1, 2)) for a, b in zip(integers, their_integers, strict=True)], axis=1)
    cosine = cosines(hidden, expected, mask)
    print(f"{'sentence':<34}{'first product whose input differs':>36}{'inputs that differ':>22}{'1 - cosine':>14}")
    for sentence, shares, similarity in zip(sentences, differing, cosine, strict=True):
        first = f"{np.flatnonzero(shares)[0] + 1} of {shares.size}" if shares.any() else "none"
        print(f"{sentence[:32]:<34}{first:>36}{np.mean(shares):>22.2%}{1 - similarity:>14.1e}")
    (optimised_output,) = run_each(optimised, tokens, mask)
    for name, found in ("jquant", cosine), ("onnxruntime, optimised", cosines(optimised_output, expected, mask)):
        print(f"{name}: cosines with onnxruntime node by node from {found.min():.4f}, {np.median(found):.6f} in the median")

    latencies = {}
    one, all = ((tokens[:count], mask[:count]) for count in (1, len(tokens)))
    for title, function, operands, session_run in (
        ("1 sentence", encode, one, run),
        (f"{len(tokens)} sentences, each with its ranges", encode_each, all, run_each),
        (f"{len(tokens)} sentences, one range for all", encode, all, run),
    ):
        on_device = jax.device_put(operands)
        calls = {
            "jquant": lambda function=function, operands=on_device: jax.block_until_ready(function(encoder, *operands)),
            "onnxruntime": lambda session_run=session_run, operands=operands: session_run(optimised, *operands),
        }
        latencies[title] = median_milliseconds([*calls.values()], arguments.rounds)
        print(f"{title}: " + ", ".join(f"{name} {time:.2f} ms" for name, time in zip(calls, latencies[title], strict=True)))
    draw(arguments.output, similarities(hidden, mask), differing, latencies)


if __name__ == "__main__":
    main()
